"""Read a run config: recipe or file, overrides, verl's names, interpolations, one validation."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import InterpolationToMissingValueError, OmegaConfBaseException
from pydantic import BaseModel, ValidationError
from pydantic_core import PydanticUndefined

from rlcheck.measure.config.rltrain_keys import must_be_given
from rltrain.config import messages, verl_differences
from rltrain.config.names import RUN, SFT, Vocabulary
from rltrain.config.schema import RunConfig
from rltrain.config.schema.sft import SftConfig
from rltrain.config.source import Source, read
from rltrain.core.errors import UserError, first_line

MISSING = "???"


@dataclass(frozen=True)
class Loaded:
    """A config with what there is to say about it."""

    config: RunConfig
    notes: tuple[str, ...]
    """One line each: keys that moved, verl's without effect here, and those that do other than in verl."""


def load(source: str | Path, overrides: Sequence[str] = ()) -> RunConfig:
    """The validated config of the recipe or file SOURCE with OVERRIDES.

    Raises:
        UserError: every problem found, one a line, each with the file and line or the override that made it.
    """
    return load_with_notes(source, overrides).config


def load_with_notes(source: str | Path, overrides: Sequence[str] = ()) -> Loaded:
    """As `load`, with what the user should know.

    Raises:
        UserError: as `load`.
    """
    config, found = _read(source, overrides, RUN)
    assert isinstance(config, RunConfig)
    return Loaded(config, (*found.notes, *verl_differences.met(config, found.values)))


@dataclass(frozen=True)
class LoadedSft:
    """As `Loaded`, of supervised training."""

    config: SftConfig
    notes: tuple[str, ...]


def load_sft(source: str | Path, overrides: Sequence[str] = ()) -> LoadedSft:
    """The validated config for `rltrain sft`; as `load_with_notes`.

    Raises:
        UserError: as `load`.
    """
    config, found = _read(source, overrides, SFT)
    assert isinstance(config, SftConfig)
    return LoadedSft(config, tuple(found.notes))


def _read(source: str | Path, overrides: Sequence[str], words: Vocabulary) -> tuple[BaseModel, _Flat]:
    try:
        flat = _Flat(read(source, overrides, words), words)
        flat.use_rltrain_names()
        config = flat.validate()
    except RecursionError:
        raise UserError(f"{source}: nested deeper than any config; is it one?") from None
    if config is None or flat.problems:
        raise UserError("\n".join(flat.problems))
    return config, flat


@dataclass
class _Flat:
    """A config on its way: dotted keys with resolved values, and what was found wrong so far."""

    source: Source
    words: Vocabulary
    merged: DictConfig = field(init=False)
    raw: dict[str, Any] = field(default_factory=dict[str, Any])
    """Values as written, interpolations and all."""
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    notes: list[str] = field(default_factory=list[str])
    problems: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        user = _without_empty(OmegaConf.to_container(self.source.tree, resolve=False), "", self.words)
        self.raw = dict(_flatten(user, "", self.words))
        reachable = {key: value for key, value in self.raw.items() if _reachable(user, key)}
        self.merged = _merge(reachable, self.words)
        for key in self.raw:
            if key in reachable:
                self._resolve(key)
            else:
                self.problem(key, "a key in a file holds no dots; write it as nested sections")

    def problem(self, key: str, message: str) -> None:
        self.problems.append(f"{self.source.place(key)}: {key}: {message}")

    def _resolve(self, key: str) -> None:
        try:
            self.values[key] = _select(self.merged, key, self.raw[key])
        except InterpolationToMissingValueError:
            pass  # The value that it points to is reported as missing itself.
        except OmegaConfBaseException as error:
            self.problem(key, f"cannot resolve {messages.shown(self.raw[key])}: {first_line(error)}")

    def use_rltrain_names(self) -> None:
        """Move verl's keys to where rltrain has them; note or refuse those that it does not have."""
        idle: list[str] = []
        for key in list(self.values):
            if self.words.leaf_above(key) is not None:
                self._drop_null(key)
            elif key in self.words.sections():
                self._check_section(key)
            else:
                self._foreign(key, self.values.pop(key), idle)
        if idle:
            more = f" and {len(idle) - 5} more" if len(idle) > 5 else ""
            self.notes.append(f"verl keys without effect here, at verl's default: {', '.join(idle[:5])}{more}")

    def _drop_null(self, key: str) -> None:
        """Verl writes null for "not set", also where rltrain has a default that is not null."""
        leaf = self.words.leaves().get(key)
        if leaf is None or leaf.nullable or self.values[key] is not None:
            return
        if key in self.words.verl_keys() and self.words.verl_keys()[key] is None:
            del self.values[key]

    def _check_section(self, key: str) -> None:
        if self.values[key] != {}:
            self.problem(key, f"expected a section with keys below it, got {messages.shown(self.values.pop(key))}")

    def _foreign(self, key: str, value: Any, idle: list[str]) -> None:
        if key.rsplit(".", 1)[-1] == "_target_":
            return  # Hydra's class names, in configs that verl has flattened.
        target = self.words.aliases().target(key)
        if target is not None and self.words.leaf_above(target) is not None:
            self._move(key, target, value)
        elif key in self.words.verl_keys():
            if self._at_verl_default(key, value) or value in self.words.aliases().accepted.get(key, []):
                idle.append(key)
            else:
                default = messages.shown(self.words.verl_keys()[key])
                self.problem(key, f"{self._instead(key)} (verl's default {default} would pass)")
        else:
            near = self.words.nearest(key)
            meant = f"unknown key; did you mean {' or '.join(near)}?" if near else "unknown key"
            self.problem(key, self._instead(key) if key in self.words.aliases().instead else meant)

    def _move(self, key: str, target: str, value: Any) -> None:
        if value is None or (value == MISSING and self._at_verl_default(key, value)):
            return
        if target not in self.values:
            self.values[target] = value
            self.source.places.setdefault(target, self.source.place(key))
            if not self._at_verl_default(key, value):
                self.notes.append(f"{key} is read as {target}")
        elif self.values[target] != value and not self._at_verl_default(key, value):
            other = f"{self.source.place(target)}: {target}={messages.shown(self.values[target])}"
            self.problem(key, f"{messages.shown(value)} contradicts {other}; they are one setting, keep the latter")

    def _at_verl_default(self, key: str, value: Any) -> bool:
        if key not in self.words.verl_keys():
            return False
        default = self.words.verl_keys()[key]
        if default in (value, self.raw[key]):
            return True
        if not (isinstance(default, str) and "${" in default):
            return False
        # A default that follows another key: what would it be in this config?
        tree = self.merged.copy()
        try:
            OmegaConf.update(tree, key, default)
            return _select(tree, key, default) == value
        except OmegaConfBaseException:
            return False

    def validate(self) -> BaseModel | None:
        """The config, or None with the problems noted."""
        self._require_given()
        self._refuse_bool_as_number()
        try:
            return self.words.schema.model_validate(_unflatten(self._with_interpolated_defaults()))
        except ValidationError as error:
            for key, message in messages.explain(error, self.words):
                if not any(f" {key}: " in problem for problem in self.problems):
                    self.problem(key, message)
        return None

    def _require_given(self) -> None:
        for key, value in list(self.values.items()):
            if value == MISSING:
                self.problem(key, must_be_given(key))
                if not self.words.leaves()[self.words.leaf_above(key) or key].required:
                    del self.values[key]

    def _refuse_bool_as_number(self) -> None:
        for key, value in self.values.items():
            types = self.words.leaves()[key].types if key in self.words.leaves() else ()
            if isinstance(value, bool) and bool not in types and {int, float} & set(types):
                self.problem(key, f"expected {messages.expected(types)}, got {messages.shown(value)}")

    def _with_interpolated_defaults(self) -> dict[str, Any]:
        values = dict(self.values)
        for key, leaf in self.words.leaves().items():
            if isinstance(leaf.default, str) and "${" in leaf.default and key not in values:
                # Where this fails, the key that it refers to has been reported.
                with contextlib.suppress(OmegaConfBaseException):
                    # None: what should be its section is a value.
                    if (found := OmegaConf.select(self.merged, key)) is not None:
                        values[key] = found
        return values

    def _instead(self, key: str) -> str:
        advice = self.words.aliases().instead.get(key)
        return f"rltrain {'' if self.words is RUN else 'sft '}does not have this key{f'; {advice}' if advice else ''}"


def _merge(given: Mapping[str, Any], words: Vocabulary) -> DictConfig:
    """GIVEN over the schema's defaults, which are there to be named by the user's interpolations."""
    replaced = tuple(f"{key}." for key, value in given.items() if value != {})
    defaults = {
        key: MISSING if leaf.default is PydanticUndefined else leaf.default
        for key, leaf in words.leaves().items()
        # The toy is the one section that is not there by default.
        if not f"{key}.".startswith((*replaced, "toy."))
    }
    plain = {key: list(cast("tuple[Any, ...]", v)) if isinstance(v, tuple) else v for key, v in defaults.items()}
    return OmegaConf.create(_unflatten({**plain, **given}))


def _without_empty(tree: Any, prefix: str, words: Vocabulary) -> dict[str, Any]:
    """TREE without sections that hold nothing: `critic:` with every key below it commented out."""
    kept: dict[str, Any] = {}
    for name, value in cast("dict[Any, Any]", tree).items():
        key = f"{prefix}{name}"
        if key in words.sections() and isinstance(value, dict):
            kept[str(name)] = _without_empty(value, f"{key}.", words)
        elif key not in words.sections() or value is not None:
            kept[str(name)] = value
    return kept


def _flatten(tree: Mapping[str, Any], prefix: str, words: Vocabulary) -> Iterator[tuple[str, Any]]:
    """Dotted keys and values; mappings that are a value (`toy.model`) stay whole."""
    for name, value in tree.items():
        key = f"{prefix}{name}"
        if isinstance(value, dict) and value and words.leaf_above(key) is None:
            yield from _flatten(cast("dict[str, Any]", value), f"{key}.", words)
        else:
            yield key, value


def _reachable(tree: Any, key: str) -> bool:
    for part in key.split("."):
        if part not in tree:
            return False
        tree = tree[part]
    return True


def _unflatten(values: Mapping[str, Any]) -> dict[str, Any]:
    tree: dict[str, Any] = {}
    for key, value in values.items():
        *above, last = key.split(".")
        section = tree
        for part in above:
            section = section.setdefault(part, {})
        if value != {} or last not in section:
            section[last] = value
    return tree


def _select(tree: DictConfig, key: str, raw: Any) -> Any:
    if raw in (MISSING, {}):
        return raw
    node = OmegaConf.select(tree, key, throw_on_missing=False)
    return OmegaConf.to_container(node, resolve=True) if OmegaConf.is_config(node) else node
