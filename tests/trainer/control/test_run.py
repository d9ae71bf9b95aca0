"""The run directory, its record, the clock, memory, the timeline; `rltrain eval` and `export`."""

from __future__ import annotations

import itertools
import json
import math
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.trainer.control.build import batch, config, run
from trainer import run_record, work
from trainer.callbacks import StepRecord
from trainer.callbacks.memory import GIB, Memory
from trainer.checkpoints import CheckpointStore
from trainer.clock import Clock
from trainer.cluster import gpu_memory, timeline
from trainer.errors import UserError
from trainer.eval_command import evaluate_checkpoint, mean_and_interval, pass_at_k, summary
from trainer.export_command import export_checkpoint
from trainer.run import RunOptions, resume_command
from trainer.run_dir import RunDir

# The run directory and its record


def test_two_runs_cannot_write_to_one_directory(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from trainer.run_dir import RunDir
with RunDir(Path(sys.argv[1])).claimed(afresh=False):
    print("held", flush=True)
    sys.stdin.read()
"""
    other = subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        words = rf"another run \(process {other.pid}\) writes to .*trainer.default_local_dir=DIR"
        with pytest.raises(UserError, match=words), RunDir(tmp_path).claimed(afresh=False):
            pass
    finally:
        other.kill()
        other.communicate()
    with RunDir(tmp_path).claimed(afresh=False):
        pass  # the lock went with the process


def test_a_fresh_run_moves_the_earlier_one_aside(tmp_path: Path) -> None:
    directory = RunDir(tmp_path / "run")
    directory.create()
    directory.metrics.write_text('{"step": 0}\n')
    with directory.claimed(afresh=True) as moved:
        assert moved == tmp_path / "run.1"
        assert not directory.metrics.exists()
    assert (tmp_path / "run.1" / "metrics.jsonl").read_text() == '{"step": 0}\n'


def test_the_record_tells_what_ran_and_how_it_ended(tmp_path: Path) -> None:
    directory = RunDir(tmp_path)
    directory.create()
    preflight = {"skipped": False, "ignored": ["GPU003"], "findings": []}
    wanted = config(seed=7)
    record = run_record.describe(wanted, command=["rltrain", "run"], chosen=["data.seed = 7"], preflight=preflight)
    run_record.write_record(directory, record)
    run_record.add(directory, facts={"training": [{"rank": 0}]})
    run_record.finish(directory, "finished", steps=3)
    found = json.loads(directory.record.read_text())
    assert found["config"]["trainer"]["seed"] == 7
    assert found["versions"].keys() >= {"python", "torch", "ray", "transformers"}
    assert found["host"].keys() >= {"name", "platform", "cpus", "python"}
    assert (found["outcome"], found["steps"], found["chosen"]) == ("finished", 3, ["data.seed = 7"])
    assert found["preflight"]["ignored"] == ["GPU003"]
    assert found["facts"] == {"training": [{"rank": 0}]}
    assert found["started"] <= found["ended"]


def test_the_record_names_the_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def git(*arguments: str) -> None:
        names = ["-c", "user.name=n", "-c", "user.email=e@example.org"]
        subprocess.run(["git", *names, *arguments], cwd=tmp_path, check=True, capture_output=True)

    def recorded() -> Any:
        return run_record.describe(config(), command=[], chosen=[], preflight={})["git"]

    monkeypatch.chdir(tmp_path)
    assert recorded() is None
    git("init")
    git("commit", "--allow-empty", "-m", "one")
    assert recorded()["dirty"] is False
    assert len(recorded()["commit"]) == 40
    (tmp_path / "new").touch()
    assert recorded()["dirty"] is True


# Time and memory


def test_stages_of_a_validation_are_not_the_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr("trainer.clock.time.perf_counter", lambda: float(next(ticks)))
    clock, told = Clock(), list[str]()
    clock.listen(told.append)
    with clock.stage("gen"):
        pass
    with clock.apart("testing"), clock.stage("gen"):
        pass
    assert clock.taken() == {"timing_s/gen": 1.0, "timing_s/testing": 3.0}
    assert told == ["gen", "testing", "gen"]
    assert clock.taken() == {}


class Device:
    """A GPU of which NVML tells what the test says; no machine of the tests has one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *used: int) -> None:
        self.used = list(used)
        monkeypatch.setattr(gpu_memory.pynvml, "nvmlInit", lambda: None)
        monkeypatch.setattr(gpu_memory.pynvml, "nvmlDeviceGetHandleByIndex", lambda index: index)
        monkeypatch.setattr(gpu_memory.pynvml, "nvmlDeviceGetHandleByUUID", lambda uuid: int(uuid[-1]))
        monkeypatch.setattr(
            gpu_memory.pynvml, "nvmlDeviceGetMemoryInfo", lambda handle: SimpleNamespace(used=self.used[handle])
        )


def test_a_peak_between_two_looks_is_kept_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_memory, "SAMPLE_S", 0.005)
    device = Device(monkeypatch, 10, 20)
    memory = gpu_memory.GpuMemory(["0", "GPU-1"])
    device.used = [90, 20]
    _wait_until_sampled(memory, 90)
    device.used = [30, 20]
    assert memory.take() == 90
    assert memory.take() == 30


def _wait_until_sampled(memory: gpu_memory.GpuMemory, wanted: int) -> None:
    deadline = time.monotonic() + 5
    while memory._peak_bytes != wanted:  # pyright: ignore[reportPrivateUsage]
        assert time.monotonic() < deadline
        time.sleep(0.005)


def crew(used: int | None, *peaks: dict[str, int]) -> tuple[Any, Any, Any, list[str]]:
    """Runtime, trainers and engines, as far as `Memory` asks them."""
    said = list[str]()
    answers = {"watch_gpus": None if used is not None else "Driver Not Loaded", "take_gpu_memory": used}
    slot = SimpleNamespace(node=SimpleNode("a"))
    group = SimpleNamespace(slots=[slot], gpus=[("0",)])
    runtime = SimpleNamespace(ask_node=lambda _node, method, *_: answers[method], say=said.append)
    return runtime, SimpleNamespace(group=group, take_memory_peaks=lambda: list(peaks)), group, said


class SimpleNode(str):
    """Stands for a node."""

    @property
    def name(self) -> str:
        return str(self)


def measured(path: Path, device: str, used: int | None, *peaks: dict[str, int]) -> tuple[dict[str, float], list[str]]:
    runtime, trainers, engines, said = crew(used, *peaks)
    memory = Memory(runtime, trainers, engines)
    memory.on_run_start(run(path, device=device))
    record = StepRecord(1, {}, batch())
    memory.on_step_end(record)
    return record.metrics, said


def test_memory_on_a_gpu_is_the_largest_of_any_rank(tmp_path: Path) -> None:
    ranks = [
        {"max_memory_allocated": 3 * GIB, "max_memory_reserved": 4 * GIB},
        {"max_memory_allocated": 2 * GIB, "max_memory_reserved": 5 * GIB},
    ]
    metrics, said = measured(tmp_path, "cuda", 60 * GIB, *ranks)
    assert metrics.pop("perf/cpu_memory_used_gb") > 0.1
    assert metrics == {
        "perf/max_memory_allocated_gb": 3.0,
        "perf/max_memory_reserved_gb": 5.0,
        "perf/device_memory_used_gb": 60.0,
    }
    assert said == []


def test_memory_without_nvml_is_said_and_left_out(tmp_path: Path) -> None:
    metrics, said = measured(tmp_path, "cuda", None, {"max_memory_allocated": GIB, "max_memory_reserved": GIB})
    assert "perf/device_memory_used_gb" not in metrics
    assert said == ["note: perf/device_memory_used_gb leaves out node a: Driver Not Loaded"]


def test_memory_on_a_cpu_is_the_hosts_alone(tmp_path: Path) -> None:
    metrics, said = measured(tmp_path, "cpu", 1)
    assert metrics.keys() == {"perf/cpu_memory_used_gb"}
    assert said == []


def test_a_worker_tells_how_far_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = work.place_of(tmp_path / "train-0.log")
    files = work.WorkFiles({"gen": [file, tmp_path / "never.work"]})
    monkeypatch.setenv(work.PLACE, str(file))
    work._descriptor.cache_clear()  # pyright: ignore[reportPrivateUsage]
    work.report(3, 8)
    assert files.counts("gen") == (3, 8)
    files.begin("gen")
    assert files.counts("gen") is None
    work.report(1, 8)
    assert files.counts("gen") == (1, 8)
    work._descriptor.cache_clear()  # pyright: ignore[reportPrivateUsage]
    monkeypatch.delenv(work.PLACE)
    work.report(4, 8)
    assert files.counts("gen") == (1, 8), "no worker, no file"


def test_a_timeline_that_cannot_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    assert timeline.writable(None) is None
    assert timeline.writable(str(tmp_path / "trace.json")) == tmp_path / "trace.json"
    with pytest.raises(UserError, match=r"ray_kwargs\.timeline_json_file=.*cannot be written: No such file"):
        timeline.writable(str(tmp_path / "none" / "trace.json"))


def test_the_timeline_names_worker_and_method() -> None:
    """As Ray writes them: `name` is the same for every call of ours."""
    events = [
        {"cat": "task::train-0.update_actor", "name": "call", "ts": 5.0, "dur": 2.0, "ph": "X"},
        {"cat": "task:execute", "name": "task:execute", "ts": 5.0, "dur": 2.0, "ph": "X"},
    ]
    assert [event["name"] for event in timeline.named(events)] == ["train-0.update_actor", "task:execute"]
    assert [event["ts"] for event in timeline.named(events)] == [5.0, 5.0]


# eval and export


@pytest.mark.parametrize(("n", "right", "k"), [(5, 2, 1), (5, 2, 3), (5, 0, 5), (5, 5, 1), (6, 1, 6), (4, 3, 2)])
def test_pass_at_k_is_the_share_of_all_draws_with_a_right_answer(n: int, right: int, k: int) -> None:
    draws = list(itertools.combinations([True] * right + [False] * (n - right), k))
    assert pass_at_k(n, right, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_the_interval_is_over_prompts() -> None:
    mean, half = mean_and_interval([0.0, 1.0, 1.0, 0.0])
    assert (mean, half) == (0.5, pytest.approx(1.959964 * math.sqrt((4 * 0.25 / 3) / 4)))
    assert mean_and_interval([1.0]) == (1.0, math.inf)
    lines = summary([[1.0, 0.0], [0.0, 0.0], [1.0, 1.0]], [1, 2], passing=1.0)
    assert lines[0].startswith("mean reward  0.5000  (95 % interval ")
    assert lines[0].endswith(", 3 prompts)")
    assert lines[1].startswith("pass@1       0.5000 ")
    assert lines[2].startswith("pass@2       0.6667 ")


def checkpoint(path: Path) -> Path:
    """A finished checkpoint in a run directory without a usable record."""
    directory = RunDir(path)
    directory.create()
    return CheckpointStore(directory.checkpoints, None).save(3, {}, lambda _: None).path


def test_eval_and_export_refuse_what_they_cannot_use(tmp_path: Path) -> None:
    lost = checkpoint(tmp_path / "run")
    with pytest.raises(UserError, match=r"run.json is missing"):
        export_checkpoint(lost, tmp_path / "out")
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(UserError, match="holds no run config"):
        export_checkpoint(lost, tmp_path / "out")
    with pytest.raises(UserError, match=r"--k 5: must be from 1 to --n, which is 4"):
        evaluate_checkpoint(lost, (), 4, (1, 5), 1.0)
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file: name a directory"):
        export_checkpoint(lost, tmp_path / "file")
    with pytest.raises(UserError, match="is not empty"):
        export_checkpoint(lost, tmp_path)
    (lost / "controller.json").write_text("other")
    with pytest.raises(UserError, match=r"controller\.json has changed"):
        export_checkpoint(lost, tmp_path / "out")


def test_the_command_to_go_on_has_all_that_the_run_was_given() -> None:
    given = ("data.seed=3", "trainer.resume_mode=resume_path", "+trainer.resume_from_path=x")
    options = RunOptions("my run.yaml", given, ignore=("ENV007", "GPU001"), skip_checks=True)
    assert resume_command(options) == (
        "rltrain run 'my run.yaml' --skip-checks --ignore ENV007 --ignore GPU001 data.seed=3 trainer.resume_mode=auto"
    )
