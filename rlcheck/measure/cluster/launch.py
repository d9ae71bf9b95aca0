"""The ways to agents: on this machine, by ssh, by srun, through Ray."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Sequence

from rlcheck.measure.cluster.link import start
from rlcheck.measure.cluster.over_ray import open_ray
from rlcheck.measure.cluster.program import ONE_LINER, agent_line
from rlcheck.measure.cluster.srun import open_srun
from rlcheck.measure.cluster.ssh import open_ssh
from rlcheck.measure.cluster.switchboard import Seat, Switchboard

__all__ = ["open_local", "open_ray", "open_srun", "open_ssh"]

_LOCAL_S = 20.0


def open_local(python: Sequence[str] = (), lifetime_s: float = 3600.0) -> Switchboard:
    """An agent on this machine, in the interpreter that the command `python` starts (empty: the doctor's own)."""
    seat = Seat(name=socket.gethostname(), address="127.0.0.1")
    command = [*(python or (sys.executable,)), "-u", "-c", ONE_LINER]
    try:
        link = start(command, (0,), dict(os.environ))
    except OSError as error:
        return Switchboard((seat,), (), {0: f"{command[0]}: {error.strerror or error}"})
    link.send_raw(agent_line(python, lifetime_s=lifetime_s))
    return Switchboard((seat,), (link,), up_within_s=_LOCAL_S)
