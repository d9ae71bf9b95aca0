"""The prediction against what runs really needed on H200 (`tests/fixtures/memory/h200.json`)."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck.facts.memory import MemoryProfile, Phase
from rlcheck.measure.config.read import read_run
from rlcheck.measure.memory.gpus import by_name
from rlcheck.measure.memory.predict import Gpu, predict
from tests.bench.gpu.memory_configs import GROUPS, SIZES, Case
from tests.measure.memory.samples import GIB

WIDTHS = ("hidden_size", "intermediate_size")
MEASURED: dict[str, dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "fixtures" / "memory" / "h200.json").read_text()
)["cases"]
GPU = Gpu("H200", by_name("H200").total_bytes)
BROKEN = "out of memory"
UPDATES = ("actor update", "critic update")
NOT_ALLOCATED = ("slack", "context", "engine")


def case(name: str) -> Case:
    return next(one for group in GROUPS.values() for one in group if one.name == name)


def group(*names: str) -> list[str]:
    """Measured cases of the groups, without those that run out of memory."""
    wanted = [one.name for name in names for one in GROUPS[name]]
    return [name for name in wanted if name in MEASURED and BROKEN not in MEASURED[name]]


def prediction(name: str) -> MemoryProfile:
    """As it was measured: with the rollout engine only in the cases that have it."""
    facts = case(name).facts()
    alone = name not in {one.name for one in GROUPS["engines"]}
    spec = msgspec.structs.replace(facts.spec, colocated=not alone)
    return predict(msgspec.structs.replace(facts, spec=spec), GPU, 0)


def allocation(phase: Phase, without: tuple[str, ...] = NOT_ALLOCATED) -> int:
    """What torch's allocator in the training process counts."""
    return sum(owner.num_bytes for owner in phase.owners if owner.kind not in without)


@dataclass(frozen=True)
class Compared:
    """Both in bytes."""

    predicted: int
    measured: int

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted / self.measured - 1


def peak(name: str) -> Compared:
    """Of all phases that were measured."""
    phases = {phase.name: phase.num_bytes for phase in prediction(name).phases if phase.pool == "train"}
    return Compared(
        max(size for phase, size in phases.items() if phase in MEASURED[name]),
        max(device for _, device in MEASURED[name].values()),
    )


@pytest.mark.parametrize("names", [("fit",), ("report", "two"), ("engines",)], ids=" and ".join)
def test_peaks_are_within_five_percent_in_the_middle_and_ten_at_worst(names: tuple[str, ...]) -> None:
    """Constants were found on `fit` alone."""
    errors = {name: abs(peak(name).error) for name in group(*names)}
    assert len(errors) >= 4
    assert statistics.median(errors.values()) <= 0.05
    assert max(errors.values()) <= 0.10, errors


def test_there_are_enough_cases_of_each_kind() -> None:
    cases = [case(name) for name in MEASURED]
    assert len(group("report", "two")) >= 16
    assert sum(BROKEN in phases for phases in MEASURED.values()) >= 6
    assert {one.model for one in cases} >= {"0.5B", "1.5B", "7B", "MoE"}
    for one in ("critic", "checkpointing", "offload", "chunked", "packed"):
        assert {getattr(each, one) for each in cases} == {True, False}, one
    assert {one.gpus for one in cases} == {1, 2}
    assert any(one.lora for one in cases)


@pytest.mark.parametrize("name", MEASURED)
def test_whether_it_fits(name: str) -> None:
    found = prediction(name)
    needed = max(phase.needed_bytes for phase in found.phases if phase.pool == "train")
    assert (needed <= found.usable_bytes) == (BROKEN not in MEASURED[name])


@pytest.mark.parametrize("name", group("fit", "report", "two"))
def test_what_an_update_allocates_is_counted_to_two_percent(name: str) -> None:
    """Tensors alone, without contexts and the allocator's slack: what the formulas are about."""
    phases = {phase.name: phase for phase in prediction(name).phases}
    for update in UPDATES:
        if update in MEASURED[name]:
            assert allocation(phases[update]) == pytest.approx(MEASURED[name][update][0], rel=0.02), update


@pytest.mark.parametrize("name", group("engines"))
def test_an_engine_fills_its_share(name: str) -> None:
    rollout = next(phase for phase in prediction(name).phases if phase.name == "rollout")
    assert rollout.num_bytes == pytest.approx(MEASURED[name]["rollout"][1], rel=0.02)


VERL = (
    "python -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=64 data.max_prompt_length=64 "
    "data.max_response_length=512 actor_rollout_ref.actor.ppo_mini_batch_size=64 trainer.n_gpus_per_node=1 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.tensor_model_parallel_size=1 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 actor_rollout_ref.rollout.name=vllm "
    "actor_rollout_ref.rollout.n=8 actor_rollout_ref.rollout.gpu_memory_utilization=0.5 "
    "actor_rollout_ref.rollout.max_num_seqs=512 actor_rollout_ref.rollout.max_model_len=576 "
    "actor_rollout_ref.model.use_remove_padding=False actor_rollout_ref.model.path="
)


@pytest.mark.parametrize(
    ("model", "allocated_gib", "reserved_gib", "device_gib"), [("0.5B", 42.1, 45.6, 79.4), ("1.5B", 53.8, 61.4, 92.7)]
)
def test_two_runs_of_verl(
    model: str, allocated_gib: float, reserved_gib: float, device_gib: float, tmp_path: Path
) -> None:
    """verl 0.9.1 on one H200, torch 2.11, vLLM 0.26, padded (no flash-attn): its own `perf/max_memory_*`, and NVML."""
    (tmp_path / "config.json").write_text(json.dumps(SIZES[model]))
    found = predict(read_run(f"{VERL}{tmp_path}", ()), GPU, 0)
    working = [phase for phase in found.phases if phase.name in ("log-probs", "actor update")]
    allocated = max(allocation(phase, (*NOT_ALLOCATED, "fragments")) for phase in working)
    assert allocated == pytest.approx(allocated_gib * GIB, rel=0.02)
    assert max(allocation(phase, NOT_ALLOCATED) for phase in working) == pytest.approx(reserved_gib * GIB, rel=0.05)
    assert found.peak is not None
    assert found.peak.num_bytes == pytest.approx(device_gib * GIB, rel=0.05)


_MEGATRON = "actor_rollout_ref.actor.megatron."
_ADAM = "actor_rollout_ref.actor.optim.override_optimizer_config."


def held(found: MemoryProfile, name: str, kind: str, pool: str = "gpu") -> int:
    """Bytes that the actor's KIND takes in the phase NAME."""
    phases = found.host_phases if pool == "host" else found.phases
    phase = next(one for one in phases if one.name == name)
    return sum(owner.num_bytes for owner in phase.owners if owner.role == "actor" and owner.kind == kind)


@pytest.mark.parametrize(
    ("keys", "share"),
    [
        ((), 0.0),
        (("optimizer_cpu_offload=True", "optimizer_offload_fraction=1"), 1.0),
        (("optimizer_cpu_offload=True", "optimizer_offload_fraction=0.5"), 0.5),
        (("optimizer_cpu_offload=True",), 0.0),
        (("optimizer_offload_fraction=1",), 0.0),
    ],
)
def test_what_megatrons_optimizer_keeps_on_the_host(keys: tuple[str, ...], share: float, tmp_path: Path) -> None:
    """Megatron's OptimizerConfig: the share is 0 by default, and counts only with the switch."""
    (tmp_path / "config.json").write_text(json.dumps(SIZES["1.5B"]))
    line = VERL.replace("main_ppo", "main_ppo --config-name=ppo_megatron_trainer")
    run = read_run(f"{line}{tmp_path}", [f"+{_ADAM}{key}" for key in keys])
    assert not [one for one in run.problems if "optim" in one.key], "verl takes these keys"
    found = predict(run, GPU, 0)
    state = found.parameters["actor"] * 12
    assert held(found, "actor step", "optimizer") == pytest.approx(state * (1 - share), rel=1e-6)
    assert held(found, "rollout", "optimizer") == held(found, "actor step", "optimizer")
    assert held(found, "rollout", "weights", "host") == pytest.approx(state * share, rel=1e-6)


def test_megatrons_gradients_leave_the_gpu_with_its_parameters(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(SIZES["1.5B"]))
    line = f"{VERL.replace('main_ppo', 'main_ppo --config-name=ppo_megatron_trainer')}{tmp_path}"
    kept, gone = (predict(read_run(line, [f"{_MEGATRON}param_offload={on}"]), GPU, 0) for on in (False, True))
    gradients = 4 * kept.parameters["actor"]
    assert held(kept, "rollout", "gradients") == held(kept, "actor update", "gradients") == gradients
    assert held(gone, "rollout", "gradients") == held(gone, "rollout", "weights") == 0
    assert held(gone, "actor update", "gradients") == gradients
    away = predict(read_run(line, [f"{_MEGATRON}optimizer_offload=True"]), GPU, 0)
    assert held(away, "rollout", "optimizer") == 0 < held(away, "actor step", "optimizer")


FUSED = {
    ("M", 32, True): 27.6, ("M", 64, True): 31.0, ("M", 32, False): 62.7, ("M", 64, False): 100.8,
    ("S", 32, True): 9.8, ("S", 64, True): 11.6, ("S", 64, False): 45.1, ("S", 128, False): 79.4,
}  # fmt: skip
"""GiB that torch allocated at most on an H200, by rows of a pass and whether activations are computed again:
tests/bench/gpu/update.py, 2026-11-28, with parts of layers that are one kernel each."""


@pytest.mark.parametrize(("size", "rows", "again"), FUSED)
def test_fused_parts_keep_less(size: str, rows: int, again: bool) -> None:
    shape = SIZES["1.5B" if size == "M" else "0.5B"]
    values = [f"toy.model.{name}={shape[name]}" for name in (*WIDTHS, "num_hidden_layers", "num_attention_heads")]
    values += [f"actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu={rows}"]
    values += [f"actor_rollout_ref.model.enable_gradient_checkpointing={again}"]
    run = read_run("tests/bench/gpu/grpo-0.5b.yaml", values, framework="rltrain")
    (update,) = (phase for phase in predict(run, GPU, 0).phases if phase.name == "actor update")
    assert allocation(update) / GIB == pytest.approx(FUSED[size, rows, again], rel=0.025)
