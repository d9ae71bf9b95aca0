"""Records of real runs of `rlcheck ray` and `rlcheck nccl`, judged again: each has its problems, and no others."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion

from rlcheck.facts.base import known
from rlcheck.facts.document import decode, encode
from tests.conftest import ROOT, in_terminal, rlcheck
from tests.tools.lines import text_of
from tests.tools.slim_record import LARGEST_BYTES, ChangedError, slim, verdicts_must_stay

RECORDS = ROOT / "tests" / "fixtures" / "records"
FORCED = "NCL038 NCL046"

# The command that made it, its exit code, what fails, what warns. Nothing else may be wrong or unknown.
EXPECTED: dict[str, tuple[str, int, str, str]] = {
    "h200-nccl-1": ("nccl", 0, "", ""),
    "h200-nccl-2": ("nccl", 0, "", ""),
    "h200-nccl-over-ray": ("nccl", 0, "", ""),
    "h200-torchrun": ("nccl", 0, "", ""),
    "h200-ray": ("ray", 0, "", ""),
    "h200-forced-p2p": ("nccl", 1, FORCED, "NCL011"),
    "h200-forced-p2p-shm": ("nccl", 1, FORCED, "NCL011"),
    "h200-forced-loopback": ("nccl", 1, FORCED, "NCL011"),
    "h200-forced-interface": ("nccl", 1, "NCL057 NET012", ""),
    "ray-3-nodes": ("ray", 0, "", ""),
    "ray-3-nodes-broken": ("ray", 1, "RAY041 RAY045 RAY062", ""),
    "ray-dropped": ("ray", 1, "RAY034", ""),
    "gloo-hang": ("nccl", 1, "NCL035", ""),
    "gloo-slow-pair": ("nccl", 1, "NCL043", ""),
}
# What a reader must see: record, check, words.
SAID = [
    ("h200-nccl-2", "NCL038", "2 × NVIDIA H200"),
    ("h200-forced-p2p", "NCL046", "SHM on gpu1 (NCCL_P2P_DISABLE=1 is set)"),
    ("h200-forced-p2p", "NCL038", "found 28 GB/s"),
    ("h200-forced-p2p-shm", "NCL046", "NET/Socket on gpu1"),
    ("h200-forced-interface", "NET012", "usable here: eth0"),
    ("h200-forced-interface", "NCL057", "no socket interface found"),
    ("ray-3-nodes-broken", "RAY041", "node4 (172.17.0.1) advertises an address of Docker's default bridge"),
    ("ray-3-nodes-broken", "RAY062", "node3 does not reach node2, while it is reached from there (filtered)"),
    ("ray-dropped", "RAY034", "packets are dropped on the way, or the machine is off"),
    ("gloo-hang", "NCL035", "rank 1 on 10.77.0.2"),
    ("gloo-slow-pair", "NCL043", "10.77.0.2 ↔ 10.77.0.3"),
]
# What would say where a record was made.
TRACES = re.compile(r"/(work|home/(?!\*)|root|tmp/(?!ray|torchinductor))|fc-v\d|GPU-[0-9a-f]{8}-")


@cache
def judged(name: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """Exit code of the command on the record, and the worst finding of each check."""
    done = rlcheck(EXPECTED[name][0], "--facts", RECORDS / f"{name}.json", "--format", "json")
    order = ("fail", "error", "warn", "unknown", "info", "pass", "skip")
    findings = sorted(json.loads(done.out)["checks"], key=lambda finding: -order.index(finding["status"]))
    return done.code, {finding["id"]: finding for finding in findings}


@pytest.mark.parametrize("name", EXPECTED)
def test_exactly_these_problems(name: str) -> None:
    _, expected_code, fail, warn = EXPECTED[name]
    code, findings = judged(name)
    by_status = {
        status: " ".join(sorted(id for id, finding in findings.items() if finding["status"] == status))
        for status in ("fail", "warn", "error", "unknown")
    }
    assert by_status == {"fail": fail, "warn": warn, "error": "", "unknown": ""}
    assert code == expected_code


@pytest.mark.parametrize(("name", "id", "text"), SAID)
def test_the_finding_says_it(name: str, id: str, text: str) -> None:
    finding = judged(name)[1][id]
    assert text in " ".join((finding["message"], finding["expected"], finding["found"], *finding["details"]))


@pytest.mark.parametrize("name", ["h200-nccl-2", "h200-forced-p2p", "ray-3-nodes-broken"])
def test_report(name: str, snapshot: SnapshotAssertion) -> None:
    """On a terminal of 80 columns, without colours."""
    done = in_terminal(EXPECTED[name][0], "--facts", RECORDS / f"{name}.json", columns=80, env={"NO_COLOR": "1"})
    text = re.sub("\x1b\\[[0-9;]*m", "", done.out)
    assert max(map(len, text.splitlines())) <= 80
    assert re.sub(r" in \d+\.\d+ s", "", text) == snapshot


def written(data: bytes, names: dict[str, str]) -> str:
    return text_of(json.loads(encode(slim(decode(data), names))))


@pytest.mark.parametrize("name", EXPECTED)
def test_record_is_small_and_clean(name: str) -> None:
    """Cleaning it again changes nothing: what the tool learns later is done to all records."""
    data = (RECORDS / f"{name}.json").read_bytes()
    assert len(data) <= LARGEST_BYTES
    assert not TRACES.findall(data.decode())
    assert written(data, {}) == data.decode(), f"python -m tests.tools.slim_record {name}.json"


def test_every_record_is_here_and_in_the_readme() -> None:
    readme = (RECORDS / "README.md").read_text(encoding="utf-8")
    assert {path.stem for path in RECORDS.glob("*.json")} == set(EXPECTED)
    assert [name for name in EXPECTED if f"| `{name}.json` |" not in readme] == []


def test_a_cleaning_that_changes_a_verdict_is_refused() -> None:
    before = decode((RECORDS / "h200-forced-p2p.json").read_bytes())
    environ = {name: value for name, value in before[0].environ.value.items() if name != "NCCL_P2P_DISABLE"}
    with pytest.raises(ChangedError, match="NCL011: warn, then pass"):
        verdicts_must_stay(before, (msgspec.structs.replace(before[0], environ=known(environ)),))


def test_the_same_is_replaced_by_the_same() -> None:
    """Serials are numbered as they come, a host's new name stands wherever the old one stood."""
    clean = (RECORDS / "h200-nccl-2.json").read_bytes()
    raw = clean.replace(b"GPU-00000001", b"GPU-c54322c9-1667-756c-25b2-be9dcb8d3b64").replace(b"gpu1", b"vm")
    assert written(raw, {"vm": "gpu1"}) == clean.decode()
