"""What real collectives over real links did: who took part, how far each step came, how fast it was."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct


class Rank(Struct, frozen=True):
    """One process of the measurement. `node` is the machine's name, `device` cpu or the GPU's model.

    `uuid` and `pci` are the GPU's, "" on CPU. `versions`: python, torch, nccl, cuda, driver.
    """

    rank: int
    node: str
    local_rank: int
    device: str = "cpu"
    uuid: str = ""
    pci: str = ""
    pid: int = 0
    versions: dict[str, str] = {}


class Sample(Struct, frozen=True):
    """One collective at one size.

    `num_bytes` is the size as nccl-tests counts it (all-gather and reduce-scatter: the whole, gathered buffer).
    `seconds` is the median time of one call; `busbw` = bus bandwidth in bytes/s by nccl-tests' definition.
    """

    collective: str
    num_bytes: int
    seconds: float
    algbw: float
    busbw: float
    num_calls: int = 1


class Work(Struct, frozen=True):
    """What one rank's device computes, `kind` product or attention: seconds of a call beside one other rank, then
    beside another (the best batch of each)."""

    rank: int
    kind: str
    seconds: tuple[float, ...] = ()


class Wrong(Struct, frozen=True):
    """A collective with a wrong result: at `rank`, first wrong element, what was there and what should have.

    `suspects` are the ranks whose contribution would explain it (decoded from values that differ by rank).
    """

    collective: str
    dtype: str
    rank: int
    index: int
    found: str
    expected: str
    suspects: tuple[int, ...] = ()


class Stall(Struct, frozen=True):
    """A step that did not end in its deadline.

    `step` names it (init, first all_reduce, all_reduce 1 MiB, …). `arrived` are the ranks that entered it, `finished`
    those that left it, `silent` those that never entered, `died` those whose process ended (rank to how). `last_lines`
    are the last NCCL_DEBUG lines (or stderr lines) of silent and dead ranks, by rank. A rank that entered and then
    answers nothing any more is silent, too. `waiting` is what the others were doing, by rank.
    """

    step: str
    deadline_s: float
    arrived: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    silent: tuple[int, ...] = ()
    died: dict[str, str] = {}
    last_lines: dict[str, tuple[str, ...]] = {}
    waiting: dict[str, str] = {}


class Transport(Struct, frozen=True):
    """What NCCL says it used, read from its own log of one group of ranks.

    `network` is IB, Socket, OFI, … ; `links` counts the channels' connections by kind (P2P/CUMEM, P2P/IPC, SHM,
    NET/IB/GDRDMA, NET/IB, NET/Socket, …); `nics` are the devices it chose, `interface` the bootstrap interface.
    `rings` and `trees` are the numbers of channels, `nvls` whether NVLink SHARP was in use. `rank_nics` and
    `rank_interfaces` map a rank to the network devices that its channels went through and to its bootstrap interface.
    """

    library: str = ""
    network: str = ""
    links: dict[str, int] = {}
    nics: tuple[str, ...] = ()
    interface: str = ""
    rings: int = 0
    trees: int = 0
    nvls: bool = False
    gdr: bool = False
    plugin: str = ""
    warnings: tuple[str, ...] = ()
    rank_nics: dict[str, tuple[str, ...]] = {}
    rank_interfaces: dict[str, str] = {}


class GroupRun(Struct, frozen=True):
    """One measured group. `phase` is node (within one machine), pair (two machines) or all.

    `round` numbers the pairing rounds (-1: not a pair; suspects are re-paired in the last). `nodes` and `ranks` took
    part. `init_s` covers the group's initialisation and its first collective. `skipped` is what the backend lacks, and
    sizes that would have taken too long, a line each. `seconds` is the whole.
    """

    phase: str
    nodes: tuple[str, ...]
    ranks: tuple[int, ...]
    round: int = -1
    init_s: Fact[float] = Fact()
    samples: tuple[Sample, ...] = ()
    work: tuple[Work, ...] = ()
    dtypes_checked: tuple[str, ...] = ()
    skipped: tuple[str, ...] = ()
    wrong: tuple[Wrong, ...] = ()
    stall: Stall | None = None
    error: str = ""
    transport: Fact[Transport] = Fact()
    slowest_rank: int = -1
    seconds: float = -1.0


class RasFacts(Struct, frozen=True):
    """What NCCL's RAS said. `text` is its status report, cut; `problems` the lines that name one."""

    version: str = ""
    text: str = ""
    problems: tuple[str, ...] = ()


class CollectiveFacts(Struct, frozen=True):
    """The measurement as a whole.

    `launcher` is local, ray, torchrun or srun; `backend` nccl, rccl or gloo. `settings` are the NCCL_/GLOO_/TORCH_NCCL_
    variables in force on each node (node to variables). `cancelled` is why phases were left out.
    """

    launcher: str
    backend: str
    ranks: tuple[Rank, ...] = ()
    lost: dict[str, str] = {}
    quick: bool = False
    settings: dict[str, dict[str, str]] = {}
    groups: tuple[GroupRun, ...] = ()
    ras: Fact[RasFacts] = Fact()
    cancelled: str = ""
    seconds: float = -1.0


def devices_of(run: CollectiveFacts, group: GroupRun) -> str:
    """Return `8 × NVIDIA H200`: the devices of the ranks in GROUP."""
    kinds = sorted({rank.device for rank in run.ranks if rank.rank in group.ranks})
    return f"{len(group.ranks)} × {' or '.join(kinds) or 'unknown'}"
