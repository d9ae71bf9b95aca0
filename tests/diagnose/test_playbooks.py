"""Every signature of every playbook: it finds the log lines that it was written for, and nothing in a healthy log."""

from __future__ import annotations

import re
import time
from functools import cache
from pathlib import Path

import msgspec
import pytest

from rlcheck.diagnose.answer import diagnose
from rlcheck.diagnose.decode import decoded
from rlcheck.diagnose.hits import Hit, hits
from rlcheck.diagnose.lines import read_line
from rlcheck.diagnose.model import Answer, Diagnosis
from rlcheck.diagnose.signatures import build, pattern_of
from rlcheck.playbook import Playbook, Signature, fill
from rlcheck.report.diagnosis.report import make_report
from tests.diagnose.reading import LIBRARY, index, log_of
from tests.every import every

FIXTURES = Path(__file__).parents[1] / "fixtures" / "diagnose"
HEALTHY = sorted((Path(__file__).parents[1] / "fixtures" / "healthy_logs").glob("*.log"))
IN_LOGS = [playbook_id for playbook_id in LIBRARY.ids() if LIBRARY.get(playbook_id).signatures]
OPTION = "%% "
HOSTILE = ("a", " ", "0", "(", "/", ".", "_", "a ", "1.", "a,", '"', "[", "Error: ", "File ", "\t", "=")
LONG = 4096
SLOW_S = 0.05
"""Of processor time."""


class Case(msgspec.Struct, frozen=True):
    """One log of a fixture file, and what its parameters must be."""

    text: str
    fills: dict[str, str]


@cache
def cases(playbook_id: str) -> tuple[Case, ...]:
    path = FIXTURES / f"{playbook_id}.txt"
    return tuple(_case(part) for part in re.split(r"^%%%%\n", path.read_text(encoding="utf-8"), flags=re.M))


def _case(part: str) -> Case:
    lines = part.strip("\n").split("\n")
    options = [line.removeprefix(OPTION) for line in lines if line.startswith(OPTION)]
    fills = dict(option.removeprefix("fills: ").split("=", 1) for option in options)
    return Case("\n".join(line for line in lines if not line.startswith(OPTION)), fills)


@cache
def hits_of(text: str) -> tuple[Hit, ...]:
    lines = log_of(text).lines
    return tuple(hits([read_line(line, 0, at) for at, line in enumerate(lines)], index()))


@cache
def answer_to(text: str) -> Answer:
    return diagnose([log_of(text)], index(), LIBRARY)


def test_the_index_is_the_playbooks() -> None:
    assert index() == build(LIBRARY)


def test_there_are_enough() -> None:
    assert len(IN_LOGS) >= 120


def test_every_fixture_is_of_a_playbook() -> None:
    assert {path.stem for path in FIXTURES.iterdir()} == set(IN_LOGS)


@every(IN_LOGS)
def test_each_case_is_diagnosed_as_this_problem(playbook_id: str) -> None:
    book = LIBRARY.get(playbook_id)
    found: set[int] = set()
    for case in cases(playbook_id):
        mine = [hit for hit in hits_of(case.text) if hit.id == playbook_id]
        assert mine, f"no signature of {playbook_id} is in:\n{case.text}"
        found |= {book.signatures.index(hit.signature) for hit in mine}
        _is_ranked_first(book, case)
        params = decoded({name: value for hit in reversed(mine) for name, value in hit.groups.items()})
        for name, value in case.fills.items():
            assert params.get(name) == value, f"{name} is {params.get(name)!r} in:\n{case.text}"
    missed = [signature.pattern for number, signature in enumerate(book.signatures) if number not in found]
    assert not missed, f"no case shows {missed}"


def _is_ranked_first(book: Playbook, case: Case) -> None:
    answer = answer_to(case.text)
    if all(hit.signature.status == "info" for hit in hits_of(case.text) if hit.id == book.id):
        assert book.title in answer.remarks
        assert not answer.diagnoses
        return
    ids = [found.id for found in answer.diagnoses]
    assert ids[:1] == [book.id], f"{ids}, unknown: {answer.unknown} for:\n{case.text}"
    assert "[[" not in answer.diagnoses[0].cause
    assert not re.search(r"<\w+>", answer.diagnoses[0].cause), answer.diagnoses[0].cause


@every(IN_LOGS)
def test_no_other_playbook_claims_as_much(playbook_id: str) -> None:
    """Two playbooks that answer one line with equal specificity would be ranked by chance."""
    for case in cases(playbook_id):
        found = hits_of(case.text)
        first = [hit for hit in found if hit.id == playbook_id]
        best = max(first, key=lambda hit: hit.signature.specificity)
        equal = {
            hit.id
            for hit in found
            if hit.id != playbook_id
            and hit.message.at == best.message.at
            and hit.signature.specificity == best.signature.specificity
            and hit.signature.status == best.signature.status
            and not hit.known.relations.wraps
            and not set(hit.known.relations.consequence_of) & {playbook_id, "*"}
            and hit.id not in best.known.relations.consequence_of
        }
        assert not equal, f"{equal} claim the same line as {playbook_id}:\n{best.message.whole}"


@pytest.mark.parametrize("path", HEALTHY, ids=lambda path: path.stem)
def test_healthy_logs_are_healthy(path: Path) -> None:
    answer = diagnose([log_of(path.read_text(encoding="utf-8"), path.name)], index(), LIBRARY)
    assert [found.id for found in answer.diagnoses] == []
    assert answer.unknown is None


@every(IN_LOGS)
def test_no_signature_is_slow_on_hostile_lines(playbook_id: str) -> None:
    for signature in LIBRARY.get(playbook_id).signatures:
        assert len(signature.literal) >= 4, signature
        for text in _hostile(signature):
            for pattern in filter(None, (signature.pattern, signature.near, signature.unless)):
                seconds = min(_seconds(pattern, text) for _ in range(1))
                if seconds > SLOW_S:  # once more: the machine may have been busy
                    seconds = min(_seconds(pattern, text) for _ in range(3))
                assert seconds <= SLOW_S, f"{seconds:.2f} s: {pattern}"


def _hostile(signature: Signature) -> list[str]:
    once = [(signature.literal + piece * LONG)[:LONG] for piece in HOSTILE]
    return [*once, (signature.literal * LONG)[:LONG], ((signature.literal + " ") * LONG)[:LONG]]


def _seconds(pattern: str, text: str) -> float:
    compiled = pattern_of(pattern)
    started = time.process_time()
    compiled.search(text)
    return time.process_time() - started


@every(IN_LOGS)
def test_no_command_is_shown_with_a_hole(playbook_id: str) -> None:
    """What the log does not tell is the usual value, or no command: `<name>` is a redirection to a shell."""
    for case in cases(playbook_id):
        shown = make_report(answer_to(case.text), everything=True).diagnoses
        assert [fix.command for found in shown for fix in found.fixes if re.search(r"<[a-z]\w*>", fix.command)] == []


@every(LIBRARY.ids())
def test_a_fix_that_lacks_all_its_parameters_has_no_hole(playbook_id: str) -> None:
    book = LIBRARY.get(playbook_id)
    fixes = tuple(fill(recipe, {}) for recipe in book.fixes)
    bare = Diagnosis(id=book.id, title="t", status="fail", cause="c", confidence="low", fixes=fixes)
    (shown,) = make_report(Answer(diagnoses=(bare,)), everything=True).diagnoses
    assert [fix.command for fix in shown.fixes if re.search(r"<[a-z]\w*>", fix.command)] == []
