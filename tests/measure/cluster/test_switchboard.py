"""The switchboard over links of its own: sockets, one stream for several seats, agents that misbehave."""

from __future__ import annotations

import json
import socket
import sys
import threading
import time

from rlcheck.measure.cluster.link import Link, start
from rlcheck.measure.cluster.program import ONE_LINER, agent_line
from rlcheck.measure.cluster.switchboard import Lost, Seat, Switchboard, unique_names


def test_names_are_unique() -> None:
    assert unique_names([("a", "1", "x"), ("b", "1", "x")]) == ["a", "b"]
    assert unique_names([("a", "1", "x"), ("a", "2", "x")]) == ["a (1)", "a (2)"]
    assert unique_names([("a", "1", "x"), ("a", "1", "y"), ("a", "2", "z")]) == ["a (1, x)", "a (1, y)", "a (2)"]
    assert unique_names([("a",), ("a",)]) == ["a #0", "a #1"]
    assert unique_names([]) == []


def test_an_agent_behind_a_socket() -> None:
    """As when a rank under torchrun or srun connects to rank 0."""
    ours, theirs = socket.socketpair()
    link = Link((0,), (descriptor := ours.detach()), descriptor)
    agent = start(
        (sys.executable, "-c", _BRIDGE.format(fd=theirs.fileno()), ONE_LINER), (0,), pass_fds=(theirs.fileno(),)
    )
    theirs.close()
    link.send_raw(agent_line())
    with Switchboard((Seat("a"),), (link,)) as board:
        answer = board.ask({0: {"do": "clock"}}, 10)[0]
        assert isinstance(answer, dict)
    assert agent.how_it_ended(5)[0] == 0
    agent.close()


_BRIDGE = """
import os, sys
os.dup2({fd}, 0)
os.dup2({fd}, 1)
os.close({fd})
os.execv(sys.executable, [sys.executable, "-u", "-c", sys.argv[1]])
"""


def talker(*lines: object, then: str = "sys.stdin.read()") -> Link:
    """A process for two seats that says these lines, and then does that."""
    text = "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    return start((sys.executable, "-c", f"import sys; print({text!r}, flush=True); {then}"), (0, 1))


def test_one_stream_for_several_seats() -> None:
    link = talker(
        "a banner",
        {"seat": 0, "event": "hello"},
        {"seat": 7, "event": "hello"},
        {"seat": 1, "event": "hello"},
        {"event": "of nobody"},
        [1, 2],
        {"seat": 0, "event": "news", "x": float("nan")},
        {"seat": 1, "re": 1, "value": 5},
        {"seat": 0, "event": "lost", "reason": "the node died"},
    )
    with Switchboard((Seat("a"), Seat("b")), (link,)) as board:
        answers = board.ask({0: {"do": "x"}, 1: {"do": "x"}}, 5)
        assert answers[0] == Lost("the node died")
        assert isinstance(answers[1], dict)
        assert answers[1]["value"] == 5
        assert [message["event"] for _, message in board.events(0)] == ["news", "lost"]
        assert board.ask({0: {"do": "x"}}, 5) == {0: Lost("the node died")}
        assert board.lost == {0: "the node died"}


def test_one_that_never_comes_up_is_lost_at_its_stage() -> None:
    link = talker({"seat": 0, "event": "stage", "stage": "a worker to start"}, {"seat": 1, "event": "hello"})
    started = time.monotonic()
    with Switchboard((Seat("a"), Seat("b")), (link,), up_within_s=0.5, stage="the driver") as board:
        board.wait_up()
        assert time.monotonic() - started < 10
        assert board.lost == {0: "waited 0.5 s for a worker to start"}
        assert board.ask({1: {"do": "x"}}, 0.2) == {1: Lost("did not answer within 0.2 s")}


def test_a_stream_that_ends_loses_all_its_seats() -> None:
    link = talker({"seat": 0, "event": "hello"}, then="sys.exit('out of luck')")
    with Switchboard((Seat("a"), Seat("b"), Seat("c")), (link,), {2: "no such command"}) as board:
        assert board.ask({index: {"do": "x"} for index in range(3)}, 5) == {
            0: Lost("ended: exit 1, out of luck"),
            1: Lost("ended: exit 1, out of luck"),
            2: Lost("no such command"),
        }
        assert sorted(index for index, _ in board.events(0)) == [0, 1, 2]
        assert board.events(0) == []


def test_one_that_does_not_read_and_does_not_end_is_killed_on_close() -> None:
    stubborn = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
    link = talker({"seat": 0, "event": "hello"}, then=stubborn)
    board = Switchboard((Seat("a"), Seat("b")), (link,))
    board.post(0, {"big": "x" * 1_000_000})
    assert link.has_unsent
    assert link.process is not None
    started = time.monotonic()
    board.close()
    assert time.monotonic() - started < 20
    assert link.process.returncode == -9
    board.close()


def test_an_interrupt_while_waiting_leaves_a_board_that_can_be_closed() -> None:
    link = talker({"seat": 0, "event": "hello"}, {"seat": 1, "event": "hello"})
    with Switchboard((Seat("a"), Seat("b")), (link,)) as board:
        board.wait_up()
        threading.Timer(0.2, lambda: __import__("_thread").interrupt_main()).start()
        try:
            board.ask({0: {"do": "x"}}, 10)
        except KeyboardInterrupt:
            pass
        else:
            raise AssertionError("the interrupt was swallowed")
    assert not link.is_running()
