"""Plain workers for the tests, and the config that the runtime needs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

from rltrain.cluster.calls import gather
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.placement import Slot
from rltrain.cluster.runtime import Runtime
from rltrain.config.schema.actor import ActorRolloutRefConfig
from rltrain.config.schema.rollout import RolloutConfig
from rltrain.config.schema.run import RayKwargsConfig, RunConfig, TrainerConfig
from rltrain.core.errors import UserError


def config(ray_init: dict[str, Any] | None = None, **trainer: Any) -> RunConfig:
    return RunConfig(
        actor_rollout_ref=ActorRolloutRefConfig(rollout=RolloutConfig(name="hf", num_replicas=1)),
        trainer=TrainerConfig(**{"device": "cpu", "n_gpus_per_node": 2, "shutdown_timeout_s": 20, **trainer}),
        ray_kwargs=RayKwargsConfig(ray_init={"num_cpus": 2, **(ray_init or {})}),
    )


class Unsendable:
    def __reduce__(self) -> Any:
        raise TypeError("this value cannot be pickled")


class Adder:
    """Says what it is called with."""

    def __init__(self, base: int) -> None:
        self.base = base
        print(f"made with base {base}")

    def add(self, value: int) -> int:
        print("adding", value)
        return self.base + value

    def total(self, values: Any) -> float:
        return float(sum(values))

    def pid(self) -> int:
        return os.getpid()

    def environ(self, name: str) -> str:
        return os.environ.get(name, "")

    def user_error(self) -> None:
        raise UserError("data.train_files: no such file")

    def fail(self) -> None:
        _deep(3)

    def wrong_value(self) -> Any:
        return Unsendable()

    def hang_in_this_function(self, seconds: float) -> float:
        time.sleep(seconds)
        return seconds

    def spawn_child(self) -> int:
        """A stand-in for an engine's process: it ignores SIGTERM, and nobody waits for it."""
        code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(600)"
        return subprocess.Popen([sys.executable, "-c", code]).pid

    def make_shared_memory(self) -> str:
        path = Path("/dev/shm") / f"{os.environ['RLTRAIN_SHM_PREFIX']}bucket"
        path.write_bytes(b"weights")
        return path.name

    def make_library_shared_memory(self) -> str:
        """As a library does that removes it only in an orderly end."""
        self.mapped = SharedMemory(create=True, size=1 << 12)
        resource_tracker.unregister(f"/{self.mapped.name}", "shared_memory")
        return self.mapped.name

    def leave(self, how: str) -> None:
        print("about to leave")
        if how == "exit":
            sys.exit(3)
        if how == "_exit":
            os._exit(4)
        os.kill(os.getpid(), signal.Signals[how])
        time.sleep(60)


def _deep(depth: int) -> None:
    if depth == 0:
        raise ZeroDivisionError("lr became 0\nsecond line")
    _deep(depth - 1)


class Picky:
    """Cannot be made."""

    def __init__(self, how: str) -> None:
        if how == "user":
            raise UserError("actor_rollout_ref.model.path: no config.json")
        raise RuntimeError("out of luck")


def spawn(
    runtime: Runtime, worker: type, slots: Sequence[Slot], args: Sequence[tuple[Any, ...]], *, deadline_s: float
) -> WorkerGroup:
    """A group whose workers are made."""
    group = WorkerGroup.open(runtime, worker, slots, args, deadline_s=deadline_s)
    gather(runtime, [group.begin_build()], deadline_s, f"making {worker.__name__}")
    return group


def first(group: WorkerGroup, method: str, *args: Any, deadline_s: float, doing: str = "") -> Any:
    """Call METHOD on rank 0 alone."""
    call = group.begin(method, [args], ranks=[0])
    return gather(group._runtime, [call], deadline_s, doing or f"{group.kind}.{method}")[0][0]
