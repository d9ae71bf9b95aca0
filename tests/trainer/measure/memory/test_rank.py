"""A measured rank, on the CPU with a meter that only notes what is there: its phases, and who holds what in each."""

from __future__ import annotations

import json
import socket
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts, DataSpec, ModelFacts, ModelUse, RoleSpec, RolloutSpec, RunSpec, Sharding
from rlcheck.facts.memory import Phase
from rlcheck.measure.memory.predict import Gpu, predict
from rltrain.measure.memory import rank
from rltrain.measure.memory.as_config import config_of
from rltrain.measure.memory.meter import States
from rltrain.measure.memory.random_weights import Lora, RandomWeights
from rltrain.workers.fsdp.optim import local
from rltrain.workers.fsdp.rank import RankInfo

SIZES: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 500, "tie_word_embeddings": True,
}  # fmt: skip
STATES = ("weights", "gradients", "optimizer")


@dataclass
class Notes:
    """Stands for `Meter`, which asks a GPU."""

    device: torch.device
    seen: list[tuple[str, States]] = field(default_factory=list[tuple[str, States]])

    @contextmanager
    def phase(self, name: str, states: States) -> Generator[None]:
        yield
        self.mark(name, states)

    def mark(self, name: str, states: States) -> None:
        self.seen.append((name, states))


def held(tensors: Any) -> int:
    """As `rank._on_device`, of a device that is the host."""
    shards = [local(tensor.detach()) for tensor in tensors]
    return sum(shard.numel() * shard.element_size() for shard in shards)


def run_with(path: Path, **use: Any) -> ConfigFacts:
    """A PPO run of small models, micro batches of two rows, whose directory is PATH."""
    (path / "config.json").write_text(json.dumps(SIZES))
    model, shards = ModelUse(path=str(path), **use), Sharding(dtype="float32")
    batches: dict[str, int] = {"mini_batch_size": 4, "micro_batch_size": 2, "infer_micro_batch_size": 2}
    with_critic = not use
    spec = RunSpec(
        actor=RoleSpec(name="actor", model=model, sharding=shards, chunked_logits=True, **batches),
        ref=RoleSpec(name="ref", trained=False, model=model, sharding=shards, infer_micro_batch_size=2)
        if with_critic
        else None,
        critic=RoleSpec(name="critic", model=model, sharding=shards, **batches) if with_critic else None,
        rollout=RolloutSpec(n=2, dtype="float32", sync_bucket_bytes=1 << 20),
        data=DataSpec(max_prompt_length=8, max_response_length=8, train_batch_size=4),
    )
    sizes = known(ModelFacts(source="config.json", sizes=SIZES))
    roles = ("actor", "ref", "critic") if with_critic else ("actor",)
    return ConfigFacts(framework="rltrain", spec=spec, models=dict.fromkeys(roles, sizes))


def seen(monkeypatch: pytest.MonkeyPatch, run: ConfigFacts, place: Path, lora: Lora | None) -> list[tuple[str, States]]:
    """What a measured rank of RUN goes through."""
    monkeypatch.setattr(rank, "Meter", Notes)
    monkeypatch.setattr(rank, "_on_device", held)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    config = config_of(run.spec, {"actor": str(place), "critic": str(place)}, 0)
    info = RankInfo(0, 1, "127.0.0.1", port, "cpu")
    worker = rank.MemoryTrainWorker(config, info, RandomWeights(lora))
    try:
        worker.prepare(config, info, SIZES["vocab_size"])
        worker.phases()
        meter: Any = worker.meter
        return meter.seen
    finally:
        worker.shutdown()


def by_owner(phase: Phase) -> dict[tuple[str, str], int]:
    return {(one.kind, one.role): one.num_bytes for one in phase.owners if one.kind in STATES and one.role != "rollout"}


def test_every_phase_holds_the_states_that_are_predicted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    run = run_with(tmp_path)
    notes = seen(monkeypatch, run, tmp_path, None)
    once = ["critic update", "critic step", "actor update", "actor step"]
    reads = ["log-probs", "ref log-probs", "values"]
    assert [name for name, _ in notes] == ["load", *once, *reads, *once, "weight sync", "idle"]
    predicted = {phase.name: by_owner(phase) for phase in predict(run, Gpu("GPU", 80 << 30), 0).phases}
    last = {name: {(one.kind, one.role): one.num_bytes for one in states.owners()} for name, states in notes}
    assert ("optimizer", "actor") not in last["load"]
    for name in (*once, *reads, "weight sync"):
        # Adam counts its steps besides, a number for each tensor.
        assert last[name] == pytest.approx(predicted[name], rel=2e-3), name


def test_adapters_alone_are_trained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    run = run_with(tmp_path, lora_rank=4)
    notes = dict(seen(monkeypatch, run, tmp_path, Lora(4, 16.0, "all-linear")))
    predicted = {phase.name: by_owner(phase) for phase in predict(run, Gpu("GPU", 80 << 30), 0).phases}
    step = {(one.kind, one.role): one.num_bytes for one in notes["actor step"].owners()}
    assert step == pytest.approx(predicted["actor step"], rel=0.02)
    assert step["gradients", "actor"] < step["weights", "actor"] / 10
