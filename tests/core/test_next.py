"""What to do next: the gravest of what was found, and never `go` over what could not be judged."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcheck import judging
from rlcheck.check import Verdict, fail, passed, skip, unknown, warn
from rlcheck.doctor.clinic import failed
from rlcheck.finding import ACTIONS, Next, Report, Waiver, next_of
from rlcheck.playbook import Library
from tests.conftest import rlcheck
from tests.core.samples import FACTS, sample

BOOK = """---
id: {id}
title: t
families: [ABC]
checks: []
cause: c
verified: 2026-11-23
next: {id}
---
"""
BAD = fail("a", "b")


@pytest.fixture
def library(tmp_path: Path) -> Library:
    for action in ACTIONS:
        (tmp_path / f"{action}.md").write_text(BOOK.format(id=action))
    return Library((tmp_path,))


def verdicts(library: Library, *found: tuple[str, Verdict], strict: bool = False, **waived: Waiver) -> Next:
    """What follows from checks with such playbooks and verdicts."""
    checks = [
        sample(f"ABC{number:03}", verdict, playbook=book, needs=("platform",))
        for number, (book, verdict) in enumerate(found)
    ]
    return next_of(judging.judge(FACTS, checks, library, waived), strict)


def test_the_gravest_decides(library: Library) -> None:
    for place, action in enumerate(ACTIONS[:-1]):
        found = verdicts(library, *((later, BAD) for later in reversed(ACTIONS[place:-1])))
        assert found.action == action
        assert found.nodes == (("n1",) if action == "restart-without" else ())
    assert verdicts(library, ("go", BAD)).action == "fix"
    assert verdicts(library, ("no-such-book", BAD)).action == "fix"


def test_warnings_count_where_they_are_asked_for(library: Library) -> None:
    assert verdicts(library, ("stop", warn("a", "b"))) == Next("go", why="nothing here stops a run, 1 warned")
    assert verdicts(library, ("stop", warn("a", "b")), strict=True).action == "stop"


def test_it_never_goes_on_where_something_was_not_judged(library: Library) -> None:
    dark = verdicts(library, ("go", passed("fine")), ("go", unknown("could not look: no tool")))
    assert dark == Next("fix", why="1 check could not be judged: ABC001: could not look: no tool")
    assert verdicts(library, ("restart", BAD), ("go", unknown("x"))).action == "restart"
    assert verdicts(library, ("go", skip("not here"))).action == verdicts(library).action == "fix"
    assert verdicts(library, ("go", passed("fine")), ("stop", BAD), ABC001=Waiver("known")).action == "go"


def test_a_check_of_many_machines_names_them_or_leaves_out_none(library: Library) -> None:
    for named in ((), ("gpu-07",)):
        verdict = fail("a", "b", nodes=named)
        across = sample("ABC001", verdict, playbook="restart-without", needs=("cluster",))
        one = judging._next(across, verdict, library, "n1")  # pyright: ignore[reportPrivateUsage]
        assert one == (("restart-without", named) if named else ("fix", ()))


def test_a_host_without_facts_is_left_out_unless_something_is_graver() -> None:
    silent = Next("restart-without", ("gpu-02",), "no answer")
    for before, code, after in (
        (Next("go"), 0, silent),
        (Next("fix"), 0, silent),
        (Next("fix"), 1, Next("fix")),
        (Next("stop"), 1, Next("stop")),
    ):
        report = Report(version="1", command="env", exit_code=code, next=before)
        assert failed(report, "no answer", next=silent).next == after


LOGS = {
    "2026-11-20 gpu-07 kernel: NVRM: Xid (PCI:0000:1b:00): 79, pid=1, GPU has fallen off the bus.": "restart-without",
    "slurmstepd: error: *** JOB 71 ON gpu-01 CANCELLED AT 2026-11-20T10:00:00 DUE TO PREEMPTION ***": "restart",
    "RuntimeError: probability tensor contains either `inf`, `nan` or element < 0": "stop",
    "OSError: [Errno 99] a thing that no playbook has heard of": "fix",
    "step 1 loss 0.3": "go",
}


def test_a_log_says_what_to_do_next(tmp_path: Path) -> None:
    for line, action in LOGS.items():
        (tmp_path / "a.log").write_text(line + "\n")
        done = rlcheck("diagnose", tmp_path / "a.log", "--format", "json")
        after = json.loads(done.out)["next"]
        assert after["action"] == action, (line, after)
        assert (done.code == 0) == (action == "go")
        text = rlcheck("diagnose", tmp_path / "a.log").out
        assert text.splitlines()[-1].startswith(f"next: {action}")
