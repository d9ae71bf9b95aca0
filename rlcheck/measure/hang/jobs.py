"""Which processes of this machine are one job: ranks by torchrun's environment, Ray's workers and drivers, a process
and what descends from it, or those of a run's directory."""

from __future__ import annotations

import os
import re
from collections import defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rlcheck.errors import UserError
from rlcheck.facts.hang import Process
from rlcheck.measure.hang.recorders import pipe_of
from rlcheck.stacks import LOCK, command, members, parents, pids, read

MOST_PROCESSES = 256
_MOST_FILES = 4096
_LOCAL = ("127.0.0.1", "localhost", "::1")
_NO_WORK = ("resource_tracker", "py-spy", "ray::IDLE", "/ray/core/src/", "/ray/_private/", "/ray/dashboard/",
            "/ray/autoscaler/", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "guard.py",
            "fork_server", "fork_client.py", "absent_agent.py", "ray::AgentHost", "rlcheck needs Python")  # fmt: skip
"""Words of command lines that do no work of a job: Ray's own, guards, and rlcheck's agents."""
_LAUNCHER = re.compile(
    r"(^|[ /])(torchrun|accelerate launch|deepspeed|torch[./]distributed[./](run|launch)(\.py)?)( |$)"
)
_ROLES = (("engine", r"vllm|sglang|engine"), ("reward", r"reward|judge|verifier"))


@dataclass(frozen=True)
class Job:
    """PROCESSES of one job here. MISSING, ELSEWHERE: as in `HangFacts`. PIPES: to recorders that can be asked.
    STACKS: files into which processes write their stacks when they are asked."""

    processes: tuple[Process, ...]
    missing: tuple[int, ...] = ()
    elsewhere: tuple[int, ...] = ()
    environs: dict[int, dict[str, str]] = field(default_factory=dict[int, dict[str, str]])
    pipes: dict[int, tuple[str, str]] = field(default_factory=dict[int, tuple[str, str]])
    stacks: dict[int, Path] = field(default_factory=dict[int, Path])


def find(pid: int | None, directory: str) -> Job:
    """The job of the process PID, of the run in DIRECTORY, or the only one of this machine.

    Raises:
        UserError: there is none, or more than one.
    """
    environs = {each: environ(each) for each in pids() if each != os.getpid()}
    ranks = {each: key for each, found in environs.items() if (key := _job(found)) and not _is_helper(each, environs)}
    if directory:
        return _of_directory(Path(directory), ranks, environs)
    if pid is not None:
        if pid not in environs:
            raise UserError(f"--pid {pid}: there is no such process on this machine; name one of the job's")
        return _of_process(pid, ranks, environs)
    sessions = {each: _session(each) for each in environs if _of_ray(each)}
    found: dict[str, set[int]] = defaultdict(set)
    for each in {*ranks, *sessions}:
        found[sessions.get(each) or ranks.get(each, "")].add(each)
    if len(found) > 1:
        some = [str(min(found[key])) for key in sorted(found)]
        raise UserError(f"{len(found)} jobs run here; name one by a process of it: --pid {' or --pid '.join(some)}")
    if not found:
        raise UserError(
            "no job of torchrun or Ray runs here that may be looked at; name a process of it with --pid, "
            "or its run directory"
        )
    return _made(set[int]().union(*found.values()), ranks, environs)


def environ(pid: int) -> dict[str, str]:
    """The variables with which a process was started; none of one that may not be looked at."""
    with suppress(OSError), open(f"/proc/{pid}/environ", encoding="utf-8", errors="replace") as file:
        entries = [entry.partition("=") for entry in file.read(1 << 20).split("\0")]
        return {name: value for name, equals, value in entries if equals}
    return {}


def process(pid: int, above: dict[int, int], environs: dict[int, dict[str, str]], rank: int | None = None) -> Process:
    """What is known of a process without looking into it. RANK: of one whose environment gives its rank."""
    title, own = command(pid), environs.get(pid, {})
    runs = re.match(r"ray::[\w-]+[.:](\w+)", title)
    return Process(
        pid=pid,
        role=_role(title, rank),
        title=title[:200],
        parent=above.get(pid, 0),
        rank=rank,
        world=_number(own.get("WORLD_SIZE")) or 0 if rank is not None else 0,
        job=_job(own) if rank is not None else "",
        runs=runs.group(1) if runs else "",
    )


def _of_process(pid: int, ranks: dict[int, str], environs: dict[int, dict[str, str]]) -> Job:
    """All processes of its Ray, all ranks of its job, or it with all that descends from it.

    What a driver of Ray starts beside Ray (torchrun in a script that called `ray.init`) is a job of its own.
    """
    above = parents()
    line = _line(pid, above)
    below = {each for each in above if each == pid or pid in _line(each, above)}
    jobs = {ranks[each] for each in below if each in ranks}
    of_ray = (each for each in (pid, *line) if _of_ray(each) and (each == pid or not jobs or _is_worker(each)))
    session = next((found for each in of_ray if (found := _session(each))), "")
    if session:
        return _made({each for each in environs if _of_ray(each) and _session(each) == session}, ranks, environs)
    if pid in ranks:
        return _made({each for each in ranks if ranks[each] == ranks[pid]}, ranks, environs)
    return _made({*below, *(each for each in ranks if ranks[each] in jobs)}, ranks, environs)


def _of_directory(directory: Path, ranks: dict[int, str], environs: dict[int, dict[str, str]]) -> Job:
    found = members(directory)
    if not found:
        raise UserError(
            f"{directory}: no process of this run was found on this machine; look where it was started, or give --pid"
        )
    roles = {member.pid: member.name for member in found}
    jobs = {ranks[each] for each in roles if each in ranks}
    return _made({*roles, *(each for each in ranks if ranks[each] in jobs)}, ranks, environs, roles)


def _made(
    chosen: set[int], ranks: dict[int, str], environs: dict[int, dict[str, str]], roles: dict[int, str] | None = None
) -> Job:
    """Those CHOSEN, with their launchers and all that descends from them."""
    above = parents()
    below = {each for each in above if chosen & set(_line(each, above))}
    launchers = {up for each in chosen for up in _line(each, above) if _role(command(up), None) == "launcher"}
    found: list[Process] = []
    numbers: dict[int, tuple[int, dict[str, str]]] = {}
    for each in sorted(chosen | below | launchers)[:MOST_PROCESSES]:
        if each == os.getpid() or os.getpid() in _line(each, above) or not works(each):
            continue
        one = process(each, above, environs, _number(environs[each].get("RANK")) if each in ranks else None)
        found.append(_named(one, (roles or {}).get(each, "") or _name(each)))
        if one.rank is not None:
            numbers[one.rank] = (each, environs[each])
    missing, elsewhere = _absent(numbers)
    pipes = {one.pid: pipe for one in found if (pipe := pipe_of(environs.get(one.pid, {}))) is not None}
    stacks = {one.pid: Path(file) for one in found if (file := _stacks_file(one.pid))}
    return Job(tuple(found), missing, elsewhere, environs, pipes, stacks)


def _named(one: Process, name: str) -> Process:
    """ONE, called after the file into which its run has it dump stacks: `train-3` is rank 3 of `train`."""
    from msgspec.structs import replace

    match = re.fullmatch(r"(.*?)[-_.](\d{1,6})", name)
    if match is None or one.rank is not None:
        return replace(one, role=name) if name in ("controller",) else one
    trains = match.group(1) in ("train", "trainer", "actor", "policy")
    return replace(
        one,
        role=match.group(1) if trains else name,
        rank=int(match.group(2)) if trains else None,
        job=match.group(1) if trains else "",
    )


def _absent(numbers: dict[int, tuple[int, dict[str, str]]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Ranks that this node should have and has not, and those of other nodes."""
    if not numbers:
        return (), ()
    _, own = next(iter(numbers.values()))
    world, local = _number(own.get("WORLD_SIZE")) or 0, _number(own.get("LOCAL_WORLD_SIZE")) or 0
    lacking = [rank for rank in range(min(world, 1 << 17)) if rank not in numbers]
    if own.get("MASTER_ADDR", "") in _LOCAL or (local and local == world):
        return tuple(lacking), ()
    nodes = {rank // local for rank in numbers} if local else set[int]()
    here = [rank for rank in lacking if local and rank // local in nodes]
    return tuple(here), tuple(rank for rank in lacking if rank not in here)


def _job(own: dict[str, str]) -> str:
    """What ranks of one job share; "" of a process that is no rank."""
    if _number(own.get("RANK")) is None or not _number(own.get("WORLD_SIZE")):
        return ""
    return f"{own.get('MASTER_ADDR', '')}:{own.get('MASTER_PORT', '')}/{own['WORLD_SIZE']}"


def _is_helper(pid: int, environs: dict[int, dict[str, str]]) -> bool:
    """Whether it is a child of a rank that has its variables, and is not the rank: a data loader, a compiler."""
    parent = _number(re.sub(r"^.*\) \S ", "", read(f"/proc/{pid}/stat")).split(" ")[0]) or 0
    own, its = environs.get(pid, {}), environs.get(parent, {})
    return not works(pid) or (bool(_job(its)) and its.get("RANK") == own.get("RANK") and _job(its) == _job(own))


def _role(title: str, rank: int | None) -> str:
    """What a process is by its command line: by the program in it, not by the folders and options beside it."""
    if rank is not None:
        return ""
    of_ray = re.match(r"ray::([\w-]+)", title)
    if of_ray:
        return of_ray.group(1)
    if _LAUNCHER.search(title):
        return "launcher"
    program = " ".join(os.path.basename(word) for word in title.split(" --", maxsplit=1)[0].split()[:4])
    for role, pattern in _ROLES:
        if re.search(pattern, program, re.I):
            return role
    script = next((os.path.basename(word) for word in title.split()[1:] if word.endswith(".py")), "")
    return script or os.path.basename(title.split(" ", maxsplit=1)[0])[:40] or "a process"


def _of_ray(pid: int) -> bool:
    """Whether it is a worker of Ray, or a driver: those have a thread of that name."""
    if _is_worker(pid):
        return works(pid)
    with suppress(OSError):
        names = [read(f"/proc/{pid}/task/{task}/comm").strip() for task in os.listdir(f"/proc/{pid}/task")]
        return "worker.io" in names and works(pid)
    return False


def _is_worker(pid: int) -> bool:
    return command(pid).startswith("ray::")


def _session(pid: int) -> str:
    """The session of Ray that a process takes part in: each has a log open in its directory."""
    return next((found[0] for file in _files(pid) if (found := re.search(r"/session_[\w.-]+(?=/)", file))), "")


def _name(pid: int) -> str:
    """What rltrain calls a process: after its file for stacks; who holds the run's lock is the controller."""
    stacks = _stacks_file(pid)
    if stacks:
        return os.path.basename(stacks).removesuffix(".stacks")
    return "controller" if any(file.endswith(f"/{LOCK}") for file in _files(pid)) else ""


def _stacks_file(pid: int) -> str:
    return next((file for file in _files(pid) if file.endswith(".stacks")), "")


def _files(pid: int) -> list[str]:
    """The files that a process has open."""
    found: list[str] = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{pid}/fd")[:_MOST_FILES]:
            with suppress(OSError):
                found.append(os.readlink(f"/proc/{pid}/fd/{name}"))
    return found


def works(pid: int) -> bool:
    """Whether it does a job's own work: it is no part of Ray, no guard and no tool that looks."""
    line = command(pid)
    return bool(line) and not any(word in line for word in _NO_WORK)


def _line(pid: int, above: dict[int, int]) -> list[int]:
    """Its parent, the parent's, and so on."""
    found: list[int] = []
    while (pid := above.get(pid, 0)) > 1 and len(found) < 64:
        found.append(pid)
    return found


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() and len(text) < 8 else None
