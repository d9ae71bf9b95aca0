"""How hard the checks of the data are: what stops a run fails, what another framework lives with warns."""

from __future__ import annotations

import msgspec
import pytest

from rlcheck import engine
from rlcheck.checks.dat import CHECKS
from rlcheck.facts.dataset import Asked
from rlcheck.playbook import Library
from tests.checks.dat.build import RLTRAIN, VERL, file, lengths, section

BY_ID = {check.id: check for check in CHECKS}
FILTERS = msgspec.structs.replace(RLTRAIN, filter_overlong_prompts=True, train_batch_size=99)
LONG = lengths(num_too_long=3)


def judged(id: str, facts):
    return engine.judge(facts, (BY_ID[id],), Library())[0]


@pytest.mark.parametrize(
    ("id", "kind", "asked", "status"),
    [
        ("DAT012", "prompt_empty", RLTRAIN, "fail"),
        ("DAT012", "prompt_empty", VERL, "warn"),
        ("DAT012", "prompt_null", VERL, "fail"),
        ("DAT012", "prompt_empty", Asked(prompt_key="prompt"), "warn"),
        ("DAT013", "message_role", VERL, "warn"),
        ("DAT013", "message_form", VERL, "fail"),
        ("DAT013", "last_assistant", RLTRAIN, "fail"),
        ("DAT013", "last_assistant", VERL, "warn"),
        ("DAT013", "last_assistant", Asked(), "info"),
        ("DAT015", "source_form", VERL, "warn"),
        ("DAT015", "source_missing", VERL, "fail"),
        ("DAT018", "truth_never", RLTRAIN, "warn"),
        ("DAT018", "truth_unusable", VERL, "fail"),
        ("DAT008", "nul", VERL, "warn"),
        ("DAT009", "control", RLTRAIN, "info"),
        ("DAT010", "not_finite", RLTRAIN, "warn"),
        ("DAT023", "alike", RLTRAIN, "info"),
        ("DAT016", "source_unscored", Asked(framework="spec"), "skip"),
    ],
)
def test_status(id: str, kind: str, asked: Asked, status: str) -> None:
    finding = judged(id, section(kind, asked=asked))
    assert finding.status == status, finding.message


@pytest.mark.parametrize(
    ("asked", "status"),
    [(RLTRAIN, "fail"), (VERL, "warn"), (FILTERS, "info"),
     (msgspec.structs.replace(RLTRAIN, truncation="left"), "warn")],
)  # fmt: skip
def test_too_long_prompts_as_the_framework_takes_them(asked: Asked, status: str) -> None:
    assert judged("DAT019", section("too_long", asked=asked, lengths=LONG)).status == status


def test_what_is_filtered_is_missing_from_the_batch() -> None:
    assert judged("DAT022", section("too_long", asked=FILTERS, lengths=LONG)).status == "fail"
    assert judged("DAT022", section(asked=FILTERS, lengths=lengths())).status == "pass"


def test_all_filtered_away() -> None:
    few = section("too_long", asked=FILTERS, files=(file(num_rows=3),), lengths=LONG)
    assert judged("DAT019", few).status == "fail"


def test_the_override_is_the_frameworks_own() -> None:
    asked = msgspec.structs.replace(RLTRAIN, keys={"max_prompt_length": "data.max_prompt_length"})
    finding = judged("DAT019", section("too_long", asked=asked, lengths=LONG))
    assert any("data.max_prompt_length=900" in fix.title for fix in finding.fixes)


def test_without_a_tokenizer_lengths_are_unknown() -> None:
    assert judged("DAT019", section()).status == "unknown"
    assert judged("DAT019", section(lengths=lengths(problem="no tokenizer from x"))).status == "unknown"


def test_plain_text_is_no_prompt_for_verl() -> None:
    assert judged("DAT012", section(asked=VERL, counts={"plain": 4})).status == "fail"
    assert judged("DAT012", section(asked=RLTRAIN, counts={"plain": 4})).status == "pass"


def test_arrays_and_saved_sets_by_framework() -> None:
    array, saved = file(path="/d/a.json", format="array"), file(path="/d/saved", format="arrow")
    assert judged("DAT004", section(asked=RLTRAIN, files=(array,))).status == "fail"
    assert judged("DAT004", section(asked=VERL, files=(array,))).status == "pass"
    assert judged("DAT004", section(asked=RLTRAIN, files=(saved,))).status == "pass"
    assert judged("DAT004", section(asked=VERL, files=(saved,))).status == "fail"
