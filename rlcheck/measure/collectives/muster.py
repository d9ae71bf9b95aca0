"""Who takes part: how many ranks on each seat, which backend they can all use, and who is left out and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcheck.facts.collectives import Rank
from rlcheck.measure.cluster.switchboard import Lost, Switchboard
from rlcheck.measure.collectives.crew import Crew, Process
from rlcheck.measure.collectives.plan import Request

_FACTS_S = 8.0
_ALONE = 2
"""Ranks on a single machine without GPUs: so that there is somebody to talk to."""


def muster(board: Switchboard, request: Request) -> Crew:
    """Start the ranks, hear what they are and agree on the backend (`crew.backend`: nccl or gloo)."""
    answers = board.ask({seat: {"do": "facts"} for seat in range(len(board.seats))}, _FACTS_S)
    machines: dict[int, Mapping[str, Any]] = {
        seat: {} if isinstance(answer, Lost) else answer.get("machine", {}) for seat, answer in answers.items()
    }
    interfaces = {seat: interface_of(board.seats[seat].address, machine) for seat, machine in machines.items()}
    crew = Crew(board, interfaces, request.python)
    crew.backend = request.backend
    crew.add(
        (seat, local_rank) for seat, machine in machines.items() for local_rank in _guess(board, seat, machine, request)
    )
    crew.wait_ready(range(len(crew.processes)))
    crew.backend = _backend(crew, request)
    if crew.backend == "nccl":
        _fit_to_devices(crew, request)
    return crew


def interface_of(address: str, machine: Mapping[str, Any]) -> str:
    """The interface that carries `address` on a machine, "" when it is not known."""
    if address.startswith("127.") or address == "::1":
        return "lo"
    return next((str(card["name"]) for card in machine.get("cards", ()) if card.get("address") == address), "")


def _guess(board: Switchboard, seat: int, machine: Mapping[str, Any], request: Request) -> list[int]:
    """The local ranks to start on a seat before torch has told how many devices it sees."""
    gathered = board.seats[seat].local_rank
    if gathered >= 0:
        return [gathered]
    num_gpus = 0 if request.backend == "gloo" else len(machine.get("gpus", {}).get("value") or ())
    alone = _ALONE if len(board.seats) == 1 else 1
    return list(range(request.ranks_per_node or num_gpus or alone))


def _backend(crew: Crew, request: Request) -> str:
    if request.backend != "auto":
        return request.backend
    return "nccl" if any(_can_nccl(process) for process in crew.processes) else "gloo"


def _can_nccl(process: Process) -> bool:
    return process.is_ready and process.hello["num_devices"] > 0 and process.hello["has_nccl"]


def _fit_to_devices(crew: Crew, request: Request) -> None:
    """One rank a device: more where torch sees more than were guessed, fewer where fewer; none without a device."""
    seen: dict[int, int] = {}
    surplus: list[Process] = []
    for process in crew.processes:
        if not process.is_ready:
            continue
        num_devices = int(process.hello["num_devices"])
        gathered = crew.board.seats[process.seat].local_rank >= 0
        seen[process.seat] = num_devices
        if not _can_nccl(process):
            torch = process.hello["versions"].get("torch", "")
            process.gone = f"torch {torch} sees no GPU here" if not num_devices else f"torch {torch} has no NCCL"
        elif gathered and num_devices == 1:
            continue  # the launcher shows each rank its own device alone
        elif process.local_rank >= num_devices and (gathered or request.ranks_per_node):
            process.gone = f"torch sees {num_devices} GPUs, none for local rank {process.local_rank}"
        elif process.local_rank >= num_devices:
            surplus.append(process)
    for process in crew.processes:
        if process.gone:
            crew.kill(process)
    crew.drop([*surplus, *_idle(crew, surplus)])
    missing = _missing(crew, seen, request)
    crew.add(missing)
    crew.wait_ready(range(len(crew.processes)))


def _idle(crew: Crew, surplus: list[Process]) -> list[Process]:
    """Of ranks without a device, the first of each seat is enough to say so."""
    first: dict[int, Process] = {}
    rest: list[Process] = []
    for process in crew.processes:
        if process.gone and process not in surplus and first.setdefault(process.seat, process) is not process:
            rest.append(process)
    return [process for process in rest if process.hello.get("num_devices") == 0]


def _missing(crew: Crew, seen: Mapping[int, int], request: Request) -> list[tuple[int, int]]:
    if request.ranks_per_node:
        return []
    have = {(process.seat, process.local_rank) for process in crew.processes}
    return [
        (seat, local_rank)
        for seat, num_devices in seen.items()
        if crew.board.seats[seat].local_rank < 0
        for local_rank in range(num_devices)
        if (seat, local_rank) not in have
    ]


def ranks_of(crew: Crew) -> tuple[Rank, ...]:
    """The record of everybody who takes part."""
    return tuple(
        Rank(
            rank=process.rank,
            node=process.node,
            local_rank=process.local_rank,
            device=process.hello["device"] if crew.backend == "nccl" else "cpu",
            uuid=process.hello["uuid"],
            pci=process.hello["pci"],
            pid=process.hello["pid"],
            versions=process.hello["versions"],
        )
        for process in crew.processes
        if process.is_ready
    )


def lost_of(crew: Crew) -> dict[str, str]:
    """Who does not take part and why: by node, or by node and local rank where others of the node do."""
    found = {seat.machine: crew.board.lost[i] for i, seat in enumerate(crew.board.seats) if i in crew.board.lost}
    present = {process.node for process in crew.processes if not process.gone}
    for process in crew.processes:
        if process.gone:
            who = f"{process.node} (local rank {process.local_rank})" if process.node in present else process.node
            found.setdefault(who, process.gone)
    return found
