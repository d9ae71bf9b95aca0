"""What is asked of the chain, and what is known so far."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from rlcheck.doctor.settings import Settings
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.memory.predict import Gpu


@dataclass(frozen=True)
class Request:
    """One call.

    run: the config, read. sized: the same with all numbers that this machine decides, for the prediction of memory.
    source, overrides: that it was read from. context: this machine, and the Python that will run it. settings, ignore,
    strict: as for every command. left_out: links that are not wanted, with the reason. timeout_s: upper bound of every
    wait. gpu, host_bytes: what memory is predicted for; None: this machine's GPU. head_ip, port: of the Ray cluster.
    most_rows: rows of a data file that are read at most; 0: all. start_s: longest start of an engine.
    """

    run: ConfigFacts
    source: str
    overrides: tuple[str, ...]
    context: ProbeContext
    settings: Settings
    sized: ConfigFacts | None = None
    ignore: tuple[str, ...] = ()
    strict: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict[str, str])
    timeout_s: float | None = None
    gpu: Gpu | None = None
    host_bytes: int = 0
    head_ip: str = ""
    port: int | None = None
    most_rows: int = 0
    start_s: float = 600.0

    def limit_s(self, usual_s: float) -> float:
        """A deadline of `usual_s`, or the caller's own if that is shorter."""
        return min(usual_s, self.timeout_s or usual_s)


@dataclass
class State:
    """What the links have found: this machine's facts, those of others, remarks for the report."""

    facts: Facts
    directory: str
    """An empty one of ours, which goes with the call."""
    others: tuple[Facts, ...] = ()
    notes: list[str] = field(default_factory=list[str])

    def learn(self, **sections: object) -> None:
        """Take sections into this machine's facts."""
        self.facts = msgspec.structs.replace(self.facts, **sections)


def known_head(facts: Facts, environ: Mapping[str, str] | None = None) -> str:
    """What this machine takes for the head of a cluster: RAY_ADDRESS, or what the last `ray start` here left."""
    address = (facts.environ.value or environ or os.environ).get("RAY_ADDRESS", "")
    if address and address not in ("auto", "local"):
        return address
    section = facts.ray.value
    return (section.current_cluster.value or "") if section is not None else ""
