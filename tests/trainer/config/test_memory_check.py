"""A run that cannot fit is stopped before it takes a device, with what would make it fit; nothing else is stopped."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.measure.memory.predict import Gpu, predict
from rltrain.config import Machine, RunConfig, load, resolve
from rltrain.config.as_facts import facts_of
from rltrain.config.memory_check import complaint, device_here, faster, gpu_named, predicted, prediction_line
from rltrain.core.errors import UserError
from tests.trainer.config import SMALL

GIB = 2**30
LARGE = (
    "toy.model.hidden_size=2048",
    "toy.model.intermediate_size=8192",
    "toy.model.num_hidden_layers=16",
    "toy.vocab_size=32000",
)


CHECKPOINTING = "actor_rollout_ref.model.enable_gradient_checkpointing"


def on_gpus(*overrides: str) -> RunConfig:
    return resolve(load(SMALL, (*LARGE, *overrides)), Machine("cuda", 4, 64))


def gpu(num_bytes: int) -> Gpu:
    return Gpu("test GPU", num_bytes)


def refused(num_bytes: int, *overrides: str) -> str:
    return complaint(facts_of(on_gpus(*overrides)), gpu(num_bytes)) or ""


def test_the_need_without_slack_decides() -> None:
    run = facts_of(on_gpus("actor_rollout_ref.rollout.gpu_memory_utilization=0.1"))
    large = predict(run, gpu(80 * GIB), 0)
    lacking = large.gpu_bytes - large.usable_bytes
    # The engine's share grows with the GPU, so the need is looked for on a GPU of about its size.
    need = max(phase.needed_bytes for phase in large.phases if phase.name != "rollout")
    slack = next(phase for phase in large.phases if phase.needed_bytes == need)
    assert slack.num_bytes > need, "a phase with slack, else the test tells nothing"
    assert complaint(run, gpu(need + lacking + 2 * GIB)) is None
    line = complaint(run, gpu(need + lacking - GIB))
    assert line is not None
    assert line.startswith(f"MEM001: {slack.name} needs ")
    assert "each GPU (test GPU) has " in line
    assert "\n" not in line


def test_the_override_that_is_named_makes_it_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    one = "trainer.n_gpus_per_node=1"
    monkeypatch.setattr("rltrain.config.memory_check.ram_bytes", lambda: 1 << 40)
    for size in (20, 36):
        line = refused(size * GIB, one)
        advised = line.partition("): ")[2].partition(" would fit")[0].split()
        assert all("=" in word for word in advised), line
        assert not refused(size * GIB, one, *advised)
    offload = "actor_rollout_ref.actor.fsdp_config.optimizer_offload=true"
    assert offload in refused(20 * GIB, one)
    monkeypatch.setattr("rltrain.config.memory_check.ram_bytes", lambda: 8 * GIB)
    assert offload not in refused(20 * GIB, one), "there is no room for it on the host"


def test_more_ranks_mend_it() -> None:
    small = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1"
    assert refused(14 * GIB, small, "trainer.n_gpus_per_node=2")
    assert not refused(14 * GIB, small, "trainer.n_gpus_per_node=2", "trainer.nnodes=4")


def test_where_nothing_helps_it_says_so() -> None:
    line = refused(3 * GIB, "trainer.n_gpus_per_node=1")
    assert line.endswith("use more or larger GPUs, or a smaller model")


def test_on_a_cpu_the_ranks_share_the_machine() -> None:
    def needed(num_bytes: int) -> str:
        config = resolve(load(SMALL, (*LARGE, "trainer.num_cpu_ranks=2")), Machine("cpu", 0, 2))
        return complaint(facts_of(config), Gpu("CPU", num_bytes)) or ""

    line = needed(27 * GIB)
    assert line.startswith("MEM001: weights, gradients and optimizer states need 27.2 GiB")
    assert "but this machine has 27.0 GiB (actor " in line
    assert not needed(28 * GIB)


@pytest.mark.parametrize("what", ["no GPU", "no config.json", "unknown architecture"])
def test_nothing_is_said_about_what_is_not_known(what: str, tmp_path: Path) -> None:
    unknown = (f"actor_rollout_ref.model.path={tmp_path}",) if what == "no config.json" else ()
    kind = ("toy.model.model_type=olmo2",) if what == "unknown architecture" else ()
    assert complaint(facts_of(on_gpus(*unknown, *kind)), None if what == "no GPU" else gpu(4 * GIB)) is None
    assert refused(4 * GIB)


def test_the_machine_has_memory() -> None:
    here = device_here("cpu")
    assert here is not None
    assert here.total_bytes > GIB


def test_a_gpu_is_a_name_or_a_size() -> None:
    assert gpu_named("80GiB").total_bytes == 80 * GIB
    assert gpu_named("h200").name == "H200"
    with pytest.raises(UserError, match=r"--gpu: no GPU 'H2OO' is known; .*--gpu 80GiB"):
        gpu_named("H2OO")


def test_the_prediction_in_a_line() -> None:
    profile = predicted(facts_of(on_gpus()), gpu(80 * GIB))
    assert profile is not None
    assert prediction_line(profile).startswith("memory: at most ")
    assert prediction_line(profile).endswith(" on each test GPU predicted, in rollout")


def test_activation_checkpointing_is_offered_to_be_off_where_that_fits() -> None:
    line = faster(facts_of(on_gpus(f"{CHECKPOINTING}=true")), gpu(140 * GIB))
    assert line.startswith("memory: without activation checkpointing at most ")
    assert line.endswith(f" {CHECKPOINTING}=false")


def test_it_is_not_offered_where_it_does_not_fit_or_is_off() -> None:
    assert not faster(facts_of(on_gpus(f"{CHECKPOINTING}=true")), gpu(20 * GIB))
    assert not faster(facts_of(on_gpus(f"{CHECKPOINTING}=false")), gpu(140 * GIB))
