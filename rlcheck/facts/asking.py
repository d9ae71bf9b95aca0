"""A run whose unknown fields cannot be read: what its config does not say makes a check *skip* or *unknown*."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from rlcheck.facts.base import FactMissingError, Missing
from rlcheck.facts.config import ConfigFacts, RunSpec


class _Asked:
    """A struct of the spec, read through; fields in WITHOUT raise."""

    __slots__ = ("_path", "_struct", "_without")

    def __init__(self, struct: msgspec.Struct, path: str, without: Mapping[str, Missing]) -> None:
        self._struct, self._path, self._without = struct, path, without

    def __getattr__(self, name: str) -> Any:
        path = f"{self._path}{name}"
        lacking = self._without.get(path)
        if lacking is not None:
            raise FactMissingError(lacking)
        value: Any = getattr(self._struct, name)
        return _Asked(value, f"{path}.", self._without) if isinstance(value, msgspec.Struct) else value


def asked(run: ConfigFacts) -> ConfigFacts:
    """Return `run` with a spec that raises `FactMissingError` where a field without a value is read."""
    if not run.without:
        return run
    return msgspec.structs.replace(run, spec=cast(RunSpec, _Asked(run.spec, "", run.without)))
