"""The report on terminals of several sizes, in pipes, without colours and in plain ASCII."""

from __future__ import annotations

import io
import re
from pathlib import Path

import msgspec
import pytest

from rlcheck.finding import Fix
from rlcheck.report.render import render
from tests.conftest import ROOT, in_terminal, rlcheck
from tests.report.samples import EMPTY, FINDINGS, HEALTHY, REPORT, SHM, finding, on_two_nodes, report, shown

MACHINE = ROOT / "tests" / "fixtures" / "machines" / "sglang-verl-conflict.json"
COLOURS = re.compile("\x1b\\[[0-9;]*m")


class Terminal(io.TextIOWrapper):
    """A file that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def on_terminal(monkeypatch: pytest.MonkeyPatch, columns: int, encoding: str = "utf-8", **options: bool) -> str:
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    out = Terminal(io.BytesIO(), encoding=encoding)
    render(REPORT, "text", out, **options)
    out.seek(0)
    return out.read()


def too_wide(text: str, columns: int) -> list[str]:
    """Lines over the width that are neither a command nor a single word that cannot be broken."""
    commands = {line for finding in FINDINGS for fix in finding.fixes for line in fix.command.splitlines()}
    lines = COLOURS.sub("", text).splitlines()
    return [line for line in lines if len(line) > columns and line.strip() not in commands and " " in line.strip()]


@pytest.mark.parametrize("columns", [50, 60, 80, 100, 200])
@pytest.mark.parametrize("verbose", [False, True])
def test_no_line_is_too_wide(columns: int, verbose: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(monkeypatch, columns, verbose=verbose)
    assert not too_wide(text, columns)
    assert not [line for line in text.splitlines() if line != line.rstrip()]


def test_a_wide_terminal_is_not_filled_to_the_edge(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not too_wide(on_terminal(monkeypatch, 400), 120)


def test_commands_are_whole_at_any_width(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line.strip() for line in on_terminal(monkeypatch, 40).splitlines()]
    for fix in REPORT.checks[0].fixes[:2]:
        assert fix.command in lines


@pytest.mark.parametrize("columns", [80, 200])
def test_on_a_real_terminal(columns: int) -> None:
    done = in_terminal("env", "--facts", MACHINE, columns=columns)
    assert done.code == 1
    plain = COLOURS.sub("", done.out)
    assert "\x1b" not in plain
    assert COLOURS.search(done.out)
    prose = [line for line in plain.splitlines() if not re.match(r" {18}\S", line) and " " in line.strip()]
    assert max(len(line) for line in prose) <= min(columns, 120)
    assert max(len(line) for line in prose) > min(columns, 120) * 0.8, "the width is used"


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colours(env: dict[str, str | None]) -> None:
    done = in_terminal("env", "--facts", MACHINE, columns=80, env=env)
    assert "\x1b" not in done.out
    assert "exit code 1" in done.out


def test_an_empty_no_color_means_nothing() -> None:
    assert "\x1b[" in in_terminal("env", "--facts", MACHINE, columns=80, env={"NO_COLOR": ""}).out


def test_a_terminal_without_a_size() -> None:
    plain = COLOURS.sub("", in_terminal("env", "--facts", MACHINE, columns=0).out)
    widest = max(len(line) for line in plain.splitlines() if not re.match(r" {18}\S", line) and " " in line.strip())
    assert 60 < widest <= 80


def test_in_a_pipe_lines_stay_whole() -> None:
    done = rlcheck("env", "--facts", MACHINE, env={"COLUMNS": "60"})
    assert "\x1b" not in done.out
    found = [line for line in done.out.splitlines() if line.strip().startswith("found ")]
    assert found
    assert all(line.startswith("      found     ") for line in found)


@pytest.mark.parametrize(
    ("arguments", "env"),
    [
        (("--ascii",), {}),
        ((), {"PYTHONIOENCODING": "ascii"}),
        ((), {"PYTHONIOENCODING": "latin-1"}),
        ((), {"LC_ALL": "C", "PYTHONIOENCODING": "ascii:strict"}),
        ((), {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}),
    ],
)
def test_ascii(arguments: tuple[str, ...], env: dict[str, str | None]) -> None:
    done = rlcheck("env", "-v", "--facts", MACHINE, *arguments, env=env)
    assert done.code == 1
    assert done.out.isascii()
    assert "[x]" in done.out
    for command in (("list",), ("explain", "SYS001")):
        other = rlcheck(*command, env=env)
        assert other.code == 0
        assert not env or other.out.isascii()


def test_what_programs_read_is_utf8_in_any_locale(tmp_path: Path) -> None:
    for format in ("json", "markdown", "junit", "sarif"):
        plain = rlcheck("env", "--facts", MACHINE, "--format", format).out
        odd = rlcheck("env", "--facts", MACHINE, "--format", format, env={"PYTHONIOENCODING": "ascii"}).out
        assert mask(odd) == mask(plain)
        rlcheck("env", "--facts", MACHINE, "--format", format, "-o", tmp_path / "f", env={"PYTHONIOENCODING": "ascii"})
        assert mask((tmp_path / "f").read_text(encoding="utf-8")) == mask(plain)


def mask(text: str) -> str:
    """Without the times that differ from run to run."""
    return re.sub(r'(duration_ms": |time=")[0-9.]+', r"\1", text)


def test_what_is_shown_and_what_is_not() -> None:
    brief, verbose = shown(REPORT, "text"), shown(REPORT, "text", verbose=True)
    for text in (brief, verbose):
        assert "exit code 1: 1 check failed; fix SYS001 first" in text
        assert "SYS009" in text, "what is waived is never hidden"
        assert "waived: wanted here, until 2027-01-31" in text
        assert "the check itself failed: KeyError" in text
        assert "note: the ignore of SYS003 expired" in text
        assert "unsafe: the running container" in text
        assert "needs root" in text
    assert "memlock unlimited" not in brief
    assert "memlock unlimited" in verbose
    assert "NCL004" in verbose
    assert "system.shm.total_bytes = 67108864 (statvfs /dev/shm)" in verbose
    assert "2 more (-v shows them)" in brief
    assert "rank 7" in verbose
    assert "rank 7" not in brief


def test_healthy_and_empty() -> None:
    assert shown(HEALTHY, "text").splitlines()[-2] == "exit code 0: healthy"
    assert "nothing was checked" in shown(EMPTY, "text")
    warned = report(finding("SYS001", "unknown", "could not look: hung"))
    assert "--strict" in shown(warned, "text").splitlines()[-2]


def test_two_nodes_are_one_block() -> None:
    text = shown(on_two_nodes(), "text")
    assert text.startswith("rlcheck 0.1.0 env on gpu-01, gpu-02\n")
    assert "SYS001  /dev/shm is too small\n      where     on gpu-01 only\n" in text
    assert "ENV002  A declared requirement is not met\n      where     on both nodes\n" in text
    assert text.count("ENV002") == 1


def test_strict_says_so() -> None:
    strict = msgspec.structs.replace(report(finding("SYS001", "unknown", "?")), strict=True, exit_code=1)
    assert "exit code 1: --strict counts" in shown(strict, "text")


def test_a_fix_says_its_or_once_and_advice_its_harm() -> None:
    fixes = (SHM.fixes[2], Fix(title="Or end the other run", kind="advice", safety="unsafe", destroys="what it does"))
    one = msgspec.structs.replace(SHM, fixes=fixes)
    text = shown(msgspec.structs.replace(REPORT, checks=(one,)), "text")
    assert re.search(r"\n +or +End the other run \(unsafe: what it does\)\n", text)
