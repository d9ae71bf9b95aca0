"""Memory of the run: of torch on the training ranks, of the GPUs as a whole, of the host; and what was predicted."""

from __future__ import annotations

from collections import defaultdict

import psutil

from rlcheck.facts.memory import MemoryProfile
from rlcheck.measure.memory.summary import gib
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.placement import Node
from rltrain.cluster.processes import resident_bytes
from rltrain.cluster.runtime import Runtime
from rltrain.config.memory_check import fullest, prediction_for
from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.controller.train_group import TrainGroup
from rltrain.records import run_record
from rltrain.records.run_dir import RunDir, on_disk

GIB = 2**30
PHASES = {
    "update_weights": "rollout",
    "gen": "rollout",
    "reshard": "rollout",
    "old_log_prob": "log-probs",
    "ref": "ref log-probs",
    "values": "values",
    "update_critic": "critic update",
    "update_actor": "actor update",
    "save_checkpoint": "checkpoint",
}
"""Stage of the clock: its phase in the prediction. The engine's cache wakes at the end of the weight sync."""
_SAID_AFTER = 2
"""Steps after which predicted and measured are first said: from the second on, optimizers have their state."""


class Memory(Callback):
    """Adds what each step needed; in GiB, which verl's names call gb.

    On GPUs:

    - `perf/max_memory_allocated_gb`, `perf/max_memory_reserved_gb`: torch's peaks since the last step, the largest of
      any training rank;
    - `perf/device_memory_used_gb`: all that programs held on the fullest GPU, engine, NCCL and others included, at the
      worst moment since the last step (NVML, sampled).

    On a CPU, `perf/run_memory_used_gb`: RAM of ranks, engines and controller on the fullest node, each at its most
    since it began, pages that they share counted in each.

    Everywhere, `perf/predicted_memory_gb`: the doctor's prediction for the one or the other at the fullest, and
    `perf/cpu_memory_used_gb`: of the controller's host, now, as in verl.
    """

    def __init__(self, runtime: Runtime, train_group: TrainGroup, engines: WorkerGroup | None) -> None:
        """Watch ranks and ENGINES; without engines nothing is predicted: predictions are those of runs."""
        self._runtime, self._train_group = runtime, train_group
        self._predicts = engines is not None
        self._groups = [train_group.workers, *([engines] if engines is not None else [])]
        self._on_gpu = False
        self._watched: list[Node] = []
        self._directory: RunDir | None = None
        self._prediction: MemoryProfile | None = None
        self._first_step = 0
        self._stage = ""
        self._step_bytes = 0
        self._most_bytes: dict[str, int] = {}
        self._said = ""

    def on_run_start(self, run: RunInfo) -> None:
        """Predict, and begin to watch the GPUs."""
        self._on_gpu = run.config.trainer.device == "cuda"
        self._directory, self._first_step = run.directory, run.start_step
        self._prediction = prediction_for(run.config) if self._predicts else None
        if self._prediction is not None:
            with on_disk(f"{run.directory.record} cannot be written"):
                run_record.add(run.directory, memory=_recorded(self._prediction, {}))
        for node, gpus in self._gpus().items() if self._on_gpu else ():
            if problem := self._runtime.ask_node(node, "watch_gpus", sorted(gpus)):
                self._runtime.say(f"note: perf/device_memory_used_gb leaves out node {node.name}: {problem}")
            else:
                self._watched.append(node)

    def stage(self, name: str) -> None:
        """The stage NAME begins: what GPUs held until now is that of the stage before."""
        if self._watched:
            self._note(self._device_bytes())
        self._stage = name

    def _note(self, used: int | None) -> None:
        """USED was in use in the stage that ends."""
        phase = PHASES.get(self._stage, "other") if self._on_gpu else "all"
        self._step_bytes = max(self._step_bytes, used or 0)
        self._most_bytes[phase] = max(self._most_bytes.get(phase, 0), used or 0)

    def on_step_end(self, record: StepRecord) -> None:
        """Add the metrics."""
        record.metrics["perf/cpu_memory_used_gb"] = psutil.virtual_memory().used / GIB
        if self._on_gpu:
            ranks = self._train_group.take_memory_peaks()
            for name in ranks[0]:
                record.metrics[f"perf/{name}_gb"] = max(rank[name] for rank in ranks) / GIB
        self._note(self._device_bytes() if self._on_gpu else self._run_bytes())
        if self._step_bytes:
            name = "perf/device_memory_used_gb" if self._on_gpu else "perf/run_memory_used_gb"
            record.metrics[name] = self._step_bytes / GIB
        self._step_bytes = 0
        if self._prediction is not None:
            record.metrics["perf/predicted_memory_gb"] = fullest(self._prediction).num_bytes / GIB
        if record.step - self._first_step == _SAID_AFTER:
            self._compare()

    def on_run_end(self, outcome: str) -> None:
        """Say and note how well the prediction held."""
        self._compare()
        if self._prediction is None or self._directory is None:
            return
        run_record.add(self._directory, memory=_recorded(self._prediction, self._most_bytes))

    def _compare(self) -> None:
        """Say predicted and measured, unless that was said."""
        most = max(self._most_bytes.values(), default=0)
        if self._prediction is None or not most:
            return
        phase = fullest(self._prediction)
        where = phase.name if self._on_gpu else "RAM of ranks, engines and controller"
        line = f"memory: predicted {gib(phase.num_bytes)}, measured {gib(most)} ({where})"
        if line != self._said:
            self._runtime.say(line)
        self._said = line

    def gpu_busy(self) -> dict[str, dict[str, float]]:
        """By node and GPU, the mean share of time in which a kernel ran since last asked (NVML); {} without GPUs."""
        asked = {node.name: self._runtime.ask_node(node, "take_gpu_busy") for node in self._watched}
        return {name: shares for name, shares in asked.items() if shares}

    def _device_bytes(self) -> int | None:
        """In use on the fullest GPU; None: unknown."""
        used: list[int | None] = [self._runtime.ask_node(node, "take_gpu_memory") for node in self._watched]
        return max((number for number in used if number is not None), default=None)

    def _run_bytes(self) -> int | None:
        """RAM of the run's processes on the fullest node; None: unknown."""
        pids: dict[Node, list[int]] = defaultdict(list)
        for group in self._groups:
            for slot, pid in zip(group.slots, group.pids, strict=True):
                pids[slot.node].append(pid)
        home = self._runtime.home
        used: list[int] = []
        for node, there in pids.items():
            found: int | None = self._runtime.ask_node(node, "resident_bytes", there)
            if found is not None:
                used.append(found + (resident_bytes() if node.ray_id == home.ray_id else 0))
        return max(used, default=None)

    def _gpus(self) -> dict[Node, set[str]]:
        """The GPUs that training ranks and engines hold, by node."""
        found: dict[Node, set[str]] = defaultdict(set)
        for group in self._groups:
            for slot, gpus in zip(group.slots, group.gpus, strict=True):
                found[slot.node] |= set(gpus)
        return {node: gpus for node, gpus in found.items() if gpus}


def _recorded(prediction: MemoryProfile, measured_bytes: dict[str, int]) -> dict[str, object]:
    """For `run.json`: bytes by phase, predicted and measured; on a CPU measured over all of them."""
    phases = prediction.phases or prediction.host_phases
    return {
        "device": prediction.gpu,
        "predicted_bytes": {f"{phase.name} ({phase.pool})": phase.num_bytes for phase in phases},
        "measured_bytes": measured_bytes,
    }
