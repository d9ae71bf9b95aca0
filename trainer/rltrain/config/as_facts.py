"""A run's config in the words of the doctor, so that its memory is counted by the same model as any other config's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rlcheck.facts.config import ConfigFacts
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.models import models_of
from rlcheck.measure.config.rltrain import rltrain_spec
from rlcheck.measure.config.rltrain_data import keys
from rlcheck.measure.config.trees import NoKeyError, find
from rltrain.config.schema import RunConfig


def facts_of(config: RunConfig) -> ConfigFacts:
    """CONFIG (resolved) as `rlcheck.measure.config.read.read_run` gives it, with the sizes of its models.

    Of the disk only the models' directories are looked at. A size that is not known says why in `models`.
    """
    read = Config("rltrain", "this config", values=dict(_values(config.model_dump(mode="json"))))
    spec = rltrain_spec(read)
    return ConfigFacts(
        framework=read.framework,
        source=read.source,
        spec=spec,
        values=read.values,
        models=models_of(read, spec, look=True, shape=""),
        fallbacks=tuple(read.fallbacks),
    )


def _values(tree: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Values by dotted key; the toy's keys are left out where there is no toy."""
    for key in keys():
        try:
            yield key, find(tree, key.split("."))
        except NoKeyError:
            continue
