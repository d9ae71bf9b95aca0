"""Keys that a user gave and that nothing reads in this run, as another key switches off what reads them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from rlcheck.facts.base import Struct
from rlcheck.facts.config import KeyProblem
from rlcheck.measure.config import rltrain_data, verl_data
from rlcheck.measure.config.config import Config, shown
from rlcheck.measure.config.trainer import layout
from rlcheck.tables import DATA, table

# Values by which a user asks for nothing.
_NOTHING: tuple[Any, ...] = (None, False, 0, "", [], {})
_TOLD = frozenset(("unknown", "moved", "foreign", "idle", "unread", "type", "unresolved", "missing"))


class Row(Struct, frozen=True):
    """Keys that nothing reads while every key of `off` has one of its values; where there is none, never.

    `keys`: dotted keys; `NAME.` is every key below it. `off`: values as JSON has them, `> 0` for any above 0, `given`
    for any but null. `source`: where the framework decides it, `file:line`. `since`: the first release that was looked
    at, up to the one of the table. `typed`: only of command lines and files of keys, as a program may act otherwise.
    `detail`: says how something is done, not whether; who sets it does not count on it. `only`: what the key then still
    does.
    """

    keys: tuple[str, ...]
    off: dict[str, tuple[Any, ...]]
    source: str
    since: str = ""
    typed: bool = False
    detail: bool = False
    only: str = ""


class Effects(Struct, frozen=True):
    """The rows of a framework, and the release whose source they are from; `kinds`: of config, where not of all."""

    source: str
    rows: tuple[Row, ...]
    kinds: tuple[str, ...] = ()


def effects_of(framework: str) -> Effects | None:
    """The table of FRAMEWORK (`rlcheck/data/effects`); None where there is none."""
    return table(f"effects/{framework}", Effects) if (DATA / "effects" / f"{framework}.json").is_file() else None


def num_keys(framework: str) -> int:
    """How many keys of FRAMEWORK the table knows to depend on others."""
    found = effects_of(framework)
    return 0 if found is None else len({key for row in found.rows for key in row.keys})


def note(config: Config, *, is_program: bool = False) -> None:
    """Add a problem to CONFIG for each key that has no effect: `off` where a user would count on it, `moot` where they
    wrote what switches it off, or it is a detail. What only the shell or the program knows switches nothing off."""
    effects = effects_of(config.framework)
    if effects is None or config.open_words or (effects.kinds and config.kind not in effects.kinds):
        return
    told = {problem.key for problem in config.problems if problem.kind in _TOLD} | set(config.open_keys)
    defaults = _Defaults(config)
    for row in effects.rows:
        if not (row.typed and is_program) and not _is_older(config.version, row.since) and _is_off(config, row, told):
            config.problems += _problems(config, row, effects, _without_effect(config, row, told, defaults))


def _is_older(version: str, since: str) -> bool:
    return bool(version and since) and _number(version) < _number(since)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _is_off(config: Config, row: Row, told: Collection[str]) -> bool:
    return all(
        key in config.values and key not in told and any(_same(config.values[key], one) for one in values)
        for key, values in row.off.items()
    )


def _same(value: Any, wanted: Any) -> bool:
    """Whether VALUE is WANTED, a truth value no number."""
    if wanted == "> 0":
        return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
    if wanted == "given":
        return value is not None
    return value == wanted and isinstance(value, bool) == isinstance(wanted, bool)


def _without_effect(config: Config, row: Row, told: Collection[str], defaults: _Defaults) -> Iterator[str]:
    for name in row.keys:
        below = [key for key in config.given if key.startswith(name)] if name.endswith(".") else [name]
        for key in below:
            value = config.values.get(key)
            is_set = key in config.given and key in config.values and key not in told and key not in row.off
            if is_set and not any(_same(value, one) for one in _NOTHING) and not defaults.has(key, value):
                yield key


def _problems(config: Config, row: Row, effects: Effects, keys: Iterator[str]) -> Iterator[KeyProblem]:
    is_seen = any(key in config.given for key in row.off)
    source = f"({effects.source}, {row.source})"
    why = " and ".join(f"{key}={shown(config.values[key])}" for key in row.off)
    default = "" if is_seen else ", the default" if len(row.off) == 1 else ", the defaults"
    does = f"only {row.only}" if row.only else "has no effect"
    said = f"{does} with {why}{default} {source}" if row.off else f"is read nowhere {source}"
    for key in keys:
        value = shown(config.values[key])
        yield KeyProblem("moot" if is_seen or row.detail else "off", key, said, config.place(key), value=value)


class _Defaults:
    """The framework's own values of keys, looked up when first asked for."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.found: Mapping[str, Any] | None = None

    def has(self, key: str, value: Any) -> bool:
        """Whether VALUE is the default of KEY, or what an interpolation there gives."""
        if self.found is None:
            self.found = self._all()
        return key in self.found and _same(value, self.found[key])

    def _all(self) -> Mapping[str, Any]:
        config = self.config
        if config.framework == "verl":
            return verl_data.defaults(config.version, config.engine)
        if config.framework == "rltrain":
            return {key: leaf.default for key, leaf in rltrain_data.keys().items()}
        return {key: row.default for key, row in layout(config.framework, config.version, config.kind).keys.items()}
