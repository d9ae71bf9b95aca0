"""What the GCS of a Ray cluster says, asked by gRPC without Ray.

Services and field numbers are those of Ray's gcs_service.proto, gcs.proto and common.proto. They were compared in the
wheels of Ray 2.44.1, 2.52.1 and 2.60.0, where all that is read here is the same, and tried on a GCS of 2.60.0. (The
port of the dashboard's agent came with a version between the last two; before, it reads as not known.)

The token of Ray's token authentication is sent only after the server refused a call without it in Ray's own words.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import msgspec

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.reach import GcsFacts, GcsNode, PendingGroup
from rlcheck.measure.cluster.http2 import OK, UNAUTHENTICATED, CallError, Connection, Reply, printable
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.protobuf import Message, WireError, field

T = TypeVar("T")

HEALTH = "/grpc.health.v1.Health/Check"
IS_ALIVE = "/ray.rpc.NodeInfoGcsService/CheckAlive"
_ALL_NODES = "/ray.rpc.NodeInfoGcsService/GetAllNodeInfo"
_AVAILABLE = "/ray.rpc.NodeResourceInfoGcsService/GetAllAvailableResources"
_GROUPS = "/ray.rpc.PlacementGroupInfoGcsService/GetAllPlacementGroup"
_KEY_VALUE = "/ray.rpc.InternalKVGcsService/InternalKVGet"
_WORKERS = "/ray.rpc.WorkerInfoGcsService/GetAllWorkerInfo"
_METADATA = field(1, b"CLUSTER_METADATA") + field(2, b"cluster")
_REFUSAL = "InvalidAuthToken"
_HEALTH_WORDS = {0: "unknown", 1: "serving", 2: "not-serving", 3: "service-unknown"}
_DEAD_KEPT, _GROUPS_KEPT, _BUNDLES_KEPT = 32, 64, 4096
_WORKERS_ASKED, _WORKERS_KEPT = 4096, 2
# As many as that, only those alive; a GCS that does not know the filter sends the others, too.
_LIVING_WORKERS = field(1, _WORKERS_ASKED) + field(2, field(2, 1))
_PROGRAMS = (0, 1)  # of the types of workers: those that run tasks, and drivers

_GROUP_STATES = ("PENDING", "PREPARED", "CREATED", "REMOVED", "RESCHEDULING")
_WAITING = ("PENDING", "PREPARED", "RESCHEDULING")
_STRATEGIES = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")
_SCHEDULING = ("QUEUED", "REMOVED", "SCHEDULING_STARTED", "NO_RESOURCES", "INFEASIBLE", "FAILED_TO_COMMIT_RESOURCES",
               "FINISHED")  # fmt: skip
_DEATHS = ("unspecified", "expected termination", "unexpected termination", "preempted by the autoscaler",
           "idle, removed by the autoscaler")  # fmt: skip


def asks_for_token(reply: Reply) -> bool:
    """Whether this is how a GCS refuses a call without the right token."""
    return reply.grpc_status == UNAUTHENTICATED and _REFUSAL in reply.grpc_message


def find_token(ctx: ProbeContext) -> tuple[str, str]:
    """The token of this machine and where it is from, in the order in which Ray looks; ("", "") for none.

    Source: https://docs.ray.io/en/master/ray-core/internals/token-authentication.html
    """
    given = ctx.environ.get("RAY_AUTH_TOKEN", "").strip()
    if given:
        return given, "RAY_AUTH_TOKEN"
    path = ctx.environ.get("RAY_AUTH_TOKEN_PATH", "")
    if not path:
        home = ctx.environ.get("HOME", "")
        path = f"{home}/.ray/auth_token" if home else ""
    text = (ctx.read_text(path, 4096).value or "").strip() if path else ""
    # Anything else could not be in a header; Ray's own tokens are hexadecimal.
    return (text, path) if text and text.isascii() and text.isprintable() else ("", "")


def ask_gcs(ctx: ProbeContext, address: str, port: int, timeout_s: float, max_segment: int = 0) -> GcsFacts:
    """Return everything that is wanted of the GCS, within `timeout_s`; what does not come in time is missing.

    With `max_segment`, its answers come in TCP segments of at most so many bytes.
    """
    started = time.monotonic()
    deadline = started + timeout_s
    try:
        with Connection(address, port, timeout_s, max_segment) as connection:
            return _ask_all(_Caller(ctx, connection, deadline), started)
    except CallError as error:
        return _unanswered(error, time.monotonic() - started)


def ask_workers(ctx: ProbeContext, address: str, port: int, timeout_s: float) -> dict[str, tuple[int, ...]]:
    """By node id, the ports of a few processes that run tasks there now; empty when the GCS does not tell."""
    try:
        with Connection(address, port, timeout_s) as connection:
            return _workers(_Caller(ctx, connection, time.monotonic() + timeout_s))
    except CallError:
        return {}


def _workers(caller: _Caller) -> dict[str, tuple[int, ...]]:
    return caller.read(_WORKERS, _LIVING_WORKERS, _worker_ports).value or {}


def _unanswered(error: CallError, seconds: float) -> GcsFacts:
    words = printable(str(error))
    lost = missing(MissingKind.TIMEOUT if error.kind in ("silent", "slow") else MissingKind.ERROR, words)
    health = "silent" if error.kind in ("silent", "slow") else words
    return GcsFacts(
        health=health, seconds=seconds, ray_version=lost, python_version=lost, nodes=lost, pending_groups=lost
    )


class _Caller:
    """Calls over one connection, with the token once it was asked for."""

    def __init__(self, ctx: ProbeContext, connection: Connection, deadline: float) -> None:
        self._context, self._connection, self._deadline = ctx, connection, deadline
        self._headers: Mapping[str, str] = {}
        self.asks_for_token = False
        self.needs_token = False
        self.token_source = ""

    def call(self, path: str, request: bytes = b"") -> Reply:
        """Call a method of the GCS.

        Raises:
            CallError: no answer.
        """
        reply = self._connection.call(path, request, self._deadline, self._headers)
        if asks_for_token(reply) and not self.asks_for_token:
            self.asks_for_token = True
            token, self.token_source = find_token(self._context)
            if token:
                self._headers = {"authorization": f"Bearer {token}"}
                reply = self._connection.call(path, request, self._deadline, self._headers)
        if asks_for_token(reply):
            self.needs_token = True
        return reply

    def read(self, path: str, request: bytes, take: Callable[[Message], T]) -> Fact[T]:
        """What `take` makes of the answer, or why there is none. Never raises."""
        try:
            reply = self.call(path, request)
            if reply.grpc_status != OK:
                kind = MissingKind.PERMISSION if self.needs_token else MissingKind.ERROR
                return missing(kind, printable(f"{reply.status_name}: {reply.grpc_message}").rstrip(": "))
            return known(take(Message(reply.body)))
        except CallError as error:
            return missing(MissingKind.TIMEOUT if error.kind in ("silent", "slow") else MissingKind.ERROR, str(error))
        except WireError as error:
            return missing(MissingKind.ERROR, f"an answer that is no message of Ray: {error}")


def _ask_all(caller: _Caller, started: float) -> GcsFacts:
    reply = caller.call(HEALTH)
    health = reply.status_name
    if reply.grpc_status == OK:
        try:
            health = _HEALTH_WORDS.get(Message(reply.body).integer(1), "unknown")
        except WireError:
            health = "unknown"
    version = caller.read(IS_ALIVE, b"", lambda message: message.text(2, 40))
    metadata = caller.read(_KEY_VALUE, _METADATA, lambda message: _as_object(message.blob(2)))
    free = caller.read(_AVAILABLE, b"", _available)
    now = time.time()
    nodes = caller.read(_ALL_NODES, b"", lambda message: _nodes(message, free.value or {}, now))
    groups = caller.read(_GROUPS, b"", lambda message: _pending(message, now))
    alive, dead = nodes.value or ((), ())
    # The last call: a GCS with many workers may be slow with this one.
    workers = _workers(caller) if alive else {}
    alive = tuple(msgspec.structs.replace(node, worker_ports=workers.get(node.node_id, ())) for node in alive)
    return GcsFacts(
        health=health,
        asks_for_token=caller.asks_for_token,
        needs_token=caller.needs_token,
        token_sent=bool(caller.token_source),
        token_source=caller.token_source,
        num_dead=len(dead),
        seconds=time.monotonic() - started,
        ray_version=_filled(version, metadata, "ray_version"),
        python_version=_filled(Fact(), metadata, "python_version"),
        nodes=Fact(missing=nodes.missing) if nodes.value is None else known((*alive, *dead[:_DEAD_KEPT])),
        pending_groups=groups,
    )


def _filled(found: Fact[str], metadata: Fact[dict[str, Any]], name: str) -> Fact[str]:
    """`found`, or the entry of the cluster's metadata."""
    if found.value:
        return found
    if metadata.value is None:
        return Fact(missing=metadata.missing)
    value = metadata.value.get(name)
    if not isinstance(value, str) or not value:
        return absent(f"the GCS has no {name.replace('_', ' ')} on record")
    return known(printable(value, 40))


def _as_object(data: bytes) -> dict[str, Any]:
    try:
        found = json.loads(data or b"{}")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}  # pyright: ignore[reportUnknownVariableType]


def _available(message: Message) -> dict[bytes, dict[str, float]]:
    return {entry.blob(1): entry.quantities(2) for entry in message.messages(2)}


def _worker_ports(message: Message) -> dict[str, tuple[int, ...]]:
    """By node, where the youngest of its workers and drivers listen."""
    found: dict[str, list[tuple[int, int]]] = {}
    for entry in message.messages(2):
        address = entry.message(2)
        port = _port(address.integer(3))
        if port and entry.integer(1) and entry.integer(5) in _PROGRAMS:
            found.setdefault(address.blob(1)[:32].hex(), []).append((entry.integer(23), port))
    youngest = {node_id: sorted(workers, reverse=True) for node_id, workers in found.items()}
    return {node_id: tuple(port for _, port in some[:_WORKERS_KEPT]) for node_id, some in youngest.items()}


def _nodes(
    message: Message, free: dict[bytes, dict[str, float]], now: float
) -> tuple[tuple[GcsNode, ...], tuple[GcsNode, ...]]:
    """The nodes that are alive, and those that are not: the ones that ended last first."""
    found = [_node(entry, free, now) for entry in message.messages(2)]
    alive = sorted((n for n in found if n.alive), key=lambda node: (not node.is_head, node.start_time_ms, node.node_id))
    dead = sorted((n for n in found if not n.alive), key=lambda node: -node.end_time_ms)
    return tuple(alive), tuple(dead)


def _node(entry: Message, free: dict[bytes, dict[str, float]], now: float) -> GcsNode:
    alive = entry.integer(7) == 0
    death = entry.message(29)
    ended_ms = max(0, entry.integer(24))
    reason = _word(_DEATHS, death.integer(1)) if death.integer(1) else ""
    return GcsNode(
        node_id=entry.blob(1)[:32].hex(),
        address=entry.text(2, 100),
        hostname=entry.text(8, 255),
        alive=alive,
        is_head=bool(entry.integer(25)),
        node_manager_port=_port(entry.integer(5)),
        object_manager_port=_port(entry.integer(6)),
        agent_port=_port(entry.integer(31)),
        metrics_port=_port(entry.integer(9)),
        resources=entry.quantities(11),
        available=free.get(entry.blob(1), {}) if alive else {},
        start_time_ms=max(0, entry.integer(23)),
        end_time_ms=ended_ms,
        end_age_s=max(0.0, now - ended_ms / 1e3) if ended_ms and not alive else -1.0,
        death_reason="" if alive else printable(": ".join(filter(None, (reason, death.text(2, 200))))),
        temp_dir=entry.text(32, 255),
    )


def _port(number: int) -> int:
    return number if 0 < number < 65536 else 0


def _word(words: tuple[str, ...], number: int) -> str:
    return words[number] if 0 <= number < len(words) else str(number)


def _pending(message: Message, now: float) -> tuple[PendingGroup, ...]:
    groups = (_group(entry, now) for entry in message.messages(2))
    return tuple(group for group in groups if group.state in _WAITING)[:_GROUPS_KEPT]


def _group(entry: Message, now: float) -> PendingGroup:
    stats = entry.message(12)
    created_ms = entry.integer(15)
    bundles = [bundle.quantities(2) for bundle in entry.messages(3)[:_BUNDLES_KEPT]]
    return PendingGroup(
        group_id=entry.blob(1)[:32].hex(),
        name=entry.text(2, 200),
        state=_word(_GROUP_STATES, entry.integer(5)),
        strategy=_word(_STRATEGIES, entry.integer(4)),
        scheduling=_word(_SCHEDULING, stats.integer(8)),
        bundles=tuple(bundles),
        attempts=max(0, stats.integer(6)),
        age_s=max(0.0, now - created_ms / 1e3) if created_ms > 0 else -1.0,
    )
