"""The Python probe: this interpreter in-process, any other through a scanner that is sent to it."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import msgspec
import pytest

from rlcheck.facts.base import MissingKind, need, why_missing
from rlcheck.facts.python import PythonFacts
from rlcheck.measure.machine import python
from rlcheck.measure.machine.context import ProbeContext
from tests.remote.trees import install

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"


@pytest.fixture
def environment(tmp_path: Path) -> Path:
    path = tmp_path / "venv"
    venv.create(path, with_pip=False, symlinks=True)
    return path


def script(path: Path, body: str) -> str:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return str(path)


def test_the_doctors_own_interpreter() -> None:
    facts = need(python.collect(ProbeContext()))
    assert facts.executable == sys.executable
    assert facts.is_doctors_own
    assert facts.errors == {}
    names = {distribution.name for distribution in facts.distributions}
    assert {"msgspec", "typer", "rich"} <= names
    assert why_missing(facts.imports).kind is MissingKind.ABSENT  # pyright: ignore[reportOptionalMemberAccess]
    assert msgspec.json.decode(msgspec.json.encode(facts), type=PythonFacts) == facts


def test_the_directory_of_a_module_run_is_not_on_the_search_path(tmp_path: Path) -> None:
    code = "from rlcheck.measure.machine import python, context\n"
    code += "print(*python.collect(context.ProbeContext()).value.sys_path)"
    environ = {**os.environ, "PYTHONPATH": os.getcwd()}
    command = [sys.executable, "-c", code]
    out = subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path, env=environ)
    assert "site-packages" in out.stdout
    assert str(tmp_path) not in out.stdout.split()


def test_another_environment_by_its_directory(environment: Path) -> None:
    install(environment / SITE, "verl", "0.9.1", ("transformers==5.9.0",))
    facts = need(python.collect(ProbeContext(python=(str(environment),))))
    assert facts.prefix == str(environment)
    assert facts.kind == "venv"
    assert not facts.is_doctors_own
    assert [(d.name, d.version, d.requires) for d in facts.distributions] == [
        ("verl", "0.9.1", ("transformers==5.9.0",))
    ]
    assert facts.errors == {}
    assert not list((environment / SITE).rglob("*.pyc")), "nothing is left behind there"


def test_pythonpath_counts_and_the_current_directory_does_not(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the current directory')")
    install(tmp_path / "extra", "torch", "2.0", files={"torch/__init__.py": "", "torch/version.py": ""})
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "extra")}
    command = ("sh", "-c", f'cd {tmp_path} && exec {environment}/bin/python "$@"', "sh")
    facts = need(python.collect(ProbeContext(python=command, environ=environ)))
    assert facts.sys_path[0] == str(tmp_path / "extra")
    assert str(tmp_path) not in facts.sys_path
    assert need(facts.torch).version == "2.0"
    assert not need(facts.torch).version_file


def test_a_path_file_may_name_a_directory_with_letters_that_ascii_lacks(environment: Path, tmp_path: Path) -> None:
    (tmp_path / "bücher").mkdir()
    (environment / SITE / "mine.pth").write_text(f"{tmp_path}/bücher\n", encoding="utf-8")
    facts = need(python.collect(ProbeContext(python=(str(environment),))))
    assert f"{tmp_path}/bücher" in facts.sys_path


def test_a_command_line_that_prints_banners(environment: Path) -> None:
    body = f'echo "Welcome to the cluster"; {environment}/bin/python "$@"; echo goodbye'
    facts = need(python.collect(ProbeContext(python=("sh", "-c", body, "sh"))))
    assert facts.prefix == str(environment)


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("cat", MissingKind.ERROR, "did not answer as a Python would: exit status 0"),
        ("cat >/dev/null; echo 'no such container: job' >&2; exit 1", MissingKind.ERROR, "no such container: job"),
        ("kill -11 $$", MissingKind.ERROR, "killed by signal 11"),
        ("echo 'rlcheck-scan:{'", MissingKind.ERROR, "did not answer"),
        ("echo 'rlcheck-scan:[1]'", MissingKind.ERROR, "did not answer"),
        ("""echo 'rlcheck-scan:{"distributions": 3}'""", MissingKind.ERROR, "makes no sense"),
        ("""echo 'rlcheck-scan:{"too_old": "2.7.18"}'""", MissingKind.UNSUPPORTED, "is Python 2.7.18"),
    ],
)
def test_what_is_no_python_is_one_clear_line(tmp_path: Path, body: str, kind: MissingKind, words: str) -> None:
    command = script(tmp_path / "python", body)
    reason = why_missing(python.collect(ProbeContext(python=(command,))))
    assert reason is not None
    assert reason.kind is kind
    assert words in reason.reason
    assert "\n" not in reason.reason


def test_an_interpreter_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(python, "_SCAN_TIMEOUT_S", 0.3)
    reason = why_missing(python.collect(ProbeContext(python=(script(tmp_path / "python", "sleep 60"),))))
    assert reason is not None
    assert reason.kind is MissingKind.TIMEOUT


@pytest.mark.parametrize("path", ["no-such-python", "/no/such/python", "{tmp}"])
def test_an_interpreter_that_is_not_there_is_not_a_skip(tmp_path: Path, path: str) -> None:
    reason = why_missing(python.collect(ProbeContext(python=(path.format(tmp=tmp_path),))))
    assert reason is not None
    assert reason.kind in (MissingKind.ERROR, MissingKind.PERMISSION)


def test_the_program_tells_an_old_python_apart() -> None:
    """Python 2 must be able to parse what it is sent, or it complains of our syntax instead of its age."""
    program = python._program()
    assert program.isascii()
    body = program.split("\n", 1)[1]
    assert "->" not in body
    assert ": str" not in body
    old = body.replace("sys.version_info < (3, 8)", "True")
    code = subprocess.run([sys.executable, "-"], input=old, capture_output=True, text=True, check=True)
    assert json.loads(code.stdout.strip().partition(":")[2])["too_old"].startswith("3.")


def test_what_is_sent_is_valid_in_the_oldest_python_that_is_examined() -> None:
    remote = Path(python.__file__).parents[2] / "remote"
    sources = [*(remote / "scan").glob("*.py"), remote / "bootstrap.py", remote / "import_child.py"]
    assert len(sources) > 10
    for path in sources:
        tree = ast.parse(path.read_text(), feature_version=(3, 8))
        names = {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
        names |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and not node.level}
        assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names, path


def test_the_stack_table_is_well_formed() -> None:
    fields = {"name", "imports", "compiled", "numpy", "symbols", "alternatives", "deep", "without"}
    names = [row["name"] for row in python.stack_table()]
    assert len(names) == len(set(names))
    for row in python.stack_table():
        assert set(row) <= fields, row
        assert row["name"] == row["name"].lower().replace("_", "-")
        assert set(row.get("numpy", [])) <= set(row.get("compiled", []))
    assert {"verl", "vllm", "sglang", "torch", "ray", "transformers", "nvidia-*", "flash-attn"} <= set(names)
