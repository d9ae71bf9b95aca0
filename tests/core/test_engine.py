"""The engine: needs, verdicts, crashes, waivers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck import judging
from rlcheck.check import Check, Verdict, check, fail, info, passed, skip, unknown, warn
from rlcheck.facts.base import FactMissingError, Missing, MissingKind, absent, missing, need
from rlcheck.facts.document import Facts
from rlcheck.finding import Finding, Waiver
from rlcheck.playbook import Library
from tests.core.samples import FACTS, sample

EMPTY = Library(())


def judge(check: Check, facts: Facts = FACTS, **waivers: Waiver) -> Finding:
    return judging.judge(facts, (check,), EMPTY, waivers)[0]


def test_a_verdict_becomes_a_finding() -> None:
    finding = judge(sample("ABC001", warn("5", "3", details=("x",)), playbook="some-playbook", caused_by=("ABC002",)))
    assert (finding.id, finding.family, finding.node, finding.playbook) == ("ABC001", "ABC", "n1", "some-playbook")
    assert (finding.status, finding.message) == ("warn", "expected 5, found 3")
    assert (finding.expected, finding.found, finding.details, finding.caused_by) == ("5", "3", ("x",), ("ABC002",))


PLAYBOOK = """---
id: few
title: t
families: [ABC]
checks: [ABC001, ABC002]
cause: c
verified: 2026-11-23
fixes:
  - {title: 'For both', kind: config, command: 'a.b=[1]'}
  - {title: 'Worked out', kind: config, command: '{{override}}'}
  - {title: 'For the second', kind: env, command: 'unset A', checks: [ABC002]}
---
"""


def test_a_fix_for_some_checks_is_not_offered_by_the_others(tmp_path: Path) -> None:
    (tmp_path / "few.md").write_text(PLAYBOOK)
    checks = [sample(id, warn("5", "3", params={"override": "a.b=2"}), playbook="few") for id in ("ABC001", "ABC002")]
    first, second = judging.judge(FACTS, checks, Library((tmp_path,)))
    assert [fix.command for fix in first.fixes] == ["a.b=2", "a.b=[1]"]
    assert [fix.command for fix in second.fixes] == ["unset A", "a.b=2", "a.b=[1]"]


def test_one_command_is_offered_once(tmp_path: Path) -> None:
    (tmp_path / "few.md").write_text(PLAYBOOK)
    check = sample("ABC001", warn("5", "3", params={"override": "a.b=[1]"}), playbook="few")
    found = judging.judge(FACTS, (check,), Library((tmp_path,)))[0]
    assert [(fix.title, fix.command) for fix in found.fixes] == [("Worked out", "'a.b=[1]'")]


def test_why_is_the_first_sentence_and_only_where_something_is_wrong() -> None:
    assert judge(sample("ABC001", fail("a", "b"))).why == "It is 3.5 times as slow."
    assert judge(sample("ABC001", info("a"))).why == "It is 3.5 times as slow."
    assert judge(sample("ABC001", passed("a"))).why == ""


@pytest.mark.parametrize(
    ("fact", "status", "message"),
    [
        (absent("no kernel here"), "skip", "no kernel here"),
        (missing(MissingKind.PERMISSION, "not allowed"), "unknown", "could not look: not allowed"),
        (missing(MissingKind.TIMEOUT, "hung"), "unknown", "could not look: hung"),
        (missing(MissingKind.UNSUPPORTED, "too old"), "unknown", "could not look: too old"),
        (missing(MissingKind.ERROR, "broke"), "unknown", "could not look: broke"),
        (missing(MissingKind.NOT_COLLECTED, "was left out"), "unknown", "could not look: was left out"),
    ],
)
def test_what_is_missing_never_passes(fact: Any, status: str, message: str) -> None:
    facts = Facts(platform=fact)
    by_needs = judge(sample("ABC001", needs=("platform",)), facts)
    by_use = judge(sample("ABC001", lambda facts: passed(need(facts.platform).kernel)), facts)
    assert (by_needs.status, by_needs.message) == (status, message)
    assert (by_use.status, by_use.message) == (status, message)


def test_the_first_missing_need_is_named() -> None:
    check = sample("ABC001", needs=("platform.kernel", "nvidia.devices", "rocm"))
    assert judge(check).message == "could not look: was not collected"
    facts = msgspec.structs.replace(FACTS, nvidia=absent("no NVIDIA GPU"))
    assert judge(check, facts).message == "no NVIDIA GPU"


def raising(error: BaseException) -> Check:
    def judge(facts: Facts) -> Verdict:
        raise error

    return sample("ABC001", judge)


@pytest.mark.parametrize("error", [ZeroDivisionError("zero"), RecursionError("deep"), KeyError("k"), AssertionError()])
def test_a_check_that_raises_is_an_error_and_shown(error: Exception) -> None:
    finding = judge(raising(error))
    assert finding.status == "error"
    assert finding.message.startswith(f"the check itself failed: {type(error).__name__}")
    assert finding.is_problem


def test_a_long_error_is_one_short_line() -> None:
    finding = judge(raising(ValueError("a\nb " + "x" * 10_000)))
    assert "\n" not in finding.message
    assert len(finding.message) < 500


def test_interrupts_are_not_swallowed() -> None:
    with pytest.raises(KeyboardInterrupt):
        judge(raising(KeyboardInterrupt()))


def test_missing_from_deep_inside_is_understood() -> None:
    finding = judge(raising(FactMissingError(Missing(kind=MissingKind.ABSENT, reason="gone"))))
    assert (finding.status, finding.message) == ("skip", "gone")


@pytest.mark.parametrize(
    "verdict",
    [None, "fail", 7, Verdict(status="bogus", message="x"), Verdict(status="fail", message=None),  # type: ignore[arg-type]
     fail("a", "b", params={"n": 5}), fail("a", "b", details=("x", 5)), fail("a", "b", evidence=("x",))],
)  # fmt: skip
def test_a_verdict_of_the_wrong_shape_is_an_error(verdict: object) -> None:
    """A plug-in's check can return anything; the report must be written all the same."""
    finding = judge(sample("ABC001", lambda facts: verdict))
    assert finding.status == "error"
    msgspec.json.decode(msgspec.json.encode(finding), type=Finding)


def test_a_need_that_cannot_exist_is_an_error() -> None:
    assert judge(sample("ABC001", needs=("platform.colour",))).status == "error"
    assert judge(sample("ABC001", needs=("plugins.other",))).status == "unknown"


def test_a_waiver_waives_problems_only() -> None:
    waiver = Waiver(reason="known")
    assert judge(sample("ABC001", fail("a", "b")), ABC001=waiver).waived == waiver
    assert judge(sample("ABC001", unknown("?")), ABC001=waiver).waived == waiver
    assert judge(sample("ABC001", passed("ok")), ABC001=waiver).waived is None
    assert judge(sample("ABC001", skip("no")), ABC001=waiver).waived is None
    assert judge(sample("ABC001", fail("a", "b")), ABC002=waiver).waived is None


def test_a_family_can_be_waived() -> None:
    assert judge(sample("ABC001", fail("a", "b")), ABC=Waiver(reason="all")).waived == Waiver(reason="all")


def test_no_playbook_or_a_broken_one_costs_the_fixes_only(tmp_path: Path) -> None:
    (tmp_path / "broken.md").write_bytes(b"---\n\xff\xfe\n---\n")
    (tmp_path / "list.md").write_bytes(b"---\n- a\n---\nbody\n")
    for name in ("nothing", "broken", "list", "x" * 5000):
        finding = judging.judge(FACTS, (sample("ABC001", fail("a", "b"), playbook=name),), Library((tmp_path,)))[0]
        assert (finding.status, finding.fixes) == ("fail", ())


SHARED = """---
id: shared
title: T
families: [ABC]
checks: [ABC001, ABC002]
cause: c
fixes:
  - {title: for all, kind: advice}
  - {title: "first {{x}}", kind: advice, checks: [ABC001]}
  - {title: second, kind: env, command: unset B, checks: [ABC002]}
  - {title: also second, kind: advice, checks: [ABC002]}
verified: 2026-11-23
---
"""


def test_a_finding_shows_first_what_was_written_for_its_check(tmp_path: Path) -> None:
    """And nothing that was written for another one, whose `unset` would do it no good."""
    (tmp_path / "shared.md").write_text(SHARED)

    def titles(check_id: str, **params: str) -> list[str]:
        one = sample(check_id, fail("a", "b", params=params), playbook="shared")
        return [fix.title for fix in judging.judge(FACTS, (one,), Library((tmp_path,)))[0].fixes]

    assert titles("ABC001", x="1") == ["first 1", "for all"]
    assert titles("ABC001") == ["for all"]
    assert titles("ABC002", x="1") == ["second", "also second", "for all"]


def test_ids_have_a_form() -> None:
    for id in ("ABC1", "abc001", "ABCD001", "ABC001\n", ""):
        with pytest.raises(ValueError, match="is not like SYS001"):
            check(id, "t", needs=(), playbook="p")
