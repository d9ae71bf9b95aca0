"""Python files and files of keys that the command of another trainer names."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rlcheck.measure.config.calls import Calls, calls_in
from rlcheck.measure.config.document import Document, parse
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.launchers import NAMED
from rlcheck.measure.config.source_text import text_of
from rlcheck.measure.config.trainer import Trainer
from rlcheck.measure.config.trainers import trainers
from rlcheck.measure.config.trees import Tree, as_tree


def found(path: str, directory: Path | None) -> Path | None:
    """The file of PATH, from the working directory or beside the script; None where there is none."""
    bases = [Path.cwd(), *([directory] if directory is not None else [])]
    return next((base / path for base in bases if (base / path).is_file()), None)


def sourced(path: str, directory: Path) -> str | None:
    """The text of a script that another one in DIRECTORY sources by PATH, whose beginning the shell alone may know."""
    rest = re.sub(r"^\$(?:\w+|\{.*\}|\(.*\))/+", "", path, flags=re.DOTALL)
    if "$" in rest or (rest == path and path.startswith("/") and not Path(path).is_file()):
        return None
    bases = [directory, *list(directory.parents)[:4]] if rest != path else [directory, Path.cwd()]
    file = next((base / rest for base in bases if (base / rest).is_file()), None)
    return None if file is None else text_of(file)


def calls_of(name: str, text: str) -> tuple[Trainer, Calls]:
    """The trainer whose config a Python file calls, and what its calls say.

    Raises:
        ReadError: it is no Python, or calls no config of a trainer that is known.
    """
    for trainer in trainers().values():
        if trainer.calls and any(re.search(rf"\b{call}\b", text) for call in trainer.kinds):
            calls = calls_in(name, text, trainer.calls)
            if any(kind in trainer.kinds for kind in (*calls.kinds, *calls.parsers)):
                return trainer, calls
    wanted = ", ".join(call for trainer in trainers().values() for call in trainer.kinds)
    raise ReadError(f"{name}: no config of a trainer is made in it (looked for {wanted}); give one that makes one")


def kind_of(trainer: Trainer, calls: Calls | None) -> str:
    """The kind of config that CALLS make: the last one's; without calls the trainer's usual one."""
    names = [] if calls is None else [*calls.parsers, *calls.kinds]
    return next((trainer.kinds[name] for name in reversed(names) if name in trainer.kinds), trainer.kind)


def settings_in(path: str, directory: Path | None) -> tuple[str, str] | None:
    """The name of the trainer and the kind of config in a Python file; None where it is not there or holds none."""
    file = found(path, directory)
    if file is None:
        return None
    try:
        trainer, calls = calls_of(str(file), text_of(file))
    except ReadError:
        return None
    return trainer.name, kind_of(trainer, calls)


def notes_of(calls: Calls) -> tuple[str, ...]:
    """What a reader of the report has to know about a Python file."""
    if calls.parsers:
        return (f"{', '.join(calls.parsers)}: the rest of its values is given on the command line, which is not here",)
    return ()


def file_named(trainer: Trainer, words: Sequence[str], directory: Path | None) -> Path | None:
    """The file of keys that the command names by the trainer's option for it.

    Raises:
        ReadError: it is not there.
    """
    option = trainer.config_option
    if not option:
        return None
    for number, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name == option:
            path = value if equals else words[number + 1] if number + 1 < len(words) else ""
            if "$" in path:  # known to the shell alone
                return None
            file = found(path, directory) if path else None
            if file is None:
                raise ReadError(f"{option} {path}: no such file; give its path from here or beside the script")
            return file
    return None


def composed(trainer: Trainer, words: Sequence[str], directory: Path | None) -> tuple[Document | None, list[str]]:
    """The files of keys that WORDS name after the trainer's sign, later ones over earlier ones, and the other words.

    Raises:
        ReadError: one of them is not there, or is none.
    """
    document: Document | None = None
    rest: list[str] = []
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith(trainer.file_sign):
            rest.append(word)
            continue
        path = word.removeprefix(trainer.file_sign) or (waiting.pop(0) if waiting else "")
        file = found(path, directory) if path else None
        if file is None:
            raise ReadError(f"{trainer.file_sign} {path}: no such file; give its path from here or beside the script")
        section = ""
        if rest and rest[-1].startswith("--") and "=" not in rest[-1]:
            section = rest.pop().removeprefix("--").replace("-", "_")
        document = _over(document or Document(str(file)), parse(str(file), text_of(file)), section)
    return document, rest


def _over(below: Document, above: Document, section: str) -> Document:
    tree = above.tree
    for part in reversed(section.split(".") if section else []):
        tree = {part: tree}
    prefix = f"{section}." if section else ""
    below.tree = _merged(below.tree, tree)
    below.places |= {f"{prefix}{key}": place for key, place in above.places.items()}
    below.problems += above.problems
    return below


def _merged(below: Tree, above: Tree) -> Tree:
    found: Tree = dict(below)
    for key, value in above.items():
        one, other = as_tree(found.get(key)), as_tree(value)
        found[key] = _merged(one, other) if one and other else value
    return found


def launcher_file(words: Sequence[str], options: Sequence[str], directory: Path | None) -> tuple[Tree, list[str]]:
    """What the file of the launcher says that WORDS name by one of OPTIONS, with DeepSpeed's own below `deepspeed`.

    The second part says, in notes, which file is not here.
    """
    told = [part for word in words for part in word.split("=", 1)]
    for option, value in pairwise(told):
        if option not in options or value in NAMED:
            continue
        return _read(value, directory)
    return {}, []


def _read(path: str, directory: Path | None) -> tuple[Tree, list[str]]:
    file = None if "$" in path else found(path, directory)
    if file is None:
        return {}, [f"{path}: the launcher's file is not here; what it says of processes and sharding is unknown"]
    tree: Tree = dict(parse(str(file), text_of(file)).tree)
    for part in ("deepspeed_config", "fsdp_config"):
        tree |= as_tree(tree.pop(part, None)) or {}
    notes: list[str] = []
    if isinstance(inner := tree.get("deepspeed_config_file"), str):
        tree["deepspeed"], notes = deepspeed_file(inner, file.parent)
    return tree, notes


def deepspeed_file(path: str, directory: Path | None) -> tuple[Tree | None, list[str]]:
    """DeepSpeed's JSON at PATH; None, and a note, where it is not here."""
    file = None if "$" in path else found(path, directory)
    if file is None:
        return None, [f"{path}: DeepSpeed's file is not here; how it shares the model is unknown"]
    try:
        return parse(str(file), text_of(file)).tree, []
    except ReadError as error:
        return None, [str(error)]
