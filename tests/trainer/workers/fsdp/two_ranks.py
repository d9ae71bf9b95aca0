"""Scenes that need two ranks. One pair of processes plays them all, since a process takes seconds to start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError
from rltrain.workers.fsdp import models as loaded_models
from rltrain.workers.fsdp.rank import RankInfo, connect, disconnect
from rltrain.workers.fsdp.split import actor_minis
from rltrain.workers.fsdp.spread import read_once, spread_parameters
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.ensemble import Scene, agreed_port, play_all
from tests.trainer.workers.fsdp.models import random_batch, without_weights

WORLD_SIZE = 2
PLAIN = {"use_kl_loss": False}
"""The actor alone."""


def train_qwen2(where: Path, rank: int, port: int) -> Any:
    config = make_config(where / "qwen2", world_size=WORLD_SIZE)
    return scenes.train(config, rank, WORLD_SIZE, port)


def train_opt_by_tokens(where: Path, rank: int, port: int) -> Any:
    """Micro batches by tokens, padded rows, three mini batches for two ranks: numbers of passes differ by rank."""
    keys = {"use_dynamic_bsz": True, "ppo_max_token_len_per_gpu": 40, "ppo_mini_batch_size": 1}
    config = make_config(where / "opt-projected", world_size=WORLD_SIZE, packed=False, actor=keys, critic=keys)
    with scenes.worker(config, rank, WORLD_SIZE, port) as worker:
        return scenes.Run(worker, config, rank, WORLD_SIZE).steps(0, 4)


def resume(where: Path, rank: int, port: int) -> Any:
    """Three steps, a checkpoint, three steps; then the last three again, from the checkpoint, in a new worker."""
    config = make_config(where / "qwen2", world_size=WORLD_SIZE)
    with scenes.worker(config, rank, WORLD_SIZE, port) as worker:
        run = scenes.Run(worker, config, rank, WORLD_SIZE)
        run.steps(0, 2)
        worker.end_sft()
        run.step(2)
        digests = worker.save(where / "checkpoint")
        torch.rand(1 + rank)
        drawn = torch.get_rng_state()
        first = (run.steps(3, 6), worker.parameter_hash(), scenes.full(worker), worker.weight_pieces())
    with scenes.worker(config, rank, WORLD_SIZE, agreed_port(where / "port", rank)) as worker:
        worker.load(where / "checkpoint")
        torch.rand(1 + rank)
        same_random = torch.equal(drawn, torch.get_rng_state())
        run = scenes.Run(worker, config, rank, WORLD_SIZE)
        again = (run.steps(3, 6), worker.parameter_hash(), scenes.full(worker))
        worker.export(where / "exported")
    return {"first": first, "again": again, "same_random": same_random, "digests": digests}


def one_rank_nan(where: Path, rank: int, port: int) -> Any:
    """One row of the first mini batch is not a number: it reaches one rank, and no rank may step."""
    config = make_config(where / "llama", world_size=WORLD_SIZE)
    with scenes.worker(config, rank, WORLD_SIZE, port) as worker:
        batch = scenes.Run(worker, config, rank, WORLD_SIZE).experience(0)
        batch["advantages"][0, 0] = torch.nan
        minis = actor_minis(batch, config, 0, WORLD_SIZE)[rank]
        before = worker.parameter_hash()
        bad = worker.update_actor(minis[:1])
        untouched = worker.parameter_hash() == before
        good = worker.update_actor(minis[1:])
        return {"bad": bad, "good": good, "untouched": untouched, "moved": worker.parameter_hash() != before}


def captured(where: Path, rank: int, port: int) -> Any:
    """Steps that are watched, whole and by the first 40 numbers of each tensor; one that is not, and is skipped."""
    config = make_config(where / "llama", world_size=WORLD_SIZE, actor={"use_kl_loss": True})
    found: dict[str, Any] = {}
    with scenes.worker(config, rank, WORLD_SIZE, port) as worker:
        run = scenes.Run(worker, config, rank, WORLD_SIZE)
        for number, elements in enumerate((None, 40)):
            before, pieces = scenes.full(worker), worker.begin_capture(elements, ["model.norm.weight"])
            metrics = run.step(number)
            ended = worker.end_capture(elements, ["model.norm.weight"], [0, 1, 2, 3] if elements else None)
            found[str(elements)] = (before, scenes.full(worker), pieces, ended, metrics)
        batch = run.experience(2)
        batch["advantages"][0, 0] = torch.nan
        worker.update_actor(actor_minis(batch, config, 2, WORLD_SIZE)[rank][:1])
        found["late"] = (scenes.full(worker), worker.end_capture(40, [], None))
    return found


def one_row(where: Path, rank: int, port: int) -> Any:
    """A batch of one row: one rank has nothing, and takes part all the same."""
    config = make_config(where / "llama", world_size=WORLD_SIZE)
    with scenes.worker(config, rank, WORLD_SIZE, port) as worker:
        run = scenes.Run(worker, config, rank, WORLD_SIZE)
        one = {name: tensor[:1] for name, tensor in run.experience(0).items()}
        mine = scenes.shards(one, config, WORLD_SIZE)[rank][1]
        audit = worker.recompute_log_probs(mine)
        metrics = worker.update_actor(actor_minis(one, config, 0, WORLD_SIZE)[rank])
        return {"rows": len(mine["input_ids"]), "audit": audit, "metrics": metrics}


def lost_gradient(where: Path, rank: int, port: int) -> Any:
    """Rank 1's gradient: sent, then zeroed on its way, then never there."""
    config = make_config(where / "llama", world_size=WORLD_SIZE)
    with scenes.worker(config, rank, WORLD_SIZE, port) as worker:
        minis = actor_minis(scenes.Run(worker, config, rank, WORLD_SIZE).experience(0), config, 0, WORLD_SIZE)[rank]
        sound = worker.update_actor(minis[:1])
        steps = worker.optimizer_steps()
        comm = worker._models["actor"].gradient_comm
        assert comm is not None
        timed, called = comm._timed, type(comm).__call__
        comm._timed = lambda out, sent, *rest: timed(out, sent * 0 if rank else sent, *rest)
        lost = worker.update_actor(minis[:1])
        comm._timed = timed
        with pytest.MonkeyPatch.context() as patch:
            silent = lambda self, output_tensor, input_tensor, group, op, async_op=False: called(  # noqa: E731
                self, output_tensor, input_tensor * 0 if rank else input_tensor, group, op, async_op
            )
            patch.setattr(type(comm), "__call__", silent)
            none = worker.update_actor(minis[:1])
        worker._models["actor"].trainer().optimizer.state.clear()
        return {"sound": sound, "lost": lost, "silent": none, "steps": steps, "emptied": worker.optimizer_steps()}


def supervised(where: Path, rank: int, port: int) -> Any:
    """Three rows dealt to two ranks."""
    config = make_config(where / "llama", world_size=WORLD_SIZE, sft_warmup={"steps": 2, "lr": 1e-3})
    rows = sft_rows()
    with scenes.worker(config, rank, WORLD_SIZE, port) as worker:
        return [worker.sft_step(rows[rank::WORLD_SIZE]) for _ in range(2)]


def damaged(where: Path, rank: int, port: int) -> Any:
    """A file of the checkpoint is cut short: every rank says so, and none waits for the others."""
    config = make_config(where / "qwen2", world_size=WORLD_SIZE)
    if rank == 0:
        file = where / "checkpoint" / "actor" / "__1_0.distcp"
        (where / "kept").write_bytes(file.read_bytes())
        file.write_bytes(file.read_bytes()[:-7])
    with scenes.worker(config, rank, WORLD_SIZE, port) as worker:
        try:
            worker.load(where / "checkpoint")
        except UserError as error:
            return str(error)
        finally:
            torch.distributed.barrier()
            if rank == 0:
                (where / "kept").replace(where / "checkpoint" / "actor" / "__1_0.distcp")
    return "loaded"


READERS = {"qwen2": {"model_dtype": "bfloat16"}, "opt-projected": {"offload_policy": True}, "qwen2-window": {}}


def reading(model: Path, scorer: Path, world_size: int = 1) -> RunConfig:
    """All four roles, the actor as READERS has it."""
    fsdp = {"fsdp_config": {"dtype": "float32", **READERS[model.name]}}
    rewards = {"enable": True, "model": {"path": str(scorer)}}
    return make_config(model, world_size=world_size, actor=fsdp, critic=fsdp, reward_model=rewards)


def one_rank_reads(where: Path, rank: int, port: int) -> Any:
    """Rank 1 has no files of weights."""
    found: dict[str, Any] = {}
    for number, shape in enumerate(READERS):
        paths = [where / shape, where / "scorer"]
        if rank == 1:
            paths = [without_weights(path, where / f"bare{number}") for path in paths]
        port = agreed_port(where / f"port{number}", rank)
        found[shape] = scenes.read_all(reading(*paths, WORLD_SIZE), rank, WORLD_SIZE, port)
    return found


def one_rank_is_refused(where: Path, rank: int, port: int) -> Any:
    """Rank 0 cannot read: every rank says so."""
    paths = [without_weights(where / shape, where / f"refused{rank}") for shape in ("qwen2", "scorer")]
    found: list[str] = []
    for number, bad in enumerate(([paths[0], where / "scorer"], [where / "qwen2", paths[1]])):
        config = reading(*bad, WORLD_SIZE)
        try:
            with scenes.worker(config, rank, WORLD_SIZE, agreed_port(where / f"refused-port{number}", rank)):
                found.append("loaded")
        except UserError as error:
            found.append(str(error))
    return found


def other_tensors(where: Path, rank: int, port: int) -> Any:
    """Ranks whose models differ: in types, which are rank 0's to say, and in shapes."""
    connect(RankInfo(rank, WORLD_SIZE, "127.0.0.1", port, "cpu"), timeout_s=30)
    try:
        same = read_once(lambda: nn.Linear(2, 2, dtype=torch.float64), lambda: nn.Linear(2, 2))
        spread_parameters(same, torch.device("cpu"), lambda parameter: parameter.data)
        try:
            read_once(lambda: nn.Linear(2, 2), lambda: nn.Linear(2, 3))
        except UserError as error:
            return {"weight": same.weight.detach(), "error": str(error)}
    finally:
        disconnect()
    return "loaded"


def memory(where: Path, rank: int, port: int) -> Any:
    """By how much a rank's peak of memory grows as it loads, in bytes. The first scene: others leave higher peaks."""
    peaks_kb: list[int] = []
    prove = loaded_models.prove_policy

    def loaded(*args: Any) -> None:  # before the first pass, which proves packing
        peaks_kb.append(_peak_kb())
        prove(*args)

    loaded_models.prove_policy = loaded
    try:
        for shape in ("llama", "large"):  # the small one for what libraries load at their first use
            config = make_config(where / shape, world_size=WORLD_SIZE, actor=PLAIN, critic={"enable": False})
            with scenes.worker(config, rank, WORLD_SIZE, agreed_port(where / f"memory-{shape}", rank)):
                pass
    finally:
        loaded_models.prove_policy = prove
    return (peaks_kb[1] - peaks_kb[0]) * 1024


def _peak_kb() -> int:
    """This process's largest resident memory so far. (`getrusage` counts its parent's, too.)"""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
    return int(line.split()[1])


def sft_rows() -> list[tuple[list[int], list[int]]]:
    """(input_ids, labels) of three rows; labels of prompts are -100."""
    batch = random_batch(3, seed=5)
    rows: list[tuple[list[int], list[int]]] = []
    for ids, real, response in zip(batch["input_ids"], batch["attention_mask"], batch["response_mask"], strict=True):
        tokens = ids[real].tolist()
        num_prompt = len(tokens) - int(response.sum())
        rows.append((tokens, [-100] * num_prompt + tokens[num_prompt:]))
    return rows


SCENES: dict[str, Scene] = {
    scene.__name__: scene
    for scene in (
        memory,
        train_qwen2,
        train_opt_by_tokens,
        resume,
        one_rank_nan,
        captured,
        one_row,
        lost_gradient,
        supervised,
        damaged,
        one_rank_reads,
        one_rank_is_refused,
        other_tensors,
    )
}


def play(where: Path) -> list[dict[str, Any]]:
    """The results of all scenes, by rank. WHERE holds the models."""
    return play_all(SCENES, where, WORLD_SIZE)
