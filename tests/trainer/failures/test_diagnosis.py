"""A crash ends with the diagnosis of its own log: the line that matters, the playbook that knows it, and its fix."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rltrain.cli import diagnosis
from rltrain.cli.diagnosis import diagnose
from rltrain.cluster.host import error_line

CUDA = "CUDA out of memory. Tried to allocate 13.91 GiB. GPU 0 has a total capacity of 79.11 GiB of which 8 GiB is free"
BEFORE = """== train-0, process 71, 2026-11-20 10:00:00
RuntimeError: of a run before this one
== train-0, process 4711, 2026-11-21 10:00:00
UserWarning: VLLM_ATTENTION_BACKEND environment variable is deprecated
[W] The current process just got forked, after parallelism has already been used
"""


def out_of_host_memory() -> None:
    torch.empty(1 << 60, dtype=torch.uint8)


def out_of_gpu_memory() -> None:
    raise torch.OutOfMemoryError(CUDA)


def no_compiler() -> None:
    raise RuntimeError("Failed to find C compiler. Please specify via CC environment variable.")


def crash(logs: Path, act: Callable[[], None], others: str = "") -> tuple[Path, str]:
    """Let ACT raise, and log it as a worker's host does; the log, and the failure as the controller words it."""
    log = logs / "train-0.log"
    (logs / "rollout-0.log").write_text(f"== rollout-0, process 9, 2026-11-21 10:00:00\n{others}")
    try:
        act()
    except RuntimeError as error:
        log.write_text(BEFORE + "".join(traceback.format_exception(error)))
        return log, f"the actor's update: train rank 0 (process 4711 on node n): {error_line(error)}; log: {log}"
    raise AssertionError("nothing was raised")


@pytest.mark.parametrize(
    ("act", "playbook", "fix"),
    [
        (out_of_gpu_memory, "gpu-out-of-memory", "ppo_micro_batch_size_per_gpu"),
        (out_of_host_memory, "host-memory-too-small", "memory"),
        (no_compiler, "c-compiler-missing", "ompiler"),
    ],
)
def test_known_errors(tmp_path: Path, act: Callable[[], None], playbook: str, fix: str) -> None:
    begin = time.time() - 1
    _, message = crash(tmp_path, act, "RuntimeError: [gloo] Connection reset by peer\n")
    lines = diagnose(tmp_path, begin, message)
    *_, known, more = lines
    assert known.startswith("Known problem: ")
    assert known.endswith(f"(rlcheck explain {playbook})")
    assert fix in known
    assert more == f"All that the logs tell: rlcheck diagnose {tmp_path}"
    assert len(lines) <= 3


def test_an_unknown_error_is_quoted_with_its_place(tmp_path: Path) -> None:
    begin = time.time() - 1
    log, _ = crash(tmp_path, lambda: (_ for _ in ()).throw(RuntimeError("the loss went for a walk")))
    lines = diagnose(tmp_path, begin, f"the actor's update: train rank 0 exited with code 1; log: {log}")
    number = next(n for n, line in enumerate(log.read_text().splitlines(), 1) if line.startswith("RuntimeError: the"))
    assert lines == [
        f"Likely cause: RuntimeError: the loss went for a walk ({log}:{number})",
        f"All that the logs tell: rlcheck diagnose {tmp_path}",
    ]


def test_remarks_and_earlier_runs_are_no_cause(tmp_path: Path) -> None:
    begin = time.time() - 1
    (tmp_path / "train-0.log").write_text(BEFORE.replace("[W] The", "WARNING The"))
    assert diagnose(tmp_path, begin, "train rank 0 was ended by SIGTERM; log: train-0.log") == []
    error = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB"
    (tmp_path / "train-0.log").write_text(f"== train-0, process 5, 2026-11-21 10:00:00\n{error}\n")
    assert diagnose(tmp_path, time.time() + 9, "older than the run; log: train-0.log") == []
    assert diagnose(tmp_path, begin, "checkpoint of step 2 could not be written: no log is named") == []
    lines = diagnose(tmp_path, begin, "log: train-0.log")
    assert lines[0] == f"Likely cause: {error} ({tmp_path / 'train-0.log'}:2)"
    assert len(lines) == 3


def test_the_failure_itself_may_be_known(tmp_path: Path) -> None:
    words = "train rank 0 (process 1 on node n) was killed by SIGKILL by the kernel, as memory ran out; log: x"
    assert diagnose(tmp_path, 0.0, words)[-1].endswith("(rlcheck explain host-memory-too-small)")
    words = "Could not override 'trainer.hf_AbCdEfGhIjKlMnOpQrStUvWxYz012345'."
    known = diagnose(tmp_path, 0.0, words)[-1]
    assert "`trainer.hf_***`" in known


def test_a_signal_from_outside_is_its_own_cause(tmp_path: Path) -> None:
    """Who is killed writes nothing about it; what the others say then only follows."""
    begin = time.time() - 1
    header = "== rollout-0, process 9, 2026-11-21 10:00:00\n"
    (tmp_path / "rollout-0.log").write_text(
        f"{header}torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB"
    )
    (tmp_path / "train-0.log").write_text(header)
    words = "train rank 0 was killed by SIGKILL by the kernel, as memory ran out; log: train-0.log"
    assert "(rlcheck explain host-memory-too-small)" in "\n".join(diagnose(tmp_path, begin, words))


def test_the_end_of_a_long_log_is_read_and_its_lines_keep_their_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = time.time() - 1
    monkeypatch.setattr(diagnosis, "TAIL_BYTES", 1 << 20)
    (tmp_path / "train-0.log").write_text(
        "RuntimeError: old news\n" + "step: 1 of many more to come\n" * 50_000 + "Traceback (most recent call last):\n"
        '  File "/opt/reward.py", line 3, in score\n    raise ValueError(x)\nValueError: no such pet\nshutting down\n'
    )
    lines = diagnose(tmp_path, begin, "log: train-0.log")
    assert lines[0] == f"Likely cause: ValueError: no such pet ({tmp_path / 'train-0.log'}:50005)"


def test_a_diagnosis_that_breaks_or_hangs_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise KeyError("index")

    monkeypatch.setattr(diagnosis, "read_logs", broken)
    assert diagnose(tmp_path, 0.0, "x") == ["(its diagnosis broke off: KeyError: 'index')"]
    monkeypatch.setattr(diagnosis, "read_logs", lambda *_: time.sleep(20))
    begin = time.monotonic()
    assert diagnose(tmp_path, 0.0, "x", deadline_s=0.1) == []
    assert time.monotonic() - begin < 10
