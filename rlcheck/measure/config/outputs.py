"""Directories that the run writes to: whether they can be made and written, without making them."""

from __future__ import annotations

import os
from pathlib import Path

from rlcheck.facts.config import PathFacts, RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.mounts import on_network

_KEYS = ("trainer.rollout_data_dir", "trainer.validation_data_dir")


def outputs_of(config: Config, spec: RunSpec, *, look: bool) -> tuple[PathFacts, ...]:
    """Every directory that the run writes to; with `look` false nothing is claimed of them."""
    run_dir = "run_dir" if config.framework == "spec" else "trainer.default_local_dir"
    named = [(run_dir, spec.run_dir), *((key, config.pick.text(key)) for key in _KEYS)]
    return tuple(_looked(key, given, look) for key, given in named if given)


def _looked(key: str, given: str, look: bool) -> PathFacts:
    resolved = os.path.abspath(os.path.expandvars(os.path.expanduser(given)))
    if "://" in given:
        resolved = given
    # A file server that does not answer would hold us here, and what we may write there another node may not.
    if not look or "://" in given or on_network(resolved):
        return PathFacts(key=key, given=given, resolved=resolved, want="directory", looked=False)
    problem = _problem(Path(resolved))
    return PathFacts(
        key=key, given=given, resolved=resolved, want="directory", exists=os.path.isdir(resolved), problem=problem
    )


def _problem(path: Path) -> str:
    there = next((entry for entry in (path, *path.parents) if os.path.lexists(entry)), path)
    if not there.is_dir():
        return f"{there} is no directory"
    return "" if os.access(there, os.W_OK | os.X_OK) else f"{there} may not be written"
