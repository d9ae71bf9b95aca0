"""Many machines as each of them sees itself and the others."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct
from rlcheck.facts.reach import Contact


class Disk(Struct, frozen=True):
    """Room on one file system, in bytes."""

    path: str
    total_bytes: int
    free_bytes: int


class Gpu(Struct, frozen=True):
    """A GPU that is physically there, whatever CUDA_VISIBLE_DEVICES says. `memory_bytes` is 0 when not known."""

    name: str
    uuid: str = ""
    memory_bytes: int = 0
    used_bytes: int = 0


class Card(Struct, frozen=True):
    """A network interface with an address. `speed_mbps` is 0 when the driver does not say."""

    name: str
    address: str
    speed_mbps: int = 0
    mtu: int = 0


class RdmaCard(Struct, frozen=True):
    """A port of an RDMA device: its state (ACTIVE, …), link layer and rate."""

    name: str
    state: str = ""
    link_layer: str = ""
    rate_gbps: float = 0.0


class MachineFacts(Struct, frozen=True):
    """One machine, as the agent that ran on it reports. Every value is a fact of its own: any may be missing.

    `versions` maps python (with patch), ray, torch, torch_cuda, torch_nccl, vllm, sglang, transformers, tensordict,
    numpy, rlcheck, driver, cuda_driver, kernel, os to versions; what is not installed is left out. `environ` are the
    allow-listed variables of the process that the agent ran in. `clock_offset_s` is this machine's clock minus the
    asking machine's, `clock_error_s` how wrong that may be (half the round trip).
    """

    hostname: str
    boot_id: str = ""
    versions: dict[str, str] = {}
    environ: dict[str, str] = {}
    gpus: Fact[tuple[Gpu, ...]] = Fact()
    cards: tuple[Card, ...] = ()
    rdma: tuple[RdmaCard, ...] = ()
    memory_total_bytes: int = 0
    memory_available_bytes: int = 0
    cpus_online: int = 0
    cpus_allowed: int = 0
    shm: Fact[Disk] = Fact()
    tmp: Fact[Disk] = Fact()
    memlock_bytes: int = 0
    nofile: int = 0
    clock_offset_s: Fact[float] = Fact()
    clock_error_s: float = 0.0
    python_path: str = ""


class Registered(Struct, frozen=True):
    """What Ray has on record for a node: `resources` in total, and where it keeps its objects."""

    resources: dict[str, float] = {}
    object_store_bytes: int = 0


class Member(Struct, frozen=True):
    """One machine of the cluster.

    `name` is what the user knows it by (host as given, or Ray's host name; made unique by its address). `machine` is
    missing when no agent answered, with the reason. `contacts` are the connections it made to the others, `peer`
    giving the member's name in the same order. `seconds` is how long its agent took.
    """

    name: str
    address: str
    node_id: str = ""
    is_head: bool = False
    alive: bool = True
    registered: Registered | None = None
    machine: Fact[MachineFacts] = Fact()
    contacts: tuple[Contact, ...] = ()
    peers: tuple[str, ...] = ()
    seconds: float = -1.0


class ClusterFacts(Struct, frozen=True):
    """The cluster. `via` is ray, ssh or srun: how the agents were started. `members` in a stable order."""

    via: str
    members: tuple[Member, ...] = ()
    seconds: float = -1.0
