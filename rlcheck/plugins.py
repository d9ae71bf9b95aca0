"""Plug-ins: packages that bring probes, checks and playbooks of their own.

A package declares an entry point in group `rlcheck.plugins` that names a `Plugin`:

    [project.entry-points."rlcheck.plugins"]
    acme = "acme_rlcheck:PLUGIN"
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from rlcheck.check import Check
from rlcheck.probes.registry import Probe

GROUP = "rlcheck.plugins"


@dataclass(frozen=True)
class Plugin:
    """What a package adds to the doctor.

    A probe's section appears as `plugins.<section>` in the facts. `families` gives each new family its title.
    """

    name: str
    checks: tuple[Check, ...] = ()
    probes: tuple[Probe, ...] = ()
    playbooks: Path | None = None
    families: dict[str, str] = field(default_factory=dict[str, str])


def load_plugins() -> tuple[tuple[Plugin, ...], tuple[str, ...]]:
    """The installed plug-ins, and one line for each that could not be loaded."""
    from importlib.metadata import entry_points

    plugins: list[Plugin] = []
    notes: list[str] = []
    for entry in sorted(entry_points(group=GROUP), key=lambda entry: entry.name):
        try:
            loaded = entry.load()
        except Exception as error:  # somebody else's code: whatever it raises costs that plug-in only
            notes.append(f"plug-in {entry.name} ({entry.value}) cannot be loaded: {type(error).__name__}: {error}")
            continue
        if isinstance(loaded, Plugin):
            plugins.append(loaded)
        else:
            notes.append(f"plug-in {entry.name} ({entry.value}) is not a rlcheck.plugins.Plugin; it is left out")
    return tuple(plugins), tuple(notes)
