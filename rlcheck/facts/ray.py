"""Ray as it is on this machine without asking it anything: sessions, processes, ports."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct

WORKER_PORTS = (10002, 19999)
"""The ports that Ray gives to workers when `ray start` names none."""


class RaySession(Struct, frozen=True):
    """A session directory that `ray.init` or `ray start` made.

    `starter_pid` is the process that started it (the end of its name). `has_socket` says that the socket file of its
    raylet is still there, `live` that some process of this network namespace is bound to it. `spilled` is the number
    of directories with objects that were spilled to disk.
    """

    name: str
    owner_uid: int = -1
    starter_pid: int = 0
    age_s: float = -1.0
    has_socket: bool = False
    live: bool = False
    spilled: int = 0


class RayProcess(Struct, frozen=True):
    """A running raylet or gcs_server. `gcs_address`, `session` and `temp_dir` come from its command line."""

    pid: int
    name: str
    owner_uid: int = -1
    age_s: float = -1.0
    gcs_address: str = ""
    session: str = ""
    temp_dir: str = ""


class Listener(Struct, frozen=True):
    """A TCP port of Ray's defaults that someone listens on.

    `address` is the local address, 0.0.0.0 or :: for all interfaces. `pid` and `process` are 0 and "" when the owner
    cannot be seen (another user's, another container's).
    """

    port: int
    address: str
    owner_uid: int = -1
    pid: int = 0
    process: str = ""


class AuthToken(Struct, frozen=True):
    """The token file of Ray's token authentication; never its content. `source` is RAY_AUTH_TOKEN_PATH or default."""

    path: str
    source: str
    exists: bool = False
    readable: bool = False
    num_bytes: int = 0


class RayFacts(Struct, frozen=True):
    """Ray on this machine.

    `temp_dir` is where Ray keeps its sessions by default; `temp_dir_source` the variable that decided, or default.
    `sessions` are the newest of them, `num_sessions` all. `current_cluster` is the address that `ray start` left for
    later `ray.init()` calls, "" when there is none. `listeners` are those on 6379, 8265, 10001, on the port of
    RAY_ADDRESS and on those of running GCS servers. `num_unseen_raylets` counts raylet sockets that are bound by
    processes that cannot be seen (another PID namespace). `auth_token` is looked at when RAY_AUTH_MODE is
    token or not set.
    """

    uid: int = -1
    temp_dir: str = ""
    temp_dir_source: str = ""
    num_sessions: Fact[int] = Fact()
    sessions: Fact[tuple[RaySession, ...]] = Fact()
    session_latest: str = ""
    current_cluster: Fact[str] = Fact()
    processes: Fact[tuple[RayProcess, ...]] = Fact()
    num_unseen_raylets: int = 0
    listeners: Fact[tuple[Listener, ...]] = Fact()
    addresses: tuple[str, ...] = ()
    local_port_range: Fact[tuple[int, int]] = Fact()
    reserved_ports: str = ""
    somaxconn: Fact[int] = Fact()
    auth_token: Fact[AuthToken] = Fact()


def is_reserved(text: str) -> bool:
    """Whether one of the reserved ranges covers all of Ray's worker ports."""
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        is_range = first.isdecimal() and last.isdecimal() and max(len(first), len(last)) <= 5
        if is_range and int(first) <= WORKER_PORTS[0] and int(last) >= WORKER_PORTS[1]:
            return True
    return False
