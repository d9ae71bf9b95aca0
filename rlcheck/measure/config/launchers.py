"""Reads the files that a launcher is told: accelerate's own, and DeepSpeed's JSON."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from rlcheck.measure.config.accelerate import TRL_FILES
from rlcheck.measure.config.document import parse
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.programs import found
from rlcheck.measure.config.source_text import text_of
from rlcheck.measure.config.trees import Tree, as_tree

_PARTS = ("deepspeed_config", "fsdp_config")


def launcher_file(words: Sequence[str], options: Sequence[str], directory: Path | None) -> tuple[Tree, list[str]]:
    """What the file of the launcher says that WORDS name by one of OPTIONS, with DeepSpeed's own below `deepspeed`.

    The second part says, in notes, which file is not here.
    """
    told = [part for word in words for part in word.split("=", 1)]
    for option, value in pairwise(told):
        if option not in options or value in TRL_FILES:
            continue
        return _read(value, directory)
    return {}, []


def _read(path: str, directory: Path | None) -> tuple[Tree, list[str]]:
    file = None if "$" in path else found(path, directory)
    if file is None:
        return {}, [f"{path}: the launcher's file is not here; what it says of processes and sharding is unknown"]
    tree: Tree = dict(parse(str(file), text_of(file)).tree)
    for part in _PARTS:
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
