"""What bandwidth to expect of a group of ranks, from a table of what such machines were measured to do."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from statistics import median

from rlcheck import tables
from rlcheck.facts.base import Struct, value_or
from rlcheck.facts.collectives import CollectiveFacts, GroupRun, Sample
from rlcheck.facts.document import Facts

_GB = 1e9
Points = tuple[tuple[int, float], ...]


class Curve(Struct, frozen=True, forbid_unknown_fields=True):
    """Bus bandwidth over size for one kind of machine: `points` are (bytes, GB/s), rising in size.

    `nvls` None holds whether NVLink SHARP is on or off. `slack` is taken off the points to get the least that such a
    machine does; `fail` is how far below that it fails. `derived` says how points were made that nobody measured.
    """

    models: tuple[str, ...]
    gpus: int
    collective: str
    points: Points
    source: tuple[str, ...]
    nvls: bool | None = None
    slack: float = 0.0
    fail: float = 0.0
    derived: str = ""


class Network(Struct, frozen=True, forbid_unknown_fields=True):
    """The share of a network's line rate that collectives must reach, and how far below that they fail."""

    share: float
    fail: float


class Networks(Struct, frozen=True, forbid_unknown_fields=True):
    """The rule for several nodes. `shape` are (bytes, part of the floor) where a network is not yet full."""

    infiniband: Network
    roce: Network
    efa: Network
    shape: Points
    collectives: tuple[str, ...]
    derived: str
    source: tuple[str, ...]


class Odd(Struct, frozen=True, forbid_unknown_fields=True):
    """How far below its peers a node or a pair is odd, as parts of the peers' middle."""

    rdma: dict[str, float]
    other: dict[str, float]
    source: tuple[str, ...]


class Weak(Struct, frozen=True, forbid_unknown_fields=True):
    """Below which part of the others' speed a device is slow (`warn`) and badly so (`fail`); a CPU never fails."""

    gpu: dict[str, float]
    cpu: dict[str, float]
    source: tuple[str, ...]
    why: str


class Table(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole of bandwidth.json.

    `models` maps a name to a pattern of the GPU names that it stands for. Those in `peer_models` are joined by NVLink
    or XGMI on every machine that they are built into, those in `nvls_models` by switches that can reduce.
    """

    sources: dict[str, str]
    models: dict[str, str]
    peer_models: tuple[str, ...]
    nvls_models: tuple[str, ...]
    margins: dict[str, float]
    sizes: dict[str, int]
    networks: Networks
    latency_us: dict[str, float]
    init_s: dict[str, float]
    odd: Odd
    weak: Weak
    curves: tuple[Curve, ...]


class Expectation(Struct, frozen=True):
    """The least bus bandwidth that is right, in bytes/s, and below what it warns and fails.

    `source` is for a reader; `derived` says how the number was made when nobody measured it, else "".
    """

    busbw: float
    busbw_warn: float
    busbw_fail: float
    source: str
    derived: str = ""


class Speed(Struct, frozen=True):
    """One collective of a group against its expectation.

    `ratio` is found / expected: the middle of `num_points` large sizes, or the best of them when there are fewer than
    three. `status` is ok, warn or fail; one point alone never fails.
    """

    collective: str
    ratio: float
    status: str
    num_points: int
    best: Sample
    expected: Expectation


def table() -> Table:
    """Return the table."""
    return tables.table("bandwidth", Table)


def is_rdma(network: str) -> bool:
    """Whether NCCL's name of a network is one that goes past the processor."""
    return bool(network) and network.lower() not in ("socket", "gloo", "tcp")


def odd_limits(groups: Iterable[GroupRun]) -> dict[str, float]:
    """Below which part of its peers' middle a node or pair is odd (`warn`) and badly so (`fail`).

    Strict with RDMA or inside of machines, lenient where busy processors do the work.
    """
    networks = [group.transport.value.network for group in groups if group.transport.value is not None]
    return table().odd.rdma if any(is_rdma(network) for network in networks) else table().odd.other


def collectives_of(facts: Facts) -> CollectiveFacts:
    """The measurement in `facts`, which must be there."""
    assert facts.collectives.value is not None
    return facts.collectives.value


def model_of(device: str) -> str:
    """The name under which a GPU is in the table, "" for none."""
    return next((name for name, pattern in table().models.items() if re.fullmatch(pattern, device.strip())), "")


def group_devices(run: CollectiveFacts, group: GroupRun) -> set[str]:
    """The kinds of device that took part in `group`: GPU names as the driver gives them, or cpu."""
    wanted = set(group.ranks)
    return {rank.device for rank in run.ranks if rank.rank in wanted}


def uses_nvls(run: CollectiveFacts, group: GroupRun) -> bool | None:
    """Whether NVLink SHARP was in use; None when neither NCCL's log nor a setting tells."""
    if group.transport.value is not None:
        return group.transport.value.nvls
    if any(run.settings.get(node, {}).get("NCCL_NVLS_ENABLE") == "0" for node in group.nodes):
        return False
    return None


def at(points: Sequence[tuple[int, float]], num_bytes: int) -> float | None:
    """The curve's value at a size, linear in the logarithm of the size; None below its first point."""
    if not points or num_bytes < points[0][0]:
        return None
    for (low, left), (high, right) in pairwise(points):
        if low <= num_bytes <= high:
            return left + (right - left) * math.log(num_bytes / low) / math.log(high / low)
    return points[-1][1]


def expectation(facts: Facts, group: GroupRun, collective: str, num_bytes: int) -> Expectation | None:
    """What `group` should reach; None for unknown hardware, and for sizes at which latency decides."""
    run = collectives_of(facts)
    if len(group.nodes) > 1:
        return _between_nodes(facts, group, collective, num_bytes)
    return _inside_node(run, group, collective, num_bytes)


def _inside_node(run: CollectiveFacts, group: GroupRun, collective: str, num_bytes: int) -> Expectation | None:
    models = {model_of(device) for device in group_devices(run, group)}
    if len(models) != 1 or models == {""}:
        return None
    fits = [c for c in table().curves if c.collective == collective and models & set(c.models)]
    found = [_at_curve(curve, num_bytes) for curve in _curves_for(fits, len(group.ranks), uses_nvls(run, group))]
    return min((e for e in found if e is not None), key=lambda e: e.busbw, default=None)


def _curves_for(curves: Iterable[Curve], gpus: int, nvls: bool | None) -> list[Curve]:
    """The curve for this number of GPUs, else both neighbours' (the lower one counts).

    A curve for NVLink SHARP counts only where it is known to be on; the others hold as a lower bound.
    """
    able = [curve for curve in curves if curve.nvls is not True or nvls is True]
    exact = [curve for curve in able if curve.gpus == gpus]
    if exact:
        with_nvls = [curve for curve in exact if curve.nvls is True]
        return with_nvls or exact
    plain = [curve for curve in able if curve.nvls is not True]
    below = max((curve.gpus for curve in plain if curve.gpus < gpus), default=0)
    above = min((curve.gpus for curve in plain if curve.gpus > gpus), default=0)
    return [curve for curve in plain if curve.gpus in (below, above)] if below and above else []


def _at_curve(curve: Curve, num_bytes: int) -> Expectation | None:
    value = at(curve.points, num_bytes)
    if value is None:
        return None
    least = value * _GB * (1 - curve.slack)
    return _bounds(least, curve.fail or table().margins["fail"], _sources(curve.source), curve.derived)


def _bounds(least: float, fail: float, source: str, derived: str) -> Expectation:
    return Expectation(
        busbw=least,
        busbw_warn=least * (1 - table().margins["warn"]),
        busbw_fail=least * (1 - fail),
        source=source,
        derived=derived,
    )


def _sources(names: Iterable[str]) -> str:
    return "; ".join(table().sources[name] for name in names)


def _between_nodes(facts: Facts, group: GroupRun, collective: str, num_bytes: int) -> Expectation | None:
    """A share of what the network cards can carry that the ranks of each node can use."""
    run, rule = collectives_of(facts), table().networks
    part = at(rule.shape, num_bytes)
    if collective not in rule.collectives or part is None or group_devices(run, group) <= {"cpu"}:
        return None
    if group.transport.value is not None and not is_rdma(group.transport.value.network):
        return None  # Sockets are judged by what was used, and by comparison.
    floors: list[Expectation] = []
    for node in group.nodes:
        ranks = sum(rank.node == node and rank.rank in group.ranks for rank in run.ranks)
        rates = active_rates(facts, node)
        if not rates or not ranks:
            return None
        kind = getattr(rule, rates[0][0])
        carried = sum(sorted((rate for _, rate in rates), reverse=True)[:ranks]) / 8 * _GB
        floors.append(_bounds(carried * kind.share * part, kind.fail, _sources(rule.source), rule.derived))
    return min(floors, key=lambda e: e.busbw)


def active_rates(facts: Facts, node: str) -> list[tuple[str, float]]:
    """The active RDMA ports of a node: infiniband, roce or efa, and the rate in Gb/s. Empty when not known.

    Ports much slower than the fastest one carry storage or management, not collectives.
    """
    found: list[tuple[str, float]] = []
    members = facts.cluster.value.members if facts.cluster.value is not None else ()
    for member in members:
        if member.name == node and member.machine.value is not None:
            cards = member.machine.value.rdma
            found += [(_kind(c.link_layer, c.name), c.rate_gbps) for c in cards if c.state.upper().endswith("ACTIVE")]
    if not found and facts.network.value is not None and node in (facts.node, facts.network.value.hostname):
        for device in value_or(facts.network.value.rdma, ()):
            kind = "efa" if device.driver == "efa" else ""
            found += [(kind or _kind(p.link_layer, device.name), p.rate_gbps) for p in device.ports
                      if p.state == "ACTIVE"]  # fmt: skip
    fastest = max((rate for _, rate in found), default=0.0)
    return [(kind, rate) for kind, rate in found if rate > fastest / 2]


def _kind(link_layer: str, name: str) -> str:
    if name.startswith(("efa", "rdmap")):
        return "efa"
    return "infiniband" if link_layer.lower().startswith("infini") else "roce"


def speeds(facts: Facts, group: GroupRun) -> tuple[Speed, ...]:
    """Every collective of the group for which there is an expectation, judged over its large sizes."""
    by_name: dict[str, list[Sample]] = {}
    for sample in group.samples:
        by_name.setdefault(sample.collective, []).append(sample)
    found = (_speed(facts, group, samples) for samples in by_name.values())
    return tuple(speed for speed in found if speed is not None)


def _speed(facts: Facts, group: GroupRun, samples: list[Sample]) -> Speed | None:
    sizes = table().sizes
    pairs = [(s, expectation(facts, group, s.collective, s.num_bytes)) for s in samples]
    known = [(s, e) for s, e in pairs if e is not None and s.num_bytes >= sizes["lower_bytes"]]
    large = [(s, e) for s, e in known if s.num_bytes >= sizes["large_bytes"]]
    judged = large if len(large) >= sizes["min_points"] else known
    if not judged:
        return None
    ratios = [s.busbw / e.busbw for s, e in judged]
    enough = len(judged) >= sizes["min_points"]
    ratio = median(ratios) if enough else max(ratios)
    best, expected = max(judged, key=lambda pair: (pair[0].busbw, pair[0].num_bytes))
    status = _status(ratio, expected)
    if status == "fail" and len(judged) < 2:
        status = "warn"
    return Speed(collective=best.collective, ratio=ratio, status=status, num_points=len(judged), best=best,
                 expected=expected)  # fmt: skip


def _status(ratio: float, expected: Expectation) -> str:
    if ratio < expected.busbw_fail / expected.busbw:
        return "fail"
    return "warn" if ratio < expected.busbw_warn / expected.busbw else "ok"
