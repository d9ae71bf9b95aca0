"""Finds the dumps of a hung job among files and directories, and puts those of one job together."""

from __future__ import annotations

import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence

import msgspec

from rlcheck.diagnose.hang import ras, stacks, verdict
from rlcheck.diagnose.hang.dumps import NoDump, looks_like_dump, read
from rlcheck.diagnose.sources import MOST_LOOKED_AT, files_below
from rlcheck.facts.flight import Dump
from rlcheck.facts.hang import Hang

MOST_DUMPS = 20_000
_START = 8192
_NEVER = (".log", ".py", ".safetensors", ".pt", ".pth", ".parquet", ".jsonl", ".gz", ".distcp", ".so", ".png")


class Found(msgspec.Struct, frozen=True):
    """`files`: dumps and reports of NCCL's RAS, by path; `read`: dumps that could be; `stacks`: of how many ranks there
    are some. `hang`: the verdict; `notes`: what it does not say."""

    files: frozenset[str] = frozenset()
    read: int = 0
    stacks: int = 0
    hang: Hang | None = None
    notes: tuple[str, ...] = ()


def look(paths: Sequence[str]) -> Found:
    """What the dumps, stacks and reports of NCCL's RAS say that PATHS name or hold; `-` is skipped."""
    files, of_stacks, of_ras = list[str](), list[str](), list[str]()
    for each in dict.fromkeys(paths):
        if each != "-":
            _sort(each, files, of_stacks, of_ras)
    dumps, notes = list[Dump](), list[str]()
    refused: list[str] = []
    for path in files[:MOST_DUMPS]:
        try:
            dumps.append(read(path))
        except NoDump as error:
            refused.append(f"{path}: this flight-recorder dump was not read: {error}")
    notes += refused[:3]
    if len(refused) > 3:
        notes.append(f"{len(refused) - 3} more dumps were not read")
    if len(files) > MOST_DUMPS:
        notes.append(f"only the first {MOST_DUMPS} dumps were read; name the others")
    hang, more = _verdict(dumps)
    found = [stack for path in of_stacks[:MOST_DUMPS] if (stack := stacks.read(path)) is not None]
    hang = verdict.of_stacks(found) if hang is None and not dumps else hang and verdict.with_stacks(hang, found)
    reports = {path: ras.read(path) for path in of_ras[:MOST_DUMPS]}
    by_ras, said = ras.judge(reports)
    hang = by_ras if hang is None else ras.with_places(hang, reports)
    return Found(frozenset((*files, *of_ras)), len(dumps), len(found), hang, (*notes, *more, *said))


def _sort(path: str, dumps: list[str], of_stacks: list[str], of_ras: list[str]) -> None:
    """Add the files that PATH names or holds to those that they are."""
    within = files_below(path, []) if os.path.isdir(path) else iter((path,))
    for number, file in enumerate(within):
        if number >= MOST_LOOKED_AT:
            break
        start = b"" if file.endswith(_NEVER) and file != path else _start(file)
        if looks_like_dump(start):
            dumps.append(file)
        elif stacks.looks_like_stacks(start):
            of_stacks.append(file)
        elif ras.looks_like_ras(start):
            of_ras.append(file)


def _start(path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):
            return b""
        with open(path, "rb") as file:
            return file.read(_START)
    except (OSError, ValueError):
        return b""


def _verdict(dumps: Sequence[Dump]) -> tuple[Hang | None, list[str]]:
    """The job that stands still with the most ranks; what is said of others becomes notes."""
    found = sorted(((verdict.solve(job), job) for job in _jobs(dumps)), key=lambda one: (one[0] is None, -len(one[1])))
    notes: list[str] = []
    for hang, job in found:
        place = os.path.dirname(job[0].path) or "."
        if hang is None:
            words = "1 flight-recorder dump" if len(job) == 1 else f"{len(job)} flight-recorder dumps"
            notes.append(f"{place}: {words}: no rank had a call open when they were written")
        elif hang is not found[0][0]:
            notes.append(f"{place}: another job of {len(job)} ranks: {hang.said}")
    hang = found[0][0] if found else None
    if hang is not None and hang.missing:
        notes.append(f"{len(hang.missing)} ranks left no dump: {', '.join(map(str, hang.missing[:16]))}")
    return hang, notes


def _jobs(dumps: Iterable[Dump]) -> list[list[Dump]]:
    """One job, or several: two dumps of one rank are of two, told apart by what their files are called."""
    every = list(dumps)
    twice = Counter(dump.rank for dump in every).most_common(1)
    if not every or twice[0][1] == 1:
        return [every] if every else []
    by_name: dict[str, dict[int, Dump]] = defaultdict(dict)
    for dump in every:
        place, name = os.path.split(dump.path)
        by_name[os.path.join(place, re.sub(r"\d+", "#", name))].setdefault(dump.rank, dump)
    return [list(job.values()) for job in by_name.values()]
