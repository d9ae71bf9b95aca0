"""Which tests are marked with which rows, read from the sources: nothing is imported."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def marked(tests: Path = TESTS) -> dict[str, list[str]]:
    """Return the tests of each row that a mark names, as `tests/file.py::test`, in the order of their names."""
    found: dict[str, list[str]] = {}
    for path in sorted(tests.rglob("test_*.py")):
        place = path.relative_to(tests.parent).as_posix()
        for test in functions_of(ast.parse(path.read_text(encoding="utf-8"))):
            for row in dict.fromkeys(row for decorator in test.decorator_list for row in rows_of(decorator)):
                found.setdefault(row, []).append(f"{place}::{test.name}")
    return found


def functions_of(module: ast.Module) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the test functions of a module, those of classes too."""
    functions = [node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [function for function in functions if function.name.startswith("test_")]


def rows_of(node: ast.AST) -> Iterator[str]:
    """Yield the rows that `pytest.mark.row(…)` names at NODE or below it (`pytest.param(…, marks=…)`)."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.mark.row":
            yield from (ast.literal_eval(argument) for argument in call.args)
