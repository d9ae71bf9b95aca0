"""RUN054: memory over the steps."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from rlcheck.check import Verdict, check, passed, skip, unknown, warn
from rlcheck.checks.run.common import NEEDS, drawn, proof, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import median, slope, window

METRICS = {
    "perf/max_memory_allocated_gb": "GPU memory of tensors",
    "perf/max_memory_reserved_gb": "GPU memory of torch",
    "perf/device_memory_used_gb": "GPU memory of all programs",
    "perf/run_memory_used_gb": "RAM of the run",
    "perf/cpu_memory_used_gb": "RAM of the host",
}
_HOST = "perf/cpu_memory_used_gb"
_FEWEST = 20
_FEWEST_OF_HOST = 100
"""What else runs on a host rises and falls for longer than twenty steps take."""
_PARTS = 4


class Creep(NamedTuple):
    """A metric that rises in each quarter of the later half of a run."""

    metric: str
    first: float
    last: float
    since: int
    per_step: float


@check("RUN054", "Memory does not creep up", needs=NEEDS, playbook="memory-creeps-up")
def memory_holds(facts: Facts) -> Verdict:
    """Looks for memory that still rises in the later half of the run.

    What it does:
        Cuts the later half of each memory metric into four parts. Warns when each holds more than the one before and
        the rise is over 5 % (10 % for a host that others may use) and over 0.2 GiB. A start that fills caches and then
        stays is no creep.

    Why it matters:
        What grows by a little at each step ends a run of days by out-of-memory, mostly at night.
    """
    run = run_of(facts)
    there = {name: curve for name in METRICS if (curve := run.curves.get(name)) is not None and curve.values}
    if "perf/run_memory_used_gb" in there:
        # The host's is then known to be that of others, too.
        there.pop(_HOST, None)
    if not there:
        return unknown("the run logs no memory")
    longest = max(len(curve.values) for curve in there.values())
    if longest < _FEWEST:
        return skip(f"{longest} steps, too few for a trend ({_FEWEST} are judged)")
    found = [creep for name, curve in there.items() if (creep := _creep(name, curve)) is not None]
    if not found:
        return passed(
            ", ".join(f"{METRICS[name]} at most {max(curve.values):.3g} GiB" for name, curve in there.items())
        )
    worst = max(found, key=lambda creep: (creep.last - creep.first) / creep.first)
    return warn(
        f"{METRICS[worst.metric]} that stays near {worst.first:.3g} GiB",
        f"a rise to {worst.last:.3g} GiB from step {worst.since} on, {worst.per_step * 1000:.3g} GiB in 1000 steps",
        details=drawn(run, *(creep.metric for creep in found)),
        evidence=tuple(proof(creep.metric, f"{creep.last:.4g}", creep.since, run.last_step) for creep in found),
    )


def _creep(name: str, curve: Curve) -> Creep | None:
    if len(curve.values) < (_FEWEST_OF_HOST if name == _HOST else _FEWEST):
        return None
    later = window(curve, curve.steps[len(curve.steps) // 2], curve.steps[-1])
    size = len(later.values) // _PARTS
    levels = [median(later.values[part * size : (part + 1) * size or None]) or 0.0 for part in range(_PARTS)]
    rises = all(after > before for before, after in pairwise(levels))
    gain = levels[-1] - levels[0]
    share = limit("memory_creep_share") * (2 if name == _HOST else 1)
    if not rises or gain < share * levels[0] or gain < limit("memory_creep_gb"):
        return None
    return Creep(name, levels[0], levels[-1], later.steps[0], slope(later) or 0.0)
