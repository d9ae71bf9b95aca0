"""The run directory, its record, the clock, memory, the timeline; `rltrain eval` and `export`."""

from __future__ import annotations

import io
import itertools
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from rlcheck.measure.machine.local_gpus import Known
from rltrain.cli.eval import mean_and_interval, pass_at_k, summary
from rltrain.cli.eval import run as evaluate
from rltrain.cli.export import run as export
from rltrain.cli.requests import EvalRequest, ExportRequest
from rltrain.cluster import allocator, timeline
from rltrain.cluster.node import NodeEyes
from rltrain.cluster.placement import Node
from rltrain.cluster.processes import resident_bytes
from rltrain.config import Machine, RunConfig, load, resolve
from rltrain.controller.callbacks import RunInfo, StepRecord
from rltrain.controller.callbacks.memory import GIB, Memory
from rltrain.controller.crew import rank_environ, start_crew
from rltrain.controller.prepare import Inputs
from rltrain.core import work
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError
from rltrain.core.progress import Stages
from rltrain.records import run_record
from rltrain.records.checkpoints import CheckpointStore
from rltrain.records.run_dir import RunDir
from tests.trainer.controller.build import batch, config, run

# The run directory and its record


def test_two_runs_cannot_write_to_one_directory(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from rltrain.records.run_dir import RunDir
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
    monkeypatch.setattr("rltrain.core.clock.time.perf_counter", lambda: float(next(ticks)))
    clock, told = Clock(), list[str]()
    clock.listen(told.append)
    with clock.stage("gen"):
        pass
    with clock.apart("testing"), clock.stage("gen"):
        pass
    assert clock.taken() == {"timing_s/gen": 1.0, "timing_s/testing": 3.0}
    assert told == ["gen", "testing", "gen"]
    assert clock.taken() == {}


class SimpleNode(str):
    """Stands for a node."""

    @property
    def name(self) -> str:
        return str(self)

    ray_id = name


class Scene:
    """Runtime, trainers and engines, as far as `Memory` asks them: a rank on GPU 0, of which NVML says USED in turn."""

    def __init__(self, *used: int | None, **peaks: int) -> None:
        self.said = list[str]()
        self._used = list(used)
        self.node = SimpleNode("a")
        group = SimpleNamespace(slots=[SimpleNamespace(node=self.node)], gpus=[("0",)], pids=[7])
        runtime: Any = SimpleNamespace(ask_node=self._answer, say=self.said.append, home=self.node)
        train_group: Any = SimpleNamespace(workers=group, take_memory_peaks=lambda: [peaks, dict.fromkeys(peaks, 1)])
        engine_group: Any = SimpleNamespace(slots=[SimpleNamespace(node=self.node)], gpus=[("0",)], pids=[8])
        self.memory = Memory(runtime, train_group, engine_group)

    def _answer(self, _node: Any, method: str, *arguments: Any) -> Any:
        if method == "watch_gpus":
            return None if self._used else "Driver Not Loaded"
        if method == "resident_bytes":
            return GIB * len(arguments[0])
        return self._used.pop(0)

    def step(self, number: int = 1) -> dict[str, float]:
        record = StepRecord(number, {}, batch())
        self.memory.on_step_end(record)
        assert record.metrics.pop("perf/cpu_memory_used_gb") > 0.1
        return record.metrics


PEAKS = {"max_memory_allocated": 3 * GIB, "max_memory_reserved": 5 * GIB}


def small(path: Path, device: str) -> RunInfo:
    """A run of the toy in a directory with a record."""
    loaded = resolve(load("toy-grpo", ["trainer.n_gpus_per_node=1"]), Machine(device, 1, 2))  # pyright: ignore[reportArgumentType]
    directory = RunDir(path)
    directory.create()
    run_record.write_record(directory, {})
    return RunInfo(loaded, directory, 10, 4)


def test_memory_on_a_gpu_is_the_largest_of_any_rank_and_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rltrain.config.memory_check.local_gpu", lambda: Known("H200", 150_754_820_096, "NVML"))
    scene = Scene(2 * GIB, 2 * GIB, 61 * GIB, 9 * GIB, 40 * GIB, 4 * GIB, **PEAKS)
    info = small(tmp_path, "cuda")
    scene.memory.on_run_start(info)
    for stage in ("step", "gen", "adv", "update_actor"):
        scene.memory.stage(stage)
    assert scene.step() == {
        "perf/max_memory_allocated_gb": 3.0,
        "perf/max_memory_reserved_gb": 5.0,
        "perf/device_memory_used_gb": 61.0,
        "perf/predicted_memory_gb": pytest.approx(44.0, abs=0.5),
    }
    assert scene.said == []
    assert scene.step(6)["perf/device_memory_used_gb"] == 4.0, "the next step begins anew"
    (line,) = scene.said
    assert re.fullmatch(r"memory: predicted 4[34]\.\d GiB, measured 61\.0 GiB \(rollout\)", line)
    scene.memory.on_run_end("finished")
    assert scene.said == [line], "what was said is not said again"
    noted = json.loads(info.directory.record.read_text())["memory"]
    assert noted["device"] == "H200"
    assert noted["predicted_bytes"].keys() >= {"rollout (train)", "actor update (train)", "weight sync (train)"}
    assert noted["measured_bytes"] == {"other": 9 * GIB, "rollout": 61 * GIB, "actor update": 40 * GIB}


def test_memory_without_nvml_is_said_and_left_out(tmp_path: Path) -> None:
    scene = Scene(**PEAKS)
    scene.memory.on_run_start(run(tmp_path, device="cuda"))
    assert scene.step().keys() == {"perf/max_memory_allocated_gb", "perf/max_memory_reserved_gb"}
    assert scene.said == ["note: perf/device_memory_used_gb leaves out node a: Driver Not Loaded"]


def test_memory_on_a_cpu_is_that_of_the_runs_processes(tmp_path: Path) -> None:
    scene = Scene()
    info = small(tmp_path, "cpu")
    scene.memory.on_run_start(info)
    metrics = scene.step(6)
    assert metrics.keys() == {"perf/run_memory_used_gb", "perf/predicted_memory_gb"}
    assert metrics["perf/run_memory_used_gb"] == pytest.approx(2 + resident_bytes() / GIB, rel=0.01)
    (line,) = scene.said
    assert line.endswith(" GiB (RAM of ranks, engines and controller)")
    assert json.loads(info.directory.record.read_text())["memory"]["predicted_bytes"].keys() >= {"actor update (host)"}


def test_a_process_is_resident_and_one_that_is_gone_is_not() -> None:
    assert resident_bytes() > 50 << 20
    child = subprocess.Popen([sys.executable, "-S", "-c", "print(); input()"], stdin=-1, stdout=-1)
    try:
        assert child.stdout is not None
        child.stdout.read(1)
        assert 1 << 20 < resident_bytes(child.pid) < resident_bytes()
        assert NodeEyes().resident_bytes([os.getpid()]) >= resident_bytes() + resident_bytes(child.pid)
    finally:
        child.kill()
        child.communicate()
    assert resident_bytes(child.pid) == 0


def test_only_ranks_on_gpus_get_segments_that_grow_unless_the_user_has_set_the_allocator() -> None:
    def environ(here: dict[str, str], **keys: Any) -> dict[str, str]:
        return rank_environ(RunConfig.model_validate({**config().model_dump(), **keys}), here)

    gpu: dict[str, Any] = {"trainer": {"device": "cuda"}}
    grows = {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}
    assert environ({}, trainer={"device": "cpu"}) == {}
    assert environ({"PATH": "/bin", "PYTORCH_CUDA_ALLOC_CONF": ""}, **gpu) == grows
    assert environ({"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:128"}, **gpu) == {}
    user = {"runtime_env": {"env_vars": {"PYTORCH_ALLOC_CONF": "expandable_segments:False"}}}
    assert environ({}, **gpu, ray_kwargs={"ray_init": user}) == {}


def test_the_engine_gets_none_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[tuple[str, Any]] = []

    def opens(_runtime: Any, worker: type, *_: Any, **keys: Any) -> Any:
        opened.append((worker.__name__, keys.get("environ")))
        return SimpleNamespace(begin_build=lambda: None, slots=[])

    class Enough(Exception):
        """Both are opened."""

    def enough(_nodes: Any) -> None:
        raise Enough

    monkeypatch.setattr("rltrain.controller.crew.WorkerGroup.open", opens)
    for name in os.environ.keys() & set(allocator.NAMES):
        monkeypatch.delenv(name)
    node = Node("a", 1, 4, "127.0.0.1", "n1")
    runtime: Any = SimpleNamespace(nodes=[node], rendezvous=lambda _: ("", 1), require_shared_logs=enough)
    clock, stages = Clock(), Stages(Console(file=io.StringIO()))
    wanted = resolve(load("toy-grpo", []), Machine("cuda", 1, 4))
    with pytest.raises(Enough):
        start_crew(Inputs(wanted, None), runtime, clock, stages, 1)  # pyright: ignore[reportArgumentType]
    assert opened == [("TrainWorker", {"PYTORCH_ALLOC_CONF": "expandable_segments:True"}), ("EngineWorker", None)]


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


@pytest.mark.row("F59")
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


@pytest.mark.row("F64")
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
        export(ExportRequest(lost, tmp_path / "out"))
    (tmp_path / "run" / "run.json").write_text("{}")
    with pytest.raises(UserError, match="holds no run config"):
        export(ExportRequest(lost, tmp_path / "out"))
    with pytest.raises(UserError, match=r"--k 5: must be from 1 to --n, which is 4"):
        evaluate(EvalRequest(lost, (), 4, (1, 5)))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="is a file: name a directory"):
        export(ExportRequest(lost, tmp_path / "file"))
    with pytest.raises(UserError, match="is not empty"):
        export(ExportRequest(lost, tmp_path))
    (lost / "controller.json").write_text("other")
    with pytest.raises(UserError, match=r"controller\.json has changed"):
        export(ExportRequest(lost, tmp_path / "out"))
