"""Machines for the tests: an agent process each, every one with an address of its own on the loopback interface."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from rlcheck.measure.cluster.link import start
from rlcheck.measure.cluster.program import ONE_LINER, agent_line
from rlcheck.measure.cluster.switchboard import Seat, Switchboard
from tests.conftest import base_environ

FAULTY = Path(__file__).resolve().parent / "faulty"


def machines(num: int, odd: Mapping[int, Mapping[str, str]] = {}, python: Sequence[str] = ()) -> Switchboard:
    """A board of `num` machines named a, b, c, …; those in `odd` have more environment variables than the others."""
    links = []
    for index in range(num):
        extra = {"OMP_NUM_THREADS": "1", **odd.get(index, {})}
        if "FAULT" in extra:
            extra["PYTHONPATH"] = str(FAULTY)
        link = start([*(python or (sys.executable,)), "-u", "-c", ONE_LINER], (index,), base_environ(extra))
        link.send_raw(agent_line())
        links.append(link)
    seats = [Seat(name=chr(ord("a") + index), address=f"127.0.0.{index + 2}") for index in range(num)]
    return Switchboard(seats, links)
