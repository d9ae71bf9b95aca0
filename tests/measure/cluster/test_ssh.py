"""Agents through a real ssh and a real sshd on loopback."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlcheck.measure.cluster.collect_many import collect_many
from rlcheck.measure.cluster.hosts import Host
from rlcheck.measure.cluster.launch import open_ssh
from rlcheck.measure.cluster.ssh import explain
from rlcheck.measure.cluster.survey import survey
from rlcheck.measure.cluster.switchboard import Lost, Seat
from tests.measure.cluster import sshd
from tests.measure.cluster.processes import below, survivors

pytestmark = pytest.mark.skipif(bool(sshd.MISSING), reason=sshd.MISSING)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Server]:
    with sshd.running(tmp_path_factory.mktemp("sshd")) as server:
        yield server


def why(hosts: list[Host], ssh: tuple[str, ...], python: str = "python3") -> dict[int, str]:
    """Why the hosts are lost."""
    with open_ssh(hosts, 2, ssh, python) as board:
        board.wait_up()
        return dict(board.lost)


def test_healthy_hosts_know_themselves_and_reach_each_other(server: sshd.Server) -> None:
    with open_ssh([Host(f"n{index}") for index in range(3)], 5, server.ssh, sys.executable) as board:
        facts = survey(board, via="ssh")
        assert [seat.address for seat in board.seats] == ["127.0.0.1", "127.0.0.2", "127.0.0.3"]
    assert facts.seconds < 10
    assert [member.name for member in facts.members] == ["n0", "n1", "n2"]
    for member in facts.members:
        machine = member.machine.value
        assert machine is not None
        assert abs(machine.clock_offset_s.value or 0) < 0.5
        assert [contact.what for contact in member.contacts] == ["probe", "worker", "worker"] * 2
        assert {contact.outcome for contact in member.contacts} == {"open"}
        assert member.name not in member.peers
        assert len(member.peers) == 6


def test_a_host_that_is_off_is_told_from_one_with_a_wrong_key(server: sshd.Server, tmp_path: Path) -> None:
    stranger = sshd.make_key(tmp_path / "stranger")
    wrong_key = tuple(word.replace(f"{server.directory}/user", str(stranger)) for word in server.ssh)
    wrong_key = tuple(word.replace(f"{stranger}_known_hosts", f"{server.directory}/known_hosts") for word in wrong_key)
    unknown = tuple(word.replace("known_hosts", "nobody") for word in server.ssh)
    changed = tmp_path / "changed"
    changed.write_text("* " + Path(f"{stranger}.pub").read_text())
    other_key = tuple(word.replace(f"{server.directory}/known_hosts", str(changed)) for word in server.ssh)
    here = [Host("n0")]
    assert why([Host("127.0.0.1", port=sshd.free_port())], server.ssh)[0].startswith(
        "nothing listens on its ssh port ("
    )
    assert why(here, wrong_key)[0].startswith("it does not accept our key")
    assert why(here, unknown)[0].startswith("its host key is not known")
    assert why(here, other_key)[0].startswith("its host key is another than the known one")
    assert why([Host("no.such.host.invalid")], server.ssh)[0].startswith("its name cannot be resolved")


def test_what_is_missing_on_either_side_is_said(server: sshd.Server) -> None:
    assert "no such Python there" in why([Host("n0")], server.ssh, "python3.99")[0]
    assert why([Host("n0")], ("no-such-ssh",)) == {0: "no-such-ssh: No such file or directory"}
    assert why([Host("n0")], server.ssh, "echo") == {0: f"its agent ended: -u -c {sshd_echo()}"}


def sshd_echo() -> str:
    from rlcheck.measure.cluster.program import ONE_LINER

    return ONE_LINER[: 500 - len("-u -c ")]


def test_a_host_that_accepts_and_says_nothing_costs_its_own_deadline(server: sshd.Server) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as silent:
        started = time.monotonic()
        reasons = why([Host("127.0.0.1", port=silent.getsockname()[1]), Host("n0")], server.ssh)
    assert time.monotonic() - started < 12
    assert list(reasons) == [0]
    assert reasons[0].startswith("no answer from its ssh port")


def test_sixteen_hosts_and_a_dead_one(server: sshd.Server) -> None:
    hosts = [*(Host(f"n{index}") for index in range(16)), Host("127.0.0.1", port=sshd.free_port())]
    started = time.monotonic()
    with open_ssh(hosts, 20, server.ssh, "/usr/bin/python3 -S") as board:
        answers = board.ask({index: {"do": "clock"} for index in range(17)}, 20)
        assert time.monotonic() - started < 60
        assert set(board.lost) == {16}
        assert isinstance(answers.pop(16), Lost)
        assert all(isinstance(answer, dict) for answer in answers.values())
        clients = below_all()
    assert time.monotonic() - started < 60
    assert not survivors(clients)


def below_all() -> set[int]:
    import os

    found = below(os.getpid())
    assert len(found) > 32, "sshd's processes and ours"
    return {pid for pid in found if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ssh\0")}


def test_many_hosts_have_longer_to_log_in() -> None:
    """All of them together are work for this machine; the limit for 64 is a minute, survey and all."""
    waited = {}
    for number in (1, 64, 1000):
        with open_ssh([Host(f"n{index}") for index in range(number)], 10, ("/no/such/ssh",)) as board:
            waited[number] = board.up_within_s
    assert 20 <= waited[1] < waited[64] - 15
    assert waited[64] < 45
    assert waited[1000] < 60


def test_full_documents_where_rlcheck_is_installed(server: sshd.Server) -> None:
    root = Path(__file__).resolve().parents[3]
    python = f"env PYTHONPATH={root} {sys.executable}"
    with open_ssh([Host("n0"), Host("127.0.0.1", port=sshd.free_port())], 5, server.ssh, python) as board:
        documents, reasons = collect_many(board, 40)
    assert [facts.node for facts in documents] == ["n0"]
    assert documents[0].platform.value is not None
    assert list(reasons) == ["127.0.0.1"]
    with open_ssh([Host("n0")], 5, server.ssh, "/usr/bin/python3") as board:
        documents, reasons = collect_many(board, 40)
    assert not documents
    assert reasons == {"n0": "RuntimeError: rlcheck is not installed for /usr/bin/python3"}


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("ssh: connect to host a port 22: No route to host", "there is no way to it"),
        ("kex_exchange_identification: read: Connection reset by peer", "its sshd hung up"),
        ("Timeout, server a not responding.", "no answer"),
        ("something new", "ssh failed (ssh: something new)"),
    ],
)
def test_the_words_of_ssh(line: str, meaning: str) -> None:
    assert explain(Seat("a"), 255, (line,)).startswith(meaning)
