"""Which process runs where: a pure plan, made before anything starts, that can be printed.

All training roles (actor, reference, critic, reward model) share one process per rank, and so one device: they work
one after the other (HybridFlow's colocation, arXiv:2409.19256, section 2.3). Rollout engines are processes of their
own: on the same devices with `hybrid_engine`, on devices of their own without. On a CPU a device is a rank's slot,
and there are as many as are asked for; the slots of a node share its cores, engines beside ranks with `hybrid_engine`
false, and in turn with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from rltrain.config.engines import ENGINES
from rltrain.config.schema.run import RunConfig
from rltrain.core.errors import UserError

Kind = Literal["train", "rollout"]


@dataclass(frozen=True)
class Node:
    """One machine of the cluster."""

    name: str
    num_gpus: int
    num_cpus: int
    address: str = "127.0.0.1"
    ray_id: str = ""
    """Ray's id of the node; empty in a plan that is only printed."""


@dataclass(frozen=True)
class Slot:
    """The place of one process."""

    kind: Kind
    rank: int
    """Rank of a training process; index of an engine."""
    hosts: tuple[str, ...]
    """What lives in the process: actor, ref, critic, reward model; or the engine's name."""
    node: Node
    devices: tuple[int, ...]
    """Indices within the node: of GPUs, or of rank slots on a CPU."""
    num_gpus: int
    """GPUs that this process reserves from Ray; 0 on a CPU, and for an engine on the training ranks' devices."""
    shares: tuple[int, ...]
    """Training ranks whose devices an engine uses as well."""
    num_threads: int
    """Threads that torch may use."""

    @property
    def name(self) -> str:
        """Name of the process and of its log."""
        return f"{self.kind}-{self.rank}"


@dataclass(frozen=True)
class Placement:
    """The plan: training ranks in order, then engines in order."""

    device: Literal["cpu", "cuda"]
    train: tuple[Slot, ...]
    rollout: tuple[Slot, ...]

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(role, node, devices, process) for each role of each process: the placement table."""
        label = "GPU" if self.device == "cuda" else "CPU slot"
        return [
            (
                role,
                slot.node.name,
                f"{label} {','.join(map(str, slot.devices))}" if slot.devices else "a server elsewhere",
                slot.name,
            )
            for slot in (*self.train, *self.rollout)
            for role in slot.hosts
        ]


def plan(config: RunConfig, nodes: Sequence[Node]) -> Placement:
    """Place every process of the run on NODES; the earlier nodes are taken first.

    Args:
        config: resolved (no "auto" left in it).
        nodes: what the cluster has, the controller's own node first.

    Raises:
        UserError: too few devices, or a tensor-parallel group that does not fit into a node.
    """
    on_gpu = config.trainer.device == "cuda"
    if _is_elsewhere(config):
        return replace(placed := plan_ranks(config, nodes), rollout=_caller(config, placed.train[0].node))
    ranks = config.trainer.n_gpus_per_node or 1
    apart = 0 if config.actor_rollout_ref.hybrid_engine else _devices_apart(config)
    beside = apart if config.actor_rollout_ref.rollout.nnodes == 0 else 0
    chosen = _choose(nodes, config.trainer.nnodes, ranks + beside if on_gpu else 0, "training", "trainer", beside)
    if not on_gpu:
        return _plan_on_cpus(config, nodes, chosen)
    train = _ranks(config, chosen)
    if config.actor_rollout_ref.hybrid_engine:
        places = [(node, list(range(ranks)), i * ranks) for i, node in enumerate(chosen)]
    elif beside:
        places = [(node, list(range(ranks, ranks + beside)), None) for node in chosen]
    else:
        rest = [node for node in nodes if node not in chosen]
        own = _choose(rest, config.actor_rollout_ref.rollout.nnodes, apart, "rollout", "actor_rollout_ref.rollout")
        places = [(node, list(range(apart)), None) for node in own]
    return Placement("cuda", train, _engines_on_gpus(config, places))


def _plan_on_cpus(config: RunConfig, nodes: Sequence[Node], chosen: Sequence[Node]) -> Placement:
    """Ranks on CHOSEN; engines in slots of the same numbers, in slots beside them, or on nodes of their own."""
    parts, ranks = config.actor_rollout_ref, config.trainer.n_gpus_per_node or 1
    if parts.hybrid_engine:
        return Placement("cpu", _ranks(config, chosen), _engines_on_cpus(config, chosen))
    if parts.rollout.nnodes:
        rest = [node for node in nodes if node not in chosen]
        own = _choose(rest, parts.rollout.nnodes, 0, "rollout", "actor_rollout_ref.rollout")
        return Placement("cpu", _ranks(config, chosen), _engines_on_cpus(config, own))
    engines = _engines_on_cpus(config, chosen, first=ranks)
    beside = max(sum(len(slot.devices) for slot in engines if slot.node is node) for node in chosen)
    return Placement("cpu", _ranks(config, chosen, beside), engines)


def plan_ranks(config: RunConfig, nodes: Sequence[Node]) -> Placement:
    """Place training ranks alone; as `plan`."""
    on_gpu, ranks = config.trainer.device == "cuda", config.trainer.n_gpus_per_node or 1
    chosen = _choose(nodes, config.trainer.nnodes, ranks if on_gpu else 0, "training", "trainer")
    return Placement("cuda" if on_gpu else "cpu", _ranks(config, chosen), ())


def plan_engines(config: RunConfig, nodes: Sequence[Node]) -> tuple[Slot, ...]:
    """Place engines alone, on as many devices as in `plan`; each holds its GPUs, which no rank shares.

    Raises:
        UserError: as `plan`.
    """
    trainer, rollout = config.trainer, config.actor_rollout_ref.rollout
    if _is_elsewhere(config):
        return _caller(config, nodes[0])
    if trainer.device != "cuda":
        return _engines_on_cpus(config, _choose(nodes, trainer.nnodes, 0, "rollout", "trainer"))
    if config.actor_rollout_ref.hybrid_engine:
        count, gpus, section = trainer.nnodes, trainer.n_gpus_per_node or 1, "trainer"
    else:
        count, gpus, section = rollout.nnodes or trainer.nnodes, _devices_apart(config), "actor_rollout_ref.rollout"
    chosen = _choose(nodes, count, gpus, "rollout", section)
    return _engines_on_gpus(config, [(node, list(range(gpus)), None) for node in chosen])


def _ranks(config: RunConfig, chosen: Sequence[Node], beside: int = 0) -> tuple[Slot, ...]:
    """Training ranks on CHOSEN, whose cores they share with BESIDE other slots."""
    on_gpu, ranks = config.trainer.device == "cuda", config.trainer.n_gpus_per_node or 1
    roles = training_roles(config)
    return tuple(
        Slot("train", i * ranks + j, roles, node, (j,), int(on_gpu), (), max(1, node.num_cpus // (ranks + beside)))
        for i, node in enumerate(chosen)
        for j in range(ranks)
    )


def training_roles(config: RunConfig) -> tuple[str, ...]:
    """Roles that live in each training process."""
    wanted = {
        "actor": True,
        "ref": config.needs_reference,
        "critic": bool(config.critic.enable),
        "reward model": config.reward_model.enable,
    }
    return tuple(role for role, is_wanted in wanted.items() if is_wanted)


def nodes_as_asked(config: RunConfig, num_cpus: int) -> list[Node]:
    """Nodes that would just do, for a plan that is only printed."""
    rollout = config.actor_rollout_ref.rollout
    ranks = config.trainer.n_gpus_per_node or 1
    apart = not config.actor_rollout_ref.hybrid_engine and not _is_elsewhere(config)
    beside = rollout.n_gpus_per_node if apart and rollout.nnodes == 0 else 0
    counts = [ranks + beside] * config.trainer.nnodes + [rollout.n_gpus_per_node] * (rollout.nnodes if apart else 0)
    gpus = [count if config.trainer.device == "cuda" else 0 for count in counts]
    return [Node(f"node {i}", count, num_cpus) for i, count in enumerate(gpus)]


def _is_elsewhere(config: RunConfig) -> bool:
    return ENGINES[config.actor_rollout_ref.rollout.name].is_elsewhere


def _caller(config: RunConfig, node: Node) -> tuple[Slot, ...]:
    """The process on NODE that asks a server which is not the run's: it needs no device."""
    return (Slot("rollout", 0, (config.actor_rollout_ref.rollout.name,), node, (), 0, (), 1),)


def _devices_apart(config: RunConfig) -> int:
    count = config.actor_rollout_ref.rollout.n_gpus_per_node
    if count == 0 and config.trainer.device == "cuda":
        raise UserError(
            "actor_rollout_ref.hybrid_engine=false gives rollout its own GPUs, but actor_rollout_ref.rollout"
            ".n_gpus_per_node is 0: set it, or set hybrid_engine=true"
        )
    return count


def _choose(nodes: Sequence[Node], count: int, gpus: int, purpose: str, section: str, others: int = 0) -> list[Node]:
    """The first COUNT of NODES with GPUS each; OTHERS: those among them that are not SECTION's."""
    fit = [node for node in nodes if node.num_gpus >= gpus]
    if len(fit) < count:
        found = ", ".join(f"{node.name}: {node.num_gpus}" for node in nodes) or "no node"
        each = f" with {gpus} GPU{'s' if gpus > 1 else ''} each" if gpus else ""
        raise UserError(
            f"{purpose} wants {count} node{'s' if count > 1 else ''}{each}, found {found}: "
            f"lower {section}.nnodes or {section}.n_gpus_per_node, or add machines to the Ray cluster"
            f"{_nearest(nodes, count, gpus, section, others)}"
        )
    return fit[:count]


def _nearest(nodes: Sequence[Node], count: int, gpus: int, section: str, others: int) -> str:
    """Which other number NODES have room for, as the end of a sentence; empty: none that one key sets."""
    fit = sum(node.num_gpus >= gpus for node in nodes)
    if fit:
        return f"; the nearest that fits is {section}.nnodes={fit}"
    most = sorted((node.num_gpus for node in nodes), reverse=True)[count - 1 : count]
    if most and most[0] > others:
        return f"; the nearest that fits is {section}.n_gpus_per_node={most[0] - others}"
    return ""


def _engines_on_gpus(config: RunConfig, places: Sequence[tuple[Node, list[int], int | None]]) -> tuple[Slot, ...]:
    """Engines over (node, devices, first training rank on them or None when they are rollout's own)."""
    rollout = config.actor_rollout_ref.rollout
    size = rollout.tensor_model_parallel_size
    widest = max(len(devices) for _, devices, _ in places)
    if size > widest:
        raise UserError(
            f"actor_rollout_ref.rollout.tensor_model_parallel_size={size} does not fit into a node: rollout has "
            f"{widest} GPUs per node, and a tensor-parallel group stays inside one; set it to {widest} or less"
        )
    groups = [
        (node, tuple(devices[i : i + size]), None if first is None else first + i)
        for node, devices, first in places
        for i in range(0, len(devices) - size + 1, size)
    ]
    wanted = rollout.num_replicas or len(groups)
    if wanted > len(groups):
        raise UserError(
            f"actor_rollout_ref.rollout.num_replicas={wanted} of {size} GPUs each would overlap: rollout's GPUs hold "
            f"{len(groups)}; set actor_rollout_ref.rollout.num_replicas={len(groups)}, or lower "
            "tensor_model_parallel_size"
        )
    taken = groups[:wanted]
    return tuple(
        Slot(
            "rollout",
            index,
            (rollout.name,),
            node,
            devices,
            num_gpus=size if first is None else 0,
            shares=() if first is None else tuple(range(first, first + size)),
            num_threads=max(1, node.num_cpus // sum(other is node for other, _, _ in taken)),
        )
        for index, (node, devices, first) in enumerate(taken)
    )


def _engines_on_cpus(config: RunConfig, nodes: Sequence[Node], first: int | None = None) -> tuple[Slot, ...]:
    """Engines dealt out over NODES in turn; a slot on a CPU is only a number, so any size fits.

    FIRST: of their slots, where those before are the ranks' and share the cores. None: ranks are elsewhere, or rest.
    """
    rollout = config.actor_rollout_ref.rollout
    size = rollout.tensor_model_parallel_size
    count = rollout.num_replicas or 1
    slots: list[Slot] = []
    for index in range(count):
        node = nodes[index % len(nodes)]
        start = (first or 0) + index // len(nodes) * size
        on_node = len(range(index % len(nodes), count, len(nodes)))
        threads = max(1, node.num_cpus // ((first or 0) + on_node * size))
        slots.append(Slot("rollout", index, (rollout.name,), node, tuple(range(start, start + size)), 0, (), threads))
    return tuple(slots)
