"""A diagnosis in every format: right, valid against the formats' own schemas, and harmless whatever the log holds."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest

from rlcheck.redact import redact
from rlcheck.report.diagnosis.report import DiagnosisReport, diagnosis_schema, make_report
from rlcheck.report.diagnosis.text import cut
from tests.diagnose.answers import (
    ANSWER,
    ANSWERS,
    EXPLAINED,
    FORMATS,
    HEALTHY,
    ONLY_WARNED,
    OOM_LINE,
    STRANGE,
    everything,
    shown,
    spoiled,
)
from tests.report.test_hostile import ACTS, HOSTILE, outside_code, parse, starting
from tests.report.test_schemas import junit, sarif_schema

JSON = jsonschema.Draft202012Validator(diagnosis_schema())


def sarif(report: DiagnosisReport) -> dict[str, Any]:
    document = json.loads(shown(report, "sarif"))
    sarif_schema().validate(document)
    return document["runs"][0]


def test_text_tells_the_cause_the_place_and_what_to_type() -> None:
    text = shown(make_report(ANSWER), "text")
    head, empty, *_ = text.splitlines()
    assert head == (
        "[✗] The GPU has no memory left for a tensor (logs/train.log:412, rank 3, node gpu-07, process 4712)"
    )
    assert not empty
    for line in (
        "    why       13.9 GiB were asked for in one piece, and 8.0 GiB of 79.1 GiB were free.",
        "              The facts confirm it: confidence is high.",
        "    facts     ✓ confirmed by GPU014 on gpu-07: expected 70 GiB free, found 8 GiB",
        "              ? open GPU015: could not look: nvidia-smi did not answer",
        "    found     12 times, ranks 3, 4",
        "    then      A Ray actor died",
        "    verify    nvidia-smi",
        "              rlcheck env --select GPU",
        "                → another process on the card",
        "    fix       1. Lower the micro batch",
        "                   actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1",
        "              2. End the other process (needs root; unsafe: that process)",
        "              3. Use a larger card",
        "    source    https://docs.pytorch.org/docs/stable/notes/cuda.html",
        "              rlcheck explain gpu-out-of-memory",
        "[!] The data loader is slow (logs/data.log:7)",
        "note: b.log.gz: ends early",
        "2 logs, 1,204 lines, 88 KiB; exit code 1: an error was diagnosed",
        "2 more diagnoses rank lower or only follow from what is shown: --all",
    ):
        assert f"\n{line}\n" in text
    assert "allocator" not in text


def test_all_shows_what_ranks_lower_and_why() -> None:
    text = shown(everything(ANSWER), "text")
    assert "fits the same lines less well; confidence: low. Much is reserved, little is used." in text
    assert "[·] A Ray actor died (line 600 of standard input)\n    follows from the above." in text
    assert "--all" not in text
    assert "rests on general knowledge" in shown(everything(ANSWER), "text", verbose=True)


def test_a_healthy_log_takes_two_lines() -> None:
    assert shown(make_report(HEALTHY), "text") == (
        "[✓] No error in what was read: 3 logs, 1 line, 5.0 GiB\nnext: go: no error in what was read\n"
    )


def test_an_unknown_error_is_said_to_be_unknown() -> None:
    text = shown(make_report(STRANGE), "text")
    assert text.startswith("[?] An error that no playbook knows (train.log:3, rank 0)\n")
    assert "| KeyError: 'reward'\n" in text
    assert "    collect   - the logs of all ranks\n              - py-spy dump --pid PID\n" in text
    assert "    fix " not in text
    assert "exit code 1: an error that no playbook knows\nnext: fix: an error that" in text


def test_exit_codes() -> None:
    assert {name: make_report(answer).exit_code for name, answer in ANSWERS.items()} == {
        "everything": 1, "unknown": 1, "healthy": 0, "explained": 1, "warned": 0}  # fmt: skip
    assert make_report(ONLY_WARNED, strict=True).exit_code == 1
    assert make_report(HEALTHY, strict=True).exit_code == 0


def test_json_has_what_is_promised() -> None:
    document = json.loads(shown(make_report(ANSWER), "json"))
    JSON.validate(document)
    assert [found["id"] for found in document["diagnoses"]] == ["gpu-out-of-memory", "slow-data"]
    assert {"id", "title", "status", "cause", "confidence", "verify", "fixes", "sources", "evidence"} <= set(
        document["diagnoses"][0]
    )
    assert (document["tool"], document["command"], document["exit_code"]) == ("rlcheck", "diagnose", 1)
    assert document["unknown"] is None
    strange = json.loads(shown(make_report(STRANGE), "json"))
    assert strange["diagnoses"] == []
    assert strange["unknown"]["evidence"][0]["line"] == 3
    document["diagnoses"][0]["status"] = "bad"
    with pytest.raises(jsonschema.ValidationError):
        JSON.validate(document)


def test_nothing_but_the_evidence_quotes_the_log() -> None:
    document = json.loads(shown(everything(ANSWER), "json"))
    for found in document["diagnoses"]:
        found["evidence"] = []
    assert OOM_LINE[:60] not in json.dumps(document)


def test_markdown_names_place_commands_and_source() -> None:
    text = shown(make_report(ANSWER), "markdown")
    for part in ("#### ✗ The GPU has no memory left", "logs/train.log:412, rank 3", "```bash\nkill 4711\n```",
                 f"```text\n{OOM_LINE}\n```", "<https://docs.pytorch.org/docs/stable/notes/cuda.html>"):  # fmt: skip
        assert part in text


def test_junit_has_a_case_for_each_diagnosis() -> None:
    def cases(report: DiagnosisReport) -> dict[str, str]:
        text = shown(report, "junit")
        junit().validate(text)
        found = ElementTree.fromstring(text).iter("testcase")
        return {case.get("name", "").split()[0]: next((child.tag for child in case), "passed") for case in found}

    assert cases(everything(ANSWER)) == {
        "gpu-out-of-memory": "failure", "fragmentation": "failure", "slow-data": "system-out", "actor-died": "skipped"
    }  # fmt: skip
    assert cases(make_report(ONLY_WARNED, strict=True)) == {"slow-data": "failure"}
    assert cases(make_report(STRANGE)) == {"unknown": "failure"}
    assert cases(make_report(HEALTHY)) == {"healthy": "passed"}


def test_sarif_points_into_the_log() -> None:
    run = sarif(everything(ANSWER))
    first = run["results"][0]
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "logs/train.log"
    assert first["locations"][0]["physicalLocation"]["region"]["startLine"] == 412
    assert [result["level"] for result in run["results"]] == ["error", "error", "warning", "note"]
    for result in run["results"]:
        assert run["tool"]["driver"]["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
    assert sarif(make_report(STRANGE))["results"][0]["ruleId"] == "unknown"
    assert sarif(make_report(HEALTHY))["results"] == []


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_lines(name: str, format: str) -> None:
    for answer in (ANSWER, STRANGE, EXPLAINED):
        for spoil in (lambda text: HOSTILE[name], lambda text: f"{text[:9]}{HOSTILE[name]}{text[9:]}"):
            report = redact(everything(spoiled(answer, spoil)), DiagnosisReport, {})
            for options in ({}, {"verbose": True}):
                text = shown(report, format, **options)
                assert not ACTS.search(text), repr(ACTS.search(text))
                parse(text, format)
            if format == "junit":
                junit().validate(text)
            if format == "sarif":
                sarif(report)
    shown(report, "text", ascii_only=True).encode("ascii")


def test_a_log_makes_no_heading_and_no_tag_in_markdown() -> None:
    plain = outside_blocks(shown(everything(ANSWER), "markdown"))
    for name in ("lines", "markdown", "html"):
        report = redact(everything(spoiled(ANSWER, lambda text: text + HOSTILE[name])), DiagnosisReport, {})  # noqa: B023
        spoilt = outside_blocks(shown(report, "markdown"))
        for start in ("#", "|", "```", ">", "- ", "---"):
            assert starting(start, spoilt) == starting(start, plain), (name, start)
        assert not re.search(r"(?<!\\)<(?!https)", re.sub(r"`[^`\n]*`", "", "\n".join(spoilt)))


def outside_blocks(text: str) -> list[str]:
    return outside_code(re.sub(r"(?ms)^(`{3,})text\n.*?^\1$", "", text))


def test_secrets_are_taken_out_of_quotes() -> None:
    secret = "hf_abcdefghijklmnopqrstuv012345"
    report = redact(everything(spoiled(ANSWER, lambda text: f"{text} {secret}")), DiagnosisReport, {})
    for format in FORMATS:
        assert secret not in shown(report, format, verbose=True)


def test_a_long_line_is_cut_in_the_middle() -> None:
    text = cut("a" * 100 + "MIDDLE" + "z" * 100, 60)
    assert len(text) <= 60
    assert text.startswith("aaa")
    assert text.endswith("zzz")
    assert "MIDDLE" not in text
    assert cut("short", 60) == "short"
