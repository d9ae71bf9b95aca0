"""Scenes of four ranks, which hold one copy of each model together, or two, or four."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from rltrain.config.schema import RunConfig
from rltrain.workers.fsdp import weights
from rltrain.workers.fsdp.optim import local
from rltrain.workers.fsdp.worker import TrainWorker
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.ensemble import Scene, play_all

NUM_RANKS = 4


def sharded(where: Path, fsdp_size: int, num_ranks: int = NUM_RANKS) -> RunConfig:
    """Actor and critic in shards of FSDP_SIZE ranks, the reference over all of them."""
    section = {"fsdp_config": {"dtype": "float32", "fsdp_size": fsdp_size}}
    return make_config(where / "qwen2", world_size=num_ranks, actor=section, critic=section)


def _trained(where: Path, rank: int, port: int, fsdp_size: int, num_ranks: int = NUM_RANKS) -> dict[str, Any]:
    """Two steps, a checkpoint, two steps. After the first the reference becomes what the actor is."""
    config = sharded(where, fsdp_size, num_ranks)
    with scenes.worker(config, rank, num_ranks, port) as worker:
        run = scenes.Run(worker, config, rank, num_ranks)
        first = run.steps(0, 1)
        worker.end_sft()
        first.append(run.step(1))
        worker.save(where / f"{num_ranks}-ranks-{fsdp_size}")
        parameters = list(worker._models["actor"].model.parameters())
        return {
            "first": first,
            "then": run.steps(2, 4),
            "hash": worker.parameter_hash(),
            "weights": scenes.full(worker),
            "pieces": worker.weight_pieces(),
            "timeouts": [group._get_backend(torch.device("cpu")).options._timeout for group in _groups(worker, config)],
            "share": sum(local(one).numel() for one in parameters) / sum(one.numel() for one in parameters),
        }


def _groups(worker: TrainWorker, config: RunConfig) -> list[dist.ProcessGroup]:
    assert worker._mesh is not None
    return worker._mesh.sharding(config.actor_rollout_ref.actor.fsdp_config).get_all_groups()


def _resumed(where: Path, rank: int, port: int, fsdp_size: int, saved_with: int) -> Any:
    config = sharded(where, fsdp_size)
    with scenes.worker(config, rank, NUM_RANKS, port) as worker:
        worker.load(where / f"{NUM_RANKS}-ranks-{saved_with}")
        return scenes.Run(worker, config, rank, NUM_RANKS).steps(2, 4)


def one_copy(where: Path, rank: int, port: int) -> Any:
    return _trained(where, rank, port, -1)


def two_copies(where: Path, rank: int, port: int) -> Any:
    return _trained(where, rank, port, 2)


def four_copies(where: Path, rank: int, port: int) -> Any:
    return _trained(where, rank, port, 1)


def one_copy_of_two(where: Path, rank: int, port: int) -> Any:
    return _resumed(where, rank, port, -1, 2)


def two_copies_of_one(where: Path, rank: int, port: int) -> Any:
    return _resumed(where, rank, port, 2, -1)


def pair_with_one_copy(where: Path, rank: int, port: int) -> Any:
    """Ranks 0 and 1 alone."""
    return _trained(where, rank, port, -1, 2) if rank < 2 else None


def pair_with_two_copies(where: Path, rank: int, port: int) -> Any:
    return _trained(where, rank, port, 1, 2) if rank < 2 else None


@contextmanager
def _silent(rank: int) -> Iterator[None]:
    """What rank 3 gives to the sum over replicas is lost."""
    called = dist.all_reduce

    def lossy(tensor: torch.Tensor, *args: Any, group: Any = None, **keywords: Any) -> Any:
        if rank == 3 and group is not None:
            tensor.zero_()
        return called(tensor, *args, group=group, **keywords)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dist, "all_reduce", lossy)
        yield


def lost(where: Path, rank: int, port: int) -> Any:
    """A share that never reaches the other copy; then a copy that drifts."""
    config = sharded(where, 2)
    with scenes.worker(config, rank, NUM_RANKS, port) as worker:
        run = scenes.Run(worker, config, rank, NUM_RANKS)
        sound = run.step(0)
        with _silent(rank):
            silent = run.step(1)
        if rank == 3:
            weights.scale(worker._models["actor"].model, 1.001)
        return {"sound": sound, "silent": silent, "pieces": worker.weight_pieces()}


SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        one_copy,
        two_copies,
        four_copies,
        one_copy_of_two,
        two_copies_of_one,
        pair_with_one_copy,
        pair_with_two_copies,
        lost,
    )
}


def play(where: Path) -> list[dict[str, Any]]:
    """The results of all scenes, by rank. WHERE holds the models."""
    return play_all(SCENES, where, NUM_RANKS)
