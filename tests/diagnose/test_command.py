"""`rlcheck diagnose` as a user calls it: sources, options, exit codes, formats, following a log that is written."""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT, base_environ, in_terminal, rlcheck, write_command
from tests.diagnose.planted import frame, plant, traceback

SHM = "[rank1]: nccl WARN Call to posix_fallocate failed : No space left on device\n"
TWO_OPENMP = "OMP: Error #15: Initializing libiomp5.so, but found libomp.so already initialized.\n"
OWN = "Traceback (most recent call last):\n  File \"pets.py\", line 3, in <module>\n    x\nKeyError: 'hamster'\n"
HEALTHY = "step:1 - loss:0.3\nstep:2 - loss:0.2\n"
RAISES = "def go(workers):\n    if workers > 6:\n        raise ValueError('seven workers are too many here')  # here\n"
FACTS = ROOT / "tests" / "fixtures" / "machines" / "l4-container-small-shm.json"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "train.log"
    path.write_text(HEALTHY + SHM)
    return path


def ids(*arguments: str | Path, stdin: bytes = b"", code: int = 1) -> list[str]:
    done = rlcheck("diagnose", *arguments, "--format", "json", stdin=stdin)
    assert done.code == code, done.out + done.err
    return [found["id"] for found in json.loads(done.out)["diagnoses"]]


def test_a_known_error(log: Path) -> None:
    done = rlcheck("diagnose", log)
    assert done.code == 1
    assert done.out.startswith(f"[✗] /dev/shm is too small ({log}:3, rank 1)\n")
    assert "rlcheck explain shm-too-small" in done.out
    assert "--here" in done.out.splitlines()[-2]
    assert done.out.splitlines()[-1] == "next: fix: /dev/shm is too small (shm-too-small)"


def test_a_healthy_log() -> None:
    done = rlcheck("diagnose", "-", stdin=HEALTHY.encode())
    said = "[✓] No error in what was read: 1 log, 2 lines, 36 bytes\nnext: go: no error in what was read\n"
    assert (done.code, done.out) == (0, said)


def test_an_unknown_error_is_not_guessed(tmp_path: Path) -> None:
    (tmp_path / "own.log").write_text(HEALTHY + OWN)
    done = rlcheck("diagnose", tmp_path / "own.log", "--format", "json")
    document = json.loads(done.out)
    assert (done.code, document["exit_code"], document["diagnoses"]) == (1, 1, [])
    assert "KeyError: 'hamster'" in document["unknown"]["evidence"][0]["text"]
    assert rlcheck("diagnose", tmp_path / "own.log").out.startswith("[?] An error that no playbook knows")


def test_the_source_of_another_python_answers(tmp_path: Path) -> None:
    plant(tmp_path / "venv", RAISES)
    for directory in ("venv/bin", "empty/bin"):
        write_command(tmp_path / directory, "python", f"touch {tmp_path}/ran")
    log = tmp_path / "own.log"
    log.write_text(traceback(frame(RAISES, "go"), "ValueError: seven workers are too many here"))
    python = ("--python", tmp_path / "venv")
    done = rlcheck("diagnose", log, *python, "--format", "json")
    found = json.loads(done.out)["diagnoses"][0]
    assert (done.code, found["basis"], found["site"]["conditions"]) == (1, "source", ["workers > 6"])
    assert found["site"]["settings"][0]["name"] == "workers"
    # The doctor's own environment has no such package.
    assert json.loads(rlcheck("diagnose", log, "--format", "json").out)["unknown"]["raised"]["package"] == "acme"
    assert found["fixes"][0]["title"] == "Change `workers` so that `workers > 6` is no longer true"
    assert not (tmp_path / "ran").exists()
    for path in (tmp_path / "empty", tmp_path / "gone"):
        done = rlcheck("diagnose", log, "--python", path)
        assert (done.code, f"--python {path}: " in done.error_line) == (2, True)


def test_standard_input_gzip_directories_and_several_files(log: Path, tmp_path: Path) -> None:
    assert ids(stdin=SHM.encode()) == ["shm-too-small"]
    packed = tmp_path / "packed" / "rank0.log.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(SHM.encode()))
    assert ids(packed) == ["shm-too-small"]
    (packed.parent / "rank1.log").write_text(HEALTHY)
    done = rlcheck("diagnose", packed.parent, log, "--format", "json")
    assert json.loads(done.out)["files"] == 3


def test_what_holds_no_log_is_not_called_healthy(tmp_path: Path) -> None:
    empty, binary = tmp_path / "empty.log", tmp_path / "weights.log"
    empty.touch()
    binary.write_bytes(random.Random(0).randbytes(200_000))
    assert "empty.log: the log is empty" in rlcheck("diagnose", empty).error_line
    assert "weights.log: this is no text" in rlcheck("diagnose", binary).error_line
    assert rlcheck("diagnose", binary).code == 2
    assert ids(empty, "-", stdin=HEALTHY.encode(), code=0) == [], "one of several may be empty"


def test_what_cannot_be_read_is_exit_code_2(tmp_path: Path) -> None:
    for arguments in (
        (tmp_path / "gone.log",),
        (tmp_path,),
        (tmp_path / "gone.log", "--config", tmp_path / "gone.yaml"),
        ("-", "--facts", "-"),
        ("-", "--facts", FACTS, "--here"),
        ("-", "a.b=1"),
        ("-", "--framework", "verl"),
        ("-", "--select", "shm-too-smal"),
        ("-", "--follow", "--format", "json"),
        ("-", "--output", tmp_path / "no" / "such"),
    ):
        done = rlcheck("diagnose", *arguments)
        assert done.code == 2, arguments
        assert done.error_line
    assert "did you mean shm-too-small?" in rlcheck("diagnose", "-", "--select", "shm-too-smal").error_line
    assert in_terminal("diagnose", columns=80).code == 2


def test_select_and_ignore_by_playbook_check_and_family(log: Path) -> None:
    log.write_text(SHM + "step:1 - \n" * 99 + TWO_OPENMP)
    both = ["conda-pip-mixture", "shm-too-small"]
    assert sorted(ids(log)) == both
    for name in ("shm-too-small", "SYS001", "SYS"):
        assert ids(log, "--ignore", name) == ["conda-pip-mixture"]
        assert ids(log, "--select", name) == ["shm-too-small"]
    assert ids(log, "--ignore", "SYS", "--ignore", "ENV", code=0) == []
    done = rlcheck("diagnose", log, "--ignore", "SYS", "--ignore", "ENV")
    assert done.out.startswith("[✓] No other error in what was read")
    assert "\nnote: left out by --select or --ignore: " in done.out


def test_facts_confirm_and_fill_the_fix(log: Path) -> None:
    done = rlcheck("diagnose", log, "--facts", FACTS)
    assert "✓ confirmed by SYS001: expected at least" in done.out
    assert "<shm_gib>" not in done.out
    assert "--here" not in done.out


def test_this_machine_confirms(log: Path) -> None:
    found = json.loads(rlcheck("diagnose", log, "--here", "--format", "json").out)["diagnoses"][0]
    assert [one["check"] for one in found["confirmations"]] == ["SYS001"]


def test_fixes_are_overrides_of_the_config(tmp_path: Path) -> None:
    oom = ROOT / "docs" / "examples" / "oom.log"
    script = "docs/examples/grpo-7b.sh"
    change = "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu="
    assert f"{change}4\n" in rlcheck("diagnose", oom, "--config", script).out
    done = rlcheck("diagnose", oom, "--config", script, f"{change}2")
    assert f"{change}1\n" in done.out
    assert "overrides of docs/examples/grpo-7b.sh (verl 0.9.1)" in done.out


def test_hostile_lines_stay_harmless(tmp_path: Path) -> None:
    path = tmp_path / "evil.log"
    path.write_bytes(
        b"\x1b]0;title\x07" + SHM.encode().replace(b"nccl", b"\x1b[2J\xe2\x80\xae<script> hf_abcdefgh12345678")
    )
    for format in ("text", "json", "markdown", "junit", "sarif"):
        done = rlcheck("diagnose", path, "--format", format)
        assert done.code == 1
        assert not {"\x1b", "\x07", "\u202e"} & set(done.out)
        assert "hf_abcdefgh" not in done.out
    assert rlcheck("diagnose", path, "--ascii-only").out.isascii()


def test_sentences_of_the_log_are_quoted_as_evidence_only() -> None:
    reason = "mount hook function failure: the image was not found on this node"
    text = f"FATAL:   container creation failed: {reason}\n"
    found = json.loads(rlcheck("diagnose", "--format", "json", stdin=text.encode()).out)["diagnoses"][0]
    assert found["id"] == "apptainer-failed"
    assert reason in found["evidence"][0]["text"][0]
    del found["evidence"]
    assert "mount hook" not in json.dumps(found)


def test_a_terminal_of_80_columns(log: Path) -> None:
    done = in_terminal("diagnose", ROOT / "docs" / "examples" / "oom.log", columns=80, env={"NO_COLOR": "1"})
    typed = [line for line in done.out.splitlines() if len(line) > 80]
    assert done.code == 1
    assert not [line for line in typed if "actor_rollout_ref" not in line and "http" not in line]
    assert "\x1b[1m" in in_terminal("diagnose", log, columns=80).out
    assert "\x1b" not in done.out


def test_following_a_log_tells_each_thing_once(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(HEALTHY)
    command = [sys.executable, "-m", "rlcheck", "diagnose", "--follow", str(path)]
    process = subprocess.Popen(
        command, env=base_environ({"PYTHONUNBUFFERED": "1"}), cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    try:
        time.sleep(0.3)
        with path.open("a") as file:
            file.write(SHM)
        assert process.stdout.readline().startswith("[✗] /dev/shm is too small")
        with path.open("a") as file:
            file.write(HEALTHY * 40 + TWO_OPENMP)
        while "[✗]" not in (line := process.stdout.readline()):
            assert line, "it ended without the second diagnosis"
        os.kill(process.pid, signal.SIGINT)
        rest = process.stdout.read()
        assert process.wait(10) == 1
    finally:
        process.kill()
        process.wait()
    assert "[✗] /dev/shm" not in rest
    assert "2 errors were diagnosed" in rest


def test_following_ends_after_silence(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(HEALTHY)
    done = rlcheck("diagnose", "--follow", "--timeout", "0.3", path)
    said = "[✓] No error in what was read: 1 log, 2 lines, 36 bytes\nnext: go: no error in what was read\n"
    assert (done.code, done.out) == (0, said)
    nothing = rlcheck("diagnose", "--follow", "--timeout", "0.3", os.devnull)
    said = (
        "[✓] No error in what was read: 1 log, 0 lines, 0 bytes\nnext: fix: not all could be read: there was nothing\n"
    )
    assert (nothing.code, nothing.out) == (0, said)
    gone = rlcheck("diagnose", "--follow", "--timeout", "0.3", tmp_path / "gone.log")
    assert gone.code == 2
    assert "did not appear within 0.3 s" in gone.err


def test_explain_and_list_know_the_playbooks() -> None:
    page = rlcheck("explain", "shm-too-small").out
    assert "found\n    … posix_fallocate failed …\n" in page
    assert "{{" not in page
    rows = json.loads(rlcheck("list", "--playbooks", "--format", "json").out)
    assert {"id", "title", "families", "checks", "in_logs", "fixes"} == set(rows[0])
    assert {tuple(fix) for row in rows for fix in row["fixes"]} == {("title", "command", "safety")}
    assert next(row for row in rows if row["id"] == "shm-too-small")["in_logs"]
    chosen = rlcheck("list", "--playbooks", "--select", "SYS001").out
    assert chosen == "shm-too-small  /dev/shm is too small\n"


def test_it_is_quick(log: Path) -> None:
    log.write_text(HEALTHY * 40 + SHM * 20)
    assert min(rlcheck("diagnose", log, fresh=True).cpu_s for _ in range(3)) < 1
