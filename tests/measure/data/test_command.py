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

from tests.measure.data.files import lines, row, say
from tests.measure.data.test_files import with_faults, write

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
    assert done.returncode == 1, done.stderr
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


def test_fix_keeps_types_and_tables_without_rows(tmp_path) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    text = pa.large_string()
    message = pa.struct([("role", pa.dictionary(pa.int32(), pa.string())), ("content", text)])
    schema = pa.schema([("prompt", pa.large_list(message)), ("image", pa.binary()), ("x", pa.list_(pa.float32(), 1))])
    rows = [{"prompt": say(words), "image": b"\xff", "x": [1.0]} for words in ("a", "a", "b")]
    pq.write_table(pa.Table.from_pylist(rows, schema), tmp_path / "full.parquet")
    pq.write_table(pa.Table.from_pylist([], schema), tmp_path / "none.parquet")
    done = run(tmp_path / "full.parquet", tmp_path / "none.parquet", "--fix", "--out", tmp_path / "out")
    assert done.returncode == 1, done.stderr
    tables = [pq.read_table(tmp_path / "out" / f"{name}.clean.parquet") for name in ("full", "none")]
    assert [table.num_rows for table in tables] == [2, 0]
    assert [table.schema for table in tables] == [schema, schema]


def test_fix_leaves_nothing_where_it_cannot_write(tmp_path) -> None:
    """A limit of the size of files stands for a full disk."""
    path = lines(tmp_path / "rows.jsonl", *(row(n, prompt=say(f"{n} " * 90)) for n in range(900)))
    words = f"ulimit -f 8; exec {sys.executable} -m rlcheck data {path} --fix --out {tmp_path}/out"
    done = subprocess.run(["bash", "-c", words], capture_output=True, text=True, timeout=60, check=False)
    assert "rlcheck: --fix: " in done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


def test_fix_refuses_to_write_an_empty_copy(tmp_path) -> None:
    done = run(lines(tmp_path / "rows.jsonl", row(1, prompt=None), "", "{"), "--fix")
    assert done.returncode == 2
    assert "nothing of" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


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
        (("PIPE",), "is no file but a pipe"),
        (("/dev/null",), "is no file but a pipe"),
        (("FILE", "--fix", "--out", "FILE"), "is no directory"),
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
    os.mkfifo(tmp_path / "pipe")
    known = {"FILE": str(path), "PIPE": str(tmp_path / "pipe")}
    done = run(*(known.get(word, word) for word in words))
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
