"""`rlcheck nccl` started once per rank by torchrun or srun: rank 0 gathers the others and measures with them.

Rank 0 listens on one of eight ports that follow from the run (`ports_of`), the others connect there and offer an agent
over that connection. What is sent are the agent's program, requests and facts; nothing of it leaves the run's machines.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rlcheck.errors import UserError
from rlcheck.measure.cluster.hosts import HostsError, slurm_hosts
from rlcheck.measure.cluster.link import Link, start
from rlcheck.measure.cluster.program import ONE_LINER, agent_line
from rlcheck.measure.cluster.switchboard import Seat, Switchboard
from rlcheck.measure.collectives.launched import Place, is_gathered, place_of, ports_of, token_of

__all__ = ["Follower", "GatheredBoard", "is_gathered", "open_gathered"]

GATHER_S = 60.0
"""Until all ranks have connected. Ranks of one run start within seconds, interpreters on a cold disk take longer."""
SERVE_S = 3600.0
_HANDSHAKE_S = 3.0
_RETRY_S = 0.2
_LINE_BYTES = 1 << 16
_LEADER_DIED = 3


class GatheredBoard(Switchboard):
    """The agents of all ranks, one seat each. `announce` lets the other ranks end."""

    def __init__(self, place: Place, guests: Mapping[int, _Guest], lost: Mapping[int, str], own: Seat) -> None:
        self.launcher = place.launcher
        self._controls = [guest.control for guest in guests.values() if guest.control is not None]
        seats = [own, *(_seat(rank, guests.get(rank)) for rank in range(1, place.size))]
        links = [start([sys.executable, "-u", "-c", ONE_LINER], (0,))]
        for rank, guest in guests.items():
            assert guest.agent is not None
            descriptor = guest.agent.detach()
            links.append(Link((rank,), descriptor, descriptor))
        for link in links:
            link.send_raw(agent_line())
        super().__init__(_told_apart(seats, guests), links, lost)

    def announce(self, exit_code: int) -> None:
        """Tell the other ranks how this run ended; they end with the same code."""
        for control in self._controls:
            with contextlib.suppress(OSError), control:
                control.sendall(b'{"exit": %d}\n' % exit_code)
        self._controls = []


@dataclass
class _Guest:
    """A rank that has connected, twice: for its agent, and to hear the end."""

    hello: dict[str, Any] = field(default_factory=dict[str, Any])
    address: str = ""
    agent: socket.socket | None = None
    control: socket.socket | None = None


def _seat(rank: int, guest: _Guest | None) -> Seat:
    if guest is None:
        return Seat(name=f"rank {rank}", node=f"rank {rank}", local_rank=0)
    hello = guest.hello
    return Seat(f"{hello['host']} rank {rank}", guest.address, local_rank=int(hello["local_rank"]), node=hello["host"])


def _told_apart(seats: list[Seat], guests: Mapping[int, _Guest]) -> list[Seat]:
    """Machines of one name get their number in the run as well."""
    numbers = {0: "0"} | {rank: str(guest.hello["node"]) for rank, guest in guests.items()}
    machines = {(seats[rank].node, number) for rank, number in numbers.items()}
    twice = {name for name, count in Counter(name for name, _ in machines).items() if count > 1}
    return [
        Seat(
            name=f"{seat.node}#{numbers[rank]} rank {rank}",
            address=seat.address,
            local_rank=seat.local_rank,
            node=f"{seat.node}#{numbers[rank]}",
        )
        if seat.node in twice and rank in numbers
        else seat
        for rank, seat in enumerate(seats)
    ]


class Follower:
    """Any other rank than 0: `serve` until rank 0 has told the end."""

    def __init__(self, place: Place, agent: socket.socket, control: socket.socket) -> None:
        self.place = place
        self._agent = agent
        self._control = control

    def serve(self) -> int:
        """Run an agent for rank 0, silently, and return rank 0's exit code (3 when it went without a word)."""

        def stop(number: int, frame: object) -> None:
            raise SystemExit(128 + number)

        before = signal.signal(signal.SIGTERM, stop)
        process = subprocess.Popen(
            [sys.executable, "-u", "-c", ONE_LINER],
            stdin=self._agent.fileno(),
            stdout=self._agent.fileno(),
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            self._agent.close()
            return int(_read_line(self._control, SERVE_S).get("exit", _LEADER_DIED))
        except OSError:
            return _LEADER_DIED
        finally:
            self._control.close()
            process.terminate()  # the agent then kills what it has started
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(2.0)
            process.kill()
            signal.signal(signal.SIGTERM, before)


def open_gathered(environ: Mapping[str, str], timeout_s: float = GATHER_S) -> GatheredBoard | Follower:
    """Meet the other ranks of this run.

    Args:
        environ: of a process for which `is_gathered` holds.
        timeout_s: a rank that has not come by then is lost; one that does not find rank 0 gives up.

    Raises:
        UserError: all ports of the run are taken, rank 0 cannot be found, or nobody but rank 0 came.
    """
    place = place_of(environ)
    assert place is not None
    leader = place.leader or _first_host(environ)
    deadline = time.monotonic() + timeout_s
    return _lead(place, leader, deadline) if place.rank == 0 else _follow(place, leader, deadline)


def _first_host(environ: Mapping[str, str]) -> str:
    try:
        nodes = environ.get("SLURM_STEP_NODELIST") or environ.get("SLURM_JOB_NODELIST") or ""
        return slurm_hosts({**environ, "SLURM_JOB_NODELIST": nodes})[0]
    except (HostsError, IndexError) as error:
        raise UserError(f"srun: which machine runs rank 0 is not known: {error}; use --hosts slurm") from None


def _lead(place: Place, leader: str, deadline: float) -> GatheredBoard:
    listener = _listener(place, leader)
    waiting = {rank: _Guest() for rank in range(1, place.size)}
    here: dict[int, _Guest] = {}
    own_address = ""
    with listener:
        while waiting and (left := deadline - time.monotonic()) > 0:
            if not select.select([listener], [], [], left)[0]:
                break
            connection, peer = listener.accept()
            hello = _welcome(connection, place)
            guest = waiting.get(int(hello.get("rank", -1)))
            if guest is None:
                connection.close()
                continue
            own_address = _better(own_address, str(connection.getsockname()[0]))
            guest.hello, guest.address = hello, str(peer[0])
            setattr(guest, "agent" if hello.get("for") == "agent" else "control", connection)
            if guest.agent is not None and guest.control is not None:
                here[int(hello["rank"])] = waiting.pop(int(hello["rank"]))
    if not here:
        raise UserError(
            f"{place.launcher}: none of the other {place.size - 1} ranks came within the time for it; "
            "start the same command on all of them"
        )
    reason = "did not connect to rank 0 in time"
    host = socket.gethostname()
    own = Seat(f"{host} rank 0", own_address, is_head=False, local_rank=place.local_rank, node=host)
    return GatheredBoard(place, here, dict.fromkeys(waiting, reason), own)


def _better(known: str, new: str) -> str:
    """Of rank 0's own addresses, one that other machines can use."""
    return new if not known or known.startswith("127.") or known == "::1" else known


def _listener(place: Place, leader: str) -> socket.socket:
    # A name may mean loopback on the machine itself and something else to the others.
    address = leader if place.one_machine else ""
    ports = ports_of(place.run)
    for port in ports:
        with contextlib.suppress(OSError):
            return socket.create_server((address, port), family=_family(leader), backlog=1024)
    raise UserError(
        f"{place.launcher}: rank 0 found ports {', '.join(map(str, ports))} taken, where the ranks of this run "
        "would meet; start it again with another --rdzv-id or --master-port, or use --hosts FILE"
    )


def _family(host: str) -> socket.AddressFamily:
    with contextlib.suppress(OSError):
        return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)[0][0]
    return socket.AF_INET


def _welcome(connection: socket.socket, place: Place) -> dict[str, Any]:
    """What the other side says of itself; empty when it is not of this run."""
    try:
        connection.sendall(_line({"rlcheck": token_of(place.run)}))
        hello = _read_line(connection, _HANDSHAKE_S)
    except OSError:
        return {}
    return hello if hello.get("rlcheck") == token_of(place.run) else {}


def _follow(place: Place, leader: str, deadline: float) -> Follower:
    while time.monotonic() < deadline:
        for port in ports_of(place.run):
            agent = _call(place, leader, port, "agent")
            control = _call(place, leader, port, "control") if agent is not None else None
            if agent is not None and control is not None:
                return Follower(place, agent, control)
            if agent is not None:
                agent.close()
        time.sleep(_RETRY_S)
    raise UserError(
        f"{place.launcher}: rank {place.rank} on {socket.gethostname()} did not find rank 0 at {leader} on "
        f"any of ports {', '.join(map(str, ports_of(place.run)))}; are they open between these machines?"
    )


def _call(place: Place, leader: str, port: int, purpose: str) -> socket.socket | None:
    """A connection to rank 0; None when it is not (yet) at this port."""
    try:
        connection = socket.create_connection((leader, port), timeout=_HANDSHAKE_S)
    except OSError:
        return None
    try:
        if _read_line(connection, _HANDSHAKE_S).get("rlcheck") == token_of(place.run):
            hello = {
                "rlcheck": token_of(place.run),
                "rank": place.rank,
                "local_rank": place.local_rank,
                "node": place.node,
                "host": socket.gethostname(),
                "for": purpose,
                "pid": os.getpid(),
            }
            connection.sendall(_line(hello))
            connection.settimeout(None)
            return connection
    except OSError:
        pass
    connection.close()
    return None


def _line(message: Mapping[str, Any]) -> bytes:
    return json.dumps(message).encode() + b"\n"


def _read_line(connection: socket.socket, timeout_s: float) -> dict[str, Any]:
    """One line of JSON, byte by byte: what follows is somebody else's. Empty at the end or for what is none."""
    deadline = time.monotonic() + timeout_s
    data = b""
    while not data.endswith(b"\n") and len(data) < _LINE_BYTES:
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        byte = connection.recv(1)
        if not byte:
            return {}
        data += byte
    try:
        message = json.loads(data)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}  # pyright: ignore[reportUnknownVariableType]
