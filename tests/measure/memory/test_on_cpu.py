"""A run on the CPU: everything is on the node, phase by phase."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rlcheck.facts.base import absent, known
from rlcheck.facts.config import ConfigFacts, DataSpec, ModelFacts, RoleSpec, RolloutSpec, RunSpec, Sharding
from rlcheck.facts.memory import Phase
from rlcheck.measure.memory import on_cpu
from rlcheck.measure.memory.on_cpu import predict_on_cpu
from rlcheck.measure.memory.predict import UnknownModelError
from rlcheck.measure.memory.shapes import shape_of

SIZES: dict[str, Any] = {
    "model_type": "qwen2", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 5000, "tie_word_embeddings": True,
}  # fmt: skip
COUNT = shape_of(SIZES).parameters


def facts(ranks: int = 2, engine: str = "vllm") -> ConfigFacts:
    shards = Sharding(dtype="float32")
    roles = [RoleSpec(name=name, sharding=shards, micro_batch_size=4) for name in ("actor", "critic")]
    spec = RunSpec(
        device="cpu",
        gpus_per_node=ranks,
        actor=roles[0],
        critic=roles[1],
        rollout=RolloutSpec(name=engine, n=4, dtype="float32", max_seqs=6),
        data=DataSpec(max_prompt_length=10, max_response_length=20, train_batch_size=8),
    )
    model = known(ModelFacts(source="config.json", sizes=SIZES))
    return ConfigFacts(framework="rltrain", spec=spec, models={"actor": model, "critic": model})


def phases(run: ConfigFacts) -> dict[str, Phase]:
    found = predict_on_cpu(run, 8 << 30)
    assert found.phases == ()
    assert {phase.pool for phase in found.host_phases} == {"host"}
    return {phase.name: phase for phase in found.host_phases}


def held(phase: Phase, kind: str, role: str) -> int:
    return sum(owner.num_bytes for owner in phase.owners if (owner.kind, owner.role) == (kind, role))


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_ranks_of_a_node_hold_a_model_once_together(ranks: int) -> None:
    found = phases(facts(ranks))
    assert list(found) == ["load", "rollout", "log-probs", "values", "actor update", "critic update"]
    update = found["actor update"]
    for kind, times in (("weights", 4), ("gradients", 4), ("optimizer", 8)):
        assert held(update, kind, "actor") == pytest.approx(times * COUNT, abs=8)
    assert held(update, "gradients", "critic") == 0
    assert held(update, "optimizer", "critic") > 0
    assert held(found["load"], "optimizer", "actor") == 0


def test_an_engine_holds_its_weights_and_the_cache_of_what_it_works_on() -> None:
    rollout = phases(facts())["rollout"]
    assert held(rollout, "weights", "rollout") == 4 * COUNT
    # 6 of 32 sequences of 30 tokens at a time: 4 layers x keys and values x 2 heads of 64.
    assert held(rollout, "kv_cache", "rollout") == 4 * (6 * 30) * (4 * 2 * 2 * 64)


def test_each_process_counts() -> None:
    def processes(run: ConfigFacts) -> int:
        return held(phases(run)["load"], "context", "")

    assert processes(facts(3)) - processes(facts(2)) == on_cpu.RANK_BYTES
    assert processes(facts()) > processes(facts(engine="hf"))


def test_a_model_that_is_not_known_is_not_counted() -> None:
    run = msgspec.structs.replace(facts(), models={"actor": absent("no such directory")})
    with pytest.raises(UnknownModelError, match="no such directory"):
        predict_on_cpu(run, 0)
