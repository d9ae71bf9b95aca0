"""What the head says of the cluster: versions, nodes, addresses, what waits to be placed, whether a run would fit."""

from __future__ import annotations

from collections import Counter
from ipaddress import ip_address, ip_network

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.cluster.common import ray, variable
from rlcheck.checks.cluster.placement import num_fitting, shown, total, why_infeasible
from rlcheck.checks.cluster.reach import place, reach, shown_owner
from rlcheck.facts.base import Fact, FactMissingError, Missing, MissingKind, T, need
from rlcheck.facts.document import Facts
from rlcheck.facts.reach import Contact, GcsNode, PendingGroup

_RECENT_S = 3600.0
_SETTLING_S = 30.0
# Networks that exist inside of one machine by default. Docker's is in its daemon's defaults, Podman's and libvirt's in
# their default network files.
_INNER_NETWORKS = (
    (ip_network("172.17.0.0/16"), "Docker's default bridge"),
    (ip_network("10.88.0.0/16"), "Podman's default bridge"),
    (ip_network("192.168.122.0/24"), "libvirt's default network"),
)
_NO_FAULT = ("expected termination", "idle", "preempted")


def _told(facts: Facts, found: Fact[T]) -> T:
    """What the GCS told, or a skip when it wants a token first: that is a finding of its own.

    Raises:
        FactMissingError: it told nothing.
    """
    if found.value is None and need(reach(facts).gcs).needs_token:
        raise FactMissingError(Missing(kind=MissingKind.ABSENT, reason="the head asks for a token first"))
    return need(found)


def living(facts: Facts) -> list[GcsNode]:
    """The nodes that the GCS takes for alive."""
    return [node for node in _told(facts, need(reach(facts).gcs).nodes) if node.alive]


def shown_node(node: GcsNode) -> str:
    """A node for a reader."""
    return f"{node.hostname} ({node.address})" if node.hostname else node.address


@check("RAY038", "Ray and Python here are those of the cluster", needs=("reach.gcs",), playbook="ray-versions-differ",
       caused_by=("RAY037",),
       problem="Ray or Python here is not that of the cluster")  # fmt: skip
def head_versions(facts: Facts) -> Verdict:
    """Compares Ray and Python of the examined environment with those that the head was started with.

    What it does:
        Ray must be the same, Python down to the patch version, as Ray itself compares them;
        RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL=minor lets the patch version differ.

    Why it matters:
        `ray start` and ray.init stop with "Version mismatch: The cluster was started with …". Where the check was
        switched off, functions that were pickled by one Python fail in the other, some of them only now and then.
    """
    section, gcs = reach(facts), need(reach(facts).gcs)
    if not section.own_ray_version:
        return skip("Ray is not installed in the examined environment")
    theirs_ray, theirs_python = _told(facts, gcs.ray_version), gcs.python_version.value or ""
    mine = (section.own_ray_version, section.own_python_version)
    proof = {"evidence": (evidence("reach.gcs.ray_version", f"{theirs_ray}, Python {theirs_python}", "GCS"),)}
    pair = f"Ray {theirs_ray} and Python {theirs_python}" if theirs_python else f"Ray {theirs_ray}"
    same_ray, same_python = mine[0] == theirs_ray, not theirs_python or mine[1] == theirs_python
    if same_ray and same_python:
        return passed(f"{pair}, as in the cluster")
    only_patch = same_ray and mine[1].rpartition(".")[0] == theirs_python.rpartition(".")[0]
    if only_patch and (variable(facts, "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL") or "").lower() == "minor":
        return info(f"Python is {mine[1]} here and {theirs_python} in the cluster, which was allowed", **proof)
    wrong = [name for name, same in ((f"Ray {mine[0]}", same_ray), (f"Python {mine[1]}", same_python)) if not same]
    params = {} if same_ray else {"ray_version": theirs_ray}
    params |= {} if same_python else {"python_version": theirs_python}
    return fail(f"{pair}, as in the cluster", " and ".join(wrong), params=params, **proof)


@check("RAY039", "The head's port is bound as a cluster needs it", needs=("reach.route",), playbook="ray-head-binding",
       caused_by=("RAY035",),
       problem="The head's port is open to too few or to too many")  # fmt: skip
def head_binding(facts: Facts) -> Verdict:
    """Looks, on the head itself, who holds the port and for whom it is open.

    What it does:
        Names the process, its pid and its user. Warns when the port is bound to loopback only, and when a GCS that
        asks for no token is open on a machine with a public address. Skipped on other machines than the head.

    Why it matters:
        A port that is bound to loopback is reached by no other node. A GCS that is open to the internet lets anybody
        run any program as you.
    """
    section = reach(facts)
    if not need(section.route).is_local:
        return skip("the head is another machine")
    if not section.owners:
        return skip("no listener can be seen here")
    port = section.port
    proof = {"evidence": tuple(evidence("reach.owners", f"{o.address}:{port}", shown_owner(o)) for o in section.owners)}
    who = shown_owner(section.owners[0])
    if all(_is_loopback(owner.address) for owner in section.owners):
        return warn(f"port {port} on an address that other nodes reach", f"{who} on loopback only", **proof)
    gcs, public = section.gcs.value, _public_address(facts)
    if gcs is not None and not gcs.asks_for_token and public:
        found = f"{who} open on {public}:{port} without one"
        return warn("a GCS on a public address that asks for a token", found, **proof)
    return passed(f"{who} holds it on {', '.join(dict.fromkeys(owner.address for owner in section.owners))}")


def _is_loopback(address: str) -> bool:
    return address.startswith("127.") or address == "::1"


def _public_address(facts: Facts) -> str:
    if facts.ray.value is None:
        return ""
    return next((text for text in ray(facts).addresses if _is_public(text)), "")


def _is_public(text: str) -> bool:
    try:
        return ip_address(text).is_global
    except ValueError:
        return False


@check("RAY040", "No node was lost recently", needs=("reach.gcs",), playbook="ray-dead-nodes", caused_by=("RAY037",))
def dead_nodes(facts: Facts) -> Verdict:
    """Looks for nodes that the GCS declared dead within the last hour.

    What it does:
        Lists nodes that ended without having been stopped and whose address has no living node since, with the reason
        that the GCS gives. Nodes that were stopped, or removed by the autoscaler, are as they should be.

    Why it matters:
        A run that expects them waits for resources that never come. A raylet that answers no health checks for half a
        minute is declared dead, too, even when its machine is merely overloaded.
    """
    nodes = _told(facts, need(reach(facts).gcs).nodes)
    back = {node.address for node in nodes if node.alive}
    lost = [n for n in nodes if not n.alive and 0 <= n.end_age_s < _RECENT_S and not _is_no_fault(n)]
    latest = {node.address: node for node in sorted(lost, key=lambda n: -n.end_age_s)}  # one may be lost many times
    gone = [node for node in latest.values() if node.address not in back]
    num_alive = sum(node.alive for node in nodes)
    if not gone:
        note = f"; {len(lost)} came back after having been lost" if lost else ""
        return passed(f"{num_alive} nodes are alive{note}")
    return warn(
        "every node that joined alive",
        f"{len(gone)} lost within the last hour: {', '.join(shown_node(node) for node in gone[:3])}",
        details=tuple(
            f"{shown_node(n)}, {n.end_age_s / 60:.0f} min ago: {n.death_reason or 'no reason given'}" for n in gone[:8]
        ),
        evidence=(evidence("reach.gcs.nodes", f"{num_alive} alive, {len(gone)} lost", "GetAllNodeInfo"),),
        nodes=tuple(node.hostname or node.address for node in gone),
    )


def _is_no_fault(node: GcsNode) -> bool:
    return node.death_reason.startswith(_NO_FAULT)


@check("RAY041", "Every node is reachable at the address that it advertises", needs=("reach.gcs", "reach.node_ports"),
       playbook="ray-advertised-address", caused_by=("RAY037",))  # fmt: skip
def advertised_addresses(facts: Facts) -> Verdict:
    """Connects to the raylet and the object manager of every node, at the addresses that the GCS hands out.

    What it does:
        Reports nodes whose ports do not answer from here, nodes that advertise loopback, and nodes that advertise a
        network which exists inside of one machine only (Docker's 172.17.0.0/16) while others do not.

    Why it matters:
        Ray's nodes talk to each other directly, at these addresses and not by way of the head. A node that advertises
        an address that others cannot reach joins, looks alive, and hangs the first task or object that crosses.
    """
    nodes, contacts = living(facts), need(reach(facts).node_ports)
    bad = {shown_node(node): fault for node in nodes if (fault := _fault(node, nodes, contacts))}
    if bad:
        name, fault = next(iter(bad.items()))
        more = f", and {len(bad) - 1} more" if len(bad) > 1 else ""
        return fail(
            "every node reachable at the address that it advertises",
            f"{name} {fault}{more}",
            details=tuple(f"{name} {fault}" for name, fault in bad.items()) if len(bad) > 1 else (),
            evidence=tuple(evidence("reach.node_ports", f"{c.address}:{c.port} {c.outcome}", c.detail)
                           for c in contacts if c.outcome != "open")[:8],
        )  # fmt: skip
    closed = [contact for contact in contacts if contact.outcome != "open" and contact.what == "agent"]
    if closed:
        where = f"{closed[0].address}:{closed[0].port} {closed[0].outcome}"
        return info(f"{len(closed)} dashboard agents do not answer ({where}): no logs and jobs from these nodes")
    return passed(f"raylet and object manager of {len(nodes)} nodes answer")


def _fault(node: GcsNode, nodes: list[GcsNode], contacts: tuple[Contact, ...]) -> str:
    """What is wrong with the address of a node, or ""."""
    if _is_loopback(node.address) and len(nodes) > 1:
        return "advertises loopback, which every other node takes for itself"
    inner = _inner_network(node.address)
    alone = inner and any(_inner_network(other.address) != inner for other in nodes)
    closed = [
        c
        for c in contacts
        if c.address == node.address
        and c.outcome != "open"
        and c.port in (node.node_manager_port, node.object_manager_port)
    ]
    if alone or (inner and closed):
        return f"advertises an address of {inner}, which exists inside of its machine only"
    if not closed:
        return ""
    first = closed[0]
    return f"does not answer: {' and '.join(c.what.replace('_', ' ') for c in closed)} {first.outcome} ({first.detail})"


def _inner_network(address: str) -> str:
    try:
        found = ip_address(address)
    except ValueError:
        return ""
    return next((words for network, words in _INNER_NETWORKS if found in network), "")


@check("RAY068", "Every machine is in the cluster once", needs=("reach.gcs",), playbook="ray-node-twice",
       caused_by=("RAY037",))  # fmt: skip
def joined_once(facts: Facts) -> Verdict:
    """Looks for living nodes that have one address.

    What it does:
        Counts the nodes that the GCS has alive at each address.

    Why it matters:
        Each of them offers all GPUs, CPUs and memory of the machine. Ray places two ranks on one GPU, and `--nodes`
        counts machines that do not exist.
    """
    nodes = living(facts)
    places = Counter(node.address for node in nodes)
    twice = {address: count for address, count in places.items() if count > 1}
    if not twice:
        return passed(f"{len(nodes)} nodes at {len(places)} addresses")
    first = next(node for node in nodes if node.address in twice)
    return warn(
        f"as many nodes as machines ({len(places)})",
        f"{len(nodes)} nodes: {shown_node(first)} joined {twice[first.address]} times",
        evidence=tuple(evidence("reach.gcs.nodes", f"{address}: {n} nodes", "GetAllNodeInfo")
                       for address, n in list(twice.items())[:8]),
        params={"address": first.address, "head": place(facts)},
    )  # fmt: skip


@check("RAY042", "No placement group waits for room", needs=("reach.gcs",), playbook="ray-placement-pending",
       caused_by=("RAY037",),
       problem="A placement group waits for room")  # fmt: skip
def pending_groups(facts: Facts) -> Verdict:
    """Looks at placement groups that wait, and whether they can ever be placed.

    What it does:
        Compares the bundles of each with what the nodes have: the largest bundle with the largest node, the sum with a
        single node for STRICT_PACK, their number with the number of nodes for STRICT_SPREAD, the sum with the cluster.

    Why it matters:
        Ray waits forever for a group that does not fit, without an error: the run hangs before its first step.
    """
    groups, nodes = _told(facts, need(reach(facts).gcs).pending_groups), living(facts)
    if not groups:
        return passed("no placement group waits")
    reasons = [(group, why_infeasible(group, nodes)) for group in groups]
    never = [(group, reason) for group, reason in reasons if reason]
    proof = {"evidence": (evidence("reach.gcs.pending_groups", len(groups), "GetAllPlacementGroup"),)}
    if never:
        return fail(
            "placement groups that fit into the cluster",
            f"{len(never)} that never can: {_named(never[0][0])}{never[0][1]}",
            details=tuple(f"{_named(group)}{reason}" for group, reason in never[:8]) if len(never) > 1 else (),
            **proof,
        )
    late = [group for group, _ in reasons if group.age_s < 0 or group.age_s > _SETTLING_S]
    if not late:
        return info(f"{len(groups)} placement groups are being placed", **proof)
    oldest = max(late, key=lambda group: group.age_s)
    wants = shown(total(oldest.bundles))
    since = f" for {oldest.age_s / 60:.0f} min" if oldest.age_s > 0 else ""
    found = f"{len(late)} waiting: {_named(oldest)}{wants}{since}, which other jobs hold"
    return warn("placement groups that find room at once", found, **proof)


def _named(group: PendingGroup) -> str:
    return f"{group.name or group.group_id[:8]}: "


@check("RAY043", "The wanted run fits into the cluster", needs=("reach.gcs",), playbook="ray-run-does-not-fit",
       caused_by=("RAY037",),
       problem="The wanted run does not fit into the cluster")  # fmt: skip
def run_fits(facts: Facts) -> Verdict:
    """Compares `--nodes` and `--gpus-per-node` with the nodes of the cluster.

    What it does:
        Counts the living nodes that have so many GPUs registered, and those that have them free now.

    Why it matters:
        Trainers ask for all GPUs of a node in one placement group. When one node is missing, or one of its GPUs is
        taken, the run waits without an error.
    """
    wanted = reach(facts).wanted
    if not wanted.nodes and not wanted.gpus_per_node:
        return skip("no run was described (--nodes, --gpus-per-node)")
    nodes, num_nodes = living(facts), max(1, wanted.nodes)
    demand = {"GPU": float(wanted.gpus_per_node)} if wanted.gpus_per_node else {}
    have = num_fitting(demand, [node.resources for node in nodes])
    each = f" with {wanted.gpus_per_node} GPUs" if demand else ""
    expected = f"{num_nodes} nodes{each}"
    gpus = ", ".join(f"{shown_node(node)} {node.resources.get('GPU', 0.0):g}" for node in nodes[:8])
    proof = {"evidence": (evidence("reach.gcs.nodes", f"GPUs: {gpus}", "GetAllNodeInfo"),)}
    if have < num_nodes:
        details = (f"GPUs registered: {gpus}",) if demand else ()
        return fail(expected, f"{have} of {len(nodes)} nodes{each and ' with so many'}", details=details, **proof)
    known = any(node.available for node in nodes)
    free = num_fitting(demand, [node.available for node in nodes]) if known else have
    if free < num_nodes:
        taken = ", ".join(
            f"{shown_node(n)} {n.available.get('GPU', 0.0):g} of {n.resources.get('GPU', 0.0):g}" for n in nodes[:8]
        )
        return warn(f"{expected} free", f"{free}; other jobs hold the rest", details=(f"GPUs free: {taken}",), **proof)
    return passed(f"{have} nodes{each}, {free} of them free")


@check("RAY044", "Dashboard and Ray Client answer at their ports", needs=("reach",),
       playbook="ray-head-extras", caused_by=("RAY034",))  # fmt: skip
def head_extras(facts: Facts) -> Verdict:
    """Connects to the dashboard (8265) and to the Ray Client's port (10001), when the user says that they matter.

    What it does:
        One connection each. Neither is needed for training on the nodes of the cluster.

    Why it matters:
        The dashboard listens on the head's loopback only unless --dashboard-host says otherwise, and the client's
        server runs only where its packages are installed: both are refused on a healthy cluster.
    """
    extras = reach(facts).extras
    if not extras:
        return skip("neither was asked for")
    by_name = {what: [c for c in extras if c.what == what] for what in dict.fromkeys(c.what for c in extras)}
    closed = {what: tried[0] for what, tried in by_name.items() if all(c.outcome != "open" for c in tried)}
    if not closed:
        return passed(f"{' and '.join(by_name)} answer")
    params = (
        {"head": reach(facts).head, "dashboard_port": str(closed["dashboard"].port)} if "dashboard" in closed else {}
    )
    return warn(
        f"{' and '.join(closed)} on {reach(facts).head}",
        ", ".join(f"{what} {c.outcome} on port {c.port}" for what, c in closed.items()),
        params=params,
        evidence=tuple(evidence("reach.extras", f"{c.address}:{c.port}", c.detail) for c in closed.values()),
    )
