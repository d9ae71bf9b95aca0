"""A `RunSpec` from a trainer's keys: by its map of fields, each read as the type that the field has."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec

from rlcheck.facts.base import Missing, MissingKind
from rlcheck.facts.config import RoleSpec, RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.measure.config.picking import usual_dtype
from rlcheck.measure.config.trainer import UNKNOWN, Key, Refusal, Trainer

_ROLES = ("ref", "critic", "reward_model")
_TRIED: Mapping[str, tuple[Any, ...]] = {
    "bool": (True, False), "int": (1, 2, 7, 64, 1000), "float": (0.0, 0.5, 3.0), "dict": ({"x": 1},), "list": (["x"],),
    "str": ("/made/up.py", "http://made.up:1/x", "made/up", "none"),
}  # fmt: skip
"""Values to try a key at that has none, by its type."""
_DTYPES = ("model_dtype", "dtype", "reduce_dtype")
_USUAL = (
    "engine", "shares_actor", "own_gpus", "beside", "zero_stage", "bucket_elements", "in_process",
    "expandable_segments", "loss_bytes", "read_bytes", "unshards_to_read", "block_elements",
)  # fmt: skip
"""Fields that are as usual where the trainer's module does not say otherwise."""


def filled(config: Config, trainer: Trainer, keys: Mapping[str, Key]) -> tuple[RunSpec, dict[str, Missing]]:
    """CONFIG in the words of `RunSpec`, and the fields that it does not say, with the reason.

    What is derived from a key whose value is not known is not known, unless it is the same for every value tried.
    """
    derived = dict(trainer.derive(config))
    for key, variant in variants(config, keys):
        for field, value in trainer.derive(variant).items():
            if derived.get(field, UNKNOWN) is not UNKNOWN and value != derived[field]:
                derived[field] = _Open(key)
    filler = _Filler(config, trainer, derived)
    spec = cast(RunSpec, filler.struct(RunSpec, ""))
    return spec, filler.without


def refusals(config: Config, spec: RunSpec, trainer: Trainer, keys: Mapping[str, Key]) -> list[Refusal]:
    """What the trainer refuses, whatever the keys hold that are not known."""
    found = list(trainer.refused(config, spec))
    for _, variant in variants(config, keys):
        left = {refusal.key for refusal in trainer.refused(variant, spec)}
        found = [refusal for refusal in found if refusal.key in left]
    return found


def variants(config: Config, keys: Mapping[str, Key]) -> Iterator[tuple[str, Config]]:
    """CONFIG with each key whose value is not known at some values that it may have, one key at a time."""
    for key in config.open_keys:
        row = keys.get(key, Key())
        tried: list[Any] = [*row.choices, *(value for kind in row.types or _TRIED for value in _TRIED[kind])]
        for value in tried:
            yield key, replace(config, values={**config.values, key: value}, open_keys={})


@dataclass(frozen=True)
class _Open:
    """A field that depends on a key without a known value."""

    key: str


class _Filler:
    def __init__(self, config: Config, trainer: Trainer, derived: Mapping[str, Any]) -> None:
        self.config, self.trainer, self.derived = config, trainer, derived
        self.without: dict[str, Missing] = {}

    def struct(self, kind: type[msgspec.Struct], prefix: str) -> msgspec.Struct:
        """A KIND whose fields are at PREFIX."""
        values: dict[str, Any] = {}
        if kind is RoleSpec:
            values = {"name": prefix.rstrip("."), "trained": prefix.startswith(("actor", "critic"))}
        for one in msgspec.structs.fields(kind):
            path = f"{prefix}{one.name}"
            inner = _struct_in(one.type)
            if one.name in values or (one.name in _USUAL and path not in self.derived):
                continue
            if inner is not None and not (path in _ROLES and self._is_off(path)):
                values[one.name] = self.struct(inner, f"{path}.")
            elif inner is None:
                found = self._value(path, one.type)
                if found is not UNKNOWN:
                    values[one.name] = found
        return kind(**values)

    def _is_off(self, role: str) -> bool:
        """Whether the run has no such role; one of which nothing is known is not there, and is not to be asked for."""
        return self._value(role, bool) is not True

    def _value(self, path: str, kind: Any) -> Any:
        if path in self.derived:
            found = self.derived[path]
        else:
            key = self.trainer.fields.get(path)
            found = UNKNOWN
            if key is not None and key in self.config.values and key not in self.config.open_keys:
                found = _typed(self.config, key, kind, is_dtype=path.rpartition(".")[2] in _DTYPES)
        if isinstance(found, _Open):
            self._lack(path, found.key)
            return UNKNOWN
        if found is UNKNOWN:
            self._lack(path)
        return found

    def _lack(self, path: str, open_key: str = "") -> None:
        trainer = self.trainer
        if path in trainer.lacks:
            why = Missing(kind=MissingKind.ABSENT, reason=f"{trainer.title} has no such setting ({path})")
        else:
            key = open_key or trainer.fields.get(path) or trainer.named.get(path, "")
            text = self.config.open_keys.get(key, "")
            named = f"{key}: {text}" if text else f"the config does not say {key or path}"
            why = Missing(kind=MissingKind.NOT_COLLECTED, reason=named)
        self.without[path] = why


def _struct_in(kind: Any) -> type[msgspec.Struct] | None:
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) or typing.get_origin(kind) else (kind,)
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, msgspec.Struct)), None)


def _typed(config: Config, key: str, kind: Any, *, is_dtype: bool) -> Any:
    """The value of KEY as a KIND; `UNKNOWN` where it is none of that."""
    raw, pick = config.pick.raw(key), config.pick
    kinds = typing.get_args(kind) if isinstance(kind, types.UnionType) else (kind,)
    if raw is None:
        return None if type(None) in kinds else UNKNOWN
    found: Any = None
    if bool in kinds:
        found = raw if isinstance(raw, bool) else None
    elif float in kinds:
        found = pick.number(key)
    elif int in kinds:
        found = pick.whole(key)
    elif any(typing.get_origin(one) is tuple for one in kinds):
        found = pick.words_or_text(key, "") if str in kinds else pick.words(key)
    elif any(typing.get_origin(one) is dict for one in kinds):
        found = pick.mapping(key) if isinstance(raw, dict) else None
    elif str in kinds:
        found = usual_dtype(str(raw)) if is_dtype else str(raw)
    return UNKNOWN if found is None else found
