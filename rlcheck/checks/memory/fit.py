"""Whether the GPUs and the host hold what the run needs at its fullest."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import Change, MemoryProfile, Phase
from rlcheck.measure.memory.summary import AWAKE, TIGHT, gib, host_peak, largest, owner_name

_HOST_TIGHT = 0.9
"""Share of a node's RAM above which little is left for the page cache, data loaders and Ray's object store."""
_SHORT = 0.1
"""Of the full length: samples that are shorter in the mean would be too few to count on."""
_MAX_SHOWN, _MAX_CHANGES = 4, 2


def _who(phase: Phase) -> str:
    owner = largest(phase)
    return f"{owner_name(owner)} holds {gib(owner.num_bytes)}" if owner is not None else "nobody is named"


def _change_line(change: Change) -> str:
    time = f", a step takes about x {change.slowdown:.2f}" if change.slowdown > 1.005 else ""
    outcome = f"peak {gib(change.peak_bytes)}{'' if change.fits else ', still too much'}{time}"
    return f"{change.title} ({outcome}): {' '.join(change.overrides)}"


def _unproven(memory: MemoryProfile) -> str:
    """The word beside a figure that no measurement stands for."""
    return " (not measured)" if memory.not_measured else ""


def _params(memory: MemoryProfile) -> dict[str, str]:
    best = next((change for change in memory.changes if change.fits), None)
    return {"overrides": " ".join(best.overrides)} if best is not None and best.overrides else {}


@check("MEM001", "The GPU holds the run at its peak", needs=("memory",), playbook="run-does-not-fit",
       problem="The run needs more GPU memory than there is")  # fmt: skip
def gpu_holds_the_peak(facts: Facts) -> Verdict:
    """
    What it does:
        Compares the predicted need of every phase with the memory that a GPU really gives to the run.

    Why it matters:
        The run ends with an out-of-memory error, often only after minutes of loading or in the first update.
        An architecture that is not known is estimated from its declared sizes, and trainers whose runs were not
        measured are counted from their sources; then this is a warning. So it is where rows are packed, and the run
        fits while samples are shorter than their limit in the mean.
    """
    memory = need(facts.memory)
    peak = memory.peak
    if peak is None:
        return skip("no phase of this run uses a GPU")
    over = [phase for phase in memory.phases if phase.needed_bytes > memory.usable_bytes]
    if not over:
        return passed(f"{gib(peak.num_bytes)} of {gib(memory.usable_bytes)} in {peak.name}{_unproven(memory)}")
    packed = _SHORT * memory.longest_tokens <= memory.mean_tokens < memory.longest_tokens
    packed = packed and all(phase.name not in AWAKE for phase in over)
    verdict = fail if memory.exact and not memory.not_measured and not packed else warn
    details = [f"it fits while samples are up to {memory.mean_tokens:,} tokens long in the mean of a micro batch; "
               f"this is at full length, {memory.longest_tokens:,}"] if packed else []  # fmt: skip
    details += [f"{phase.name}: {gib(phase.num_bytes)}, {_who(phase)}" for phase in over[:_MAX_SHOWN]]
    details += [_change_line(change) for change in memory.changes if change.fits][:_MAX_CHANGES]
    return verdict(
        f"at most {gib(memory.usable_bytes)} on one {memory.gpu}",
        f"{gib(peak.num_bytes)} in {peak.name}{_unproven(memory)}",
        details=tuple(details),
        evidence=(evidence("memory.phases", peak.num_bytes, "prediction"),),
        params=_params(memory),
    )


@check("MEM002", "The fullest phase leaves some room", needs=("memory",), playbook="run-does-not-fit",
       problem="The fullest phase leaves too little room")  # fmt: skip
def there_is_room(facts: Facts) -> Verdict:
    """
    What it does:
        Looks whether the fullest phase leaves less than 5 % of the usable memory.

    Why it matters:
        A prediction is off by a few percent, and fragmentation grows over hours: a run that barely fits may end late.
    """
    memory = need(facts.memory)
    # Without the allocator's slack, which is given back when it is needed.
    peak = max(memory.phases, key=lambda phase: phase.needed_bytes, default=None)
    if peak is None or peak.needed_bytes > memory.usable_bytes:
        return skip("no GPU is used" if peak is None else "it does not fit at all (MEM001)")
    left = memory.usable_bytes - peak.needed_bytes
    if left >= TIGHT * memory.usable_bytes:
        return passed(f"{gib(left)} are left in {peak.name}")
    return warn(
        f"at least {gib(TIGHT * memory.usable_bytes)} left ({TIGHT:.0%} of {gib(memory.usable_bytes)})",
        f"{gib(left)} in {peak.name}, where {_who(peak)}",
        evidence=(evidence("memory.phases", peak.num_bytes, "prediction"),),
        params=_params(memory),
    )


@check(
    "MEM003", "The host's memory holds what the run keeps there", needs=("memory",), playbook="host-memory-too-small"
)
def host_holds_it(facts: Facts) -> Verdict:
    """
    What it does:
        Compares what all local ranks keep in a node's RAM (offloaded states, models while loading, a gathered
        checkpoint, sleeping engine weights) with the RAM that the node has.

    Why it matters:
        Offloading costs RAM once for each local rank; when it runs out, the kernel kills a process without a word.
    """
    memory = need(facts.memory)
    peak = host_peak(memory)
    if peak is None or not memory.host_bytes:
        return skip("nothing is kept on the host" if peak is None else "the host's memory is not known (--host-mem)")
    if peak.num_bytes <= _HOST_TIGHT * memory.host_bytes:
        return passed(f"{gib(peak.num_bytes)} of {gib(memory.host_bytes)} in {peak.name}")
    sure = memory.exact and not memory.not_measured
    verdict = fail if peak.num_bytes > memory.host_bytes and sure else warn
    most = sorted(peak.owners, key=lambda owner: owner.num_bytes, reverse=True)[:_MAX_SHOWN]
    return verdict(
        f"at most {gib(_HOST_TIGHT * memory.host_bytes)} of a node's {gib(memory.host_bytes)}",
        f"{gib(peak.num_bytes)} in {peak.name} over {memory.gpus_per_node} local ranks",
        details=tuple(f"{owner_name(owner)}: {gib(owner.num_bytes)}" for owner in most),
        evidence=(evidence("memory.host_phases", peak.num_bytes, "prediction"),),
        params=_params(memory),
    )
