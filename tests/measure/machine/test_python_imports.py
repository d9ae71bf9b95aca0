"""`--deep`: imports in processes of their own; whatever happens there is a fact."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from rlcheck.facts.base import need, why_missing
from rlcheck.facts.python import ImportTest
from rlcheck.measure.machine import python
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.python_imports import try_imports

MODULES = {
    "fine": "print('noise on standard output'); LLM = 1",
    "raises": "raise ImportError('libcudart.so.12: cannot open\\nshared object file')",
    "wraps": "try:\n    import raises\nexcept ImportError as e:\n    raise OSError('Could not load') from e",
    "exits": "raise SystemExit(3)",
    "crashes": "import ctypes; ctypes.string_at(0)",
    "aborts": "import os; os.abort()",
    "dies": "import os; os._exit(7)",
    "hangs": "import time; time.sleep(60)",
    "imposter": "import os; os.write(1, b'rlcheck-import:{'); os._exit(0)",
}


@pytest.fixture
def context(tmp_path: Path) -> ProbeContext:
    for name, source in MODULES.items():
        (tmp_path / f"{name}.py").write_text(source)
    return ProbeContext(environ={**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"})


def outcome(context: ProbeContext, module: str, timeout_s: float = 20.0) -> ImportTest:
    return need(try_imports(context, [sys.executable], [module], timeout_s))[0]


def test_a_module_that_imports(context: ProbeContext) -> None:
    test = outcome(context, "fine:LLM")
    assert (test.module, test.ok, test.signal, test.timed_out, test.last_line) == ("fine", True, 0, False, "")
    assert 0 <= test.seconds < 20


@pytest.mark.parametrize(
    ("module", "words"),
    [
        ("raises", "ImportError: libcudart.so.12: cannot open shared object file"),
        ("wraps", "OSError: Could not load (cause: ImportError: libcudart.so.12: cannot open shared object file)"),
        ("exits", "SystemExit: 3"),
        ("fine:Missing", "AttributeError: module 'fine' has no attribute 'Missing'"),
        ("not_there", "ModuleNotFoundError: No module named 'not_there'"),
        ("dies", "exit status 7"),
        ("imposter", "rlcheck-import:{"),
    ],
)
def test_failures_are_one_line(context: ProbeContext, module: str, words: str) -> None:
    """F02: the last line of the traceback, as the user would see it."""
    test = outcome(context, module)
    assert not test.ok
    assert test.last_line == words
    assert test.signal == 0


@pytest.mark.parametrize(("module", "number"), [("crashes", signal.SIGSEGV), ("aborts", signal.SIGABRT)])
def test_a_crash_is_a_fact(context: ProbeContext, module: str, number: int) -> None:
    test = outcome(context, module)
    assert (test.ok, test.signal, test.timed_out) == (False, number, False)
    assert test.last_line.startswith("Fatal Python error")
    assert "File " in test.last_line


def test_a_shell_in_between_reports_the_signal_too(context: ProbeContext) -> None:
    command = ["sh", "-c", f'{sys.executable} "$@"; exit $?', "sh"]
    assert need(try_imports(context, command, ["crashes"], 20.0))[0].signal == signal.SIGSEGV


def test_an_import_that_hangs(context: ProbeContext) -> None:
    test = outcome(context, "hangs", 0.7)
    assert (test.ok, test.timed_out, test.signal) == (False, True, 0)


def test_every_module_is_reported_in_order(context: ProbeContext) -> None:
    tests = need(try_imports(context, [sys.executable], ["fine", "raises", "fine"], 20.0))
    assert [(test.module, test.ok) for test in tests] == [("fine", True), ("raises", False), ("fine", True)]


def test_without_an_interpreter(context: ProbeContext) -> None:
    assert why_missing(try_imports(context, [""], ["fine"])) is not None
    assert "No such file" in need(try_imports(context, ["/no/such/python"], ["fine"]))[0].last_line


def test_deep_imports_what_is_installed_and_in_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def record(ctx: ProbeContext, command: tuple[str, ...], modules: list[str]) -> object:
        assert command == (sys.executable,)
        seen.append(list(modules))
        return why_nothing

    from rlcheck.facts.base import known
    from rlcheck.measure.machine import python_imports

    why_nothing = known(())
    monkeypatch.setattr(python_imports, "try_imports", record)
    facts = need(python.collect(ProbeContext(deep=True)))
    assert facts.imports.value == ()
    installed = {distribution.name for distribution in facts.distributions}
    assert ("pydantic" in seen[0]) == ("pydantic" in installed)
    assert "sglang" not in seen[0]
