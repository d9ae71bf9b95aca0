"""A call that forks from a warm process ends as one that starts an interpreter: nothing of another call is in it."""

from __future__ import annotations

import json
import subprocess
import time

import pytest

from tests.conftest import ROOT, rlcheck

FACTS = "tests/fixtures/machines/4xh200.json"


@pytest.mark.parametrize(
    "words",
    [("--version",), ("--help",), ("list", "--select", "SYS"), ("explain", "shm-too-small"), ("no-such-command",),
     ("env", "--facts", FACTS, "--format", "sarif"), ("env", "--facts", "/nowhere"), ("diagnose", "-")],
    ids=" ".join,
)  # fmt: skip
def test_it_says_the_same(words: tuple[str, ...]) -> None:
    log = b"RuntimeError: CUDA out of memory. Tried to allocate 13.91 GiB\n"
    rlcheck(*words, stdin=log)  # the first call builds what an editable checkout lacks
    warm, cold = rlcheck(*words, stdin=log), rlcheck(*words, stdin=log, fresh=True)
    assert (warm.code, warm.out, warm.err) == (cold.code, cold.out, cold.err)
    assert 0 < warm.cpu_s < cold.cpu_s


def test_variables_are_those_of_the_call() -> None:
    wide, narrow, again = (
        rlcheck("explain", "shm-too-small", env={"COLUMNS": columns}) for columns in ("99", "50", "99")
    )
    assert len(wide.out.splitlines()) < len(narrow.out.splitlines())
    assert again.out == wide.out


def test_what_takes_too_long_is_killed_and_the_next_call_is_answered() -> None:
    started = time.monotonic()
    with pytest.raises(subprocess.TimeoutExpired):
        rlcheck("run", "--watch", "--interval", "3600", "--start-timeout", "3600", "/nowhere/of/a/run", timeout=2)
    assert time.monotonic() - started < 60
    assert rlcheck("--version").code == 0


def test_a_long_input_and_a_long_output_pass() -> None:
    document = json.loads((ROOT / FACTS).read_text())
    document["nodes"] = [{**document["nodes"][0], "node": f"node-{number}"} for number in range(40)]
    data = json.dumps(document).encode()
    assert len(data) > 1 << 20
    words = ("env", "--facts", "-", "--format", "json")
    warm, cold = (rlcheck(*words, stdin=data, fresh=fresh) for fresh in (False, True))
    assert (warm.code, warm.err) == (cold.code, cold.err) == (0, "")
    said, expected = (
        [(check["id"], check["status"], check["node"]) for check in json.loads(done.out)["checks"]]
        for done in (warm, cold)
    )
    assert len(expected) > 50
    assert said == expected
    assert len(json.loads(warm.out)["nodes"]) == 40
