"""Who is named: the one at the end of the waiting, and nobody where that one goes on."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from rlcheck.checks import family_checks
from rlcheck.diagnose.hang.live import judge
from rlcheck.facts.document import Facts
from rlcheck.facts.flight import Call, Dump
from rlcheck.facts.hang import HangFacts, Peer, Process, Thread
from tests.checks.hang import cases
from tests.checks.hang.cases import CASES

BY_ID = {check.id: check for check in family_checks("HNG")}


LOGGER = Process(
    pid=901,
    role="logger",
    looks=tuple((Thread(tid=901, frames=(f"job/log.py:{line} in write",)),) for line in (3, 4, 5)),
)


def looked(facts: Facts) -> HangFacts:
    assert facts.hang.value is not None
    return facts.hang.value


@pytest.mark.parametrize("id", sorted(CASES))
def test_a_hang_fails_and_a_job_that_goes_on_passes(id: str) -> None:
    fires, quiet = CASES[id]
    assert BY_ID[id].judge(fires).status == "fail"
    assert BY_ID[id].judge(quiet).status == "pass"


@pytest.mark.parametrize(
    ("facts", "culprit"),
    [
        (cases.STOPPED, (2, "", "stopped")),
        (cases.MISSING, (2, "", "gone")),
        (cases.BEHIND, (2, "", "behind")),
        (cases.LOCKED, (2, "", "gil")),
        (cases.OTHER, (2, "", "mismatch")),
        (cases.REWARD, (None, "reward", "stuck")),
        (cases.FAR, (None, "server at 10.0.0.9:8000", "stuck")),
    ],
)
def test_the_end_of_the_waiting_is_named(facts: Facts, culprit: tuple[object, ...]) -> None:
    hang = judge(looked(facts)).hang
    assert hang is not None
    assert [(one.rank, one.role, one.kind) for one in hang.culprits] == [culprit]
    assert {wait.rank for wait in hang.waits} >= {0, 1, 3}


def test_one_that_computes_or_moves_is_not_accused() -> None:
    moves = judge(looked(cases.MOVES))
    assert moves.hang is None
    assert moves.said.startswith("the job waits for rank 2, which goes on")
    # A CPU that is in use may compute, or wait for a GPU.
    computes = judge(looked(cases.with_odd(cases.rank(2, cases.ASLEEP, cpu_share=0.9))))
    assert computes.hang is None
    assert computes.doubt.startswith("rank 2 has used its CPU in one place for 6 s")


def test_ranks_that_wake_up_in_their_calls_go_from_one_to_the_next() -> None:
    """Three looks that happen to find each rank where it was before."""
    others = [cases.rank(number, wakes_per_s=90.0) for number in (0, 1, 3)]
    judged = judge(looked(cases.job(*others, cases.rank(2, cases.ASLEEP, wakes_per_s=60.0))))
    assert judged.hang is None
    assert judged.said.startswith("the job waits for rank 2, which goes on")
    assert judge(looked(cases.job(*others, cases.rank(2, wakes_per_s=60.0)))).said == "processes of the job move"
    # It polls, and nobody moves: neither accused nor called well.
    polls = judge(looked(cases.with_odd(cases.rank(2, cases.ASLEEP, wakes_per_s=60.0))))
    assert polls.hang is None
    assert polls.doubt.startswith("rank 2 has woken up again and again in one place")
    # One that sleeps for good is named, whatever the others do.
    hang = judge(looked(cases.job(*others, cases.rank(2, cases.ASLEEP)))).hang
    assert hang is not None
    assert [one.rank for one in hang.culprits] == [2]


def test_a_rank_that_polls_for_the_others_to_come_stands_still() -> None:
    """As it was seen of two ranks with NCCL, one of which never started."""
    frames = (
        "torch/distributed/rendezvous.py:199 in _create_c10d_store",
        "torch/distributed/rendezvous.py:280 in _env_rendezvous_handler",
        "torch/distributed/distributed_c10d.py:1831 in init_process_group",
        "job/train.py:86 in main",
    )
    look = (Thread(tid=902, frames=frames),)
    alone = Process(pid=902, role="", rank=0, world=2, looks=(look, look, look), cpu_share=0.02, wakes_per_s=287.4)
    hang = judge(HangFacts(processes=(alone,), watched_s=6.0, missing=(1,))).hang
    assert hang is not None
    assert [(one.rank, one.kind) for one in hang.culprits] == [(1, "gone")]


def test_a_controller_that_waits_in_ray_for_an_actor_of_another_node_is_no_culprit() -> None:
    frames = ("ray/_private/worker.py:3237 in wait", "job/train.py:9 in main")
    look = (Thread(tid=7, frames=frames),)
    controller = Process(pid=7, role="controller", looks=(look, look, look))
    asks = Process(pid=8, role="reward", peers=(Peer(tid=8, how="socket", pid=7),),
                   looks=((Thread(tid=8, frames=("job/child.py:3 in receive",)),),) * 3)  # fmt: skip
    assert "waits in Ray for an actor that was not seen at work" in judge(looked(cases.job(controller, asks))).doubt
    engine = Process(pid=9, role="rollout-0", title="ray::Worker", hindrance="stopped")
    hang = judge(looked(cases.job(controller, asks, engine))).hang
    assert hang is not None
    assert [(one.role, one.kind) for one in hang.culprits] == [("rollout-0", "stopped")]


SPINS = ("job/train.py:90 in loss",)
"""Where `.item()` waits for a GPU: the interpreter shows the caller's line alone."""


def recorded(*lasts: tuple[int, str], size: int = 4) -> tuple[Dump, ...]:
    """Records of ranks 0, 1, … that have queued all_reduce up to the number; its state; the last rank's has SIZE."""
    return tuple(
        Dump(
            path="", rank=rank, groups={"0": (0, 1)}, names={"0": "default_pg"},
            calls=tuple(
                Call(group="0", desc="", number=at, name="all_reduce", dtypes=("Float",),
                     state=state if at == last else "completed",
                     sizes=((size if at == last and rank == len(lasts) - 1 else 4,),))
                for at in range(1, last + 1)
            ),
        )
        for rank, (last, state) in enumerate(lasts)
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lasts", "size", "share", "culprit"),
    [
        (((5, "scheduled"), (4, "completed")), 4, 0.0, (1, "behind")),
        (((5, "scheduled"), (4, "completed")), 4, 1.0, None),  # it computes
        (((5, "scheduled"), (5, "scheduled")), 9, 1.0, (1, "mismatch")),
        (((5, "started"), (5, "scheduled")), 4, 1.0, (1, "not started")),
        (((5, "scheduled"), (5, "scheduled")), 4, 1.0, None),
    ],
)
def test_recorders_decide_where_ranks_wait_for_their_gpus(
    lasts: tuple[tuple[int, str], ...], size: int, share: float, culprit: tuple[int, str] | None
) -> None:
    ranks = (cases.rank(0, SPINS, cpu_share=1.0), cases.rank(1, SPINS, cpu_share=share))
    judged = judge(looked(cases.job(*ranks, recorded=recorded(*lasts, size=size), open_s=9.0)))
    hang = judged.hang
    assert bool(judged.doubt) == (culprit is None)
    assert (None if hang is None else [(one.rank, one.kind) for one in hang.culprits]) == (culprit and [culprit])


def test_recorders_that_show_new_calls_are_of_a_job_that_goes_on() -> None:
    ranks = (cases.rank(0), cases.rank(1))
    behind = recorded((5, "scheduled"), (4, "completed"))
    assert judge(looked(cases.job(*ranks, recorded=behind))).hang is not None
    judged = judge(looked(cases.job(*ranks, recorded=behind, went_on=True)))
    assert judged.hang is None
    assert judged.said == "the ranks' flight recorders show new calls"


def test_what_cannot_be_seen_is_no_all_clear() -> None:
    blind = cases.job(*(cases.rank(number, looks=()) for number in range(4)))
    assert judge(looked(blind)).doubt == "no stack of any process could be seen"
    one_blind = cases.with_odd(cases.rank(2, looks=()))
    assert "its stack cannot be seen" in judge(looked(one_blind)).doubt
    asleep = cases.job(*(cases.rank(number, cases.ASLEEP) for number in range(4)))
    assert judge(looked(asleep)).doubt.startswith("nothing moved for 6 s")
    beside = cases.job(*(cases.rank(number, cases.ASLEEP) for number in range(4)), LOGGER)
    assert judge(looked(beside)).doubt.startswith("no rank moved for 6 s")
    elsewhere = Facts(hang=replace(cases.INSIDE.hang, value=replace(looked(cases.INSIDE), elsewhere=(4, 5))))
    assert "the other nodes" in judge(looked(elsewhere)).doubt
    assert BY_ID["HNG002"].judge(elsewhere).status == "unknown"
