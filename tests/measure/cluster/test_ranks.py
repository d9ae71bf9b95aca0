"""Processes that the agent starts: their messages, their output, their end, and that nothing outlives the doctor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from typing import Any

import pytest

from rlcheck.measure.cluster.launch import open_local
from rlcheck.measure.cluster.switchboard import Lost, Switchboard
from tests.conftest import ROOT
from tests.measure.cluster.processes import below, kill, survivors

PROGRAM = {
    "sample": "",
    "sample.rank": textwrap.dedent("""
        import os, signal, subprocess, sys, time
        from . import words

        def main(argument, wire):
            print("junk on standard output")
            os.system("echo more of it")
            sys.stdout.flush()
            if argument.get("stubborn"):
                signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if argument.get("children"):
                subprocess.Popen(["sleep", "600"])
                subprocess.Popen(["sh", "-c", "sleep 600 & wait"], start_new_session=True)
            wire.say({"word": words.WORD, "value": os.environ.get("VALUE"), "home": os.environ.get("HOME")})
            while True:
                message = wire.hear()
                if message is None:
                    return
                if "write" in message:
                    open(os.environ["VALUE"], "w").write(message["write"])
                if "exit" in message:
                    sys.stderr.write("the last words\\n")
                    sys.exit(message["exit"])
                wire.say({"echo": message})
    """),
    "sample.words": "WORD = 'w\u00f6rd'\n",
}


@pytest.fixture
def board() -> Iterator[Switchboard]:
    with open_local() as switchboard:
        yield switchboard
    UNREAD.clear()


def start(board: Switchboard, key: str = "r0", **more: Any) -> dict[str, Any]:
    answer = board.ask({0: start_request(key, **more)}, 10)[0]
    assert not isinstance(answer, Lost), answer
    return answer


def start_request(key: str, **more: Any) -> dict[str, Any]:
    return {"do": "start_rank", "rank": key, "sources": PROGRAM, "entry": "sample.rank:main", **more}


def until(board: Switchboard, event: str, key: str = "r0", within_s: float = 10) -> dict[str, Any]:
    """The next event of that kind of that rank; others are passed over."""
    for number, (_, message) in enumerate(events := UNREAD.setdefault(id(board), [])):
        if message["event"] == event and message.get("rank") == key:
            del events[number]
            return message
    found = board.events(within_s)
    assert found, f"no {event} within {within_s} s"
    events += found
    return until(board, event, key, within_s)


UNREAD: dict[int, list[tuple[int, dict[str, Any]]]] = {}


def started_below(pid: int, num: int) -> set[int]:
    """The descendants of a process, as soon as there are so many."""
    deadline = time.monotonic() + 5
    while len(found := below(pid)) < num and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(found) == num
    return found


def test_messages_both_ways_beside_what_is_printed(board: Switchboard) -> None:
    start(board, environ={"VALUE": "1", "HOME": None})
    assert until(board, "rank")["message"] == {"word": "wörd", "value": "1", "home": None}
    board.post(0, {"do": "tell", "rank": "r0", "message": {"big": "x" * 300_000}})
    assert len(until(board, "rank")["message"]["echo"]["big"]) == 300_000
    tail = board.ask({0: {"do": "tail", "rank": "r0", "num_lines": 1}}, 5)[0]
    assert not isinstance(tail, Lost)
    assert tail["lines"] == ["more of it"]
    board.post(0, {"do": "tell", "rank": "r0", "message": {"exit": 3}})
    ended = until(board, "rank_ended")
    assert ended["how"] == "exit 3"
    assert ended["last_lines"] == ["junk on standard output", "more of it", "the last words"]


def test_a_traceback_is_in_the_last_lines(board: Switchboard) -> None:
    start(board, entry="sample.rank:nothing")
    ended = until(board, "rank_ended")
    assert ended["how"] == "exit 1"
    assert "has no attribute 'nothing'" in ended["last_lines"][-1]


@pytest.mark.parametrize("argument", [{}, {"stubborn": True}, {"children": True}], ids=str)
def test_kill_ends_a_rank_and_all_below_it(board: Switchboard, argument: dict[str, bool]) -> None:
    pid = start(board, argument=argument)["pid"]
    until(board, "rank")
    all_of_it = {pid, *started_below(pid, 3 if argument.get("children") else 0)}
    board.post(0, {"do": "kill", "rank": "r0"})
    assert until(board, "rank_ended")["how"] == "signal 9"
    assert not survivors(all_of_it)


def test_a_rank_that_somebody_kills_is_reported_and_its_children_end(board: Switchboard) -> None:
    pid = start(board, argument={"children": True})["pid"]
    until(board, "rank")
    children = started_below(pid, 3)
    os.kill(pid, signal.SIGSEGV)
    assert until(board, "rank_ended")["how"] == "signal 11"
    board.close()
    assert not survivors(children)


def test_many_ranks_and_files_of_theirs(board: Switchboard) -> None:
    for key in range(4):
        temp = start(board, key=f"r{key}", environ={"VALUE": f"{{temp}}/log.{key}"})["temp"]
    for key in range(4):
        board.post(0, {"do": "tell", "rank": f"r{key}", "message": {"write": f"line of {key}"}})
        while "echo" not in until(board, "rank", f"r{key}")["message"]:
            pass
    read = [board.ask({0: {"do": "read", "path": f"log.{key}"}}, 5)[0] for key in range(4)]
    assert [answer["text"] for answer in read if isinstance(answer, dict)] == [f"line of {k}" for k in range(4)]
    outside = board.ask({0: {"do": "read", "path": "../../etc/passwd"}}, 5)[0]
    assert isinstance(outside, Lost)
    board.close()
    assert not os.path.exists(temp)


def test_a_rank_that_does_not_read_does_not_hold_up_the_agent(board: Switchboard) -> None:
    pid = start(board)["pid"]
    until(board, "rank")
    os.kill(pid, signal.SIGSTOP)
    for _ in range(5):
        board.post(0, {"do": "tell", "rank": "r0", "message": {"big": "x" * 100_000}})
    assert not isinstance(board.ask({0: {"do": "clock"}}, 5)[0], Lost)
    board.close()
    assert not survivors({pid})


def test_no_such_rank(board: Switchboard) -> None:
    answer = board.ask({0: {"do": "tell", "rank": "r9", "message": {}}}, 5)[0]
    assert isinstance(answer, Lost)
    assert "r9" in answer.reason


DOCTOR = """
import sys, time
sys.path.insert(0, {root!r})
from rlcheck.measure.cluster.launch import open_local
from tests.measure.cluster.test_ranks import start_request
board = open_local()
board.ask({{0: start_request("r0", argument={{"children": True, "stubborn": True}})}}, 10)
board.events(10)
{ending}
"""


@pytest.mark.parametrize(
    ("ending", "number"),
    [
        ("print('ready', flush=True); time.sleep(600)", signal.SIGKILL),
        ("print('ready', flush=True); time.sleep(600)", signal.SIGINT),
        ("print('ready', flush=True); time.sleep(600)", signal.SIGTERM),
        ("print('ready', flush=True); sys.stdin.read()", None),
    ],
    ids=["SIGKILL", "Ctrl-C", "SIGTERM", "plain end"],
)
def test_nothing_outlives_the_doctor(ending: str, number: signal.Signals | None) -> None:
    code = DOCTOR.format(root=str(ROOT), ending=ending)
    doctor = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert doctor.stdin is not None
    assert doctor.stdout is not None
    assert doctor.stdout.readline() == b"ready\n"
    started = started_below(doctor.pid, 5)  # an agent, a rank and its three children
    if number is None:
        doctor.stdin.close()
    else:
        doctor.send_signal(number)
    doctor.wait(10)
    left = survivors(started)
    kill(left)
    assert not left
