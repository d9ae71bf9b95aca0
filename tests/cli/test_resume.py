"""`rlcheck resume`: every format, records, and folders that are hostile or hold nothing."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import rlcheck
from tests.measure.resume import made


@pytest.mark.parametrize(
    ("words", "said"),
    [((), "give DIR"), (("/nowhere",), "there is no such folder"), (("/proc/self",), "no checkpoints in it"),
     (("x", "--facts", "y"), "--facts judges a record"), (("--facts", "/nowhere"), "--facts /nowhere")],
)  # fmt: skip
def test_bad_words_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = rlcheck("resume", *words)
    assert done.code == 2
    assert said in done.error_line


def test_every_format_and_a_record(tmp_path: Path) -> None:
    place = made.verl(tmp_path / "v", 10, 20)
    record = tmp_path / "record.json"
    done = rlcheck("resume", place, "--format", "json", "--record", record)
    assert done.code == 0
    told = json.loads(done.out)["data"]["resume"]
    assert (told["step"], told["automatic"], told["ranks"], told["lost"]) == (20, 20, [2], [])
    (place / "latest_checkpointed_iteration.txt").unlink()
    assert rlcheck("resume", place).code == 1
    assert rlcheck("resume", "--facts", record, "--ranks", "4").code == 1
    for form in ("text", "markdown", "junit", "sarif"):
        again = rlcheck("resume", "--facts", record, "--format", form)
        assert again.code == 0, form
        assert "RES00" in again.out or "step 20" in again.out, form


class _Runs:
    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("RAN",)


def test_hostile_folders_are_told_and_nothing_runs(tmp_path: Path) -> None:
    place = made.verl(tmp_path / "v", 10)
    step = place / "global_step_10"
    (step / "data.pt").write_bytes(pickle.dumps(_Runs()))
    (step / "actor/fsdp_config.json").write_text("[" * 200_000)
    (step / "actor/model_world_size_999999_rank_0.pt").write_bytes(b"PK\x03\x04" + b"PK\x05\x06" + b"\xff" * 18)
    (step / "actor/optim_world_size_2_rank_1.pt").unlink()
    os.mkfifo(step / "actor/optim_world_size_2_rank_1.pt")
    (step / "actor/huggingface/model.safetensors").write_bytes(b"\xff" * 8 + b"{")
    (step / "loop").symlink_to(place)
    (place / "global_step_7").symlink_to("/nowhere")
    (place / "latest_checkpointed_iteration.txt").write_text("9" * 5000)
    command = [sys.executable, "-m", "rlcheck", "resume", str(place), "--format", "json", "--checksums"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=tmp_path, check=False)
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    statuses = {one["id"]: one["status"] for one in json.loads(done.stdout)["checks"]}
    assert statuses["RES003"] == "fail"
    assert "error" not in statuses.values()
    assert not (tmp_path / "RAN").exists()
    own = made.rltrain(tmp_path / "own", 10)
    manifest = own / "checkpoints/global_step_10/complete.json"
    for text in ("", "[]", '{"sha256": {"../../../etc/passwd": "x"}}', '{"sha256": 3, "bytes": []}', "\0" * 99):
        manifest.write_text(text)
        assert rlcheck("resume", own, "--checksums").code == 1, text
