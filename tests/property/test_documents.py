"""Whatever stands in a facts file: no check breaks, every report is written and can be read."""

from __future__ import annotations

import json
import time
import traceback
from collections import deque
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcheck.check import Check, Verdict, check, passed
from rlcheck.doctor import clinic
from rlcheck.doctor.settings import Settings
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import SECTIONS, Facts, FactsError, decode, encode
from rlcheck.facts.system import Limit
from rlcheck.finding import Report
from rlcheck.measure.machine.registry import PROBES
from rlcheck.redact import redact
from tests.property.budget import cases, total
from tests.property.trees import MACHINES, RECORDS, changed, documents, machines, made, with_section
from tests.report.samples import FORMATS, shown
from tests.report.test_hostile import ACTS

pytestmark = pytest.mark.timeout(900)
DOCTOR = clinic.summon()
CHECKS = {check.id: check for check in DOCTOR.checks}
SEEDS = st.integers(0, 2**32)


def examine(*nodes: Facts) -> Report:
    every = tuple(CHECKS)  # also those whose measurements are not there
    return clinic.examine(
        DOCTOR, nodes, DOCTOR.checks, Settings(), command="env", named=every, started=time.perf_counter()
    )


def assert_sound(facts: Facts, formats: tuple[str, ...]) -> None:
    """Every check comes to a verdict, and the report can be written in `formats`."""
    report = examine(facts)
    assert len(report.checks) == len(CHECKS)
    broken = [finding.id for finding in report.checks if finding.status == "error"]
    assert not broken, "\n".join(why_it_broke(CHECKS[id], facts) for id in broken)
    clean = redact(report, Report, {"HOME": "/home/alice"})
    for format in formats:
        text = shown(clean, format)
        assert not ACTS.search(text)
        read(text, format)


def why_it_broke(check: Check, facts: Facts) -> str:
    try:
        verdict: Any = check.judge(facts)
    except Exception:
        return f"{check.id} broke:\n{traceback.format_exc(limit=-3)}"
    return f"{check.id} returned {verdict!r}"


def read(text: str, format: str) -> None:
    if format == "json":
        msgspec.json.decode(text, type=Report)
    elif format == "sarif":
        json.loads(text)
    elif format == "junit":
        ElementTree.fromstring(text)


def test_there_are_ten_thousand_cases() -> None:
    assert total(len(PROBES)) >= 10_000
    assert len(MACHINES) >= 12


def test_every_recorded_machine_is_sound() -> None:
    for path in (*MACHINES, *RECORDS):
        for facts in decode(path.read_bytes()):
            assert_sound(facts, FORMATS)


def test_the_search_finds_what_is_planted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that cannot do with an empty limit is found out."""

    def fragile(facts: Facts) -> Verdict:
        limit = value_or(need(need(facts.system).limits).nofile, Limit())
        return passed(f"{1 / limit.soft}")

    planted = check("ABC001", "t", needs=("system",), playbook="p")(fragile)
    monkeypatch.setitem(CHECKS, planted.id, planted)
    monkeypatch.setattr(f"{__name__}.DOCTOR", msgspec.structs.replace(DOCTOR, checks=(*DOCTOR.checks, planted)))
    with pytest.raises(AssertionError, match=r"(?s)ABC001 broke.*ZeroDivisionError"):
        deque((assert_sound(with_section(machines()[0], "system", seed), ()) for seed in range(1500)), maxlen=0)


@cases("changed documents")
@given(st.sampled_from(range(len(documents()))), st.lists(SEEDS, min_size=1, max_size=4), st.sampled_from(FORMATS))
def test_a_document_with_a_few_odd_values(index: int, seeds: list[int], format: str) -> None:
    assert_sound(changed(documents()[index], seeds), (format,))


@cases("random documents")
@given(SEEDS, st.sampled_from(FORMATS))
def test_a_document_of_random_values(seed: int, format: str) -> None:
    facts = made(seed)
    assert_sound(facts, (format,))
    assert decode(encode((facts,))) == (facts,)


@cases("random sections")
@given(st.integers(0, len(machines()) - 1), st.sampled_from(SECTIONS), SEEDS, st.sampled_from(FORMATS))
def test_a_machine_with_one_random_section(machine: int, section: str, seed: int, format: str) -> None:
    assert_sound(with_section(machines()[machine], section, seed), (format,))


KEYS = st.sampled_from(("schema_version", "nodes", "value", "missing", "kind", *SECTIONS)) | st.text(max_size=5)
JSON_LIKE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
HEADED = (st.lists(JSON_LIKE, max_size=3) | JSON_LIKE).map(lambda nodes: {"schema_version": "2.0", "nodes": nodes})


def read_or_refuse(data: bytes) -> None:
    """A document that can be judged, or one line that says why not."""
    refusal = ""
    nodes: tuple[Facts, ...] = ()
    try:
        nodes = decode(data, "facts.json")
    except FactsError as error:
        refusal = str(error)
    if refusal:
        assert refusal.startswith("facts.json: ")
        assert len(refusal) < 1000
    else:
        assert examine(*nodes).nodes


@cases("arbitrary bytes")
@given(st.binary(max_size=300) | st.text(max_size=100).map(lambda text: text.encode("utf-8", "surrogatepass"))
       | (JSON_LIKE | HEADED).map(lambda tree: json.dumps(tree).encode()))  # fmt: skip
def test_arbitrary_bytes(data: bytes) -> None:
    read_or_refuse(data)


WHOLE = [path.read_bytes() for path in (*MACHINES, *RECORDS)]


@cases("damaged files")
@given(
    st.integers(0, len(WHOLE) - 1),
    st.floats(0, 1),
    st.binary(max_size=8),
    st.sampled_from(("cut", "insert", "replace", "double")),
)
def test_damaged_files(index: int, where: float, junk: bytes, how: str) -> None:
    data = WHOLE[index]
    place = int(where * len(data))
    end = {"cut": b"", "insert": data[place:], "replace": data[place + len(junk) :], "double": data[place // 2 :]}[how]
    read_or_refuse(data[:place] + junk + end)


def test_deep_and_large_nonsense() -> None:
    start = b'{"schema_version":"2.0","nodes":[{"plugins":{"a":{"value":'
    for data in (b"[" * 10**6, b'{"a":' * 10**5, b"9" * 10**6, b'"' + b"a" * 10**7, b"\xff" * 10**6):
        read_or_refuse(data)
        read_or_refuse(start + data)
    read_or_refuse(start + b"9" * 4000 + b"}}}]}")
