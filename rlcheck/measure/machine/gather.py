"""Collecting all sections at once, each with its own deadline, so that one stuck probe never holds up the report."""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any, cast

from rlcheck import __version__
from rlcheck.facts.base import Fact, MissingKind, known, missing
from rlcheck.facts.document import SECTIONS, Facts, not_collected
from rlcheck.facts.hygiene import made_safe
from rlcheck.families import MEASURED
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.registry import Probe


def gather(
    context: ProbeContext,
    probes: Iterable[Probe],
    timeout_s: float | None = None,
    progress: Callable[[tuple[str, ...]], None] | None = None,
) -> Facts:
    """Run the probes side by side and return the document.

    Args:
        context: the machine.
        probes: what to collect; sections without a probe are marked as not collected.
        timeout_s: an upper bound for every probe's own deadline.
        progress: called twice a second with the sections that are still awaited.
    """
    started = time.monotonic()
    done: queue.SimpleQueue[tuple[str, Fact[Any]]] = queue.SimpleQueue()
    deadlines: dict[str, float] = {}
    for probe in probes:
        own = probe.deep_deadline_s if context.deep else probe.deadline_s
        deadlines[probe.section] = started + min(own, timeout_s or own)
        # Daemon threads: a probe that is stuck must not keep the process alive either.
        thread = threading.Thread(target=_collect, args=(probe, context, done), name=probe.section, daemon=True)
        try:
            thread.start()
        except RuntimeError:  # the limit on threads is reached, which is worth reporting: look one after the other
            _collect(probe, context, done)
    sections = _await(deadlines, started, done, progress)
    builtin: dict[str, Any] = {name: sections.pop(name, not_collected(_why_not(name))) for name in SECTIONS}
    return Facts(
        rlcheck_version=__version__,
        node=_node_name(),
        collected_at=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        deep=context.deep,
        plugins=sections,
        **builtin,
    )


def _why_not(section: str) -> str:
    return f"is measured by `rlcheck {MEASURED[section]}`" if section in MEASURED else "was not asked for"


def _collect(probe: Probe, context: ProbeContext, done: queue.SimpleQueue[tuple[str, Fact[Any]]]) -> None:
    try:
        value = probe.load()(context)
        fact = cast("Fact[Any]", value) if isinstance(value, Fact) else known(value)
        done.put((probe.section, made_safe(probe.section, fact)))
    except (Exception, SystemExit) as error:  # a probe must not raise; one that does costs its own section only
        reason = f"the {probe.section} probe failed: {type(error).__name__}: {error}"
        done.put((probe.section, missing(MissingKind.ERROR, reason)))


def _await(
    deadlines: dict[str, float],
    started: float,
    done: queue.SimpleQueue[tuple[str, Fact[Any]]],
    progress: Callable[[tuple[str, ...]], None] | None,
) -> dict[str, Fact[Any]]:
    sections: dict[str, Fact[Any]] = {}
    while waiting := {name: deadline for name, deadline in deadlines.items() if name not in sections}:
        now = time.monotonic()
        for name, deadline in waiting.items():
            if now >= deadline:
                reason = f"the {name} probe did not finish within {deadline - started:g} s"
                sections[name] = missing(MissingKind.TIMEOUT, reason)
        try:
            name, fact = done.get(timeout=max(0.0, min(0.5, min(waiting.values()) - now)))
            sections.setdefault(name, fact)
        except queue.Empty:
            if progress is not None:
                progress(tuple(sorted(waiting)))
    return sections


def _node_name() -> str:
    try:
        return socket.gethostname()
    except OSError:
        return "localhost"
