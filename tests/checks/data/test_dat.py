"""How hard the checks of the data are: what stops a run fails, what another framework lives with warns."""

from __future__ import annotations

import msgspec
import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.data import Asked
from rlcheck.playbook import Library
from tests.checks.data.build import RLTRAIN, VERL, file, lengths, section

CHECKS = family_checks("DAT")

BY_ID = {check.id: check for check in CHECKS}
FILTERS = msgspec.structs.replace(RLTRAIN, filter_overlong_prompts=True, train_batch_size=99)
LONG = lengths(num_too_long=3)


def judged(id: str, facts):
    return judging.judge(facts, (BY_ID[id],), Library())[0]


@pytest.mark.parametrize(
    ("id", "kind", "asked", "status"),
    [
        ("DAT012", "prompt_empty", RLTRAIN, "fail"),
        ("DAT012", "prompt_empty", VERL, "warn"),
        ("DAT012", "prompt_null", VERL, "fail"),
        ("DAT012", "prompt_empty", Asked(prompt_key="prompt"), "warn"),
        ("DAT012", "prompt_null", Asked(prompt_key="prompt"), "fail"),
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
        ("DAT009", "control_raw", RLTRAIN, "info"),
        ("DAT009", "control_raw", VERL, "fail"),
        ("DAT009", "control_raw", Asked(), "warn"),
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


def titles(id: str, facts) -> str:
    return " | ".join(fix.title for fix in judged(id, facts).fixes)


def test_a_copy_is_offered_where_it_keeps_rows() -> None:
    """97 of the hundred rows stay; of three rows with three faults none does; roles out of order are not put aside."""
    assert "with the 97 other rows" in titles("DAT012", section("prompt_empty"))
    assert "--fix" not in titles("DAT012", section("prompt_missing", files=(file(num_rows=3),)))
    assert "--fix" not in titles("DAT014", section("role_order"))
    assert "--fix" not in titles("DAT024", section("contradicts"))
    assert "--fix" not in titles("DAT017", section("truth_missing", asked=Asked()))


def test_a_column_that_is_nowhere_is_to_be_named() -> None:
    asked = msgspec.structs.replace(RLTRAIN, keys={"prompt_key": "data.prompt_key"}, likely={"prompt_key": "question"})
    few = (file(num_rows=3),)
    assert "data.prompt_key=question" in titles("DAT012", section("prompt_missing", asked=asked, files=few))
    assert "prompt_key" not in titles("DAT012", section("prompt_missing", asked=asked))
    assert "prompt_key" not in titles("DAT012", section(asked=VERL, counts={"plain": 4}))
    assert "COLUMN" not in titles("DAT015", section("extra_form"))


def test_empty_files_are_not_mended_by_libraries_nor_packed_ones_by_copying() -> None:
    assert "library" not in titles("DAT003", section(files=(file(num_rows=0),)))
    packed = section(asked=VERL, files=(file(path="/d/a.jsonl.gz", format="gz"),))
    assert judged("DAT004", packed).fixes[0].command == "rlcheck data /d/a.jsonl.gz --fix"


def test_one_file_in_both_lists() -> None:
    both = (file(), file(path="/data/link.jsonl", split="val", same_as="/data/train.jsonl"))
    finding = judged("DAT025", section("leak", files=both))
    assert "same file for training and validation" in finding.message
    assert "--fix" not in titles("DAT025", section("leak", files=both))


def test_prompts_that_were_not_measured_are_said() -> None:
    left_out = section(lengths=lengths(longest=40), counts={"unmeasured": 7})
    assert "7 rows with parts" in judged("DAT019", left_out).message
