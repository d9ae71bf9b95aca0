"""Each row of what users hit has a test that is marked with it, and the page of them can be made."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.rows.marks import TESTS, functions_of, marked, rows_of
from tests.rows.table import ROWS
from tests.tools.rows_page import rows_page

MARKED = marked()


@pytest.mark.parametrize("row", ROWS)
def test_each_row_has_a_test(row: str) -> None:
    assert MARKED.get(row), f"no test is marked @pytest.mark.row({row!r})"


def test_each_mark_is_of_a_row() -> None:
    assert set(MARKED) <= set(ROWS)


def test_the_page_has_each_row_with_its_command_and_tests() -> None:
    cells = [line.split(" | ") for line in rows_page().splitlines() if line.startswith("| F")]
    assert [cell[0] for cell in cells] == [f"| {row}" for row in ROWS]
    assert all(len(cell) == 4 for cell in cells), "a row holds a bar"
    for (row, (sees, command)), cell in zip(ROWS.items(), cells, strict=True):
        assert cell[1:3] == [sees, f"`{command}`"]
        assert re.findall(r"`(.+?)`", cell[3]) == [test.removeprefix("tests/") for test in MARKED[row]]


SAID_BY = {"env": r"examined\(", "diagnose": r"diagnosed\("}
"""Helpers of tests that run a command."""


@pytest.mark.parametrize("row", ROWS)
def test_a_test_of_each_row_runs_its_command(row: str) -> None:
    """Or calls what the command calls: the check's or the module's name is then in the same file."""
    words = re.findall(r"[\w-]+", ROWS[row].command)[1:]
    files = {test.partition("::")[0] for test in MARKED[row]}
    sources = [(TESTS.parent / file).read_text(encoding="utf-8") for file in files]
    word = next((word for word in words if not word.startswith("-")), "")
    pattern = rf"\b{word}\b|{SAID_BY.get(word, word)}"
    assert any(re.search(pattern, source) for source in sources), f"no test of {row} runs {ROWS[row].command}"


def test_marks_are_found_wherever_pytest_takes_them(tmp_path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_x.py").write_text(
        "import pytest\n"
        '@pytest.mark.row("F01", "F02")\ndef test_a(): ...\n'
        'class TestB:\n    @pytest.mark.row("F03")\n    def test_b(self): ...\n'
        '@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.row("F04"))])\ndef test_c(n): ...\n'
        '@pytest.mark.row("F05")\ndef helper(): ...\n'
    )
    found = marked(tmp_path / "tests")
    assert found == {"F01": ["tests/test_x.py::test_a"], "F02": ["tests/test_x.py::test_a"],
                     "F03": ["tests/test_x.py::test_b"], "F04": ["tests/test_x.py::test_c"]}  # fmt: skip


@pytest.mark.parametrize(
    "path", [path for path in TESTS.rglob("*.py") if "mark.row(" in path.read_text("utf-8")], ids=str
)
def test_no_mark_is_outside_of_a_test(path: Path) -> None:
    """On a helper, a fixture or a whole module it would be read by nobody."""
    module = ast.parse(path.read_text(encoding="utf-8"))
    read = [row for test in functions_of(module) for decorator in test.decorator_list for row in rows_of(decorator)]
    assert sorted(rows_of(module)) == sorted(read)
    assert not read or path.name.startswith("test_")
