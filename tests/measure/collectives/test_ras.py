"""The RAS client against a server that speaks as NCCL's does, over a real socket, and against bad ones."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from rlcheck.remote import ras

STATUS = """NCCL version {version} compiled with CUDA 13.0
CUDA runtime version 13000, driver version 13000

Job summary
===========

Communicators... (0.01s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         8        16        16   RUNNING      OK

Errors
======

{errors}
Warnings
========
"""
DEAD = """DEAD
  1 job process is considered dead (unreachable via the RAS network)
  Process 77 on node 10.0.0.2 managing GPU 0
"""
BEHIND = "#0-0 (27a079b8) MISMATCH\n  Communicator ranks have different collective operation counts\n"
DIAGNOSIS = "n1:7 NCCL DIAG [OK] nvlink: 18 links\nn1:7 NCCL DIAG [INFO] env: NCCL_ALGO differs between ranks\n"


def serve(link: socket.socket, version: str, errors: str, diagnosis: str) -> None:
    """One client: the greeting, a time limit, one command, its answer, the end."""
    with link, link.makefile("rw", newline="\n") as lines:
        for line in lines:
            command = line.strip().lower()
            if command.startswith("client protocol"):
                lines.write("SERVER PROTOCOL 2\n")
            elif command.startswith("timeout"):
                lines.write("OK\n")
            elif command == "verbose status":
                lines.write(STATUS.format(version=version, errors=errors))
                break
            elif command == "diagnostics":
                lines.write(diagnosis)
                break
            lines.flush()
        lines.flush()


@contextmanager
def server(talk: Callable[[socket.socket], None]) -> Iterator[str]:
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    link, _ = listener.accept()
                except OSError:
                    return
                threading.Thread(target=talk, args=(link,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)


def test_a_healthy_job() -> None:
    with server(lambda link: serve(link, "2.28.9", "", "")) as address:
        found = ras.ask(5.0, address)
    assert found["version"] == "2.28.9"
    assert found["problems"] == []
    assert "RUNNING" in found["text"]


def test_a_dead_process_is_a_problem_and_a_rank_one_call_behind_is_not() -> None:
    with server(lambda link: serve(link, "2.28.9", DEAD + BEHIND, "")) as address:
        found = ras.ask(5.0, address)
    assert len(found["problems"]) == 1
    assert found["problems"][0].startswith("DEAD: 1 job process is considered dead")
    assert "Process 77 on node 10.0.0.2" in found["problems"][0]


@pytest.mark.parametrize(("version", "asked"), [("2.30.7", False), ("2.31.0", True), ("2.32.3", True)])
def test_new_libraries_are_asked_for_their_diagnosis(version: str, asked: bool) -> None:
    with server(lambda link: serve(link, version, "", DIAGNOSIS)) as address:
        found = ras.ask(5.0, address)
    assert ("NCCL_ALGO differs" in " ".join(found["problems"])) is asked
    assert not any("[OK]" in problem for problem in found["problems"])


def test_nobody_listens() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    assert "nothing listens" in ras.ask(2.0, address)["error"]


@pytest.mark.parametrize(
    ("talk", "said"),
    [
        (lambda link: time.sleep(3), "no whole answer within 0.5 s"),
        (lambda link: link.close(), "closed the connection"),
        (lambda link: link.sendall(b"HTTP/1.1 400 Bad Request\r\n"), "is not NCCL's"),
    ],
)
def test_strange_services_end_in_one_line(talk: Callable[[socket.socket], None], said: str) -> None:
    started = time.monotonic()
    with server(talk) as address:
        found = ras.main({"deadline_s": 0.5, "address": address})
    assert said in found["error"]
    assert time.monotonic() - started < 2.5


def test_a_bad_address_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NCCL_RAS_ADDR", "localhost")
    assert ras.ask(1.0)["error"].startswith("RAS at localhost:")
