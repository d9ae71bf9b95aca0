"""A traceback behind any launcher's or collector's words is still a failure, and the same one."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import rlcheck

LINES = (
    "Traceback (most recent call last):",
    '  File "/workspace/train.py", line 7, in step',
    "    loss.backward()",
    '  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 521, in backward',
    "    torch.autograd.backward(",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.11 GiB "
    "of which 1.10 GiB is free.",
)
TIME = "2026-11-23T04:31:07.123456789Z"


def each(wrap: Callable[[str], str]) -> str:
    return "".join(wrap(line) + "\n" for line in LINES)


WRAPPED = {
    "as it is": each(str),
    "srun --label": each(lambda line: f"0: {line}"),
    "srun --label, two digits": each(lambda line: f"12: {line}"),
    "containerd": each(lambda line: f"{TIME} stderr F {line}"),
    "kubectl --prefix": each(lambda line: f"[pod/train-0/main] {line}"),
    "docker compose": each(lambda line: f"trainer-1  | {line}"),
    "journalctl": each(lambda line: f"Nov 28 12:00:07 node7 python[4242]: {line}"),
    "a clock": each(lambda line: f"12:00:07 {line}"),
    "seconds since the start": each(lambda line: f"  12.34 {line}"),
    "mpirun --tag-output": each(lambda line: f"[1,3]<stderr>: {line}"),
    "pdsh": each(lambda line: f"node7: {line}"),
    "GNU parallel --tag": each(lambda line: f"7\t{line}"),
    "Airflow": each(lambda line: f"[2026-11-28, 12:00:07 UTC] {{subprocess.py:93}} INFO - {line}"),
    "supervisord": each(lambda line: f"2026-11-28 12:00:07,123 DEBG 'train' stdout output: {line}"),
    "what nobody has seen": each(lambda line: f"🚀 train <{len(line)}> {line}"),
    "Docker": each(lambda line: json.dumps({"log": line + "\n", "stream": "stderr", "time": TIME})),
    "a JSON logger": each(lambda line: json.dumps({"time": TIME, "level": "ERROR", "message": line})),
    "one object": json.dumps({"level": "ERROR", "message": "step failed", "exc_info": "\n".join(LINES)}) + "\n",
}


@pytest.mark.parametrize("text", WRAPPED.values(), ids=list(WRAPPED))
def test_it_is_found(text: str, tmp_path: Path) -> None:
    (tmp_path / "log").write_text("starting\n" + text)
    done = rlcheck("diagnose", tmp_path / "log", "--format", "json")
    first = json.loads(done.out)["diagnoses"][0]
    assert (done.code, first["id"]) == (1, "activations-out-of-memory")


def test_metrics_in_json_stay_as_they_are(tmp_path: Path) -> None:
    (tmp_path / "log").write_text('{"step": 140, "loss": NaN, "reward": 0.5}\n')
    assert rlcheck("diagnose", tmp_path / "log").code == 1
    (tmp_path / "log").write_text('{"step": 140, "loss": 0.25, "message": "saved"}\n{"log": 3}\n[1]\n{}\n')
    assert rlcheck("diagnose", tmp_path / "log").code == 0


def test_two_writers_with_prefixes_of_their_own(tmp_path: Path) -> None:
    lines = [
        line
        for pair in zip((f"a-1 | {line}" for line in LINES), ("b-2 >> all is well",) * 9, strict=False)
        for line in pair
    ]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    done = rlcheck("diagnose", tmp_path / "log", "--format", "json")
    assert (done.code, json.loads(done.out)["diagnoses"][0]["id"]) == (1, "activations-out-of-memory")


PREFIXES = {
    "docker compose": "trainer-1  | ", "pdsh": "node7: ", "GNU parallel --tag": "7\t", "a stream": "[stderr] ",
    "Airflow": "[2026-11-28, 12:00:07 UTC] {subprocess.py:93} INFO - ", "Loki": 'train{pod="a-1"} ',
    "what nobody has seen": "🚀 train> ",
}  # fmt: skip


@pytest.mark.parametrize("prefix", PREFIXES.values(), ids=list(PREFIXES))
@pytest.mark.parametrize("failure", ["ValueError: bad luck", "Killed", "Segmentation fault (core dumped)"])
def test_a_failure_without_a_traceback_is_one_behind_a_prefix_of_many_lines(
    prefix: str, failure: str, tmp_path: Path
) -> None:
    (tmp_path / "log").write_text("".join(f"{prefix}{line}\n" for line in ("starting", "loading", "going on", failure)))
    assert rlcheck("diagnose", tmp_path / "log").code == 1


def test_what_one_line_says_before_an_error_is_no_prefix(tmp_path: Path) -> None:
    lines = [f"{number} rows are read" for number in range(9)] + ["retry 1 after: TimeoutError: the server is busy"]
    (tmp_path / "log").write_text("\n".join(lines) + "\n")
    assert rlcheck("diagnose", tmp_path / "log").code == 0


def test_a_message_is_no_prefix(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(
        "ERROR: step 7 failed: Traceback (most recent call last):\n" + "\n".join(LINES[1:]) + "\n"
    )
    done = rlcheck("diagnose", tmp_path / "log", "--format", "json")
    assert (done.code, json.loads(done.out)["diagnoses"][0]["id"]) == (1, "activations-out-of-memory")
