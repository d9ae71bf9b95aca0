"""What every machine is, and whether each reaches each other one, within one deadline."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from rlcheck.facts.base import Fact, MissingKind, known, missing
from rlcheck.facts.cluster import ClusterFacts, MachineFacts, Member, Registered
from rlcheck.facts.hygiene import made_safe
from rlcheck.facts.reach import Contact
from rlcheck.measure.cluster.switchboard import Lost, Progress, Switchboard

Answers = dict[int, dict[str, Any] | Lost]
Ports = Mapping[int, Sequence[tuple[int, str]]]

_CLOCK_ROUNDS, _CLOCK_S = 3, 1.0
_FACTS_S, _LISTEN_S, _CONNECT_S = 3.0, 1.5, 2.0
_MANY, _CONNECT_MANY_S = 16, 4.0
_GRACE_S = 0.7
"""On top of an agent's own deadline, for its answer to arrive."""


@dataclass
class _Survey:
    """A survey under way: the board, when it must be over, one seat of each machine, and what has come in."""

    board: Switchboard
    deadline: float
    progress: Progress | None
    wanted: tuple[int, ...]
    machines: Answers = field(default_factory=dict[int, "dict[str, Any] | Lost"])
    offsets: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    contacts: dict[int, list[tuple[str, Contact]]] = field(default_factory=dict[int, list[tuple[str, Contact]]])

    def ask(self, requests: Mapping[int, Mapping[str, Any]], timeout_s: float) -> Answers:
        """Ask, within what is left of the time."""
        left = self.deadline - time.monotonic()
        return self.board.ask(requests, max(0.05, min(timeout_s, left)), self.progress) if requests else {}


def survey(
    board: Switchboard,
    *,
    via: str,
    registered: Mapping[str, Registered] = {},
    ports: Mapping[int, Sequence[tuple[int, str]]] = {},
    worker_ports: tuple[int, int] | None = (10002, 19999),
    deadline_s: float = 10.0,
    progress: Progress | None = None,
) -> ClusterFacts:
    """Ask every machine what it is and whom it reaches.

    First waits until every agent has come up or is lost (each has its own deadline); the rest takes at most
    `deadline_s`, however broken the network is.

    Args:
        board: the agents.
        via: ray, ssh, srun or local: how they were started.
        registered: what Ray has on record, by node id; else what an agent's own driver said of it.
        ports: ports (and what they are) of a seat that the others should reach, by its index; tried for lost seats too.
        worker_ports: where Ray's workers listen; two listeners are opened in there on each machine.
        deadline_s: seconds for everything after the agents are up.
        progress: called now and then with the names of those that are waited for.
    """
    started = time.monotonic()
    board.wait_up(progress)
    work = _Survey(board, time.monotonic() + deadline_s, progress, board.one_a_machine())
    _read_clocks(work)
    here = [index for index in work.wanted if index not in board.lost]
    work.machines = work.ask({index: {"do": "facts", "timeout_s": _FACTS_S} for index in here}, _FACTS_S + _GRACE_S)
    try:
        _connect_all(work, _listen(work, worker_ports), ports)
    finally:
        for index in here:
            board.post(index, {"do": "unlisten"})
    members = tuple(_member(work, index, registered) for index in work.wanted)
    return ClusterFacts(via=via, members=members, seconds=time.monotonic() - started)


def _read_clocks(work: _Survey) -> None:
    """Offsets from our clock, each from the quickest of a few round trips."""
    wanted = [index for index in work.wanted if index not in work.board.lost]
    for _ in range(_CLOCK_ROUNDS):
        answers = work.ask({index: {"do": "clock"} for index in wanted}, _CLOCK_S)
        wanted = [index for index, answer in answers.items() if not isinstance(answer, Lost)]
        for index, answer in answers.items():
            if isinstance(answer, Lost):
                continue
            error_s = (answer["answered_at"] - answer["asked_at"]) / 2
            offset = (float(answer["time"]) - answer["asked_at"] - error_s, error_s)
            work.offsets[index] = min(offset, work.offsets.get(index, offset), key=lambda pair: pair[1])


def _listen(work: _Survey, worker_ports: tuple[int, int] | None) -> dict[int, list[dict[str, Any]]]:
    """Targets for the others, by seat: a listener on any port, and two among those of workers."""
    wanted: list[Any] = [0]
    if worker_ports is not None:
        middle = sum(worker_ports) // 2
        wanted += [[worker_ports[0], middle], [middle + 1, worker_ports[1]]]
    usable = [index for index, answer in work.machines.items() if not isinstance(answer, Lost)]
    seats = work.board.seats
    requests = {
        index: {"do": "listen", "address": seats[index].address, "ports": wanted}
        for index in usable
        if seats[index].address and len(work.wanted) > 1
    }
    targets: dict[int, list[dict[str, Any]]] = {}
    for index, answer in work.ask(requests, _LISTEN_S).items():
        targets[index] = [] if isinstance(answer, Lost) else _targets(seats[index].address, answer)
    return targets


def _targets(address: str, answer: dict[str, Any]) -> list[dict[str, Any]]:
    """What others connect to; a probe that could not be opened stays in the list, with port 0 and the reason."""
    found: list[dict[str, Any]] = []
    for item in answer["ports"]:
        what = "probe" if item["asked"] == 0 else "worker"
        if "port" in item:
            target = {"address": address, "port": item["port"], "what": what, "greeting": answer["greeting"]}
            found.append(target)
        elif what == "probe":
            found.append({"address": address, "port": 0, "what": what, "why": str(item["error"])})
    return found


def _connect_all(work: _Survey, targets: dict[int, list[dict[str, Any]]], ports: Ports) -> None:
    """Each machine connects to all others, all at the same time."""
    seats = work.board.seats
    for index, wanted in ports.items():
        given = [{"address": seats[index].address, "port": port, "what": what} for port, what in wanted if port]
        if seats[index].address:
            targets.setdefault(index, []).extend(given)
    timeout_s = _CONNECT_S if len(work.wanted) <= _MANY else _CONNECT_MANY_S
    timeout_s = max(0.5, min(timeout_s, work.deadline - time.monotonic() - _GRACE_S))
    plans = {
        index: [(other, target) for other in sorted(targets) if other != index for target in targets[other]]
        for index, answer in work.machines.items()
        if not isinstance(answer, Lost)
    }
    requests = {
        index: {
            "do": "connect",
            "targets": [target for _, target in plan if "why" not in target],
            "timeout_s": timeout_s,
        }
        for index, plan in plans.items()
        if plan
    }
    for index, answer in work.ask(requests, timeout_s + _GRACE_S).items():
        if not isinstance(answer, Lost):
            made = iter(msgspec.convert(answer["contacts"], tuple[Contact, ...]))
            work.contacts[index] = [
                (seats[other].machine, _unopened(target) if "why" in target else next(made))
                for other, target in plans[index]
            ]


def _unopened(target: dict[str, Any]) -> Contact:
    """The contact with a listener that could not be opened on the address that the machine is known by."""
    detail = f"no listener could be opened there: {target['why']}"
    return Contact(address=target["address"], port=0, what=target["what"], outcome="error", detail=detail)


def _member(work: _Survey, index: int, registered: Mapping[str, Registered]) -> Member:
    seat, hello = work.board.seats[index], work.board.hellos[index]
    record = registered.get(seat.node_id)
    if record is None and "registered" in hello:
        record = msgspec.convert(hello["registered"], Registered)
    contacts = work.contacts.get(index, [])
    return Member(
        name=seat.machine,
        address=seat.address,
        node_id=seat.node_id,
        is_head=seat.is_head,
        alive=not (index in work.board.lost and "up_after_s" in hello),
        registered=record,
        machine=_machine(work, index),
        contacts=tuple(contact for _, contact in contacts),
        peers=tuple(peer for peer, _ in contacts),
        seconds=float(hello.get("up_after_s", -1.0)),
    )


def _machine(work: _Survey, index: int) -> Fact[MachineFacts]:
    lost = work.board.lost.get(index)
    answer = work.machines.get(index, Lost(lost or "was not asked: the time was up"))
    if isinstance(answer, Lost):
        late = answer.reason.startswith(("did not answer", "waited"))
        return missing(MissingKind.TIMEOUT if late else MissingKind.ERROR, answer.reason)
    try:
        machine = msgspec.convert(answer["machine"], MachineFacts)
    except msgspec.ValidationError as error:
        return missing(MissingKind.ERROR, f"its agent answered something that makes no sense: {error}")
    if index not in work.offsets:
        late = missing(MissingKind.TIMEOUT, f"did not tell its time within {_CLOCK_S:g} s")
        return made_safe("agent's", known(msgspec.structs.replace(machine, clock_offset_s=late)))
    offset_s, error_s = work.offsets[index]
    machine = msgspec.structs.replace(machine, clock_offset_s=known(offset_s), clock_error_s=error_s)
    return made_safe("agent's", known(machine))  # a machine that says what no file can hold costs itself alone
