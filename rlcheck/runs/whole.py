"""A config with all that can be known of it here: what it says, what the framework refuses, the GPUs that it gets."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.run import RunFacts


def read_whole(
    source: str, overrides: Sequence[str], *, framework: str = "auto", look: bool = True, model_shape: str = ""
) -> RunFacts:
    """`read_run`, the framework's own rules, and the GPUs that a run on this machine would get.

    Args:
        source: as for `read_run`.
        overrides: as for `read_run`.
        framework: as for `read_run`.
        look: False for a config of another machine: nothing of this one is looked at.
        model_shape: as for `read_run`.

    Raises:
        ReadError: it cannot be read at all.
    """
    from rlcheck.runs.own_rules import with_own_rules
    from rlcheck.runs.read import read_run

    run = read_run(source, overrides, framework=framework, look=look, model_shape=model_shape)
    run = with_own_rules(run, source, overrides) if look else run
    return msgspec.structs.replace(run, num_gpus=gpus_for(run, look))


def gpus_for(run: RunFacts, look: bool) -> Fact[int]:
    """GPUs that `run` would get on this machine."""
    if run.spec.device != "cuda":
        return absent(f"the run is on {run.spec.device}")
    if not look:
        return missing(MissingKind.NOT_COLLECTED, "--no-fs: the config is for another machine")
    from rlcheck.memory.gpus import local_gpus

    found = len(local_gpus())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").strip()
    if chosen:
        found = min(found, len([name for name in chosen.split(",") if name.strip() not in ("", "-1")]))
    return known(found) if found else absent("this machine has no GPU; the config is for another one")
