"""Where a process is in a run that torchrun or srun has launched, and where its ranks meet."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

_FIRST_PORT, _NUM_PORTS, _CANDIDATES = 20000, 12000, 8
"""Below the ports that kernels hand out by themselves (32768 and up)."""


@dataclass(frozen=True)
class Place:
    """This process in the run: launcher is torchrun or srun, `node` a number that ranks of one machine share."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    node: str
    run: str
    leader: str
    one_machine: bool


def is_gathered(environ: Mapping[str, str]) -> bool:
    """Whether a launcher has started this process as one of several ranks."""
    return place_of(environ) is not None


def place_of(environ: Mapping[str, str]) -> Place | None:
    """Where this process is in its run; None when nobody launched it as one of several ranks."""
    try:
        if {"RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC_RUN_ID", "MASTER_ADDR"} <= environ.keys():
            place = _of_torchrun(environ)
        elif {"SLURM_PROCID", "SLURM_STEP_ID", "SLURM_LOCALID"} <= environ.keys():
            place = _of_srun(environ)
        else:
            return None
    except ValueError:
        return None
    return place if place.size > 1 and 0 <= place.rank < place.size else None


def _of_torchrun(environ: Mapping[str, str]) -> Place:
    size, local_size = int(environ["WORLD_SIZE"]), int(environ.get("LOCAL_WORLD_SIZE", "0"))
    run = f"{environ['TORCHELASTIC_RUN_ID']}:{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '')}"
    return Place(
        launcher="torchrun",
        rank=int(environ["RANK"]),
        size=size,
        local_rank=int(environ["LOCAL_RANK"]),
        node=environ.get("GROUP_RANK", "0"),
        run=run,
        leader=environ["MASTER_ADDR"],
        one_machine=local_size == size,
    )


def _of_srun(environ: Mapping[str, str]) -> Place:
    size = int(environ.get("SLURM_STEP_NUM_TASKS") or environ.get("SLURM_NTASKS") or "1")
    one_machine = environ.get("SLURM_STEP_NUM_NODES") == "1"
    return Place(
        launcher="srun",
        rank=int(environ["SLURM_PROCID"]),
        size=size,
        local_rank=int(environ["SLURM_LOCALID"]),
        node=environ.get("SLURM_NODEID", "0"),
        run=f"{environ.get('SLURM_JOB_ID', '')}.{environ['SLURM_STEP_ID']}",
        leader="127.0.0.1" if one_machine else "",
        one_machine=one_machine,
    )


def ports_of(run: str) -> tuple[int, ...]:
    """The ports at which the ranks of a run try to meet, in order; others are used when one is taken."""
    digests = (hashlib.sha256(f"{run}#{number}".encode()).digest() for number in range(_CANDIDATES))
    return tuple(dict.fromkeys(_FIRST_PORT + int.from_bytes(d[:4], "big") % _NUM_PORTS for d in digests))


def token_of(run: str) -> str:
    """By which ranks of one run know each other; it keeps runs apart and is no secret."""
    return hashlib.sha256(f"rlcheck {run}".encode()).hexdigest()[:32]
