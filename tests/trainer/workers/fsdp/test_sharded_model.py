"""A model that waits is on the host, as far as its config says; one that works is on its device, whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.overrides import TorchFunctionMode

from rltrain.workers.fsdp import sharded_model
from rltrain.workers.fsdp.sharded_model import HOST, ShardedModel
from rltrain.workers.fsdp.worker import TrainWorker
from tests.trainer.workers.fsdp import scenes, two_ranks
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import random_batch

DEVICE = "cpu:0"
"""To torch the host itself, but another name than "cpu": who asks for which can be told apart."""


class Places(TorchFunctionMode):
    """Where each tensor was last sent to: what `Tensor.device` would say if DEVICE were memory of its own."""

    def __init__(self) -> None:
        super().__init__()
        self._sent: dict[int, tuple[Tensor, str]] = {}

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func is Tensor.to and len(args) > 1 and isinstance(args[1], str | torch.device):
            # The source too: `Module.to` puts what it gets into the parameter that was there.
            self._sent |= {id(tensor): (tensor, str(args[1])) for tensor in (args[0], result)}
        return result

    def of(self, tensors: Iterator[Tensor] | list[Tensor]) -> set[str]:
        """All places of TENSORS. What was never sent is where it was made: on its device."""
        return {self._sent[id(tensor)][1] if id(tensor) in self._sent else DEVICE for tensor in tensors}


def states(sharded: ShardedModel) -> list[Tensor]:
    """What ROLE's optimizer keeps."""
    kept = sharded.trainer().optimizer.state.values() if sharded.stepper else ()
    return [tensor for state in kept for tensor in state.values()]


def models_of(worker: TrainWorker) -> dict[str, ShardedModel]:
    return dict(worker._models)  # pyright: ignore[reportPrivateUsage]


def offloaded(models: Path, scorer: Path, **keys: bool) -> Any:
    fsdp = {"fsdp_config": {"dtype": "float32", **keys}}
    config = make_config(
        models / "qwen2",
        actor=fsdp,
        critic=fsdp,
        reward_model={"enable": True, "model": {"path": str(scorer)}, **fsdp},
        sft_warmup={"steps": 1, "lr": 1e-3},
    )
    ref = config.actor_rollout_ref.ref
    waiting = ref.model_copy(update={"fsdp_config": config.actor_rollout_ref.actor.fsdp_config})
    section = config.actor_rollout_ref.model_copy(update={"ref": waiting})
    return config.model_copy(update={"actor_rollout_ref": section})


@pytest.mark.parametrize("params", [True, False], ids=["parameters away", "parameters stay"])
@pytest.mark.parametrize("optimizer", [True, False], ids=["optimizer away", "optimizer stays"])
def test_each_role_is_on_its_device_while_it_works_and_only_then(
    models: Path, scorer: Path, tmp_path: Path, params: bool, optimizer: bool
) -> None:
    config = offloaded(models, scorer, param_offload=params, optimizer_offload=optimizer)
    at_work: list[tuple[str, str, frozenset[str], frozenset[str]]] = []
    with Places() as places, scenes.worker(config, device=DEVICE) as worker:
        models = models_of(worker)

        def waiting() -> None:
            for sharded in models.values():
                assert places.of(sharded.model.parameters()) == {HOST if params else DEVICE}, sharded.name
                assert places.of(states(sharded)) <= {HOST if optimizer else DEVICE}, sharded.name

        def look(sharded: ShardedModel, doing: str) -> None:
            where = frozenset(places.of(sharded.model.parameters())), frozenset(places.of(states(sharded)))
            at_work.append((sharded.name, doing, *where))
            for other in models.values():
                if other.name != sharded.name:
                    assert not params or places.of(other.model.parameters()) == {HOST}, (sharded.name, other.name)

        def watch(sharded: ShardedModel) -> None:
            def pass_begins(model: nn.Module, _: Any) -> None:
                look(sharded, "update" if model.training else "pass")

            sharded.model.register_forward_pre_hook(pass_begins, prepend=True)  # before FSDP gathers

        for sharded in models.values():
            watch(sharded)
        run = scenes.Run(worker, config)
        batch = random_batch(4, seed=1)
        uses: list[Callable[[], Any]] = [
            lambda: worker.sft_step(two_ranks.sft_rows()),
            worker.end_sft,
            lambda: run.step(0),
            lambda: worker.recompute_log_probs({**batch, **worker.log_probs(batch)}),
            lambda: worker.reward_scores(scenes.CONVERSATIONS),
            lambda: worker.save(tmp_path / "train"),
            lambda: worker.load(tmp_path / "train"),
            lambda: run.step(1),
            lambda: worker.export(tmp_path / "out"),
            worker.parameter_hash,
            lambda: scenes.full(worker),
        ]
        waiting()
        for use in uses:
            use()
            waiting()
    assert {(name, doing) for name, doing, *_ in at_work} == {
        *((name, "pass") for name in ("actor", "ref", "critic", "reward_model")),
        *((name, "update") for name in ("actor", "critic")),
    }
    assert {place for *_, parameters, _ in at_work for place in parameters} == {DEVICE}
    updating = [where for _, doing, _, where in at_work if doing == "update" and where]
    assert updating, "the second update finds what the first has left"
    assert set(updating) == {frozenset({DEVICE})}


def test_where_roles_wait_changes_nothing(models: Path, single: list[dict[str, float]]) -> None:
    keys = {"fsdp_config": {"dtype": "float32", "param_offload": True, "optimizer_offload": True}}
    config = make_config(models / "qwen2", actor=keys, critic=keys)
    with scenes.worker(config) as worker:
        steps = scenes.Run(worker, config).steps(0, 2)
    assert [scenes.timeless(step) for step in steps] == [scenes.timeless(step) for step in single[:2]]


@pytest.mark.parametrize("params", [True, False])
@pytest.mark.parametrize("optimizer", [True, False])
def test_parked_ranks_are_on_the_host_and_go_on_where_they_were(
    models: Path, scorer: Path, params: bool, optimizer: bool, single: list[dict[str, float]]
) -> None:
    config = offloaded(models, scorer, param_offload=params, optimizer_offload=optimizer)
    with Places() as places, scenes.worker(config, device=DEVICE) as worker:
        run, sharded = scenes.Run(worker, config), models_of(worker).values()
        steps = run.steps(0, 1)
        moved = worker.park()
        for one in sharded:
            assert places.of([*one.model.parameters(), *states(one)]) == {HOST}, one.name
        assert moved == sum(each.nbytes for one in sharded for each in on_host(one))
        worker.unpark()
        for one in sharded:
            assert places.of(one.model.parameters()) == {HOST if params else DEVICE}, one.name
            assert places.of(states(one)) <= {HOST if optimizer else DEVICE}, one.name
        steps += run.steps(1, 2)
    assert [scenes.timeless(step) for step in steps] == [scenes.timeless(step) for step in single[:2]]


def on_host(sharded: ShardedModel) -> list[Tensor]:
    """All tensors of SHARDED, this rank's shards of them."""
    tensors = [*sharded.model.parameters(), *sharded.model.buffers(), *states(sharded)]
    return [tensor.to_local() if isinstance(tensor, DTensor) else tensor for tensor in tensors]


def test_an_error_at_work_is_the_one_that_is_seen(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaving would touch a device that has just failed; the next use finds the model all the same."""
    keys = {"fsdp_config": {"dtype": "float32", "param_offload": True, "optimizer_offload": True}}
    config = make_config(models / "qwen2", actor=keys)
    batch = random_batch(4, seed=1)
    with scenes.worker(config) as worker:
        sharded = models_of(worker)["actor"]
        before = worker.log_probs(batch)
        with monkeypatch.context() as broken:
            broken.setattr(ShardedModel, "leave", lambda _: pytest.fail("the device is touched again"))
            hook = sharded.model.register_forward_hook(failing)
            with pytest.raises(RuntimeError, match="the device has failed"):
                worker.log_probs(batch)
            hook.remove()
        after = worker.log_probs(batch)
    assert torch.equal(before["old_log_probs"], after["old_log_probs"])


def failing(*_: Any) -> None:
    raise RuntimeError("the device has failed")


@pytest.mark.parametrize(("device", "training", "times"), [("cuda:0", True, 1), ("cuda:0", False, 0), ("cpu", True, 0)])
def test_a_gpu_gets_back_what_an_update_leaves_in_pieces(
    device: str, training: bool, times: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    freed = list[int]()
    monkeypatch.setattr(sharded_model, "empty_cache", lambda: freed.append(1))
    sharded = ShardedModel("critic", nn.Linear(2, 2), make_config(Path("none")).critic.fsdp_config, device)
    with sharded.in_use(training=training):
        assert not freed, "not before the update is over"
    assert len(freed) == times
