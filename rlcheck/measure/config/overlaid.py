"""Files of keys with a command line laid over them: files below files, overrides, interpolations."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

from rlcheck.facts.config import KeyProblem, Place
from rlcheck.measure.config.document import Document, parse
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.interpolate import Resolver
from rlcheck.measure.config.overrides import Override, read_overrides
from rlcheck.measure.config.source_text import text_of
from rlcheck.measure.config.trees import Tree, as_tree, copied, merge, put, remove

_DEEPEST = 20
# `$NAME`, `${NAME}`, `${NAME:-…}` and `$(…)` of a shell, beside `${a.b}` and `${oc.env:…}` of OmegaConf.
_SHELLS = re.compile(r"\$(?:[A-Za-z_(]|\{[A-Z_][A-Z0-9_]*(?:\}|:[-+?=]))|`")
_REPLACES = "_override_"


def _divided(one: float, other: float) -> float:
    return one / other


# nemo_rl/utils/config.py: those that a framework registers itself.
_RESOLVERS: Mapping[str, Callable[..., Any]] = {
    "add": operator.add,
    "mul": operator.mul,
    "div": _divided,
    "max": max,
}


@dataclass
class Overlaid:
    """`document`: everything together. `open_keys`: keys whose values are not known here, and why."""

    document: Document
    open_keys: dict[str, str] = field(default_factory=dict[str, str])


def inherited(document: Document, key: str, directory: Path | None, depth: int = 0) -> Document:
    """DOCUMENT over the files that its KEY names, each from the directory of the file that names it.

    Raises:
        ReadError: one of them is not there, is no YAML, or names itself.
    """
    names = document.tree.get(key)
    if not isinstance(names, str | list):
        return document
    if depth > _DEEPEST:
        raise ReadError(f"{document.name}: {key}: more than {_DEEPEST} files below each other; does one name itself?")
    found = Document(document.name)
    for name in [names] if isinstance(names, str) else [str(one) for one in cast("list[Any]", names)]:
        path = (directory or Path.cwd()) / name
        if not path.is_file():
            line = document.places.get(key, Place()).line
            raise ReadError(
                f"{document.name}:{line}: {key}: no file {path}; give the config where the files below it are"
            )
        below = inherited(parse(str(path), text_of(path)), key, path.parent, depth + 1)
        _lay(found, below)
    own = Document(document.name, {name: value for name, value in document.tree.items() if name != key},
                   document.places, document.problems)  # fmt: skip
    _lay(found, own)
    return found


def _lay(base: Document, over: Document) -> None:
    for name, value in over.tree.items():
        section = as_tree(value)
        if section is not None and section.get(_REPLACES):
            base.tree.pop(name, None)
            section.pop(_REPLACES)
    merge(base.tree, over.tree)
    base.places |= over.places
    base.problems += over.problems


def overlaid(
    document: Document | None, words: Sequence[str], source: str, option: str = "", environ: Any = None
) -> Overlaid:
    """DOCUMENT with the overrides WORDS laid over it (the value of OPTION left out), interpolations resolved."""
    found = Document(source) if document is None else document
    words = [
        word for before, word in pairwise(["", *words]) if not option or option not in (before, word.partition("=")[0])
    ]
    tree, places = copied(found.tree), dict(found.places)
    problems = list(found.problems)
    overrides, wrong = read_overrides([word for word in words if not _is_shells(word)], hydra=True)
    problems += wrong
    for override in overrides:
        _apply(tree, places, override)
    resolver = Resolver(tree, environ, resolvers=_RESOLVERS)
    closed = Overlaid(Document(found.name, resolver.resolved(), places, problems))
    closed.open_keys = dict(resolver.unresolved)
    for key, why in resolver.wrong.items():
        place = nearest_place(places, key)
        if place.file:  # of a command line it may be the shell's
            problems.append(KeyProblem("unresolved", key, why, place))
        closed.open_keys[key] = why
    for override in overrides:
        if isinstance(override.value, str) and (unclear := _SHELLS.search(override.value)) is not None:
            why = f"{override.value[unclear.start() :][:40]} is known only to the shell"
            problems.append(KeyProblem("unresolved", override.key, why, override.place, value=override.value))
            closed.open_keys[override.key] = why
    return closed


def _is_shells(word: str) -> bool:
    """Whether WORD is none of the trainer's: `$@`, a variable alone, a redirection."""
    return word.startswith(("$", '"$', "&", ">", "2>", "|")) or not word.strip()


def _apply(tree: Tree, places: dict[str, Place], override: Override) -> None:
    if override.sign == "~":
        remove(tree, override.key)
        return
    for name in [name for name in places if name.startswith(f"{override.key}.")]:
        places[name] = override.place
    inner = as_tree(override.value)
    if inner is not None and override.sign:
        merge(tree, _nested(override.key, inner))
    else:
        put(tree, override.key.split("."), override.value)
    places[override.key] = override.place


def _nested(key: str, value: Tree) -> Tree:
    for part in reversed(key.split(".")):
        value = {part: value}
    return value


def nearest_place(places: Mapping[str, Place], key: str) -> Place:
    """Where KEY, or the section around it, was written."""
    parts = key.split(".")
    found = (places.get(".".join(parts[:length])) for length in range(len(parts), 0, -1))
    return next((place for place in found if place is not None), Place())
