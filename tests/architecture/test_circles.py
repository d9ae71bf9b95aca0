"""No file imports, over whatever way, a file that imports it; imports in functions and for types count as any other."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {"rlcheck": ROOT / "rlcheck", "rltrain": ROOT / "trainer" / "rltrain"}
ALLOWED: dict[str, dict[frozenset[str], str]] = {"rlcheck": {}, "rltrain": {}}
"""By package: modules that may import each other, and why."""

Graph = Mapping[str, set[str]]


def modules_of(package: str, root: Path) -> dict[str, Path]:
    """The package's files by the names that import them."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.py")):
        parts = (package, *path.relative_to(root).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports_of(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """Each module that is named, and what is taken of it ("": the module itself)."""
    home = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = home[: len(home) - node.level + 1] if node.level else []
            base = ".".join([*above, *filter(None, [node.module])])
            yield from ((base, alias.name) for alias in node.names)


def graph_of(package: str, root: Path) -> Graph:
    """Which module of PACKAGE imports which."""
    modules = modules_of(package, root)
    graph: dict[str, set[str]] = {}
    for name, path in modules.items():
        named = {f"{base}.{taken}" if f"{base}.{taken}" in modules else base for base, taken in imports_of(name, path)}
        graph[name] = (named & modules.keys()) - {name}
    return graph


def reached(graph: Graph, start: str) -> set[str]:
    """All that START imports, directly or not; START itself if it is in a circle."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(graph[name])
    return found


def circles(graph: Graph) -> set[frozenset[str]]:
    """Sets of modules of which each reaches each other."""
    reach = {name: reached(graph, name) for name in graph}
    rings = {name: frozenset(other for other in reach[name] if name in reach[other]) for name in graph}
    return {ring for ring in rings.values() if ring}


@pytest.mark.parametrize("package", PACKAGES)
def test_no_files_import_each_other(package: str) -> None:
    found = circles(graph_of(package, PACKAGES[package]))
    assert found == set(ALLOWED[package]), "a circle needs a cure, or a reason in ALLOWED; a reason needs a circle"
    assert all(ALLOWED[package].values())


def test_a_circle_is_found_wherever_its_imports_are(tmp_path: Path) -> None:
    files = {
        "__init__.py": "",
        "top.py": "from thing import low\n",
        "low.py": "from thing.room.a import x\n",
        "room/__init__.py": "",
        "room/a.py": "def f():\n    from . import b\n",
        "room/b.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from ..low import y\n",
        "room/c.py": "import thing.top\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    assert circles(graph_of("thing", tmp_path)) == {frozenset({"thing.low", "thing.room.a", "thing.room.b"})}
