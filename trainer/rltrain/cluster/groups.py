"""Groups of workers: plain classes, one object per process, called together from the controller.

Each worker is a Ray actor on the node of its slot. There is no placement group: the plan names the node of every
process, the actors hold their GPUs for the whole run, and a hard node affinity says just that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rltrain import __version__
from rltrain.cluster.calls import Call, gather
from rltrain.cluster.host import HostFacts, HostSpec
from rltrain.cluster.placement import Slot
from rltrain.cluster.ranks import Ranks
from rltrain.cluster.ray_api import actor_on, ray
from rltrain.cluster.runtime import Runtime
from rltrain.core.errors import UserError

RESTART_GRACE_S = 10.0


class WorkerGroup(Ranks):
    """Workers of one kind. `all` and `each` wait; `begin` and `gather` let calls of two groups overlap."""

    def __init__(self, runtime: Runtime, cls: type, slots: Sequence[Slot], payloads: Sequence[bytes]) -> None:
        super().__init__(runtime, slots, runtime.logs)
        self._runtime = runtime
        self._environs: list[dict[str, str]] = [{}] * len(slots)
        self._cls = cls
        self._payloads = list(payloads)

    @classmethod
    def open(
        cls,
        runtime: Runtime,
        worker: type,
        slots: Sequence[Slot],
        args: Sequence[tuple[Any, ...]],
        *,
        deadline_s: float,
        devices_of: WorkerGroup | None = None,
        environ: dict[str, str] | None = None,
    ) -> WorkerGroup:
        """Start one process per slot, for `worker(*args[i])`, which `begin_build` makes.

        Args:
            runtime: the cluster.
            worker: a plain class; it is imported in the worker's process.
            slots: the places, all of one kind.
            args: the constructor's arguments, one tuple per slot.
            deadline_s: seconds for the process to come up.
            devices_of: the group whose GPUs the slots share (`Slot.shares`).
            environ: environment variables of the processes, set before the class is imported.

        Raises:
            UserError: the constructor raised one, or the process would run another version of rltrain.
            RunFailure: a process died or did not come up.
        """
        payloads = [ray.cloudpickle.dumps((worker, one)) for one in args]
        group = cls(runtime, worker, slots, payloads)
        runtime.groups.append(group)
        for rank, slot in enumerate(slots):
            group._environs[rank] = _environ(slot, devices_of) | runtime.environ | (environ or {})
        group._start(range(len(slots)), deadline_s)
        return group

    def begin_build(self, ranks: Sequence[int] | None = None) -> Call:
        """Begin to import the class and to make the worker on RANKS (null: all); calls begun after it run after it."""
        asked = range(len(self.slots)) if ranks is None else ranks
        return Call(self, "build", {self.actors[rank].build.remote(): rank for rank in asked})

    def all(self, method: str, *args: Any, deadline_s: float, doing: str = "") -> list[Any]:
        """Call METHOD on every rank with the same arguments; results by rank. Errors as of `calls.gather`."""
        return self._finish(self.begin(method, [args] * len(self.slots)), deadline_s, doing)

    def each(self, method: str, args: Sequence[Any], *, deadline_s: float, doing: str = "") -> list[Any]:
        """Call METHOD on rank i with the one argument `args[i]`; results by rank."""
        return self._finish(self.begin(method, [(one,) for one in args]), deadline_s, doing)

    def begin(self, method: str, args: Sequence[tuple[Any, ...]], ranks: Sequence[int] | None = None) -> Call:
        """Begin METHOD on RANKS (null: all), with one tuple of arguments for each; wait with `calls.gather`.

        An argument that several ranks share (the same object) travels through Ray's store once.
        """
        asked = range(len(self.slots)) if ranks is None else ranks
        if len(args) != len(asked):
            raise ValueError(f"{self.kind}.{method}: {len(args)} arguments for {len(asked)} ranks")
        times = [id(value) for one in args for value in one]
        shared = {id(value): ray.put(value) for one in args for value in one if _travels_once(value, times)}
        refs = {
            # The name is for the timeline.
            self.actors[rank]
            .call.options(name=f"{self.name(rank)}.{method}")
            .remote(method, *(shared.get(id(value), value) for value in one)): rank
            for rank, one in zip(asked, args, strict=True)
        }
        return Call(self, method, refs)

    def restart(self, rank: int, *, deadline_s: float) -> None:
        """End the process of RANK with all that it started, and restart it in the same place.

        Raises:
            UserError, RunFailure: as `open` and `build`.
        """
        self.ask_node(rank, "remember_family", self.pids[rank])
        ray.kill(self.actors[rank], no_restart=True)
        killed: list[str] = self.ask_node(rank, "end_family", self.pids[rank], RESTART_GRACE_S) or []
        for line in killed:
            self._runtime.say(f"had to kill process {line} of the old {self.name(rank)}")
        self._start([rank], deadline_s)
        gather(self._runtime, [self.begin_build([rank])], deadline_s, f"making {self._cls.__name__}")

    def _finish(self, call: Call, deadline_s: float, doing: str) -> list[Any]:
        return gather(self._runtime, [call], deadline_s, doing or f"{self.kind}.{call.method}")[0]

    def _start(self, ranks: Sequence[int], deadline_s: float) -> None:
        for rank in ranks:
            self.actors[rank] = actor_on(self.slots[rank].node.ray_id, _actor_class(), self.slots[rank].num_gpus)
        found = self._system("package", ranks, [()] * len(ranks), deadline_s, "starting")
        for rank, (file, version) in zip(ranks, found, strict=True):
            self._refuse_other_version(rank, file, version)
        specs = [
            HostSpec(self.name(rank), self.logs[rank], self._environs[rank], self._payloads[rank]) for rank in ranks
        ]
        facts: list[HostFacts] = self._system("start", ranks, [(spec,) for spec in specs], deadline_s, "starting")
        for rank, fact in zip(ranks, facts, strict=True):
            self.pids[rank] = fact.pid
            self.gpus[rank] = fact.gpus or _listed(self._environs[rank])
            self.ask_node(rank, "watch", fact.pid)

    def _system(
        self, method: str, ranks: Sequence[int], args: Sequence[tuple[Any, ...]], deadline_s: float, doing: str
    ) -> list[Any]:
        refs = {getattr(self.actors[rank], method).remote(*one): rank for rank, one in zip(ranks, args, strict=True)}
        names = ", ".join(self.name(rank) for rank in ranks)
        return gather(self._runtime, [Call(self, method, refs)], deadline_s, f"{doing} {names}")[0]

    def _refuse_other_version(self, rank: int, file: str, version: str) -> None:
        """Every node must run the same version."""
        if version != __version__:
            raise UserError(
                f"{self.name(rank)} on node {self.slots[rank].node.name} would run rltrain {version} of {file}, "
                f"not {__version__}: install the same version on all nodes"
            )


def _actor_class() -> type:
    # Defined here so that it is pickled by value: it must arrive even where another version is installed.
    class Worker:
        def package(self) -> tuple[str, str]:
            import os

            import rltrain

            return os.path.realpath(rltrain.__file__ or "?"), rltrain.__version__

        def start(self, spec: HostSpec) -> HostFacts:
            from rltrain.cluster.host import Host

            self.host = Host(spec)
            return self.host.facts(ray.get_runtime_context().get_accelerator_ids().get("GPU", []))

        def build(self) -> Any:
            return self.host.build()

        def call(self, method: str, *args: Any) -> Any:
            return self.host.call(method, *args)

    return Worker


def _environ(slot: Slot, devices_of: WorkerGroup | None) -> dict[str, str]:
    environ = {"OMP_NUM_THREADS": str(slot.num_threads)}
    if slot.shares:
        if devices_of is None:
            raise ValueError(f"{slot.name} shares devices: devices_of is missing")
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpu for rank in slot.shares for gpu in devices_of.gpus[rank])
    elif slot.num_gpus == 0:
        environ["CUDA_VISIBLE_DEVICES"] = ""
    return environ


def _listed(environ: dict[str, str]) -> tuple[str, ...]:
    listed = environ.get("CUDA_VISIBLE_DEVICES", "")
    return tuple(listed.split(",")) if listed else ()


def _travels_once(value: Any, ids: Sequence[int]) -> bool:
    return not isinstance(value, str | int | float | bool | None) and ids.count(id(value)) > 1
