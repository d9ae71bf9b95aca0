"""Agents on the nodes of a Slurm job, through srun."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from rlcheck.measure.cluster.link import Link, start
from rlcheck.measure.cluster.program import ONE_LINER, agent_line
from rlcheck.measure.cluster.switchboard import Seat, Switchboard, unique_names

_UP_WITHIN_S = 30.0


def open_srun(
    nodes: Sequence[str],
    python: str | Sequence[str] = "python3",
    srun: Sequence[str] = ("srun",),
    up_within_s: float = _UP_WITHIN_S,
    lifetime_s: float = 3600.0,
) -> Switchboard:
    """An agent on each node of this Slurm job, each in a step of its own that shares the job's resources.

    Args:
        nodes: as Slurm names them.
        python: the interpreter there, as words of a shell or as a command.
        srun: the command, with options of its own, if need be.
        up_within_s: how long a step may take to start.
    """
    python = shlex.split(python) if isinstance(python, str) else python
    first = agent_line(python, reached_by="srun", lifetime_s=lifetime_s)
    links: list[Link] = []
    lost: dict[int, str] = {}
    for index, node in enumerate(nodes):
        place = ["--nodes=1", "--ntasks=1", f"--nodelist={node}", "--overlap", "--unbuffered"]
        try:
            link = start([*srun, *place, *python, "-u", "-c", ONE_LINER], (index,))
        except OSError as error:
            lost[index] = f"{srun[0]}: {error.strerror or error}"
            continue
        link.send_raw(first)
        links.append(link)
    seats = [Seat(name=name) for name in unique_names([(node,) for node in nodes])]
    return Switchboard(seats, links, lost, up_within_s, "srun to start a step", explain)


def explain(seat: Seat, code: int | None, lines: tuple[str, ...]) -> str:
    """Why a step ended, in srun's words."""
    errors = [line for line in lines if line.startswith("srun: error:")] or list(lines)
    how = "it hung up" if code is None else f"exit status {code}" if code >= 0 else f"signal {-code}"
    return f"its step ended: {errors[0] if errors else how}"
