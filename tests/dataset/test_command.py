"""`rlcheck data` as a user runs it: reports, copies, errors, interrupts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.dataset.files import lines, row, say
from tests.dataset.test_files import with_faults, write

RLCHECK = (sys.executable, "-m", "rlcheck")


def run(*words: object, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*RLCHECK, "data", *map(str, words)], capture_output=True, text=True, timeout=timeout_s,
                          check=False, env={**os.environ, "COLUMNS": "80"})  # fmt: skip


@pytest.fixture
def config(tmp_path) -> Path:
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"data": {"max_prompt_length": 64, "train_batch_size": 4}}))
    return path


def test_a_report_with_bars(tmp_path) -> None:
    done = run(write(with_faults(20), "jsonl", tmp_path))
    assert done.returncode == 0, done.stderr
    assert f"{tmp_path}/rows.jsonl:4:prompt: null" in done.stdout.replace("\n                ", "")
    for words in ("Prompt lengths in bytes", "█", "Sources of the training data", "reward_model.ground_truth"):
        assert words in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_fix_writes_a_copy_that_is_clean(form: str, tmp_path, config) -> None:
    path = write(with_faults(20), form, tmp_path)
    before = path.read_bytes()
    dry = run(path, "--config", config, "--fix", "--dry-run")
    assert "would write" in dry.stderr
    assert not list(tmp_path.glob("*.clean.*"))
    first = run(path, "--config", config, "--fix")
    assert first.returncode == 1
    assert "3 put aside" in first.stderr
    clean, rejects = tmp_path / f"rows.clean.{form}", tmp_path / "rows.rejects.jsonl"
    refused = [json.loads(line) for line in rejects.read_text().splitlines()]
    assert [one["reason"] for one in refused] == ["prompt_null", "repeated", "nul"]
    assert path.read_bytes() == before
    again = run(clean, "--config", config)
    assert again.returncode == 0, again.stdout
    assert "17 rows in 1 file" in again.stdout
    stopped = run(path, "--config", config, "--fix")
    assert stopped.returncode == 2
    assert "--yes" in stopped.stderr
    assert run(path, "--config", config, "--fix", "--yes").returncode == 1
    assert sorted(p.name for p in tmp_path.iterdir() if "rows" in p.name) == sorted(
        [f"rows.{form}", clean.name, rejects.name]
    )


def test_a_config_names_the_files_and_overrides_are_taken(tmp_path) -> None:
    train = lines(tmp_path / "train.jsonl", *(row(n) for n in range(9)))
    val = lines(tmp_path / "val.jsonl", row(3))
    path = tmp_path / "run.json"
    path.write_text(json.dumps({"data": {"train_files": [str(train)], "val_files": [str(val)], "train_batch_size": 4}}))
    found = json.loads(run("--config", path, "data.train_batch_size=16", "-f", "json").stdout)
    statuses = {check["id"]: check["status"] for check in found["checks"]}
    assert statuses["DAT022"] == "fail"
    assert statuses["DAT025"] == "warn"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("none.jsonl",), "does not exist"),
        ((), "no data file to read"),
        (("a=b",), "needs --config"),
        (("FILE", "--dry-run"), "go with --fix"),
        (("FILE", "--tokenizer", "nowhere"), "no such directory"),
        (("FILE", "--python", "/nowhere/python"), "no such interpreter"),
        (("FILE", "--config", "nowhere.yaml"), "nowhere.yaml"),
    ],
)
def test_what_a_user_can_mend_is_one_line(words, said, tmp_path) -> None:
    path = lines(tmp_path / "rows.jsonl", row(1))
    done = run(*(str(path) if word == "FILE" else word for word in words))
    assert done.returncode == 2
    assert said in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_a_record_is_judged_again(tmp_path) -> None:
    record = tmp_path / "facts.json"
    first = run(write(with_faults(20), "jsonl", tmp_path), "--record", record, "-f", "json")
    again = run("--facts", record, "-f", "json")
    strip = lambda text: [(c["id"], c["status"], c["message"]) for c in json.loads(text)["checks"]]  # noqa: E731
    assert strip(again.stdout) == strip(first.stdout)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_after_an_interrupt(number: int, tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"".join(json.dumps(row(n, prompt=say(f"{n} " * 20))).encode() + b"\n" for n in range(200)) * 400)
    process = subprocess.Popen([*RLCHECK, "data", str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        deadline = time.monotonic() + 20
        children: list[psutil.Process] = []
        while not children and time.monotonic() < deadline:
            children = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.02)
        time.sleep(0.3)
        process.send_signal(number)
        _, err = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode in (130, 143)
    assert b"Traceback" not in err
    _, alive = psutil.wait_procs(children, timeout=10)
    assert children
    assert not alive
