"""Every operation of one sequence, by a live engine and by two FSDP2 ranks: what differs, and where it enters."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError
from rltrain.measure.drift.operations import compare
from tests.trainer.workers.rollout.child import Child
from tests.trainer.workers.rollout.hosted import HostedGroup
from tests.trainer.workers.rollout.pair import Pair, crew_config, start_crew
from tests.trainer.workers.rollout.tiny import make_model

pytestmark = pytest.mark.timeout(400)

PROMPT = [2 + (5 * place + place * place) % 30 for place in range(40)]
ROUNDING = 1e-5
"""Of float32, through two layers."""


def config_of(directory: Path, engine: str, packed: bool = True) -> RunConfig:
    parts = {
        "actor": {"fsdp_config": {"dtype": "float32"}},
        "model": {"path": str(directory), "use_remove_padding": packed},
    }
    return crew_config(directory, ranks=2, parts=parts, dtype="float32", name=engine)


def traced(crew: Pair, directory: Path) -> tuple[dict[tuple[int, str], dict[str, Any]], list[str]]:
    engine, training, alone = (str(directory / name) for name in ("engine", "training", "alone"))
    ids = crew.engine.call("trace", PROMPT, 6, engine)
    assert ids[: len(PROMPT)] == PROMPT
    assert len(ids) == len(PROMPT) + 6
    crew.ranks.all("trace", ids, training)
    crew.ranks.all("trace", ids, alone, engine)
    gaps, missing = compare(Path(engine), Path(training), Path(alone))
    return {(gap.layer, gap.name): gap for gap in gaps}, missing


@pytest.mark.parametrize(
    ("kind", "engine", "packed"), [("qwen2", "vllm", True), ("qwen3", "vllm", False), ("llama", "hf", True)]
)
def test_a_planted_difference_is_found_where_it_enters(
    kind: str, engine: str, packed: bool, ranks: HostedGroup, child: Child, tmp_path: Path
) -> None:
    make_model(kind, tmp_path)
    crew = start_crew(config_of(tmp_path, engine, packed), ranks, child)
    crew.sync.sync(1)
    gaps, missing = traced(crew, tmp_path)
    assert missing == []
    # The embedding, two layers of 15 operations (17 with norms on queries and keys), norm, logits, log-probs.
    assert len(gaps) == 4 + 2 * (17 if kind == "qwen3" else 15)
    assert list(gaps)[:3] == [(-1, "embed_tokens"), (0, "input_layernorm"), (0, "q_proj")]
    assert [name for _, name in list(gaps)[-3:]] == ["norm", "logits", "log_probs"]
    assert gaps[-1, "embed_tokens"].equal
    assert gaps[0, "q_proj"].input_equal
    assert all(gap.scale > 0.01 and gap.max_diff < 1e-4 for gap in gaps.values())
    assert all(gap.own_mean_diff < ROUNDING * gap.scale for gap in gaps.values())

    crew.ranks.apply(scale_down_projection)  # in training alone: nothing is synced
    gaps, _ = traced(crew, tmp_path)
    own = {name: gap.own_mean_diff / gap.scale for name, gap in gaps.items()}
    assert own.pop((1, "down_proj")) == pytest.approx(1e-3, rel=0.02)
    assert max(own.values()) < ROUNDING
    assert not gaps[1, "down_proj"].equal
    assert not gaps[1, "output"].input_equal
    assert gaps[-1, "logits"].mean_diff > ROUNDING * gaps[-1, "logits"].scale


def test_what_no_side_shows_is_named(ranks: HostedGroup, child: Child, tmp_path: Path) -> None:
    make_model("opt", tmp_path)
    crew = start_crew(config_of(tmp_path, "vllm"), ranks, child)
    crew.sync.sync(1)
    gaps, missing = traced(crew, tmp_path)
    assert {(-1, "embed_tokens"), (0, "q_proj"), (1, "v_proj"), (-1, "log_probs")} <= gaps.keys()
    assert {"layers.0.q_rotary", "layers.1.gate_proj", "norm"} <= set(missing)
    assert max(gap.max_diff for gap in gaps.values()) < 1e-4
    with pytest.raises(UserError, match=r"not traced with .*tensor_model_parallel_size=2: .*; set it to 1"):
        child.apply(trace_with_two_processes)
    with pytest.raises(UserError, match=r"one by one: set actor_rollout_ref\.rollout\.enforce_eager=true"):
        child.apply(trace_with_graphs)


def trace_with_two_processes(worker: Any) -> None:
    """As an engine of two processes would be asked."""
    own = worker._engine._rollout
    worker._engine._rollout = own.model_copy(update={"tensor_model_parallel_size": 2})
    try:
        worker._engine.trace(PROMPT, 1, "")
    finally:
        worker._engine._rollout = own


def trace_with_graphs(worker: Any) -> None:
    """As an engine that captures graphs would be asked."""
    worker._engine._llm.llm_engine.vllm_config.model_config.enforce_eager = False
    worker._engine.trace(PROMPT, 1, "")


@torch.no_grad()
def scale_down_projection(rank: Any) -> None:
    """0.1 % more, in the second layer."""
    for name, parameter in rank._models["actor"].model.named_parameters():
        if name.endswith("layers.1.mlp.down_proj.weight"):
            parameter.to_local().mul_(1.001)
