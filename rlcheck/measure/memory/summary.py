"""What a prediction says in a few numbers: whether it fits, what is fullest, what is left."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import MeasuredPhase, MemoryProfile, Owner, Phase

KINDS: tuple[str, ...] = (
    "weights", "gradients", "optimizer", "activations", "logits", "unsharded", "buffers", "kv_cache", "graphs",
    "engine", "context", "fragments", "slack",
)  # fmt: skip
"""Kinds of owners in the order in which they are shown."""
UPDATES = ("actor update", "actor step", "critic update", "critic step")
"""Phases in which a trained model has gradients."""
AWAKE = ("rollout", "weight sync")
"""Phases in which the engine is awake."""


FEW_SEQUENCES = 8
"""Sequences at a time below which decoding is bound by reading the weights: each one costs a whole pass."""
TIGHT = 0.05
"""Share of the usable memory below which a peak has little room: what the prediction itself may be off by."""
_NO_CACHE_BYTES = 1 << 30
"""An engine without room for one sequence counts as so much: it does not start."""


def wanted_sequences(run: ConfigFacts) -> int:
    """Sequences that one engine gets in a step."""
    spec = run.spec
    if spec.colocated:
        gpus = spec.nodes * spec.gpus_per_node
    else:
        gpus = max(spec.rollout_nodes, 1) * spec.rollout_gpus_per_node
    replicas = max(1, gpus // max(1, spec.rollout.tensor_parallel * spec.rollout.pipeline_parallel))
    return -(-spec.data.train_batch_size * spec.rollout.n // replicas)


def fits(memory: MemoryProfile) -> bool:
    """Whether every phase fits on its GPU, on the host where its memory is known, and one sequence into the cache."""
    return excess_bytes(memory) == 0


def excess_bytes(memory: MemoryProfile) -> int:
    """What all phases together have too much; 0 where everything fits."""
    excess = sum(max(0, phase.needed_bytes - memory.usable_bytes) for phase in memory.phases)
    if memory.host_bytes:
        excess += sum(max(0, phase.num_bytes - memory.host_bytes) for phase in memory.host_phases)
    return excess + (_NO_CACHE_BYTES if memory.limits.concurrent_sequences == 0 else 0)


def host_peak(memory: MemoryProfile) -> Phase | None:
    """The fullest phase on the host."""
    return max(memory.host_phases, key=lambda phase: phase.num_bytes, default=None)


def by_kind(phase: Phase) -> dict[str, int]:
    """Bytes of the phase by kind of owner, in the order of `KINDS`; without those that hold nothing."""
    found = dict.fromkeys(KINDS, 0)
    for owner in phase.owners:
        found[owner.kind] = found.get(owner.kind, 0) + owner.num_bytes
    return {kind: size for kind, size in found.items() if size > 0}


def largest(phase: Phase) -> Owner | None:
    """Who holds most in the phase."""
    return max(phase.owners, key=lambda owner: owner.num_bytes, default=None)


def held_by(phase: Phase, role: str) -> int:
    """What one role holds during the phase."""
    return sum(owner.num_bytes for owner in phase.owners if owner.role == role)


def owner_name(owner: Owner) -> str:
    """`optimizer of critic`, or the kind alone where the process itself holds it."""
    kind = owner.kind.replace("_", " ").replace("kv", "KV")
    return f"{kind} of {owner.role}" if owner.role else kind


def compared(memory: MemoryProfile) -> tuple[tuple[Phase, MeasuredPhase, float], ...]:
    """Each phase that was measured without an error, beside its prediction: predicted over measured need, less 1.

    Slack is left out on both sides: the allocator carries it from one phase into the next.
    """
    predicted = {phase.name: phase for phase in memory.phases}
    return tuple(
        (predicted[one.name], one, predicted[one.name].needed_bytes / one.needed_bytes - 1)
        for one in memory.measured
        if one.name in predicted and one.peak_bytes > 0 and not one.error
    )


def gib(num_bytes: float) -> str:
    """`12.3 GiB`; `140 GiB` for what is large."""
    size = num_bytes / (1 << 30)
    return f"{size:.0f} GiB" if abs(size) >= 100 else f"{size:.1f} GiB" if abs(size) >= 0.95 else f"{size:.2f} GiB"


def data(memory: MemoryProfile) -> dict[str, Any]:
    """The prediction for a program that plans: every field of the facts, and what follows from them."""
    peak, host = memory.peak, host_peak(memory)
    everything: dict[str, Any] = msgspec.to_builtins(memory)
    return {
        "fits": fits(memory),
        "peak_phase": peak.name if peak else "",
        "peak_bytes": peak.num_bytes if peak else 0,
        "headroom_bytes": memory.usable_bytes - (peak.num_bytes if peak else 0),
        "host_peak_phase": host.name if host else "",
        "host_peak_bytes": host.num_bytes if host else 0,
        **_defaults(memory),
        **everything,
        "limits": {name: getattr(memory.limits, name) for name in memory.limits.__struct_fields__},
    }


def _defaults(memory: MemoryProfile) -> dict[str, Any]:
    """Scalar fields that the compact encoding leaves out, so that a reader finds each of them."""
    names = ("gpu", "gpu_bytes", "usable_bytes", "host_bytes", "num_nodes", "gpus_per_node", "exact", "architecture",
             "not_measured", "mean_tokens", "longest_tokens")  # fmt: skip
    empty: dict[str, Any] = {"phases": [], "host_phases": [], "changes": [], "measured": [], "notes": []}
    empty["more_cache"] = None
    return {**{name: getattr(memory, name) for name in names}, "parameters": {}, **empty}
