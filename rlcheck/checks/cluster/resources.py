"""What the nodes have: GPUs alike, registered in Ray as they are, and not in use already."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.cluster.nodes import alive, by_name, differing, gib, machines, minority, names, threshold
from rlcheck.facts.base import MissingKind, why_missing
from rlcheck.facts.cluster import Gpu, MachineFacts
from rlcheck.facts.document import Facts


def _gpus(facts: Facts) -> dict[str, tuple[Gpu, ...]]:
    """The GPUs that are physically there, of each machine that could look; none is (), too."""
    found: dict[str, tuple[Gpu, ...]] = {}
    for node, machine in machines(facts).items():
        reason = why_missing(machine.gpus)
        if machine.gpus.value is not None:
            found[node] = machine.gpus.value
        elif reason is not None and reason.kind is MissingKind.ABSENT:
            found[node] = ()
    return found


def _registered(facts: Facts, name: str) -> dict[str, float]:
    """What Ray has on record of one resource, for each node that it has on record."""
    return {m.name: m.registered.resources.get(name, 0.0) for m in alive(facts) if m.registered is not None}


@check("RAY051", "The nodes' GPUs are alike", needs=("cluster",), playbook="gpus-differ-across-nodes",
       problem="The nodes have different GPUs")  # fmt: skip
def gpus_alike(facts: Facts) -> Verdict:
    """Compares number and model of the GPUs over the nodes that have any.

    What it does:
        Counts what is physically there. A head without GPUs is usual; a node that has a driver and no GPU, or whose
        GPUs could not be listed, is not.

    Why it matters:
        A run that wants eight GPUs a node does not start where one has fallen off the bus, and one that spans two
        models goes at the speed of the slower and has the memory of the smaller.
    """
    found = _gpus(facts)
    blind = {node: reason.reason for node, machine in machines(facts).items()
             if node not in found and (reason := why_missing(machine.gpus)) is not None}  # fmt: skip
    lost = [node for node, gpus in found.items() if not gpus and "driver" in machines(facts)[node].versions]
    with_gpus = {node: gpus for node, gpus in found.items() if gpus}
    if not with_gpus and not blind and not lost:
        return skip("no node has a GPU")
    counts = {node: f"{len(gpus)} GPUs" for node, gpus in with_gpus.items()} | dict.fromkeys(lost, "0 GPUs")
    models = {node: " and ".join(sorted({gpu.name for gpu in gpus})) for node, gpus in with_gpus.items()}
    problems = [text for values in (counts, models) if (text := differing(values))]
    if not with_gpus and lost:
        problems.append(f"a driver and no GPU on {names(lost)}")
    problems += [f"{node}: GPUs could not be listed ({reason})" for node, reason in list(blind.items())[:4]]
    if problems:
        odd = [*minority(counts), *minority(models), *lost, *blind] or list(with_gpus)
        return warn(
            "the same number and model of GPUs on every node that has any",
            "; ".join(problems),
            evidence=tuple(
                evidence(f"cluster.members[{node}].machine.gpus", counts.get(node, "?")) for node in odd[:8]
            ),
            params={"node": odd[0]},
        )
    node, gpus = next(iter(with_gpus.items()))
    return passed(f"{len(with_gpus)} nodes with {counts[node].split()[0]} × {gpus[0].name or 'GPU'} each")


@check("RAY052", "Ray hands out the GPUs that are there", needs=("cluster",), playbook="ray-gpus-registered",
       caused_by=("RAY051",))  # fmt: skip
def gpus_registered(facts: Facts) -> Verdict:
    """Compares the GPUs that each node registered in Ray with those that are physically there.

    What it does:
        More than there are comes from `--num-gpus` given by hand, or from a GPU that was lost since. Fewer come from a
        CUDA_VISIBLE_DEVICES that was set when `ray start` ran, which a later change does not fix.

    Why it matters:
        A task with a GPU that is not there stops with "invalid device ordinal" or runs on the CPU; GPUs that Ray does
        not know stay idle while placement groups wait for them.
    """
    there, registered = _gpus(facts), _registered(facts, "GPU")
    both = {node: (int(registered[node]), len(there[node])) for node in there if node in registered}
    if not both:
        return skip("nothing is registered in Ray")
    more = [node for node, (asked, real) in both.items() if asked > real]
    fewer = [node for node, (asked, real) in both.items() if asked < real]
    proof = tuple(
        evidence(f"cluster.members[{node}].registered.resources[GPU]", f"{both[node][0]} of {both[node][1]}", "Ray")
        for node in [*more, *fewer][:8]
    )
    if more:
        text = "; ".join(f"{node} has {both[node][1]} and registered {both[node][0]}" for node in more[:6])
        return fail("at most as many GPUs in Ray as there are", text, evidence=proof, params={"node": more[0]})
    if not fewer:
        return passed(f"{sum(asked for asked, _ in both.values())} GPUs, as many as there are")
    text = "; ".join(f"{node} registered {both[node][0]} of {both[node][1]}" for node in fewer[:6])
    heads = {member.name for member in alive(facts) if member.is_head}
    deliberate = {both[node] for node in both if both[node][1]} == {both[fewer[0]]}
    if deliberate or all(node in heads and both[node][0] == 0 for node in fewer):
        return info(f"Ray was not given all GPUs: {text}", evidence=proof)
    return warn("all GPUs of each node in Ray", text, evidence=proof, params={"node": fewer[0]})


@check("RAY053", "Ray counts the CPUs that its nodes may use", needs=("cluster",), playbook="cpus-fewer-than-seen",
       problem="Ray counts more CPUs than a node may use")  # fmt: skip
def cpus_registered(facts: Facts) -> Verdict:
    """Compares the CPUs that each node registered in Ray with those that its processes may run on.

    What it does:
        Ray counts the processors of the machine; a Slurm step, taskset or a CPU set allows fewer. Reports nodes that
        registered more than the affinity mask of their agent holds, and workers that registered none.

    Why it matters:
        Ray starts a worker for each CPU that it believes in. On a few real ones they do not come up in time, and the
        node says "Unable to register worker with raylet".
    """
    registered = _registered(facts, "CPU")
    both = {
        node: (int(registered[node]), machine.cpus_allowed)
        for node, machine in machines(facts).items()
        if node in registered and machine.cpus_allowed > 0
    }
    if not both:
        return skip("nothing is registered in Ray")
    odd = [node for node, (asked, allowed) in both.items() if asked > allowed]
    none = [member.name for member in alive(facts) if both.get(member.name, (1, 1))[0] == 0 and not member.is_head]
    if not odd and none:
        return warn(
            "CPUs in Ray on every node but the head",
            f"{names(none)} registered 0 CPUs (--num-cpus=0): no task that asks for one is ever placed there",
            headline="A worker has no CPUs in Ray",
            evidence=tuple(
                evidence(f"cluster.members[{node}].registered.resources[CPU]", 0, "Ray") for node in none[:8]
            ),
            params={"node": none[0], "num_cpus": str(both[none[0]][1])},
        )
    if not odd:
        return passed("no node registered more CPUs than it may use")
    return warn(
        "at most as many CPUs in Ray as each node may use",
        "; ".join(f"{node} registered {both[node][0]} and may use {both[node][1]}" for node in odd[:6]),
        evidence=tuple(evidence(f"cluster.members[{node}].machine.cpus_allowed", both[node][1], "sched_getaffinity")
                       for node in odd[:8]),
        params={"node": odd[0], "num_cpus": str(both[odd[0]][1])},
    )  # fmt: skip


@check("RAY054", "Ray's object stores fit into /dev/shm", needs=("cluster",), playbook="ray-object-store-shm")
def object_store(facts: Facts) -> Verdict:
    """Compares the object store of each node with its /dev/shm, and the nodes with each other.

    What it does:
        Warns when the store that Ray registered is larger than /dev/shm, or when /dev/shm is below 1 GiB (a container
        without --shm-size has 64 MB).

    Why it matters:
        Ray then keeps objects in files below /tmp, which it says once at start and which is many times slower; NCCL,
        which needs /dev/shm as well, stops.
    """
    rooms = {node: machine.shm.value for node, machine in machines(facts).items() if machine.shm.value is not None}
    if not rooms:
        return skip("no node told the size of its /dev/shm")
    members, odd = by_name(facts), dict[str, str]()
    for node, room in rooms.items():
        registered = members[node].registered
        store = registered.object_store_bytes if registered is not None else 0
        if store > room.total_bytes:
            odd[node] = f"{node} has {gib(room.total_bytes)} for a store of {gib(store)}"
        elif room.total_bytes < threshold("shm_small_bytes"):
            odd[node] = f"{node} has {gib(room.total_bytes)}"
    if not odd:
        return passed(f"at least {gib(min(room.total_bytes for room in rooms.values()))} on {len(rooms)} nodes")
    return warn(
        "a /dev/shm of 1 GiB or more that holds the object store",
        "; ".join(list(odd.values())[:6]) + (f"; and {len(odd) - 6} more nodes" if len(odd) > 6 else ""),
        evidence=tuple(evidence(f"cluster.members[{node}].machine.shm.total_bytes", rooms[node].total_bytes, "statvfs")
                       for node in list(odd)[:8]),
        params={"node": next(iter(odd))},
    )  # fmt: skip


@check("RAY055", "Every node has room in memory and temporary files", needs=("cluster",), playbook="ray-disk-full",
       problem="A node is short of temporary space or memory")  # fmt: skip
def room(facts: Facts) -> Verdict:
    """Looks for nodes whose temporary directory or memory is nearly full.

    What it does:
        Warns below 10 GiB free for temporary files, and when less than 5 % of the memory is available: at 95 % in use
        Ray's memory monitor starts to kill workers.

    Why it matters:
        One full node ends the run of all: spilled objects, logs and checkpoints in the making have no place, or its
        workers are killed for memory as soon as they start.
    """
    found = machines(facts)
    if not found:
        return skip("no node answered")
    odd = {node: text for node, machine in found.items() if (text := _shortage(machine))}
    if not odd:
        return passed(f"{len(found)} nodes have room")
    return warn(
        "10 GiB for temporary files and 5 % of the memory free on every node",
        "; ".join(f"{node}: {text}" for node, text in list(odd.items())[:6]),
        evidence=tuple(evidence(f"cluster.members[{node}].machine", text) for node, text in list(odd.items())[:8]),
        params={"node": next(iter(odd))},
    )


def _shortage(machine: MachineFacts) -> str:
    tmp, parts = machine.tmp.value, list[str]()
    if tmp is not None and tmp.free_bytes < threshold("tmp_free_bytes"):
        parts.append(f"{gib(tmp.free_bytes)} free in {tmp.path}")
    total = machine.memory_total_bytes
    if total and machine.memory_available_bytes < threshold("memory_free_share") * total:
        parts.append(f"{gib(machine.memory_available_bytes)} of {gib(total)} memory available")
    return ", ".join(parts)


@check("RAY056", "No node's GPU memory is in use", needs=("cluster",), playbook="gpu-memory-in-use",
       problem="GPU memory is in use on some of the nodes")  # fmt: skip
def gpu_memory(facts: Facts) -> Verdict:
    """Looks for GPU memory that programs hold on some of the nodes.

    What it does:
        Less than 1 GiB, or 3 %, is taken for driver contexts. When every GPU of the cluster is in use a run is going
        on, which is noted and nothing more.

    Why it matters:
        Rollout engines claim a share of the total memory and stop when it is not there, so one left-over process on
        one node ends the start of all.
    """
    found = {node: gpus for node, gpus in _gpus(facts).items() if gpus}
    if not found:
        return skip("no node has a GPU")
    busy = {node: [gpu for gpu in gpus if _in_use(gpu)] for node, gpus in found.items()}
    busy = {node: gpus for node, gpus in busy.items() if gpus}
    if not busy:
        return passed(f"free on all {len(found)} nodes with GPUs")
    if len(found) > 1 and all(len(busy.get(node, [])) == len(gpus) for node, gpus in found.items()):
        return info(f"all GPUs of all {len(found)} nodes have memory in use: a run is going on")
    texts = [f"{node}: {len(gpus)} of {len(found[node])} GPUs, up to {gib(max(gpu.used_bytes for gpu in gpus))}"
             for node, gpus in busy.items()]  # fmt: skip
    return warn(
        "GPUs without other programs' memory on every node",
        "; ".join(texts[:6]) + (f"; and {len(texts) - 6} more nodes" if len(texts) > 6 else ""),
        evidence=tuple(evidence(f"cluster.members[{node}].machine.gpus", text) for node, text in
                       zip(list(busy)[:8], texts, strict=False)),
        params={"node": next(iter(busy))},
    )  # fmt: skip


def _in_use(gpu: Gpu) -> bool:
    return gpu.used_bytes > max(threshold("gpu_used_bytes"), threshold("gpu_used_share") * gpu.memory_bytes)
