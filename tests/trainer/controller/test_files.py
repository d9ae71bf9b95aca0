"""What a run leaves on the disk step by step: metrics, TensorBoard, samples; and wandb, where it is asked for."""

from __future__ import annotations

import json
import math
import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlcheck.measure.run.samples import read_samples
from rltrain.controller.callbacks import Callback, Callbacks, StepRecord
from rltrain.controller.callbacks.metrics_file import MetricsFile
from rltrain.controller.callbacks.samples import Samples
from rltrain.controller.callbacks.tensorboard import TensorBoard
from rltrain.controller.callbacks.wandb import Wandb, require_wandb
from rltrain.core.errors import RunFailure, UserError
from rltrain.records.run_dir import read_steps
from tests.trainer.controller.build import batch, run


def write(path: Path, start_step: int, *records: StepRecord) -> list[dict[str, Any]]:
    info, file = run(path, start_step), MetricsFile()
    file.on_run_start(info)
    for record in records:
        file.on_step_end(record)
    file.on_run_end("finished")
    return read_steps(info.directory.metrics)


@pytest.mark.row("F63")
def test_a_step_is_one_json_object_with_exact_floats_and_its_audit(tmp_path: Path) -> None:
    [record] = write(tmp_path, 0, StepRecord(3, {"b": 0.1 + 0.2, "a": 1e-300}, audit={"optimizer_steps": 4}))
    assert record == {"step": 3, "a": 1e-300, "b": 0.1 + 0.2, "audit": {"optimizer_steps": 4}}
    assert (tmp_path / "metrics.jsonl").read_text().count("\n") == 1


def test_what_json_cannot_say_is_null_and_named(tmp_path: Path) -> None:
    write(tmp_path, 0, StepRecord(1, {"loss": math.nan, "norm": math.inf, "good": 1.0}))
    line = (tmp_path / "metrics.jsonl").read_text()
    assert json.loads(line, parse_constant=pytest.fail) == {
        "step": 1,
        "good": 1.0,
        "loss": None,
        "norm": None,
        "nonfinite": ["loss", "norm"],
    }


def test_a_resumed_run_writes_the_steps_after_its_checkpoint_anew(tmp_path: Path) -> None:
    write(tmp_path, 0, *(StepRecord(step, {"x": float(step)}) for step in range(5)))
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "x"')  # the run was killed in the middle of a line
    after = write(tmp_path, 2, StepRecord(3, {"x": 30.0}))
    assert [(record["step"], record["x"]) for record in after] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0)]


def test_a_full_disk_ends_the_run_with_the_file_and_the_reason(tmp_path: Path) -> None:
    info, file = run(tmp_path), MetricsFile()
    info.directory.metrics.symlink_to("/dev/full")
    file.on_run_start(info)
    with pytest.raises(RunFailure, match=r"metrics\.jsonl cannot be written: No space left on device"):
        file.on_step_end(StepRecord(1, {"x": 1.0}))


@pytest.mark.row("F63")
def test_tensorboard_holds_every_scalar(tmp_path: Path) -> None:
    board = TensorBoard()
    board.on_run_start(run(tmp_path))
    board.on_step_end(StepRecord(0, {"val/reward/mean": 0.25}))
    board.on_step_end(StepRecord(1, {"critic/score/mean": 0.5, "val/reward/mean": 0.75}))
    board.on_run_end("finished")
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == ["critic/score/mean", "val/reward/mean"]
    assert [(e.step, e.value) for e in found.Scalars("val/reward/mean")] == [(0, 0.25), (1, 0.75)]


@pytest.mark.row("F33", "F64")
def test_samples_come_every_n_steps_with_prompt_answer_and_reward(tmp_path: Path) -> None:
    samples = Samples()
    samples.on_run_start(run(tmp_path, log_samples_freq=3, num_log_samples=2))
    samples.on_step_end(StepRecord(0, {}))
    for step in range(1, 8):
        samples.on_step_end(StepRecord(step, {}, batch()))
    assert sorted(p.name for p in (tmp_path / "samples").iterdir()) == ["step_1.jsonl", "step_4.jsonl", "step_7.jsonl"]
    first, second = map(json.loads, (tmp_path / "samples" / "step_4.jsonl").read_text().splitlines())
    assert first["prompt"] == "say a"
    assert (first["response"], first["ground_truth"], first["reward"], first["response_length"]) == ("a", "a", 1.0, 3)
    assert (second["ground_truth"], second["reward"], second["response_length"]) == ("b", 0.0, 1)
    assert (first["data_source"], first["policy_version"], first["step"]) == ("toy", 4, 4)


def test_rollout_data_dir_has_every_sample_of_every_step_as_verl_writes_them(tmp_path: Path) -> None:
    samples = Samples()
    samples.on_run_start(run(tmp_path, rollout_data_dir=str(tmp_path / "all"), num_log_samples=1))
    for step in (1, 2, 3):
        samples.on_step_end(StepRecord(step, {}, batch()))
    assert sorted(p.name for p in (tmp_path / "all").iterdir()) == ["1.jsonl", "2.jsonl", "3.jsonl"]
    rows = list(map(json.loads, (tmp_path / "all" / "2.jsonl").read_text().splitlines()))
    assert [(r["input"], r["output"], r["gts"], r["score"], r["step"]) for r in rows] == [
        ("say a", "a", "a", 1.0, 2), ("say a", "a", "b", 0.0, 2), ("say a", "a", "a", 1.0, 2)
    ]  # fmt: skip
    read = read_samples(tmp_path / "all")
    assert [row.reward for row in read if row.step == 3] == [1.0, 0.0, 1.0]
    assert [p.name for p in (tmp_path / "samples").iterdir()] == ["step_1.jsonl"], "the few are where they were"


class FakeWandb(types.ModuleType):
    """Stands for a service that no test can reach; takes down what it is told."""

    class Settings(dict[str, Any]):
        pass

    class errors:
        class Error(Exception):
            pass

    def __init__(self) -> None:
        super().__init__("wandb")
        self.told: list[Any] = []
        self.argv: list[str] = []
        """As `init` found it: the real one sends it."""

    def init(self, **arguments: Any) -> FakeWandb:
        if arguments["project"] == "unreachable":
            proxy = arguments["settings"].get("http_proxy")
            raise self.errors.Error(f"timed out{f' at {proxy}' if proxy else ''} after 90 s")
        self.told.append(arguments)
        self.argv = sys.argv
        return self

    def log(self, metrics: dict[str, float], step: int) -> None:
        self.told.append((step, metrics))

    def finish(self, exit_code: int) -> None:
        self.told.append(exit_code)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWandb:
    module = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.mark.row("F59")
def test_the_proxy_reaches_wandb_and_nobody_else(fake: FakeWandb, tmp_path: Path) -> None:
    before, wandb = dict(os.environ), Wandb()
    wandb.on_run_start(run(tmp_path, wandb_proxy="http://proxy:3128"))
    wandb.on_step_end(StepRecord(1, {"x": 1.0}))
    wandb.on_run_end("failed")
    [opened, *rest] = fake.told
    assert opened["settings"] == {"http_proxy": "http://proxy:3128", "https_proxy": "http://proxy:3128"}
    assert rest == [(1, {"x": 1.0}), 1]
    assert dict(os.environ) == before


def test_wandb_is_told_neither_its_proxys_password_nor_the_command_that_holds_it(
    fake: FakeWandb, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["rltrain", "run", "trainer.wandb_proxy=http://ann:pa55@proxy:3128"]
    monkeypatch.setattr(sys, "argv", typed)
    proxy = "http://ann:pa55@proxy:3128"
    Wandb().on_run_start(run(tmp_path, wandb_proxy=proxy))
    [opened] = fake.told
    assert opened["settings"] == {"http_proxy": proxy, "https_proxy": proxy}
    assert opened["config"]["trainer"]["wandb_proxy"] == "http://***@proxy:3128"
    assert fake.argv == ["rltrain", "run", "trainer.wandb_proxy=http://***@proxy:3128"]
    assert sys.argv is typed
    with pytest.raises(UserError, match=r"timed out at http://\*\*\*@proxy:3128 after"):
        Wandb().on_run_start(run(tmp_path / "other", project_name="unreachable", wandb_proxy=proxy))
    assert sys.argv is typed


def test_a_wandb_that_does_not_answer_is_one_line_with_the_way_out(fake: FakeWandb, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="wandb cannot start: timed out after 90 s; set WANDB_MODE=offline") as error:
        Wandb().on_run_start(run(tmp_path, project_name="unreachable"))
    assert "\n" not in str(error.value)
    assert fake.told == []


def test_a_missing_wandb_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(UserError, match="pip install wandb") as error:
        require_wandb()
    assert "\n" not in str(error.value)


class Ending(Callback):
    """Notes its end, and raises then if it is to."""

    def __init__(self, ended: list[str], name: str, error: Exception | None = None) -> None:
        self._ended, self._name, self._error = ended, name, error

    def on_run_end(self, outcome: str) -> None:
        """Note NAME and OUTCOME."""
        self._ended.append(f"{self._name} {outcome}")
        if self._error is not None:
            raise self._error


def test_all_are_told_of_the_end_whatever_one_of_them_raises() -> None:
    ended: list[str] = []
    full = OSError(28, "No space left on device")
    members = Callbacks([Ending(ended, "files"), Ending(ended, "curves", full), Ending(ended, "screen")])
    with pytest.raises(OSError, match="No space left"):
        members.on_run_end("failed")
    assert ended == ["files failed", "curves failed", "screen failed"]


def test_samples_on_a_full_disk_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "samples").write_text("in the way")
    samples = Samples()
    samples.on_run_start(run(tmp_path))
    with pytest.raises(RunFailure, match=r"^the samples of step 1 cannot be written to .*/samples: File exists$"):
        samples.on_step_end(StepRecord(1, {}, batch()))
