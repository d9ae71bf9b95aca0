"""Files and functions stay small enough to be read in one go, documented, and within the oldest Python's grammar."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.every import every

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("rlcheck", "trainer")
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
OLDEST_PYTHON = (3, 10)

ANY_PYTHON = ROOT / "rlcheck" / "remote" / "bootstrap.py"
"""A script that is sent to interpreters as old as Python 2; its comment says what it is."""
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


def relative(path: Path) -> str:
    return str(path.relative_to(ROOT))


@every([*SOURCES, *TESTS], name=relative)
def test_file_is_short(path: Path) -> None:
    lines = path.read_text(encoding="utf-8").count("\n")
    assert lines <= MAX_FILE_LINES, f"{relative(path)} has {lines} lines; cut it along its topics"


@every(SOURCES, name=relative)
def test_the_oldest_python_parses_it_and_functions_are_short_documented_and_probe_no_features(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"), feature_version=OLDEST_PYTHON)
    # The page of a check is its docstring: it is prose, not code to be held in mind.
    long = {
        f"{relative(path)}:{node.lineno} {node.name}": span
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (span := _code_lines(node)) > MAX_FUNCTION_LINES
    }
    assert not long, f"too long: {long}"
    probes = [
        f"{relative(path)}:{node.lineno}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr"
    ]
    assert not probes, f"hasattr: {probes}"
    if path != ANY_PYTHON:
        bare = [] if ast.get_docstring(tree) else ["the module"]
        bare += _undocumented(tree)
        assert not bare, f"no docstring: {bare}"


def _code_lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    body = node.body
    assert node.end_lineno is not None
    span = node.end_lineno - node.lineno + 1
    first = body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        assert first.end_lineno is not None
        span -= first.end_lineno - first.lineno + 1
    return span


def _undocumented(scope: ast.Module | ast.ClassDef) -> Iterator[str]:
    for node in scope.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield f"{node.name} in line {node.lineno}"
        if isinstance(node, ast.ClassDef):
            yield from _undocumented(node)
