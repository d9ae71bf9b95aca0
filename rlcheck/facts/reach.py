"""The way from this machine to the head of a Ray cluster, layer by layer, and what the head says of the cluster."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class Contact(Struct, frozen=True):
    """One TCP connection that was tried.

    `outcome` is open, refused (something answered no), filtered (nothing answered within the deadline), unreachable
    (the network or this machine's own routing said no) or error; `detail` the system's words. `rtt_s` is the time to
    connect, -1 when it did not. `what` names the port's purpose: gcs, raylet, object_manager, agent, dashboard,
    client, worker, probe (a listener that the doctor opened for the check). `loses_large` says that the other side's
    small packets arrived and its large ones did not; only listeners of the doctor send any.
    """

    address: str
    port: int
    what: str
    outcome: str
    detail: str = ""
    rtt_s: float = -1.0
    loses_large: bool = False


class Resolution(Struct, frozen=True):
    """What the name of the head means. `is_literal` says that it was an address already.

    Without an address, `error` is why: the resolver's words, or that it did not answer in time (`seconds`).
    """

    name: str
    is_literal: bool = False
    addresses: tuple[str, ...] = ()
    seconds: float = 0.0
    error: str = ""


class Route(Struct, frozen=True):
    """The source address and interface that this machine chooses to talk to the head.

    `is_local` says that the head's address belongs to this machine. `gateway` is "" when the address is on the
    interface's own network. `error` is the system's word when there is no way to the address at all.
    """

    destination: str
    source: str = ""
    interface: str = ""
    is_local: bool = False
    gateway: str = ""
    error: str = ""


class PortOwner(Struct, frozen=True):
    """A process of this machine that listens on the head's port, when the head is this machine.

    `address` is what it is bound to, 0.0.0.0 or :: for all interfaces. `pid` and `process` are 0 and "" when the owner
    cannot be seen. `program` is what an interpreter was given to run: a script, or -m and a module.
    """

    address: str
    pid: int = 0
    process: str = ""
    program: str = ""
    user: str = ""


class Speaker(Struct, frozen=True):
    """What answers at the head's port.

    `kind` is gcs, redis, dashboard, http, grpc (some other gRPC service), tls, ray-client, silent (accepts and says
    nothing), closes (accepts and hangs up) or other. `detail` is the first of what it said, made printable.
    """

    kind: str
    detail: str = ""


class GcsNode(Struct, frozen=True):
    """A node as the GCS has it. Resources are Ray's (CPU, GPU, …), in total and not handed out; ports are 0 when not
    known. `worker_ports` are those of a few processes of workers and drivers that live there, the youngest first.
    `end_age_s` is how long ago it ended, by this machine's clock; -1 while it is alive or when nobody knows.
    """

    node_id: str
    address: str
    hostname: str = ""
    alive: bool = True
    is_head: bool = False
    node_manager_port: int = 0
    object_manager_port: int = 0
    agent_port: int = 0
    metrics_port: int = 0
    worker_ports: tuple[int, ...] = ()
    resources: dict[str, float] = {}
    available: dict[str, float] = {}
    start_time_ms: int = 0
    end_time_ms: int = 0
    end_age_s: float = -1.0
    death_reason: str = ""
    temp_dir: str = ""


class PendingGroup(Struct, frozen=True):
    """A placement group that is not placed.

    `bundles` are its resource demands; `state`, `strategy` and `scheduling` (how the last try ended) are Ray's words.
    """

    group_id: str
    name: str = ""
    state: str = ""
    strategy: str = ""
    scheduling: str = ""
    bundles: tuple[dict[str, float], ...] = ()
    attempts: int = 0
    age_s: float = -1.0


class GcsFacts(Struct, frozen=True):
    """What the GCS answers.

    `health` is serving, not-serving, silent, or the gRPC status that came back (unauthenticated, unimplemented, …); it
    is answered without a token. `asks_for_token` says that calls without one are refused, `needs_token` that there was
    none to send or that it was not accepted (`token_sent`). `token_source` is where the token is from (a variable or a
    path), never the token. `nodes` are all that are alive, and the dead ones that ended last; `num_dead` counts all.
    """

    health: str = ""
    asks_for_token: bool = False
    needs_token: bool = False
    token_sent: bool = False
    token_source: str = ""
    num_dead: int = 0
    seconds: float = -1.0
    ray_version: Fact[str] = Fact()
    python_version: Fact[str] = Fact()
    nodes: Fact[tuple[GcsNode, ...]] = Fact()
    pending_groups: Fact[tuple[PendingGroup, ...]] = Fact()


class WantedRun(Struct, frozen=True):
    """The run that somebody wants to fit: `--nodes`, `--gpus-per-node` (0: not asked)."""

    nodes: int = 0
    gpus_per_node: int = 0


class ReachFacts(Struct, frozen=True):
    """The way to `head` (a name or an address as given) and `port`.

    `tcp` are the connections to the head's port, one an address. `node_ports` are the connections to the ports that
    each node advertises, made from this machine. `extras` are dashboard and client, when they were asked for.
    `proxies` are the proxy variables that would catch HTTP calls to one of these addresses: variable name to the
    address caught; `grpc_proxies` those that would catch Ray's own calls, which use none unless told to. `owners`
    listen on the port here; empty for a head elsewhere.
    `own_ray_version` and `own_python_version` are of the examined Python; "" without Ray. `loses_large_from` are the
    addresses whose large packets do not arrive here, `loses_large_to` those that do not get ours; small ones pass.
    """

    head: str
    port: int
    wanted: WantedRun = WantedRun()
    resolution: Fact[Resolution] = Fact()
    route: Fact[Route] = Fact()
    tcp: Fact[tuple[Contact, ...]] = Fact()
    speaker: Fact[Speaker] = Fact()
    gcs: Fact[GcsFacts] = Fact()
    node_ports: Fact[tuple[Contact, ...]] = Fact()
    extras: tuple[Contact, ...] = ()
    proxies: dict[str, str] = {}
    grpc_proxies: dict[str, str] = {}
    owners: tuple[PortOwner, ...] = ()
    own_ray_version: str = ""
    own_python_version: str = ""
    loses_large_from: tuple[str, ...] = ()
    loses_large_to: tuple[str, ...] = ()
