"""Plug-ins: packages that bring probes, checks and playbooks of their own.

A package declares an entry point in group `rlcheck.plugins` that names a `Plugin`:

    [project.entry-points."rlcheck.plugins"]
    acme = "acme_rlcheck:PLUGIN"
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.check import Check
from rlcheck.measure.machine.registry import Probe

GROUP = "rlcheck.plugins"
_RECORD_SUFFIXES = (".dist-info", ".egg-info")


class Plugin(msgspec.Struct, frozen=True):
    """What a package adds to the doctor.

    A probe's section appears as `plugins.<section>` in the facts. `families` gives each new family its title.
    """

    name: str
    checks: tuple[Check, ...] = ()
    probes: tuple[Probe, ...] = ()
    playbooks: Path | None = None
    families: dict[str, str] = {}


def load_plugins() -> tuple[tuple[Plugin, ...], tuple[str, ...]]:
    """The installed plug-ins, and one line for each that could not be loaded."""
    if not _any_declared(sys.path):
        return (), ()
    from importlib.metadata import entry_points  # costs more than all checks together, so only when there is one

    plugins: list[Plugin] = []
    notes: list[str] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            loaded = entry.load()
        except (Exception, SystemExit) as error:  # somebody else's code: whatever it raises costs that plug-in only
            notes.append(f"plug-in {entry.name} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}")
            continue
        wrong = _what_is_wrong(loaded)
        if wrong:
            notes.append(f"plug-in {entry.name} ({entry.value}) {wrong}; it is left out")
        else:
            plugins.append(loaded)
    return tuple(plugins), tuple(notes)


def _what_is_wrong(loaded: Any) -> str:
    """Why an object cannot be used as a plug-in, or ""."""
    if not isinstance(loaded, Plugin):
        return "is not a rlcheck.doctor.plugins.Plugin"
    if not _holds(loaded.checks, Check):
        return "has checks that are not a tuple of rlcheck.check.Check"
    if not _holds(loaded.probes, Probe):
        return "has probes that are not a tuple of rlcheck.measure.machine.registry.Probe"
    playbooks: Any = loaded.playbooks
    if playbooks is not None and not isinstance(playbooks, Path):
        return "has playbooks that are not a pathlib.Path"
    families: Any = loaded.families
    return "" if isinstance(families, dict) else "has families that are not a dict"


def _holds(values: Any, wanted: type) -> bool:
    """Whether `values` is a tuple of `wanted`. The annotations of `Plugin` promise it; nothing has made sure."""
    return isinstance(values, tuple) and all(isinstance(value, wanted) for value in values)  # pyright: ignore[reportUnknownVariableType]


def _any_declared(directories: Iterable[str]) -> bool:
    """Whether the entry points of any distribution mention our group: a look at what `entry_points` would parse."""
    wanted = GROUP.encode()
    for directory in directories:
        try:
            records = [entry.path for entry in os.scandir(directory or ".") if entry.name.endswith(_RECORD_SUFFIXES)]
        except OSError:
            continue
        for record in records:
            try:
                with open(os.path.join(record, "entry_points.txt"), "rb") as file:
                    if wanted in file.read():
                        return True
            except OSError:
                continue
    return False
