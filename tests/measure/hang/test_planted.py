"""Hangs planted in real jobs: the recorded ones judged again, a sample of them planted anew, and one under torchrun."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlcheck.diagnose.hang.live import judge
from rlcheck.facts.hang import HangFacts
from tests.bench.hangs import FAULTS, JOB, Nursery, asked, planted, right
from tests.conftest import ROOT

RECORDS = sorted((ROOT / "tests" / "fixtures" / "hangs").glob("*.json"))
EACH = [(fault, odd) for fault in FAULTS for odd in (1, 2)]
SAMPLE = [("shape", 1), ("engine", 2)]
"""Of those that are planted anew; `python -m tests.bench.hangs` plants all again and again."""
START_S = 120.0


@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_a_recorded_hang_is_judged_right(path: Path) -> None:
    record = json.loads(path.read_text())
    judged = judge(msgspec.convert(record["hang"], HangFacts))
    report = {"hang": None if judged.hang is None else msgspec.to_builtins(judged.hang)}
    assert right(record["fault"], record["odd"], int(judged.hang is not None), report), judged


def test_two_of_each_kind_are_recorded() -> None:
    faults = [json.loads(path.read_text())["fault"] for path in RECORDS]
    assert {fault: faults.count(fault) for fault in FAULTS} == dict.fromkeys(FAULTS, 2)


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    made = Nursery()
    yield made
    made.close()


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("fault", "odd"), [one if one in SAMPLE else pytest.param(*one, marks=pytest.mark.long) for one in EACH]
)
def test_a_planted_hang_is_named_and_left_as_it_was(fault: str, odd: int, nursery: Nursery, tmp_path: Path) -> None:
    with planted(fault, odd, 9, tmp_path, nursery=nursery) as running:
        code, report, _ = asked(running[-1].pid, 3.0)
        assert right(fault, odd, code, report), (code, report["hang"], report["notes"], report["families"])
        assert all(process.poll() is None for process in running)


@pytest.mark.timeout(400)
def test_under_torchrun_the_rank_that_left_the_step_is_named() -> None:
    """The launcher waits for all of its ranks, and is no culprit."""
    with tempfile.TemporaryDirectory() as name:
        words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(JOB)]
        environ = {**os.environ, "HANG_DIR": name, "HANG_BACKEND": "gloo", "OMP_NUM_THREADS": "1",
                   "TORCH_NCCL_DEBUG_INFO_PIPE_FILE": f"{name}/a", "TORCH_FR_DUMP_TEMP_FILE": f"{name}/f"}  # fmt: skip
        launcher = subprocess.Popen(
            [sys.executable, *words, "rank", "exception", "9", "1", "0"],
            env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip
        try:
            deadline = time.monotonic() + START_S
            while len(list(Path(name).glob("ready.*"))) < 2:
                assert launcher.poll() is None
                assert time.monotonic() < deadline
                time.sleep(0.1)
            time.sleep(1.0)
            code, report, _ = asked(launcher.pid, 3.0)
        finally:
            os.killpg(launcher.pid, signal.SIGTERM)
            launcher.wait(60)
    assert code == 1, report
    culprits = report["hang"]["culprits"]
    assert [(one["rank"], one["kind"]) for one in culprits] == [(1, "behind")], culprits
