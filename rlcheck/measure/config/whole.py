"""A config with all that can be known of it here: what it says, what the framework refuses, the GPUs that it gets."""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.config import ConfigFacts


def read_whole(
    source: str,
    overrides: Sequence[str],
    *,
    framework: str = "auto",
    look: bool = True,
    model_shape: str = "",
    here: bool = False,
) -> ConfigFacts:
    """`read_run`, the framework's own rules, and the GPUs that a run on this machine would get.

    Args:
        source: as for `read_run`.
        overrides: as for `read_run`.
        framework: as for `read_run`.
        look: False for a config of another machine: nothing of this one is looked at.
        model_shape: as for `read_run`.
        here: the run is for this machine, which decides what the config leaves open.

    Raises:
        ReadError: it cannot be read at all.
    """
    from rlcheck.measure.config.own_rules import with_own_rules
    from rlcheck.measure.config.read import read_run

    run = read_run(source, overrides, framework=framework, look=look, model_shape=model_shape)
    run = msgspec.structs.replace(run, num_gpus=gpus_for(run, look))
    words = tuple(overrides)
    if here:
        words += tuple(f"{key}={value}" for key, (_, value) in _decided(run).items())
        run = as_here(run)
    return with_own_rules(run, source, words) if look else run


def as_here(run: ConfigFacts) -> ConfigFacts:
    """`run`, which knows the machine's GPUs, with what rltrain decides by the machine where the config is open."""
    found = _decided(run)
    if not found:
        return run
    assumed = [text for text in run.fallbacks if not text.startswith(tuple(f"{key}=" for key in found))]
    assumed += [f"{key}: {value}, by this machine" for key, (_, value) in found.items()]
    spec = msgspec.structs.replace(run.spec, **dict(found.values()))
    return msgspec.structs.replace(run, spec=spec, fallbacks=tuple(assumed))


def _decided(run: ConfigFacts) -> dict[str, tuple[str, str | int]]:
    """By key: the field of the spec, and what this machine makes of it."""
    if run.framework != "rltrain":
        return {}
    num_gpus = run.num_gpus.value or 0
    if run.values.get("trainer.device") in (None, "auto") and not num_gpus:
        return {"trainer.device": ("device", "cpu")}
    if run.values.get("trainer.n_gpus_per_node") is None and num_gpus:
        return {"trainer.n_gpus_per_node": ("gpus_per_node", num_gpus)}
    return {}


def gpus_for(run: ConfigFacts, look: bool) -> Fact[int]:
    """GPUs that `run` would get on this machine."""
    if run.spec.device != "cuda":
        return absent(f"the run is on {run.spec.device}")
    if not look:
        return missing(MissingKind.NOT_COLLECTED, "--no-fs: the config is for another machine")
    from rlcheck.measure.machine.local_gpus import local_gpus

    found = len(local_gpus())
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:  # set to nothing, it shows none
        found = min(found, len([name for name in chosen.split(",") if name.strip() not in ("", "-1")]))
    return known(found) if found else absent("this machine has no GPU; the config is for another one")
