"""Memory of the run: of torch on the training ranks, of the GPUs as a whole, of the host."""

from __future__ import annotations

from collections import defaultdict

import psutil

from trainer.callbacks.base import Callback, RunInfo, StepRecord
from trainer.cluster.groups import WorkerGroup
from trainer.cluster.placement import Node
from trainer.cluster.runtime import Runtime
from trainer.trainers import Trainers

GIB = 2**30


class Memory(Callback):
    """Adds what each step needed; in GiB, which verl's names call gb. On a CPU only the last one.

    - `perf/max_memory_allocated_gb`, `perf/max_memory_reserved_gb`: torch's peaks since the last step, the largest of
      any training rank;
    - `perf/device_memory_used_gb`: all that was in use on the fullest GPU, engine, NCCL and other programs included, at
      the worst moment since the last step (NVML, sampled);
    - `perf/cpu_memory_used_gb`: of the controller's host, now, as in verl.
    """

    def __init__(self, runtime: Runtime, trainers: Trainers, engines: WorkerGroup) -> None:
        self._runtime, self._trainers, self._engines = runtime, trainers, engines
        self._on_gpu = False
        self._watched: list[Node] = []

    def on_run_start(self, run: RunInfo) -> None:
        """Begin to watch the GPUs."""
        self._on_gpu = run.config.trainer.device == "cuda"
        if not self._on_gpu:
            return
        for node, gpus in self._gpus().items():
            if problem := self._runtime.ask_node(node, "watch_gpus", sorted(gpus)):
                self._runtime.say(f"note: perf/device_memory_used_gb leaves out node {node.name}: {problem}")
            else:
                self._watched.append(node)

    def on_step_end(self, record: StepRecord) -> None:
        """Add the metrics."""
        record.metrics["perf/cpu_memory_used_gb"] = psutil.virtual_memory().used / GIB
        if not self._on_gpu:
            return
        ranks = self._trainers.take_memory_peaks()
        for name in ranks[0]:
            record.metrics[f"perf/{name}_gb"] = max(rank[name] for rank in ranks) / GIB
        used = [self._runtime.ask_node(node, "take_gpu_memory") for node in self._watched]
        if known := [number for number in used if number is not None]:
            record.metrics["perf/device_memory_used_gb"] = max(known) / GIB

    def _gpus(self) -> dict[Node, set[str]]:
        """The GPUs that training ranks and engines hold, by node."""
        found: dict[Node, set[str]] = defaultdict(set)
        for group in (self._trainers.group, self._engines):
            for slot, gpus in zip(group.slots, group.gpus, strict=True):
                found[slot.node] |= set(gpus)
        return {node: gpus for node, gpus in found.items() if gpus}
