"""The cluster of one run, as a context manager: what was started in it has ended when it is left."""

from __future__ import annotations

import secrets
import shutil
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ray import exceptions as ray_errors

from rltrain.cluster import ray_start, timeline
from rltrain.cluster.fork_server import Imports, forking
from rltrain.cluster.host import SHM_PREFIX, start_guard
from rltrain.cluster.node import NodeEyes
from rltrain.cluster.placement import Node
from rltrain.cluster.processes import (
    Process,
    family,
    group_members,
    kill,
    remove_shared_memory,
    shared_memory_of,
    wait_gone,
)
from rltrain.cluster.ranks import Ranks
from rltrain.cluster.ray_api import actor_on, ray
from rltrain.cluster.ray_parts import is_tried
from rltrain.cluster.teardown import at_once_on_signals
from rltrain.cluster.waits import Say, Waits, silent
from rltrain.config.schema.run import RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.records.run_dir import on_disk

NODE_TIMEOUT_S = 30.0
GRACE_S = 10.0
"""How long what a killed worker started may take to end."""


@contextmanager
def connect(
    config: RunConfig, logs: Path, say: Say = silent, still: Say | None = None, imports: Imports | None = None
) -> Generator[Runtime]:
    """Start a local Ray, or join the one of `ray_kwargs.ray_init.address` or RAY_ADDRESS, for the time of a block.

    However the block is left, the workers end, a local Ray ends, and it is verified that nothing remains. After a
    `RunFailure` the local Ray's own logs are kept in `LOGS/ray`.

    Args:
        config: resolved.
        logs: an existing directory; each worker writes `NAME.log` into it.
        say: prints a line of progress.
        still: prints now and then what is still being waited for; null: as SAY.
        imports: what the workers of a local Ray will need (`rltrain.cluster.fork_server`); null: each imports itself.

    Raises:
        UserError: started under torchrun; no cluster answers; wrong arguments.
        RunFailure: Ray did not start.
    """
    ray_start.refuse_torchrun()
    trace = timeline.writable(config.ray_kwargs.timeline_json_file)
    runtime = Runtime(logs.resolve(), say, config.trainer.shutdown_timeout_s, still)
    ray_init, on_gpu = config.ray_kwargs.ray_init, config.trainer.device == "cuda"
    is_plain = ray_start.wanted_address(ray_init) is None and not ray_init.get("runtime_env")
    can_fork = is_plain and not on_gpu and is_tried()
    with forking(imports if can_fork else None) as server:
        namespace, address = f"rltrain-{runtime.id}", server and server.address
        started = ray_start.start(ray_init, namespace, on_gpu, say, runtime.still, address)
        runtime.started = started.processes | (server.processes if server else set())
        session = started.session_dir
        guard = start_guard(0, runtime.shm_prefix, str(session or ""), [process.pid for process in runtime.started])
        try:
            try:
                runtime.nodes = _nodes(is_local=session is not None)
                yield runtime
            except RunFailure:
                if session is not None:
                    _keep_logs(session, runtime.logs)
                raise
            finally:
                if trace is not None:
                    timeline.write(trace, say)
                runtime.close()
                if session is not None:
                    shutil.rmtree(session, ignore_errors=True)
        finally:
            guard.kill()
            guard.wait()


def _keep_logs(session: Path, logs: Path) -> None:
    """Copy what a local Ray has written about itself; its agents may still write, and a disk may be full."""
    with suppress(OSError, shutil.Error):
        shutil.copytree(session / "logs", logs / "ray", dirs_exist_ok=True)


class Runtime:
    """What a run holds while it is connected to Ray; made by `connect`."""

    def __init__(self, logs: Path, say: Say, shutdown_timeout_s: float, still: Say | None = None) -> None:
        self.id = secrets.token_hex(4)
        self.logs = logs
        self.say = say
        self.still = still or say
        self.waits = Waits()
        self.groups: list[Ranks] = []
        self.nodes: list[Node] = []
        """The controller's own node first."""
        self.started: set[Process] = set()
        """Ray's own processes; empty when a cluster was joined."""
        self.shm_prefix = f"rltrain-{self.id}-"
        self.environ = {SHM_PREFIX: self.shm_prefix}
        """For every worker."""
        self._shutdown_timeout_s = shutdown_timeout_s
        self._born = time.time()
        self._eyes = NodeEyes()
        self._eyes_elsewhere: dict[str, Any] = {}

    @property
    def home(self) -> Node:
        """The controller's own node."""
        return self.nodes[0]

    def ask_node(self, node: Node, method: str, *args: Any) -> Any:
        """Call a method of the `NodeEyes` of NODE; None when the node does not answer within 30 s."""
        if node.ray_id == self.home.ray_id:
            return getattr(self._eyes, method)(*args)
        if node.ray_id not in self._eyes_elsewhere:
            self._eyes_elsewhere[node.ray_id] = actor_on(node.ray_id, NodeEyes)
        try:
            return ray.get(getattr(self._eyes_elsewhere[node.ray_id], method).remote(*args), timeout=NODE_TIMEOUT_S)
        except ray_errors.RayError:
            return None

    def require_shared_logs(self, nodes: Iterable[Node]) -> None:
        """Refuse NODES that do not see the run directory: ranks would write logs and checkpoints where nobody looks.

        Raises:
            UserError: a node does not see what this one has written.
            RunFailure: a node does not answer, or the disk is full.
        """
        away = {node.ray_id: node for node in nodes if node.ray_id != self.home.ray_id}
        if not away:
            return
        mark = self.logs / f".seen-by-all-nodes-{self.id}"
        with on_disk(f"{mark} cannot be written"):
            mark.write_text(self.id, encoding="utf-8")
        try:
            for node in away.values():
                seen = self.ask_node(node, "reads", mark)
                if seen is None:
                    raise RunFailure(f"node {node.name} ({node.address}) does not answer within {NODE_TIMEOUT_S:g} s")
                if seen != self.id:
                    raise UserError(
                        f"node {node.name} does not see {self.logs} of node {self.home.name}: the run directory "
                        "(trainer.default_local_dir) must lie on a file system that all nodes share"
                    )
        finally:
            mark.unlink(missing_ok=True)

    def rendezvous(self, node: Node) -> tuple[str, int]:
        """Address and a free TCP port of NODE, where the ranks of a process group can meet."""
        return node.address, self.ask_node(node, "free_port")

    def end_now(self) -> None:
        """Kill every process of the run that can be reached, without asking; for a second Ctrl-C."""
        if self.started:
            own = self._own_processes()
            shared_memory = shared_memory_of(own, self._born)
            kill(own)
            for path in shared_memory:
                path.unlink(missing_ok=True)
        else:
            self._kill_actors()
        remove_shared_memory(self.shm_prefix)

    def close(self) -> None:
        """End the workers, then Ray if it is ours; verify, and say what had to be killed.

        A second request to stop meanwhile ends all at once, with exit code 130.
        """
        with at_once_on_signals(self.waits, self.end_now, self.say):
            self._close()

    def _close(self) -> None:
        members = [(group, rank, pid) for group in self.groups for rank, pid in enumerate(group.pids) if pid]
        for group, rank, pid in members:
            group.ask_node(rank, "remember_family", pid)
        own = self._own_processes()
        self._kill_actors()
        answers: list[list[str]] = [
            group.ask_node(rank, "end_family", pid, GRACE_S) or [] for group, rank, pid in members
        ]
        killed = [line for answer in answers for line in answer]
        for eyes in self._eyes_elsewhere.values():
            ray.kill(eyes, no_restart=True)
        self._shut_ray_down(own)
        late = wait_gone(own | self._left_in_groups(), GRACE_S)
        stuck = kill(late)
        for line in [*killed, *map(str, late)]:
            self.say(f"had to kill process {line}")
        for process in stuck:
            self.say(f"process {process} cannot be killed: it hangs in the kernel")
        remove_shared_memory(self.shm_prefix)

    def _shut_ray_down(self, own: set[Process]) -> None:
        """Disconnect and end a local Ray; when that hangs, kill Ray's processes, which ends the hang."""
        ray_start.keep_processes()
        timer = threading.Timer(self._shutdown_timeout_s, kill, [own])
        timer.daemon = True
        timer.start()
        with suppress(ray_errors.RayError, OSError):
            ray.shutdown()
        timer.cancel()
        # Nothing is lost with them: what they would tidy up lies in the session's directory, which goes as a whole.
        kill(process for started in self.started for process in family(started.pid))

    def _kill_actors(self) -> None:
        for group in self.groups:
            for actor in group.actors:
                if actor is not None:
                    with suppress(ray_errors.RayError):
                        ray.kill(actor, no_restart=True)

    def _left_in_groups(self) -> set[Process]:
        """What a worker that died earlier left behind, and its guard has not ended yet."""
        here = {slot.node.ray_id for group in self.groups for slot in group.slots} <= {self.home.ray_id}
        pids = [pid for group in self.groups for pid in group.pids if pid] if here and self.nodes else []
        return group_members(pids) if pids else set()

    def _own_processes(self) -> set[Process]:
        """A local Ray's processes and all that descend from them."""
        trees = [family(process.pid) for process in self.started if process.is_alive()]
        return self.started.union(*trees, self._left_in_groups())


def _nodes(is_local: bool) -> list[Node]:
    """The live nodes of the cluster, the controller's own first."""
    home = ray.get_runtime_context().get_node_id()
    found = [
        Node(
            name=str(node["NodeManagerHostname"]),
            num_gpus=int(node["Resources"].get("GPU", 0)),
            num_cpus=ray_start.usable_cpus() if is_local else int(node["Resources"].get("CPU", 1)),
            address=str(node["NodeManagerAddress"]),
            ray_id=str(node["NodeID"]),
        )
        for node in ray.nodes()
        if node["Alive"]
    ]
    return sorted(found, key=lambda node: (node.ray_id != home, node.name, node.ray_id))
