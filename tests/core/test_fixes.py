"""--fix: only safe ones, shown first, asked for, then a second look."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import msgspec
import pytest

from rlcheck.check import Status
from rlcheck.doctor import fixes
from rlcheck.finding import Finding, Fix, Report, Waiver
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.playbook import Library
from tests.conftest import in_terminal, rlcheck

Acme = dict[str, str | None]
SAFE = Fix(title="do it", kind="env", safety="safe", command="export A=1")


def report(*findings: Finding) -> Report:
    return Report(version="1", command="env", checks=findings)


def finding(id: str, *offered: Fix, status: Status = "fail", waived: Waiver | None = None) -> Finding:
    return Finding(
        id=id, title="t", headline="h", family=id[:3], status=status, message="m", fixes=offered, waived=waived
    )


def test_a_plan_takes_the_first_fix_of_each_problem_where_it_is_safe() -> None:
    other = msgspec.structs.replace(SAFE, command="export A=2")
    unsafe = msgspec.structs.replace(SAFE, safety="unsafe")
    third = finding("ABC003", unsafe, SAFE)  # what comes later may be for another case
    steps = fixes.plan(report(finding("ABC001", SAFE, other), finding("ABC002", other, status="warn"), third))
    assert [(step.finding.id, step.fix.command) for step in steps] == [
        ("ABC001", "export A=1"),
        ("ABC002", "export A=2"),
    ]


@pytest.mark.parametrize(
    "change",
    [
        {"safety": "unsafe"},
        {"complete": False},
        {"needs_root": True},
        {"by_hand": True},
        {"kind": "advice"},
        {"kind": "package"},
        {"kind": "config"},
    ],
)
def test_a_plan_never_takes(change: dict[str, object]) -> None:
    assert fixes.plan(report(finding("ABC001", msgspec.structs.replace(SAFE, **change)))) == ()


def test_a_plan_leaves_alone_what_is_no_problem() -> None:
    fine: tuple[Status, ...] = ("info", "pass", "skip")
    assert fixes.plan(report(*(finding("ABC001", SAFE, status=status) for status in fine))) == ()
    assert fixes.plan(report(finding("ABC001", SAFE, waived=Waiver()))) == ()


def test_one_fix_for_two_problems_is_applied_once() -> None:
    assert len(fixes.plan(report(finding("ABC001", SAFE), finding("ABC002", SAFE)))) == 1


def test_the_second_look_sees_the_variables() -> None:
    command = "export A='x y' B=$HOME/b\nunset C\n# no\nexport D"
    step = fixes.Step(finding("ABC001"), msgspec.structs.replace(SAFE, command=command))
    context = ProbeContext("/fake", {"HOME": "/h", "C": "3"}, ("python",), True)
    after = fixes.context_after((step,), context)
    assert after.environ == {"HOME": "/h", "A": "x y", "B": "/h/b", "D": ""}
    assert (after.root, after.python, after.deep) == (context.root, context.python, True)
    assert context.environ == {"HOME": "/h", "C": "3"}


def test_without_a_terminal_it_asks_for_a_decision(acme: Acme, tmp_path: Path) -> None:
    done = rlcheck("env", "--select", "ACM", "--fix", env=acme, cwd=tmp_path)
    assert done.code == 2
    assert done.out == ""
    assert "add --yes or --dry-run" in done.err
    assert list(tmp_path.iterdir()) == []


def test_dry_run_changes_nothing(acme: Acme, tmp_path: Path) -> None:
    env = {**acme, "ACME_DIR": str(tmp_path / "made here")}
    done = rlcheck("env", "--select", "ACM", "--fix", "--dry-run", env=env, cwd=tmp_path)
    assert done.code == 1
    assert "export ACME_MODE=fast" in done.err
    assert f"mkdir -p '{tmp_path}/made here'" in done.err
    assert "nothing was changed" in done.err
    assert "never-to-be-run" not in done.err
    assert list(tmp_path.iterdir()) == []


def test_yes_applies_and_looks_again(acme: Acme, tmp_path: Path) -> None:
    env = {**acme, "ACME_DIR": str(tmp_path / "made $(here)")}
    done = rlcheck("env", "--select", "ACM", "--fix", "--yes", "--format", "json", env=env, cwd=tmp_path)
    found = json.loads(done.out)
    assert done.code == 0
    assert [check["status"] for check in found["checks"]] == ["pass", "pass"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["made $(here)", "rlcheck.env.sh"]
    assert "ACM001: fail → pass" in found["notes"]
    assert "ACM002: warn → pass" in found["notes"]
    assert any(note.startswith("ACM002: ran mkdir -p ") for note in found["notes"])


def test_the_file_sets_the_variables(acme: Acme, tmp_path: Path) -> None:
    rlcheck("env", "--select", "ACM001", "--fix", "--yes", env=acme, cwd=tmp_path)
    shell = subprocess.run(
        ["bash", "-c", "source ./rlcheck.env.sh; echo $ACME_MODE"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert shell.stdout == "fast\n"


def test_the_file_keeps_what_an_earlier_fix_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for command in ("export A=1", "export B=2\nunset C", "export A=1"):
        fixes.carry_out(
            (fixes.Step(finding("ABC001"), msgspec.structs.replace(SAFE, command=command)),), dry_run=False, yes=True
        )
    lines = (tmp_path / fixes.ENV_FILE).read_text().splitlines()
    assert lines[0].startswith("#")
    assert lines[1:] == ["export B=2", "unset C", "export A=1"]


def test_somebody_elses_file_is_not_overwritten(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "rlcheck.env.sh").write_text("export MINE=1\n")
    done = rlcheck("env", "--select", "ACM001", "--fix", "--yes", env=acme, cwd=tmp_path)
    assert done.code == 2
    assert "there is another file of this name" in done.err
    assert (tmp_path / "rlcheck.env.sh").read_text() == "export MINE=1\n"


def test_a_link_or_what_is_no_file_is_not_written_through(acme: Acme, tmp_path: Path) -> None:
    target, path = tmp_path / "profile", tmp_path / "rlcheck.env.sh"
    step = rlcheck("env", "--select", "ACM001", "--fix", "--yes", env=acme, cwd=tmp_path)
    target.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(target)
    assert step.code == 0
    for place in ("link", "directory"):
        done = rlcheck("env", "--select", "ACM001", "--fix", "--yes", env=acme, cwd=tmp_path)
        assert (done.code, "there is another file of this name" in done.err) == (2, True), place
        path.unlink(missing_ok=True) if place == "link" else path.rmdir()
        path.mkdir()
    assert target.read_text().splitlines()[1:] == ["export ACME_MODE=fast"]


def test_lines_of_others_in_the_file_are_kept_as_they_are(acme: Acme, tmp_path: Path) -> None:
    path = tmp_path / "rlcheck.env.sh"
    rlcheck("env", "--select", "ACM001", "--fix", "--yes", env=acme, cwd=tmp_path)
    with path.open("ab") as file:
        file.write(b"# caf\xe9\x0cok\nif true; then\n  export ACME_MODE=fast\r\nfi\n")
    head, before = path.read_bytes().split(b"export", 1)
    assert rlcheck("env", "--select", "ACM001", "--fix", "--yes", env=acme, cwd=tmp_path).code == 0
    assert path.read_bytes() == head + before.split(b"\n", 1)[1] + b"export ACME_MODE=fast\n"


def test_what_has_an_example_for_a_value_is_done_by_hand() -> None:
    library = Library()
    made_up = re.compile(r"=/(?:tmp|data|scratch|path)[\w/]+(?:-\$\(id -u\))?(?=[\s/]|$)|=trainer$|\beth0\b", re.M)
    offered = [(name, fix) for name in library.ids() for fix in library.get(name).fixes if library.get(name).checks]
    found = [(name, fix) for name, fix in offered if fix.kind == "env" and made_up.search(fix.command)]
    assert len(found) >= 6
    assert [name for name, fix in found if fix.safety == "safe" and not fix.by_hand] == []


def test_a_fix_that_fails_is_told_and_the_report_comes(acme: Acme, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    env = {**acme, "ACME_DIR": str(tmp_path / "file" / "below"), "ACME_MODE": "fast"}
    done = rlcheck("env", "--select", "ACM", "--fix", "--yes", env=env, cwd=tmp_path)
    assert done.code == 0
    assert "failed: mkdir: " in done.out
    assert "ACM002" in done.out


def test_nothing_to_fix(acme: Acme, tmp_path: Path) -> None:
    done = rlcheck("env", "--select", "ACM001", "--fix", "--yes", env={**acme, "ACME_MODE": "fast"}, cwd=tmp_path)
    assert done.code == 0
    assert "no safe fix applies" in done.err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("answer", "applied"), [(b"y\n", True), (b"YES\n", True), (b"n\n", False), (b"\n", False), (b"\x04", False)]
)
def test_it_asks_on_a_terminal(answer: bytes, applied: bool, acme: Acme, tmp_path: Path) -> None:
    env = {**acme, "ACME_MODE": "fast", "ACME_DIR": str(tmp_path / "new")}
    done = in_terminal("env", "--select", "ACM", "--fix", columns=100, env=env, typed=answer)
    assert "Apply this fix? [y/N]" in done.out
    assert (tmp_path / "new").exists() is applied
    assert ("nothing was changed" in done.out) is not applied
    assert done.code == 0


def test_options_that_need_fix() -> None:
    for option in ("--dry-run", "--yes"):
        assert "go with --fix" in rlcheck("env", option).error_line
    assert "need the machine itself" in rlcheck("env", "--fix", "--facts", "x.json").error_line
