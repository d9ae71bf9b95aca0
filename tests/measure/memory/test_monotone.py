"""What must hold for every run: more room never needs more, more work never needs less, limits are borders."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.facts.config import ConfigFacts, ModelUse, RoleSpec, RunSpec
from rlcheck.facts.memory import MemoryProfile
from rlcheck.measure.memory.constants import CONSTANTS
from rlcheck.measure.memory.limits import limits
from rlcheck.measure.memory.predict import Gpu
from rlcheck.measure.memory.roles import RLTRAIN_BLOCK_ELEMENTS, pass_of, role_memory
from rlcheck.measure.memory.shapes import shape_of
from rlcheck.measure.memory.summary import fits, host_peak
from rlcheck.measure.memory.whatif import predicted, with_settings
from tests.bench.gpu.memory_configs import SIZES, Case

GIB = 1 << 30
H200 = Gpu("H200", 143771 << 20)
ROLES = ("actor", "critic", "ref")
CHUNK_EDGE_BYTES = 1024 * 152_064
"""Logits of a few tokens more than a chunk are there twice while the chunks' gradients are put together."""


@st.composite
def runs(draw: st.DrawFn, **fixed: Any) -> ConfigFacts:
    """Runs as people write them, of rltrain and of verl."""
    usual: dict[str, Any] = {
        "model": draw(st.sampled_from(sorted(SIZES))),
        "micro": draw(st.integers(1, 16)),
        "tokens": draw(st.sampled_from([0, 0, 8192, 32768])),
        "prompt": draw(st.integers(16, 4096)),
        "response": draw(st.integers(16, 8192)),
        "checkpointing": draw(st.booleans()),
        "chunked": draw(st.booleans()),
        "packed": draw(st.booleans()),
        "offload": draw(st.booleans()),
        "lora": draw(st.sampled_from([0, 0, 16])),
        "dtype": draw(st.sampled_from(["float32", "bfloat16"])),
        "gpus": draw(st.sampled_from([1, 2, 4, 8])),
        "ref": draw(st.booleans()),
        "critic": draw(st.booleans()),
        "utilization": draw(st.sampled_from([0.2, 0.4, 0.6])),
    }
    case = replace(Case("drawn", "0.5B"), **{**usual, **fixed})
    facts = msgspec.structs.replace(case.facts(), framework=draw(st.sampled_from(["rltrain", "verl"])))
    sleeps, tensor_parallel = draw(st.booleans()), draw(st.sampled_from([1, 2]))
    return with_settings(facts, {"rollout.sleeps": sleeps, "rollout.tensor_parallel": min(tensor_parallel, case.gpus)})


def looked_at(run: ConfigFacts, gpu: Gpu = H200, **changed: Any) -> MemoryProfile:
    """The prediction, with other values: `actor__micro_batch_size=2`, and `all__…` for every role that there is."""
    paths: dict[str, Any] = {}
    for name, value in changed.items():
        path = name.replace("__", ".")
        roles = [role for role in ROLES if getattr(run.spec, role) is not None]
        paths |= (
            {path.replace("all.", f"{role}."): value for role in roles} if path.startswith("all.") else {path: value}
        )
    return predicted(with_settings(run, paths), gpu, 0)


def peak(memory: MemoryProfile) -> int:
    assert memory.peak is not None
    return memory.peak.num_bytes


def host(memory: MemoryProfile) -> int:
    fullest = host_peak(memory)
    assert fullest is not None
    return fullest.num_bytes


@pytest.mark.parametrize("more", ["gpus_per_node", "nodes"])
@given(run=runs())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_more_gpus_never_raise_the_peak_of_one(more: str, run: ConfigFacts) -> None:
    # The first neighbour costs NCCL's buffers, once.
    alone = run.spec.nodes * run.spec.gpus_per_node == 1
    once = CONSTANTS.context_per_peer_bytes if alone else 0
    twice = looked_at(run, **{more: 2 * getattr(run.spec, more)})
    assert peak(twice) <= peak(looked_at(run)) + once


@given(run=runs(), larger=st.integers(1, 64))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_larger_batches_never_lower_it(run: ConfigFacts, larger: int) -> None:
    now = run.spec.actor
    more = {"all__micro_batch_size": (now.micro_batch_size or 1) + larger,
            "all__infer_micro_batch_size": (now.infer_micro_batch_size or 1) + larger,
            "all__max_tokens": now.max_tokens + 256 * larger,
            "all__infer_max_tokens": now.infer_max_tokens + 256 * larger}  # fmt: skip
    assert peak(looked_at(run, **more)) >= peak(looked_at(run))
    longer = looked_at(run, data__max_response_length=run.spec.data.max_response_length + larger)
    assert peak(longer) >= peak(looked_at(run))


@pytest.mark.parametrize(
    "saving",
    [
        {"all__model__gradient_checkpointing": True},
        {"all__chunked_logits": True},
        {"all__sharding__param_offload": True},
        {"all__sharding__optimizer_offload": True},
        {"all__sharding__offload_policy": True},
        {"all__sharding__sequence_parallel": 2},
        {"all__sharding__reshard_after_forward": True},
        {"rollout__sleeps": True},
        {"rollout__memory_utilization": 0.1},
    ],
    ids=lambda saving: next(iter(saving)),
)
@given(run=runs())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_what_saves_memory_never_costs_it(saving: dict[str, Any], run: ConfigFacts) -> None:
    without = {name: {True: False, 2: 1, 0.1: 0.6}[value] for name, value in saving.items()}
    most = peak(looked_at(run, **without)) + (CHUNK_EDGE_BYTES if "all__chunked_logits" in saving else 0)
    assert peak(looked_at(run, **saving)) <= most


@pytest.mark.parametrize("moved", ["param_offload", "optimizer_offload", "offload_policy"])
@given(run=runs(offload=False))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_what_leaves_the_gpu_is_on_the_host(moved: str, run: ConfigFacts) -> None:
    there = looked_at(run, **{f"all__sharding__{moved}": True})
    assert host(there) > host(looked_at(run))


@given(run=runs())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_larger_gpu_never_fits_less(run: ConfigFacts) -> None:
    answers = [fits(looked_at(run, Gpu("GPU", size * GIB))) for size in (24, 48, 80, 141, 288)]
    assert answers == sorted(answers)


@given(run=runs())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_every_number_is_one(run: ConfigFacts) -> None:
    memory = looked_at(run)
    owners = [owner for phase in (*memory.phases, *memory.host_phases) for owner in phase.owners]
    assert all(isinstance(owner.num_bytes, int) and owner.num_bytes >= 0 for owner in owners)
    assert len({(phase.name, phase.pool) for phase in memory.phases}) == len(memory.phases)
    # What is shown and what is judged agree: the allocator's slack never stands beyond what is usable.
    most = memory.usable_bytes
    assert all((phase.num_bytes <= most) == (phase.needed_bytes <= most) for phase in memory.phases)
    assert looked_at(run, rollout__tensor_parallel=4).limits.kv_tokens >= memory.limits.kv_tokens


@given(run=runs(tokens=0))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_a_limit_is_the_last_that_fits(run: ConfigFacts) -> None:
    most = limits(run, H200, 0).micro_batch_size

    def update_fits(micro: int) -> bool:
        found = looked_at(run, actor__dynamic_batch=False, actor__micro_batch_size=micro)
        updates = [phase for phase in found.phases if phase.name in ("actor update", "actor step")]
        return all(phase.needed_bytes <= found.usable_bytes for phase in updates)

    samples = (run.spec.actor.mini_batch_size or 1) * run.spec.rollout.n // run.spec.gpus_per_node
    assert most == 0 or update_fits(most)
    assert most >= samples or not update_fits(most + 1)


@pytest.mark.parametrize("role", ["actor", "ref"])
def test_a_head_read_by_blocks_takes_the_logits_off(role: str) -> None:
    """32,768 tokens of rltrain: their bfloat16 logits alone are 10 GB, each with a gradient."""
    case = Case("blocks", "7B", tokens=32768, prompt=16, response=8192, chunked=True, ref=True, gpus=8)
    run = msgspec.structs.replace(case.facts(), framework="rltrain")

    def logits(by_blocks: bool) -> int:
        found = looked_at(run, all__model__fused_kernels=by_blocks)
        wanted = "actor update" if role == "actor" else "ref log-probs"
        phase = next(one for one in found.phases if one.name == wanted)
        return sum(owner.num_bytes for owner in phase.owners if owner.kind == "logits")

    assert logits(False) > 9e9
    assert logits(True) < logits(False) / 4


def test_capped_logits_are_counted_whole() -> None:
    sizes = {"model_type": "gemma2", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
             "intermediate_size": 128, "vocab_size": 256_000}  # fmt: skip
    made: list[int] = []
    for more in ({}, {"final_logit_softcapping": 30.0}):
        role = RoleSpec(name="actor", model=ModelUse(fused_kernels=True))
        memory = role_memory(role, shape_of(sizes | more), 1)
        made.append(pass_of(RunSpec(actor=role), memory, True, "rltrain").block_elements)
    assert made == [RLTRAIN_BLOCK_ELEMENTS, 0]
