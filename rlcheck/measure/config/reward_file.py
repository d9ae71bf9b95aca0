"""The names that a user's reward file defines, read without running it."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.measure.config.mounts import on_network

MAX_BYTES = 2_000_000
"""Larger files are not read: a reward function is source code, not data."""


def reward_names(path: str | None) -> tuple[Fact[tuple[str, ...]], str]:
    """What can be taken from the file at PATH by name, and why it is no Python ("" if it is).

    `*` among the names: the file imports all of another module, so that any name may be there.
    """
    if path is None:
        return absent("the config names no file of one's own"), ""
    if "://" in path:
        return missing(MissingKind.UNSUPPORTED, f"{path} is no file of this machine"), ""
    file = Path(os.path.abspath(os.path.expandvars(os.path.expanduser(path))))
    if on_network(str(file)):
        return missing(MissingKind.UNSUPPORTED, f"{file} is on a network file system"), ""
    try:
        if file.stat().st_size > MAX_BYTES:
            return missing(MissingKind.UNSUPPORTED, f"{file} is larger than {MAX_BYTES} bytes"), ""
        source = file.read_bytes()
    except FileNotFoundError:
        return absent(f"{file} is not there"), ""
    except OSError as error:
        return missing(MissingKind.PERMISSION, f"{file}: {error.strerror}"), ""
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        return known(()), f"line {error.lineno}: {error.msg}"
    except (ValueError, RecursionError, MemoryError) as error:
        return known(()), " ".join(str(error).split())[:200]
    return known(tuple(dict.fromkeys(_names(tree.body)))), ""


def _names(body: list[ast.stmt]) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (name.asname or name.name.partition(".")[0] for name in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name))
        elif isinstance(node, ast.If | ast.Try | ast.With | ast.For | ast.While):
            yield from _names(node.body)
            yield from _names(list(getattr(node, "orelse", [])))
            yield from (name for handler in getattr(node, "handlers", []) for name in _names(handler.body))
            yield from _names(list(getattr(node, "finalbody", [])))
