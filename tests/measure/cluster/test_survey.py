"""Surveys of several real agents on this machine, each with a loopback address of its own."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Iterator

import msgspec
import pytest

from rlcheck.facts.cluster import Registered
from rlcheck.measure.cluster.link import start
from rlcheck.measure.cluster.program import ONE_LINER, agent_line
from rlcheck.measure.cluster.survey import survey
from rlcheck.measure.cluster.switchboard import Seat, Switchboard


def open_several(*addresses: str) -> Switchboard:
    seats = [Seat(f"m{index}", address, node_id=f"id{index}") for index, address in enumerate(addresses)]
    links = [start((sys.executable, "-u", "-c", ONE_LINER), (index,)) for index in range(len(seats))]
    for link in links:
        link.send_raw(agent_line())
    return Switchboard(seats, links)


@pytest.fixture
def board() -> Iterator[Switchboard]:
    with open_several("127.0.0.11", "127.0.0.12", "127.0.0.13") as switchboard:
        yield switchboard


def test_healthy_machines(board: Switchboard) -> None:
    facts = survey(board, via="local", registered={"id1": Registered(resources={"CPU": 2.0})})
    assert facts.seconds < 10
    assert [member.registered is not None for member in facts.members] == [False, True, False]
    for member in facts.members:
        assert [contact.outcome for contact in member.contacts] == ["open"] * 6
        assert member.machine.value is not None
        assert member.machine.value.clock_offset_s.value is not None
        assert abs(member.machine.value.clock_offset_s.value) <= member.machine.value.clock_error_s + 0.01
        assert [
            port for port in (c.port for c in member.contacts if c.what == "worker") if not 10002 <= port <= 19999
        ] == []
    again = survey(board, via="local", worker_ports=None)
    assert {contact.what for member in again.members for contact in member.contacts} == {"probe"}


def test_listeners_are_closed_afterwards(board: Switchboard) -> None:
    facts = survey(board, via="local")
    deadline = time.monotonic() + 20
    for contact in facts.members[0].contacts:
        while _listens(contact.address, contact.port):
            assert time.monotonic() < deadline, contact
            time.sleep(0.05)


def _listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_given_ports_are_tried_from_everywhere_even_those_of_a_lost_seat(board: Switchboard) -> None:
    with socket.create_server(("127.0.0.11", 0)) as server:
        board.wait_up()
        os.kill(board.hellos[0]["pid"], signal.SIGKILL)
        assert board.events(5)[0][0] == 0
        port = server.getsockname()[1]
        facts = survey(
            board, via="local", ports={0: [(port, "raylet"), (0, "agent")], 2: [(port, "gcs")]}, worker_ports=None
        )
    dead, second, third = facts.members
    assert not dead.alive
    assert dead.machine.missing is not None
    assert "signal 9" in dead.machine.missing.reason
    assert not dead.contacts
    assert [(c.what, c.outcome) for c in second.contacts] == [("raylet", "open"), ("probe", "open"), ("gcs", "refused")]
    assert [(c.what, c.outcome) for c in third.contacts] == [("raylet", "open"), ("probe", "open")]
    assert third.peers == ("m0", "m1")


def test_a_machine_that_answers_nothing_costs_no_more_than_the_deadline(board: Switchboard) -> None:
    board.wait_up()
    os.kill(board.hellos[1]["pid"], signal.SIGSTOP)
    started = time.monotonic()
    facts = survey(board, via="local", deadline_s=10)
    assert time.monotonic() - started < 10
    assert facts.members[1].machine.missing is not None
    assert facts.members[1].machine.missing.kind == "timeout"
    assert {contact.outcome for contact in facts.members[0].contacts} == {"open"}
    assert facts.members[0].peers == ("m2",) * 3


def test_an_address_that_is_not_the_machines_own() -> None:
    with open_several("127.0.0.11", "192.0.2.200") as board:
        facts = survey(board, via="ray")
    contact = facts.members[0].contacts[0]
    assert (contact.what, contact.outcome, contact.port) == ("probe", "error", 0)
    assert "no listener could be opened there" in contact.detail


def test_one_machine_alone_connects_to_nobody() -> None:
    with open_several("127.0.0.1") as board:
        facts = survey(board, via="local")
    assert facts.members[0].machine.value is not None
    assert facts.members[0].contacts == ()


_STRANGE = """
import json, sys
print(json.dumps({"event": "hello"}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    answer = {"re": message.get("id"), "time": 0, "ports": [], "greeting": "", "contacts": []}
    answer["machine"] = json.loads(sys.argv[1])
    print(json.dumps(answer), flush=True)
"""


def test_a_machine_that_says_what_no_file_can_hold_costs_itself_alone() -> None:
    said = ('{"hostname": "a\\ud800b"}', '{"hostname": "c", "memory_total_bytes": 1180591620717411303424}')
    links = [start((sys.executable, "-u", "-c", _STRANGE, text), (index,)) for index, text in enumerate(said)]
    with Switchboard([Seat("m0", "127.0.0.11"), Seat("m1", "127.0.0.12")], links) as board:
        facts = survey(board, via="local", deadline_s=3)
    first, second = (member.machine for member in facts.members)
    assert first.value is not None
    assert first.value.hostname == "a\ufffdb"
    assert second.missing is not None
    assert "64 bits" in second.missing.reason
    assert msgspec.json.encode(facts)


def test_ranks_of_one_machine_are_one_machine() -> None:
    """Gathered under torchrun, every rank has an agent: the machine is asked once, and stands in the table once."""
    links = [start([sys.executable, "-u", "-c", ONE_LINER], (index,)) for index in range(2)]
    for link in links:
        link.send_raw(agent_line())
    seats = [Seat(f"m rank {rank}", "127.0.0.1", local_rank=rank, node="m") for rank in range(2)]
    with Switchboard(seats, links) as board:
        found = survey(board, via="torchrun", worker_ports=None, deadline_s=5.0)
    (member,) = found.members
    assert (member.name, member.contacts) == ("m", ())
    assert member.machine.value is not None
