"""Read the config of another trainer: options, a document, a Python file, by the trainer's table of keys."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

import msgspec

from rlcheck.facts.base import Missing
from rlcheck.facts.config import KeyProblem, KeyTable, Place, RunSpec
from rlcheck.measure.config.arguments import Option, options_of, typed_as
from rlcheck.measure.config.calls import Calls
from rlcheck.measure.config.config import Config, shown
from rlcheck.measure.config.document import Document
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.fill import filled, refusals
from rlcheck.measure.config.overlaid import nearest_place, overlaid
from rlcheck.measure.config.overrides import read_overrides
from rlcheck.measure.config.rltrain_keys import nearest
from rlcheck.measure.config.trainer import Key, Layout, Refusal, Trainer, layout, row_of, sections_of, versions
from rlcheck.measure.config.trees import Tree, as_tree

_PYTHON: Mapping[str, tuple[type, ...]] = {
    "int": (int,), "float": (int, float), "bool": (bool,), "str": (str,), "list": (list, tuple), "dict": (dict,),
}  # fmt: skip
_WORDS = {"int": "an integer", "float": "a number", "bool": "true or false", "str": "text", "list": "a list",
          "dict": "a mapping"}  # fmt: skip


# An array or a variable of which nothing is known; of "$@" a user says nothing.
_OPEN_WORDS = re.compile(r"\$\{?[A-Za-z_]\w*(?:\[[@*]\])?\}?")


@dataclass
class Given:
    """What a user gave: `words` of the trainer's command line, `overrides` of ours (`key=value`), a file of keys, the
    calls of a Python file; `before`: words of the launcher; `is_guessed`: whether the words may be of a program that
    has options of its own."""

    source: str
    kind: str
    words: Sequence[str] = ()
    overrides: Sequence[str] = ()
    before: Sequence[str] = ()
    document: Document | None = None
    calls: Calls | None = None
    is_guessed: bool = False
    environ: Mapping[str, str] | None = None
    open_keys: Mapping[str, str] = field(default_factory=dict[str, str])
    launch_file: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass
class Read:
    """A config and what it means."""

    config: Config
    spec: RunSpec
    without: dict[str, Missing]
    table: KeyTable
    num_read: int = 0


@dataclass
class _Reading:
    config: Config
    trainer: Trainer
    layout: Layout
    launcher: Mapping[str, Key]
    strays: list[str] = field(default_factory=list[str])
    num_read: int = 0

    def set(self, key: str, value: Any, place: Place) -> None:
        """One key as it was given."""
        self.num_read += 1
        self.config.values[key] = value
        self.config.given[key] = place
        self.config.open_keys.pop(key, None)


def read_trainer(trainer: Trainer, given: Given, *, version: str = "") -> Read:
    """The config that GIVEN holds.

    Args:
        trainer: whose it is.
        given: what the user gave.
        version: of the trainer; "": the newest that is known, or the one whose keys these are.

    Raises:
        ReadError: VERSION is none.
    """
    is_partial = bool(trainer.inherits) and given.document is None
    if is_partial:  # what its file sets, nobody knows here
        trainer = msgspec.structs.replace(trainer, derive=_says_nothing, refused=_refuses_nothing)
    if trainer.style == "overrides":
        words = [*given.words, *given.overrides]
        one = overlaid(given.document, words, given.source, trainer.config_option, given.environ)
        given = replace(given, document=one.document, open_keys=one.open_keys, words=(), overrides=())
    chosen, unsure = _version(trainer, given, version)
    found = layout(trainer.name, chosen, given.kind)
    config = Config(trainer.name, given.source, version=chosen, unsure_keys=unsure, kind=given.kind)
    config.before, config.launch_file = tuple(given.before), dict(given.launch_file)
    config.values = {key: row.default for key, row in found.keys.items() if not row.sets and not is_partial}
    if is_partial:
        config.notes.append(f"the file that {trainer.config_option} names is not here: what it sets is unknown")
    launcher = layout(trainer.name, chosen, "launcher").keys
    reading = _Reading(config, trainer, found, launcher)
    if given.document is not None:
        config.problems += given.document.problems
        _document(reading, given.document)
        config.open_keys |= {key: why for key, why in given.open_keys.items() if key in config.given}
    if given.calls is not None:
        _calls(reading, given.calls)
    _options(reading, given)
    _overrides(reading, given.overrides)
    _rename(reading)
    _judge(reading)
    spec, without = filled(config, trainer, found.keys)
    _refuse(reading, spec)
    return Read(config, spec, without, found.source, reading.num_read)


def _says_nothing(config: Config) -> dict[str, Any]:
    del config
    return {}


def _refuses_nothing(config: Config, spec: RunSpec) -> Iterator[Refusal]:
    del config, spec
    yield from ()


def _version(trainer: Trainer, given: Given, asked: str) -> tuple[str, str]:
    """The release that is read, and why its keys may be others.

    Raises:
        ReadError: ASKED is no version.
    """
    known = [one for one in versions(trainer.name) if layout(trainer.name, one, given.kind).keys]
    if not known:
        raise ReadError(f"{given.source}: {trainer.title} has no {given.kind}; give a config of another command")
    if asked:
        if not _number(asked):
            raise ReadError(f"--framework {trainer.name}@{asked}: no version; known are {', '.join(known)}")
        nearest_one = next((one for one in known if _number(one) <= _number(asked)), known[-1])
        other = asked != nearest_one
        return nearest_one, f"{trainer.title} {asked} is not known, read as {nearest_one}" if other else ""
    counts = {one: _num_unknown(given, layout(trainer.name, one, given.kind).keys) for one in known}
    total = counts[known[0]][1]
    if counts[known[0]][0] * 2 > total:  # another generation of keys, not a slip
        best = min(known, key=lambda one: counts[one][0])
        if counts[best][0] * 2 < counts[known[0]][0]:
            return best, ""
    return known[0], ""


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())


def _num_unknown(given: Given, keys: Mapping[str, Key]) -> tuple[int, int]:
    """Keys that KEYS do not have, of how many."""
    options, _ = options_of(given.words, keys, abbreviates=False)
    names = [key for key, _ in flat(given.document.tree, keys)] if given.document is not None else []
    names += [*given.calls.places] if given.calls is not None else []
    unknown = sum(not option.is_known for option in options) + sum(row_of(keys, name) is None for name in names)
    return unknown, len(options) + len(names)


def flat(tree: Tree, keys: Mapping[str, Key]) -> Iterator[tuple[str, Any]]:
    """Dotted keys of TREE; mappings that a key takes as its value stay whole, items of a list have their number."""
    return _flat(tree, keys, sections_of(keys), "")


def _flat(tree: Tree, keys: Mapping[str, Key], sections: set[str], prefix: str) -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        key, inner = f"{prefix}{name}", as_tree(value)
        row, plain = row_of(keys, key), re.sub(r"\.\d+(?=\.|$)", ".*", key)
        if inner and (row is None or row.section or plain in sections):
            yield from _flat(inner, keys, sections, f"{key}.")
            continue
        yield key, value
        if isinstance(value, list) and f"{plain}.*" in sections:
            for number, item in enumerate(cast("list[Any]", value)):
                yield from _flat(as_tree(item) or {}, keys, sections, f"{key}.{number}.")


def _document(reading: _Reading, document: Document) -> None:
    for key, value in flat(document.tree, reading.layout.keys):
        place = nearest_place(document.places, key)
        if place == Place():
            place = Place(file=document.name)
        if key.split(".")[0] in reading.trainer.beside:
            continue
        if (row := row_of(reading.layout.keys, key)) is not None:
            reading.set(row.sets or key, value, place)
        elif key in reading.launcher and reading.trainer.config_option:
            reading.config.launch[key] = value
            reading.config.given[key] = place
        elif not _is_free(reading, key):
            _unknown(reading, key, shown(value), place)


def _is_free(reading: _Reading, key: str) -> bool:
    parts, keys = key.split("."), reading.layout.keys
    sections = sections_of(keys)
    for above in (".".join(parts[:length]) for length in range(1, len(parts))):
        row = row_of(keys, above)
        if row is None or row.section:
            continue
        if row.free or (above not in sections and ("dict" in row.types or not row.types)):
            return True
    return False


def _calls(reading: _Reading, calls: Calls) -> None:
    for key, place in calls.places.items():
        if key not in reading.layout.keys:
            _unknown(reading, key, shown(calls.values.get(key, calls.open_keys.get(key))), place)
        else:
            reading.set(key, calls.values.get(key), place)
            if key in calls.open_keys:
                reading.config.open_keys[key] = f"{calls.open_keys[key]} is known only when the program runs"
    if calls.is_spread:
        reading.config.notes.append("a call takes arguments from elsewhere, which are not read")


def _options(reading: _Reading, given: Given) -> None:
    options, strays = options_of(given.words, reading.layout.keys, abbreviates=reading.trainer.abbreviates)
    for option in options:
        place = Place(text=option.text)
        if option.is_known:
            _set_option(reading, option, place)
        elif option.key in reading.launcher and reading.trainer.config_option:
            reading.config.launch[option.key] = option.value
            reading.config.given[option.key] = place
        elif option.key == reading.trainer.config_option.lstrip("-"):
            continue
        elif not given.is_guessed:
            _unknown(reading, option.key, str(option.value), place)
        else:
            reading.config.notes.append(f"--{option.key} is taken for an option of the program itself")
    reading.config.open_words += [word for word in strays if _OPEN_WORDS.fullmatch(word)]
    for word in strays:
        if word.strip("$@\"'; \\") and not word.startswith(("$", ">", "2>", "&>", "|")):
            reading.config.problems.append(KeyProblem(
                kind="syntax", key=word, message=f"is no option; {reading.trainer.title} {_does(reading.trainer)} it",
                place=Place(text=word),
            ))  # fmt: skip


def _does(trainer: Trainer) -> str:
    return "ignores" if trainer.ignores else "refuses"


def _set_option(reading: _Reading, option: Option, place: Place) -> None:
    reading.set(option.key, option.value, place)
    if option.open:
        reading.config.open_keys[option.key] = f"{option.open} is known only to the shell"
        reading.config.problem("unresolved", option.key, f"{option.open} is known only to the shell", value=option.open)
    if option.wrong:
        reading.config.problem("type", option.key, option.wrong, value=shown(option.value))
        reading.config.open_keys[option.key] = option.wrong


def _overrides(reading: _Reading, words: Sequence[str]) -> None:
    overrides, problems = read_overrides(words, hydra=False)
    reading.config.problems += problems
    for override in overrides:
        row = row_of(reading.layout.keys, override.key)
        if row is None:
            _unknown(reading, override.key, shown(override.value), override.place)
            continue
        value = typed_as(override.value, row) if isinstance(override.value, str) else override.value
        reading.set(row.sets or override.key, value, override.place)


def _unknown(reading: _Reading, key: str, value: str, place: Place) -> None:
    """Say of KEY, which this release does not have, what it may have meant."""
    keys, trainer, config = reading.layout.keys, reading.trainer, reading.config
    target = trainer.moved.get(key)
    back = next((old for old, new in trainer.moved.items() if new == key and old in keys), None)
    instead = target if target in keys else back
    others = [
        one for one in versions(trainer.name)
        if one != config.version and key in layout(trainer.name, one, config.kind).keys
    ]  # fmt: skip
    if others:
        span = others[0] if len(others) == 1 else f"{others[-1]} to {others[0]}"
        message = f"is a key of {trainer.title} {span}, which {config.version} does not have"
        config.problems.append(
            KeyProblem("moved", key, message, place, instead=(instead,) if instead else (), value=value)
        )
        return
    is_own = config.kind in trainer.extended and key.partition(".")[0] not in keys
    if (is_own or config.kind in trainer.guessed) and not _is_slip(key, keys, 0.9 if is_own else 0.85):
        said = f"is no key of {trainer.title} {config.version}; nothing of it is known to read this"
        config.problems.append(KeyProblem("unread", key, said, place, value=value))
        return
    near = (instead,) if instead else tuple(nearest(key, [name for name, row in keys.items() if not row.sets]))
    what = f"unknown key, which {trainer.title} ignores" if trainer.ignores else "unknown key"
    said = f"{what}; did you mean {near[0]}?" if near else what
    config.problems.append(KeyProblem("unknown", key, said, place, instead=near, value=value))


def _is_slip(key: str, keys: Mapping[str, Key], least: float) -> bool:
    """Whether KEY, or the first section on its way that KEYS do not have, is nearly one of those beside it: LEAST of
    1."""
    parts = key.split(".")
    first = next((".".join(parts[:length]) for length in range(1, len(parts)) if ".".join(parts[:length]) not in keys),
                 key)  # fmt: skip
    above, _, last = first.rpartition(".")
    beside = [name.rpartition(".")[2] for name in keys if name.rpartition(".")[0] == above]
    return bool(difflib.get_close_matches(last, beside, 1, least))


def _rename(reading: _Reading) -> None:
    """Let keys of an earlier generation be read under the names that the map of fields has."""
    config = reading.config
    for old, new in reading.trainer.moved.items():
        if old not in reading.layout.keys or new in reading.layout.keys:
            continue
        config.values.setdefault(new, config.values.get(old))
        if old in config.given:
            config.values[new] = config.values[old]
        if old in config.open_keys:
            config.open_keys[new] = config.open_keys[old]


def _judge(reading: _Reading) -> None:
    """Values of the wrong type or choice, deprecated keys, and keys that must be given."""
    config, keys = reading.config, reading.layout.keys
    told = {problem.key for problem in reading.config.problems if problem.kind == "type"}
    items = {key: row for key in config.given if key not in keys and (row := row_of(keys, key)) is not None}
    for key, row in {**keys, **items}.items():
        if row.required and key not in config.given and not row.sets and not config.open_words:
            config.problem("missing", key, "must be given")
        if key not in config.given or key in config.open_keys or key in told:
            continue
        value = config.values.get(key)
        expected = _expected(row, value, reading.trainer.choices.get(key, ()))
        if expected:
            near = nearest_choice(value, (*row.choices, *reading.trainer.choices.get(key, ())))
            hint = f"; did you mean {near}?" if near else ""
            config.problem("type", key, f"expected {expected}, got {shown(value)!r}{hint}", value=shown(value))
            config.open_keys[key] = f"{shown(value)} is no value of it"
        elif row.deprecated:
            config.problem("deprecated", key, row.deprecated, value=shown(value))


def nearest_choice(value: Any, choices: Iterable[str]) -> str:
    """The choice that VALUE probably was meant to be; "" where none is near."""
    return next(iter(difflib.get_close_matches(str(value), list(choices), 1)), "")


def _expected(row: Key, value: Any, choices: Sequence[str]) -> str:
    """What the value must be; "" if VALUE is one."""
    if value is None:
        return "" if row.nullable else " or ".join(_WORDS[kind] for kind in row.types) or "a value"
    if isinstance(value, str) and "$" in value:
        return ""
    allowed = row.choices or tuple(choices)
    values: list[Any] = (
        cast("list[Any]", value) if isinstance(value, list) and row.many and row.many != "?" else [value]
    )
    for one in values:
        fits = not row.types or any(_fits(kind, one, row) for kind in row.types)
        if not fits:
            return " or ".join(_WORDS[kind] for kind in row.types)
        if allowed and isinstance(one, str) and one not in allowed:
            return f"one of {', '.join(allowed)}"
    return ""


def _fits(kind: str, value: Any, row: Key) -> bool:
    if kind == "list" and row.many:  # its items are judged
        return True
    if kind == "int" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _PYTHON[kind]) and (kind == "bool" or not isinstance(value, bool))


def _refuse(reading: _Reading, spec: RunSpec) -> None:
    config = reading.config
    told = {problem.key for problem in config.problems if problem.kind in ("type", "missing")}
    for refusal in refusals(config, spec, reading.trainer, reading.layout.keys):
        if refusal.key not in told and not (refusal.lacks and config.open_words):
            config.problem("refused", refusal.key, refusal.message, value=shown(config.values.get(refusal.key)))
