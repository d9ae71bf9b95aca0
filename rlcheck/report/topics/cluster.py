"""A cluster in the report: the way to a Ray head, its machines, and round trips between them."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from rlcheck.facts.cluster import ClusterFacts, MachineFacts, Member
from rlcheck.facts.document import Facts
from rlcheck.facts.reach import Contact, ReachFacts
from rlcheck.finding import Exhibit
from rlcheck.measure.cluster.odd import Edge, contacts_by_edge, round_trips
from rlcheck.report.topics.phrases import joined, why
from rlcheck.report.topics.way import way
from rlcheck.text import rough_gib

MAX_MEMBERS = 12
"""Larger clusters are shown as their odd members and a summary."""
_MAX_ODD = 12
_SIGNS = {"refused": "x", "filtered": ".", "unreachable": "u", "error": "?"}
_SPOKEN = {"silent": "open, and nothing answers", "closes": "open, and hangs up", "tls": "speaks TLS"}


def headline(facts: Facts) -> str:
    """Return the way to the head or the machines that answered, or Ray's version here, in a line."""
    if facts.reach.value is not None:
        return _head(facts.reach.value)
    if facts.cluster.value is not None:
        return _cluster(facts.cluster.value)
    if facts.ray.value is None:
        return why(facts.ray)
    python = facts.python.value
    versions = [d.version for d in python.distributions if d.name == "ray"] if python is not None else []
    return f"Ray {versions[0]}" if versions else "Ray is not installed here"


def _head(reach: ReachFacts) -> str:
    """What serves at the head and how much is behind it, or the layer at which the way ends."""
    place = f"[{reach.head}]:{reach.port}" if ":" in reach.head else f"{reach.head}:{reach.port}"
    gcs = reach.gcs.value
    if gcs is None:
        outcomes = {contact.outcome for contact in reach.tcp.value or ()}
        if outcomes and "open" not in outcomes:
            return f"{place}: {', '.join(sorted(outcomes))}"
        spoken = reach.speaker.value
        if spoken is None or spoken.kind == "gcs":
            return f"{place}: no answer from a GCS"
        return f"{place}: {_SPOKEN.get(spoken.kind, f'{spoken.kind}, not the GCS')}"
    state = "serves" if gcs.health == "serving" else gcs.health or "does not answer"
    state = "asks for a token" if gcs.needs_token else state
    alive = [node for node in gcs.nodes.value or () if node.alive]
    nodes = f"{len(alive)} node{'' if len(alive) == 1 else 's'} alive" if gcs.nodes.value is not None else ""
    gpus = sum(node.resources.get("GPU", 0.0) for node in alive)
    return joined(
        f"{place} {state}",
        nodes,
        f"{gpus:.0f} GPUs" if nodes else "",
        f"Ray {gcs.ray_version.value}" if gcs.ray_version.value else "",
        f"Python {gcs.python_version.value}" if gcs.python_version.value else "",
    )


def _cluster(cluster: ClusterFacts) -> str:
    members = [member for member in cluster.members if member.alive]
    answered = [member.machine.value for member in members if member.machine.value is not None]
    gpus = sum(len(machine.gpus.value or ()) for machine in answered)
    return f"{len(answered)} of {len(members)} machines answered by {cluster.via}, {gpus} GPUs"


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """Return the way to the head, the machines and the matrix of connections, as far as they were measured."""
    found: list[Exhibit] = []
    if facts.reach.value is not None:
        found.append(way(facts.reach.value))
    if facts.cluster.value is not None and facts.cluster.value.members and facts.cluster.value.via != "local":
        found += [members(facts.cluster.value), *matrix(facts.cluster.value)]
    return tuple(found)


def members(cluster: ClusterFacts) -> Exhibit:
    """The machines: what all have in common as a note, what differs as columns; of a large cluster the odd ones."""
    rows = {member.name: _values(member) for member in cluster.members}
    columns = list(dict.fromkeys(name for values in rows.values() for name in values))
    most = {name: _most([values.get(name, "") for values in rows.values()]) for name in columns}
    known = [member.name for member in cluster.members if member.machine.value is not None]
    same = [name for name in columns if {rows[node].get(name, "") for node in known} == {most[name]} and len(known) > 1]
    apart = [name for name in columns if name not in same]
    odd = [member for member in cluster.members
           if not _is_well(member) or any(rows[member.name].get(name, "") != most[name] for name in apart)]  # fmt: skip
    shown = list(cluster.members) if len(cluster.members) <= MAX_MEMBERS else odd[:_MAX_ODD]
    table = [(m.name, m.address, *(rows[m.name].get(name, "") for name in apart), *_varying(m), _state(m))
             for m in shown]  # fmt: skip
    rest = len(cluster.members) - len(shown)
    if rest:
        label = f"{rest} {'others' if shown else 'nodes'}"
        table.append((label, "", *(most[name] if len(odd) == len(shown) else "" for name in apart), "", "", "", ""))
    notes = [f"the same on all {len(known)}: {', '.join(f'{name} {most[name]}' for name in same)}"] if same else []
    heading = ("node", "address", *apart, "clock", "memory free", "/tmp free", "")
    how = f"{len(known)} of {sum(m.alive for m in cluster.members)} answered, by {cluster.via}"
    return _without_empty(Exhibit(title=f"Nodes ({how})", columns=heading, rows=tuple(table), notes=tuple(notes)))


def _is_well(member: Member) -> bool:
    return member.alive and member.machine.value is not None


def _values(member: Member) -> dict[str, str]:
    """What is expected to be equal on all machines."""
    machine = member.machine.value
    if machine is None:
        return {}
    versions = {
        title: machine.versions[name]
        for name, title in (("ray", "Ray"), ("python", "Python"), ("torch", "torch"), ("torch_nccl", "NCCL"),
                            ("vllm", "vLLM"), ("driver", "driver"))
        if name in machine.versions
    }  # fmt: skip
    there = {"GPUs": _gpus(machine), "CPUs": _cpus(machine)}
    if member.registered is not None:
        counts = (f"{member.registered.resources.get(name, 0.0):g} {name}" for name in ("CPU", "GPU"))
        there["in Ray"] = " and ".join(counts)
    return {**there, "memory": _gib(machine.memory_total_bytes), **versions}


def _gpus(machine: MachineFacts) -> str:
    gpus = machine.gpus.value
    if gpus is None:
        return "none" if machine.gpus.missing is not None and machine.gpus.missing.kind == "absent" else "?"
    models = sorted({gpu.name.removeprefix("NVIDIA ") for gpu in gpus})
    return f"{len(gpus)} × {' + '.join(models)}" if gpus else "none"


def _cpus(machine: MachineFacts) -> str:
    few = 0 < machine.cpus_allowed < machine.cpus_online
    return f"{machine.cpus_allowed} of {machine.cpus_online}" if few else str(machine.cpus_online or "")


def _gib(num_bytes: int) -> str:
    return rough_gib(num_bytes) if num_bytes else ""


def _varying(member: Member) -> tuple[str, str, str]:
    """What differs from machine to machine in the best of clusters."""
    machine = member.machine.value
    if machine is None:
        return "", "", ""
    offset, tmp = machine.clock_offset_s.value, machine.tmp.value
    return (
        "" if offset is None else f"{offset * 1e3:+.1f} ms" if abs(offset) < 1 else f"{offset:+.1f} s",
        _gib(machine.memory_available_bytes),
        _gib(tmp.free_bytes) if tmp is not None else "",
    )


def _state(member: Member) -> str:
    words = ["head"] if member.is_head else []
    if not member.alive:
        words.append("dead")
    elif member.machine.value is None:
        words.append(f"silent: {member.machine.missing.reason if member.machine.missing else 'no answer'}")
    return ", ".join(words)


def _most(values: list[str]) -> str:
    filled = [value for value in values if value]
    return max(filled, key=filled.count, default="")


def _without_empty(exhibit: Exhibit) -> Exhibit:
    """The table without columns in which nothing stands."""
    kept = [n for n in range(len(exhibit.columns)) if any(row[n] for row in exhibit.rows)]
    return Exhibit(
        title=exhibit.title,
        columns=tuple(exhibit.columns[n] for n in kept),
        rows=tuple(tuple(row[n] for n in kept) for row in exhibit.rows),
        notes=exhibit.notes,
    )


def matrix(cluster: ClusterFacts) -> tuple[Exhibit, ...]:
    """Round trips from each machine (row) to each other one (column); a summary for a large cluster."""
    living = [member for member in cluster.members if member.alive]
    edges, times = contacts_by_edge(living), round_trips(living)
    if not edges:
        return ()
    in_ms = bool(times) and median(times.values()) >= 1e-3
    unit = "ms" if in_ms else "µs"
    notes = [f"{len(times)} of {len(edges)} directions open"]
    if times:
        (a, b), slowest = max(times.items(), key=lambda item: item[1])
        middle = _number(median(times.values()), in_ms)
        notes.append(f"median {middle} {unit}, slowest {_number(slowest, in_ms)} {unit} ({a} to {b})")
    if len(living) > MAX_MEMBERS:
        return (_summary(living, edges, times, in_ms, tuple(notes)),)
    cells = {edge: _number(times[edge], in_ms) if edge in times else _sign(edges[edge]) for edge in edges}
    rows = tuple(
        (str(n), a.name, *("-" if a is b else cells.get((a.name, b.name), "") for b in living))
        for n, a in enumerate(living, 1)
    )
    signs = {cell for cell in cells.values() if cell in _SIGNS.values()}
    legend = ", ".join(f"{sign} {outcome}" for outcome, sign in _SIGNS.items() if sign in signs)
    title = f"Time to connect in {unit}, from each row's node to each column's"
    columns = ("", "node", *(str(n) for n in range(1, len(living) + 1)))
    return (Exhibit(title=title, columns=columns, rows=rows, notes=(*notes, legend) if legend else tuple(notes)),)


def _summary(
    living: list[Member], edges: Mapping[Edge, object], times: Mapping[Edge, float], in_ms: bool, notes: tuple[str, ...]
) -> Exhibit:
    rows: list[tuple[str, ...]] = []
    for member in living:
        out = [edge for edge in edges if edge[0] == member.name]
        back = [edge for edge in edges if edge[1] == member.name]
        reaches, reached = sum(edge in times for edge in out), sum(edge in times for edge in back)
        mine = [times[edge] for edge in out if edge in times]
        slow = bool(mine) and median(mine) > 2 * median(times.values())
        if reaches < len(out) or reached < len(back) or slow:
            time = f"{_number(median(mine), in_ms)} {'ms' if in_ms else 'µs'}" if mine else ""
            rows.append((member.name, f"{reaches} of {len(out)}", f"{reached} of {len(back)}", time))
    # In a cluster with one bad node every other one misses that one: those say nothing of their own.
    worst = max((_missed(row) for row in rows), default=0)
    shown = [row for row in rows if _missed(row) * 4 >= worst] if worst else rows
    more = (f"{len(shown) - _MAX_ODD} more like these",) if len(shown) > _MAX_ODD else ()
    columns = ("node", "reaches", "reached by", "median") if shown else ()
    return Exhibit(title=f"Time to connect between {len(living)} nodes", columns=columns, rows=tuple(shown[:_MAX_ODD]),
                   notes=(*notes, *more))  # fmt: skip


def _missed(row: tuple[str, ...]) -> int:
    """How many connections of a row of the summary did not come about."""
    return sum(int(cell.split(" of ")[1]) - int(cell.split(" of ")[0]) for cell in row[1:3])


def _number(seconds: float, in_ms: bool) -> str:
    """At most four characters for what is near the median."""
    value = seconds * (1e3 if in_ms else 1e6)
    return f"{value:.1f}" if in_ms and value < 100 else f"{value:.0f}"


def _sign(contacts: list[Contact]) -> str:
    found = {contact.outcome for contact in contacts}
    return next((sign for outcome, sign in _SIGNS.items() if outcome in found), "?")
