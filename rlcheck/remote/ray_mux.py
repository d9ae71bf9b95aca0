"""Agents on all nodes of a Ray cluster, behind one pair of pipes.

Runs in the examined Python, which has Ray. A zero-CPU actor on each node starts the agent there as a process of its
own and passes lines both ways; every line names its seat. The actors are not detached: they end with this driver,
however it ends, and their agents see the end of their standard input.

Every argument and every result stays below Ray's limit for passing by value (100 KiB), so that nothing but the ports
that a call itself needs must be open.
"""

import contextlib
import json
import os
import re
import select
import socket
import subprocess
import sys
import threading
import time
from typing import Any, Dict, List, Tuple

CHUNK_BYTES = 64 << 10
POLL_S = 2.0
SILENT_S = 12.0
"""A poll returns after POLL_S; a node that returns none for so much longer has stopped answering."""
STUCK_S = 3.0
KILLED_S = 1.0
IDENTIFIER = re.compile(r"The actor [0-9a-f]{32}")
SHUTDOWN_S = 2.0


class AgentHost:
    """The actor: the agent's process on a node, and two calls, one for each direction."""

    def __init__(self, one_liner: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", one_liner],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=node_environ(),
            start_new_session=True,
        )

    def push(self, data: bytes) -> None:
        """Pass bytes to the agent."""
        try:
            self.process.stdin.write(data)
            self.process.stdin.flush()
        except (OSError, ValueError):
            return  # it has ended; `pull` tells why

    def pull(self, wait_s: float, limit: int) -> Tuple[bytes, str]:
        """What the agent said, waited for so long, and how it ended, if it did."""
        out = self.process.stdout.fileno()
        if not select.select([out], [], [], wait_s)[0]:
            return b"", ""
        data = os.read(out, limit)
        if data:
            return data, ""
        code = self.process.wait()
        if code < 0:  # a worker that loses its node kills its children first: then the end of this call is the reason
            time.sleep(KILLED_S)
        said = self.process.stderr.read1(4096).decode("utf-8", "replace").strip().splitlines()
        return b"", "its agent ended: " + (
            said[-1] if said else ("exit status %d" if code >= 0 else "signal %d") % abs(code)
        )


def node_environ() -> Dict[str, str]:
    """The variables that this node was started with: those of the raylet, the parent of a worker.

    A worker's own are Ray's: CUDA_VISIBLE_DEVICES is emptied for an actor without GPUs, and OMP_NUM_THREADS is set.
    """
    parent = "/proc/%d/" % os.getppid()
    try:
        with open(parent + "comm") as file:
            is_raylet = file.read().strip() == "raylet"
        with open(parent + "environ", "rb") as file:
            pairs = [entry.partition(b"=") for entry in file.read().split(b"\0") if b"=" in entry]
    except OSError:
        is_raylet, pairs = False, []
    if not is_raylet or not pairs:
        return {name: value for name, value in os.environ.items() if value or not name.endswith("_VISIBLE_DEVICES")}
    environ = {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}
    # The raylet alone is started with Ray's own memory allocator.
    environ.pop("LD_PRELOAD", None)
    return dict(environ, **{name: value for name, value in os.environ.items() if name == "LD_PRELOAD"})


class Node:
    """A node with its seat, its actor, and what has arrived of a line."""

    def __init__(self, seat: int, node_id: str) -> None:
        self.seat = seat
        self.node_id = node_id
        self.actor: Any = None
        self.unread = b""
        self.is_up = False
        self.is_lost = False
        self.polled_at = time.monotonic()
        self.contact = ""


class Mux:
    """All nodes: what comes from the doctor goes to their agents, and back."""

    def __init__(self, ray: Any, options: Dict[str, Any], wire: Any) -> None:
        self.ray = ray
        self.wire = wire
        self.nodes = {int(node["seat"]): Node(int(node["seat"]), node["node_id"]) for node in options["nodes"]}
        self.registered = {record["NodeID"]: record for record in ray.nodes()}
        self.one_liner = options["one_liner"]
        self.agent_line = options["agent_line"].encode()
        self.polls: Dict[Any, Node] = {}

    def start(self) -> None:
        """Place an actor on every node; whether it comes to life is seen when it answers."""
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        # This module is not on the other nodes.
        self.ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
        settings = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0}
        host = self.ray.remote(concurrency_groups={"push": 1, "pull": 1}, **settings)(AgentHost)
        for node in self.nodes.values():
            self.say(node, {"event": "stage", "stage": "Ray to start a worker process on this node"})
            strategy = NodeAffinitySchedulingStrategy(node_id=node.node_id, soft=False)
            node.actor = host.options(scheduling_strategy=strategy).remote(self.one_liner)
            self.poll(node)
            self.push(node, self.agent_line)

    def say(self, node: Node, message: Dict[str, Any]) -> None:
        """Pass a message on to the doctor."""
        self.wire.say(dict(message, seat=node.seat))

    def push(self, node: Node, data: bytes) -> None:
        """Pass bytes on to an agent."""
        for start in range(0, len(data), CHUNK_BYTES):
            node.actor.push.options(concurrency_group="push").remote(data[start : start + CHUNK_BYTES])

    def poll(self, node: Node) -> None:
        """Ask for what the agent says next."""
        node.polled_at = time.monotonic()
        pull = node.actor.pull.options(concurrency_group="pull")
        self.polls[pull.remote(POLL_S, CHUNK_BYTES)] = node

    def take_in(self) -> None:
        """Pass on whatever agents say, forever."""
        while True:
            if not self.polls:
                time.sleep(0.05)
                continue
            ready, _ = self.ray.wait(list(self.polls), num_returns=1, timeout=0.5)
            if ready:  # and those that are ready with it, in one go
                ready, _ = self.ray.wait(list(self.polls), num_returns=len(self.polls), timeout=0)
            for reference in ready:
                self.take(self.polls.pop(reference), reference)
            self.lose_the_silent()

    def take(self, node: Node, reference: Any) -> None:
        """One answer to a poll."""
        try:
            data, ended = self.ray.get(reference, timeout=5)
        except Exception as error:  # Ray has a dozen for dead, unreachable and unplaceable actors
            self.lose(node, "Ray lost its worker process there: " + short(error))
            return
        lines = (node.unread + data).split(b"\n")
        node.unread = lines.pop()
        for line in lines:
            self.pass_on(node, line)
        if ended:
            self.lose(node, ended)
        else:
            self.poll(node)

    def pass_on(self, node: Node, line: bytes) -> None:
        """A line of an agent, if it is one; its first message gets what Ray has registered for its node."""
        try:
            message = json.loads(line)
        except ValueError:
            return
        if message.get("event") == "hello":
            node.is_up = True
            resources = dict(self.registered.get(node.node_id, {}).get("Resources") or {})
            store = int(resources.get("object_store_memory", 0))
            message["registered"] = {"resources": resources, "object_store_bytes": store}
        self.say(node, message)

    def lose(self, node: Node, reason: str) -> None:
        """A node is gone; its actor must not stay."""
        if not node.is_lost:
            node.is_lost = True
            self.say(node, {"event": "lost", "reason": reason})
            with contextlib.suppress(Exception):
                self.ray.kill(node.actor)

    def lose_the_silent(self) -> None:
        """Nodes that have stopped answering, and what is in the way of those that never did."""
        now = time.monotonic()
        for reference, node in list(self.polls.items()):
            silent_s = now - node.polled_at
            if node.is_up and silent_s > POLL_S + SILENT_S:
                del self.polls[reference]
                self.lose(node, "its node has not answered Ray's calls for %d s" % silent_s)
            elif not node.is_up and silent_s > STUCK_S and not node.contact:
                node.contact = "looking"
                threading.Thread(target=self.explain, args=(node,), daemon=True).start()

    def explain(self, node: Node) -> None:
        """Find out whether the worker lives and its port cannot be reached from here."""
        while not node.is_up and not node.is_lost:
            try:
                where = worker_address(node.actor)
            except Exception:  # private functions of Ray: they may be gone in another version
                return
            if where:
                text = "a call to its worker there, which listens on %s:%d (%s)" % (*where, knock(*where))
                self.say(node, {"event": "stage", "stage": text})
                return
            time.sleep(1)

    def serve(self) -> None:
        """Pass on what the doctor says until it says no more."""
        while True:
            message = self.wire.hear()
            if message is None:
                return
            node = self.nodes.get(message.pop("seat", -1))
            if node is not None and not node.is_lost:
                self.push(node, json.dumps(message).encode() + b"\n")

    def close(self) -> None:
        """Kill the actors; their agents end with them."""
        for node in self.nodes.values():
            with contextlib.suppress(Exception):
                self.ray.kill(node.actor)


def worker_address(actor: Any) -> Any:
    """Address and port of the process of an actor that Ray holds for alive; None while there is none."""
    from ray._private import state

    record = state.actors(actor._actor_id.hex())
    address = record.get("Address") or {}
    if record.get("State") != "ALIVE" or not address.get("Port"):
        return None
    return str(address["IPAddress"]), int(address["Port"])


def knock(address: str, port: int) -> str:
    """What comes of a connection to that port, in words."""
    try:
        socket.create_connection((address, port), timeout=2).close()
    except socket.timeout:
        return "no answer"
    except OSError as error:
        return error.strerror or "no connection"
    return "it can be connected to"


def short(error: BaseException) -> str:
    """The words of one of Ray's errors, without its table of identifiers and its traceback."""
    lines: List[str] = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    plain = [line for line in lines if not line.startswith(("class_name:", "actor_id:", "pid:", "namespace:", "ip:"))]
    return IDENTIFIER.sub("The actor", " ".join(plain))[:400] or type(error).__name__


def main(options: Dict[str, Any], wire: Any) -> None:
    """Connect to the cluster, start the agents, pass lines until the doctor goes; never returns."""
    tell_all(options, wire, {"event": "stage", "stage": "ray.init to connect to %s" % options["address"]})
    try:
        import ray

        ray.init(address=options["address"], log_to_driver=False, logging_level="error", namespace="rlcheck")
    except BaseException as error:  # SystemExit too: Ray exits where a library should raise
        tell_all(options, wire, {"event": "lost", "reason": "ray.init: %s: %s" % (type(error).__name__, short(error))})
        os._exit(1)
    mux = Mux(ray, options, wire)
    with contextlib.suppress(OSError, ValueError):
        mux.start()
        threading.Thread(target=guarded, args=(mux.take_in,), daemon=True).start()
        mux.serve()
    threading.Thread(target=end_by_force, daemon=True).start()
    mux.close()
    ray.shutdown()
    os._exit(0)


def tell_all(options: Dict[str, Any], wire: Any, message: Dict[str, Any]) -> None:
    """Say the same of every seat."""
    for node in options["nodes"]:
        wire.say(dict(message, seat=node["seat"]))


def guarded(work: Any) -> None:
    """Run a thread without which nothing works: when it breaks, all ends."""
    try:
        work()
    except BaseException as error:
        sys.stderr.write("%s: %s\n" % (type(error).__name__, short(error)))
        os._exit(1)


def end_by_force() -> None:
    """Ray's shutdown can wait for a cluster that is not there any more."""
    time.sleep(SHUTDOWN_S)
    os._exit(0)
