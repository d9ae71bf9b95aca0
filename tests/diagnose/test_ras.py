"""What NCCL's RAS says of a job that stands still: reports in the service's own words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcheck.diagnose.hang.find import look
from tests.conftest import rlcheck

HEAD = """NCCL version 2.28.9 compiled with CUDA 12.9
CUDA runtime version 12090, driver version 13000

Job summary
===========

  Nodes  Processes         GPUs  Processes     GPUs
(total)   per node  per process    (total)  (total)
      2          2            1          4        4

Communicators... (0.00s)
=============

Group     Comms     Nodes     Ranks     Ranks     Ranks    Status  Errors
    #  in group  per comm  per node  per comm  in group
    0         1         2         2         4         4   RUNNING  MISMATCH
    1         2         1         2         2         4   RUNNING      OK

Errors
======

"""
WARNINGS = "Warnings\n========\n\n"
PLACE = "GPU {0} managed by process {1} on node 10.0.0.{2}"


def place(rank: int) -> str:
    return PLACE.format(rank % 2, 4000 + rank, 1 + rank // 2)


def one(rank: int, count: int) -> str:
    what = f"launched up to operation {count}" if count else "not launched any operations"
    return f"  Rank {rank} has {what} -- {place(rank)}\n"


def many(ranks: tuple[int, ...], count: int, *, named: bool) -> str:
    lines = [f"  {len(ranks)} ranks have launched up to operation {count}\n"]
    return "".join([*lines, *(f"  Rank {rank} -- {place(rank)}\n" for rank in ranks if named)])


def differ(kind: str, *levels: str, comm: str = "#0-0 (27a079b828ff1a75)") -> str:
    return f"{comm} MISMATCH\n  Communicator ranks have different {kind} operation counts\n{''.join(levels)}\n"


BEHIND = differ("AllReduce", many((0, 1, 3), 5, named=False), one(2, 4))


def culprits(folder: Path, *reports: str) -> list[tuple[int | None, str, str, int]]:
    (folder / "ras.txt").write_text("".join(f"{HEAD}{WARNINGS}{report}" for report in reports))
    hang = look([str(folder)]).hang
    return [(each.rank, each.kind, each.node, each.pid) for each in hang.culprits] if hang is not None else []


@pytest.mark.parametrize("kind", ["AllReduce", "collective"])
def test_a_rank_that_is_behind_in_two_reports_alike_is_named(kind: str, tmp_path: Path) -> None:
    behind = BEHIND.replace("AllReduce", kind)
    assert culprits(tmp_path, behind, behind) == [(2, "behind", "10.0.0.2", 4002)]
    assert rlcheck("diagnose", tmp_path).code == 1


@pytest.mark.parametrize(
    "reports",
    [(BEHIND,), (BEHIND, BEHIND.replace(" 5\n", " 6\n").replace(" 4 --", " 5 --")), (BEHIND, ""), ("", ""), ("",)],
)
def test_a_job_that_goes_on_or_was_seen_once_is_not_accused(reports: tuple[str, ...], tmp_path: Path) -> None:
    assert culprits(tmp_path, *reports) == []
    notes = look([str(tmp_path)]).notes
    assert any("it hangs if ncclras" in note for note in notes) == bool(reports[-1])
    assert rlcheck("diagnose", tmp_path).code == 0


def test_a_job_seen_once_is_no_all_clear(tmp_path: Path) -> None:
    culprits(tmp_path, BEHIND)
    done = rlcheck("diagnose", tmp_path)
    assert "[?] No error in what was read" in done.out
    assert "not all could be judged" in done.out
    assert "✓" not in done.out
    assert rlcheck("diagnose", tmp_path, "--strict").code == 1
    assert "<skipped" in rlcheck("diagnose", tmp_path, "--format", "junit").out
    culprits(tmp_path, "")
    assert "[✓] No error in what was read" in rlcheck("diagnose", tmp_path).out


def test_who_is_behind_and_waits_itself_is_none(tmp_path: Path) -> None:
    """Rank 2 has not come to all: in its own group it waits for rank 3."""
    whole = differ("AllReduce", many((0, 1), 5, named=True), many((2, 3), 4, named=True))
    pair = differ("Broadcast", one(0, 8), f"  Rank 1 has not launched any operations -- {place(3)}\n",
                  comm="#1-1 (cf264af53edbe986)").replace(place(0), place(2))  # fmt: skip
    assert culprits(tmp_path, whole + pair, whole + pair) == [(3, "behind", "10.0.0.2", 4003)]


def test_a_rank_that_has_called_something_else(tmp_path: Path) -> None:
    odd = differ("AllReduce", many((0, 1, 3), 5, named=True), one(2, 4)) + differ(
        "Broadcast", many((0, 1, 3), 2, named=True), one(2, 3)
    )
    assert culprits(tmp_path, odd, odd) == [(2, "mismatch", "10.0.0.2", 4002)]


def test_a_rank_of_a_group_is_not_called_one_of_the_job(tmp_path: Path) -> None:
    """Whose number it is, only the whole job's communicator says."""
    pair = differ("AllGather", one(0, 8), one(1, 7), comm="#1-0 (cf264af53edbe986)")
    assert culprits(tmp_path, pair, pair) == []
    (note,) = look([str(tmp_path)]).notes
    assert note.endswith(
        "rank 1 of a group of 2 (process 4001 on node 10.0.0.1) has launched AllGather up to 7, others up to 8"
    )


def test_a_dead_process_is_said(tmp_path: Path) -> None:
    dead = "DEAD\n  1 job process is considered dead (unreachable via the RAS network)\n"
    text = HEAD + dead + "  Process 4003 on node 10.0.0.2 managing GPU 1\n\n" + WARNINGS
    (tmp_path / "ras.txt").write_text(text)
    done = rlcheck("diagnose", tmp_path, "--format", "json")
    assert done.code == 1
    assert "process 4003 on node 10.0.0.2 for dead" in json.loads(done.out)["hang"]["said"]


def test_what_is_cut_or_hostile_is_no_verdict(tmp_path: Path) -> None:
    for number, end in enumerate((0.3, 0.7, 0.95)):
        text = HEAD + WARNINGS + BEHIND
        (tmp_path / f"cut{number}.txt").write_text(text[: int(len(text) * end)])
    (tmp_path / "long.txt").write_text(HEAD + "#" * 100_000 + "\n" + "  9 ranks have" * 50_000)
    (tmp_path / "odd.txt").write_bytes(HEAD.encode() + b"\xff\x00" * 1000)
    assert look([str(tmp_path)]).hang is None
