"""What is known of another trainer: its keys as data, and how they say what a run is."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import date
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.facts.config import KeyTable, RunSpec
from rlcheck.measure.config.config import Config
from rlcheck.tables import table


class Key(Struct, frozen=True):
    """A key. `types`: int, float, bool, str, list, dict; none: any.

    `many`: values that its option takes, as argparse says it ("+", "*", "2"; "?": one or none). `flag`: the option
    takes no value; it says true, or false where it `negates`; one without types is false where it is not given. `sets`:
    the key that it is another name of. `free`: keys of the user's own follow below it; `section`: keys of the table do.
    `deprecated`: what to use instead, in words.
    """

    types: tuple[str, ...] = ()
    default: Any = None
    nullable: bool = False
    required: bool = False
    choices: tuple[str, ...] = ()
    many: str = ""
    flag: bool = False
    negates: bool = False
    sets: str = ""
    free: bool = False
    section: bool = False
    deprecated: str = ""

    def __post_init__(self) -> None:
        if self.flag and not self.types:
            msgspec.structs.force_setattr(self, "types", ("bool",))
            msgspec.structs.force_setattr(self, "default", False)


class Release(Struct, frozen=True):
    """Keys of a release by group (a class, a program), as the difference to the release before it in the table."""

    version: str
    source: str
    date: str
    groups: dict[str, dict[str, Key]] = {}
    gone: dict[str, tuple[str, ...]] = {}
    kinds: dict[str, tuple[str, ...]] = {}
    """What each command or class takes: names of groups, later ones over earlier ones (`PREFIX=NAME`: its keys behind
    PREFIX). Empty: as the one before."""


class Keys(Struct, frozen=True):
    """The table of a trainer: its releases, the newest first."""

    releases: tuple[Release, ...]


class Refusal(NamedTuple):
    """What a trainer's own rules refuse: the key, and what is wrong, as `expected …, got …`.

    `lacks`: whether it is that another key is not given.
    """

    key: str
    message: str
    lacks: bool = False


class Trainer(msgspec.Struct, frozen=True):
    """A trainer: one row of its module in `rlcheck.measure.config.trainers`.

    name: as `--framework` takes it; its table is `rlcheck/data/trainers/NAME.json`.
    title: as its authors write it.
    command: a word of a command line that starts a run (or two, with a space between), matched whole; its group `kind`
        is the kind of the config.
    signs: texts of which one is in every script with such a command; a long text is searched for them alone.
    fields: fields of `RunSpec` and the keys that say the same, in the same unit.
    named: fields that `derive` makes, and the key to name where one of them is wrong.
    derive: fields by their paths that are made of several keys, or that the trainer's source settles. `UNKNOWN` where
        the config leaves it open; a role (`ref`, `critic`, `reward_model`) is there if its field is True.
    lacks: fields that this trainer has nothing for: checks of them are skipped.
    refused: what the trainer itself stops at, beyond the types of keys.
    asserts: checks whose rule its own code asserts; of others that were written for verl, a failure is a warning.
    style: how an option is typed: `--key value`, or `key=value` as Hydra reads it, laid over the file of keys before
        its interpolations are resolved.
    kind: of a config that names none. A kind `launcher` in the table has keys that its command line and its files take
        for the launcher.
    moved: old keys and where they are now, where the tables do not show it.
    documents: whether it reads a file of its keys; `config_option`: the option that names it.
    calls: calls of a Python file that hold keys. None: keys as they are; else the argument's name to the key.
    """

    name: str
    title: str
    command: re.Pattern[str]
    signs: tuple[str, ...]
    fields: Mapping[str, str]
    derive: Callable[[Config], Mapping[str, Any]]
    kind: str
    named: Mapping[str, str] = {}
    lacks: frozenset[str] = frozenset()
    asserts: frozenset[str] = frozenset()
    refused: Callable[[Config, RunSpec], Iterator[Refusal]] = lambda config, spec: iter(())
    style: Literal["options", "overrides"] = "options"
    moved: Mapping[str, str] = {}
    documents: bool = False
    config_option: str = ""
    launcher_options: tuple[str, ...] = ()
    """Options that name a file of accelerate's, on the launcher's part of the line or on its own."""
    calls: Mapping[str, Mapping[str, str] | None] = {}
    kinds: Mapping[str, str] = {}
    """Of a call: the kind that it shows."""
    choices: Mapping[str, tuple[str, ...]] = {}
    """Of keys whose choices no table shows: those that the code compares with."""
    beside: frozenset[str] = frozenset()
    """Sections of its files that are no keys, such as the variables of `env`."""
    owns: Callable[[Sequence[str]], bool] = lambda words: True
    """Of a program whose name says little (train.py): whether these words, as the shell passes them, are its."""
    adopts: Callable[[Sequence[str]], bool] = lambda words: False
    """Of a Python file that is not here: whether the words behind it are this trainer's options."""
    turned: Callable[[str, Sequence[str]], str] = lambda kind, words: kind
    """The kind of the command, as an option among the same words turns it."""
    abbreviates: bool = True
    """Whether the beginning of an option stands for it, as argparse has it unless it is told otherwise."""
    ignores: bool = False
    """Whether it goes on without a word where it does not know an option."""
    file_sign: str = ""
    """The word before a file of keys on its command line, of which there may be several: `@`."""
    inherits: str = ""
    """The key of a file that names the files below it, from its directory."""
    sections: Mapping[str, str] = {}
    """What in its files shows the kind, a top section or `KEY=VALUE`; "": a kind that is no RL run."""
    guessed: frozenset[str] = frozenset()
    """Kinds that take keys of the user's own, too: only what is near to a key is held for a slip."""
    extended: frozenset[str] = frozenset()
    """Kinds that take sections of the user's own beside theirs, in which keys are as in `guessed`."""

    def is_in(self, text: str) -> bool:
        """Whether TEXT may start this trainer."""
        return any(sign in text for sign in self.signs)


UNKNOWN = object()
"""A field that the config leaves open."""


class Layout(msgspec.Struct, frozen=True):
    """The keys of one release for one kind of config."""

    version: str
    keys: Mapping[str, Key]
    source: KeyTable


_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def row_of(keys: Mapping[str, Key], key: str) -> Key | None:
    """The row of KEY, whose numbers are `*` in the table: those of a list's items."""
    return keys.get(key) or keys.get(_NUMBER.sub(".*", key))


def sections_of(keys: Mapping[str, Key]) -> set[str]:
    """Keys that other keys are below."""
    found: set[str] = set()
    for key in keys:
        above = key.rpartition(".")[0]
        while above and above not in found:
            found.add(above)
            above = above.rpartition(".")[0]
    return found


def versions(name: str) -> tuple[str, ...]:
    """The releases whose keys are known, the newest first."""
    return tuple(release.version for release in _table(name).releases)


@lru_cache(maxsize=64)
def layout(name: str, version: str, kind: str) -> Layout:
    """The keys of the trainer NAME in VERSION for KIND; of a kind that the release does not have, none."""
    groups: dict[str, dict[str, Key]] = {}
    kinds: Mapping[str, tuple[str, ...]] = {}
    for release in _table(name).releases:
        for group, gone in release.gone.items():
            groups[group] = {key: value for key, value in groups.get(group, {}).items() if key not in gone}
        for group, keys in release.groups.items():
            groups[group] = {**groups.get(group, {}), **keys}
        kinds = release.kinds or kinds
        if release.version == version:
            keys = {key: value for name in kinds.get(kind, ()) for key, value in _members(groups, name)}
            return Layout(version, keys, KeyTable(release.source, release.date, _age(release.date)))
    raise KeyError(version)


def _members(groups: Mapping[str, Mapping[str, Key]], name: str) -> Iterator[tuple[str, Key]]:
    prefix, _, group = name.rpartition("=")
    for key, row in groups.get(group, {}).items():
        yield prefix + key, msgspec.structs.replace(row, sets=prefix + row.sets) if prefix and row.sets else row


def _table(name: str) -> Keys:
    return table(f"trainers/{name}", Keys)


def _age(day: str) -> int:
    return (date.today() - date.fromisoformat(day)).days
