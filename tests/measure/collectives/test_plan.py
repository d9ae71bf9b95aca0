"""Steps, sizes and deadlines."""

from __future__ import annotations

import pytest

from rlcheck.measure.collectives import plan
from rlcheck.measure.collectives.plan import Request
from rlcheck.text import GIB, MIB


def test_sizes_go_from_8_bytes_to_the_largest() -> None:
    full = plan.sizes("all", Request(), "nccl", 4 * GIB)
    assert full[0] == 8
    assert full[-1] == 4 * GIB
    assert list(full) == sorted(set(full))
    assert plan.sizes("all", Request(), "gloo", 16 * MIB)[-1] == 16 * MIB
    assert plan.sizes("all", Request(quick=True), "gloo", 4 * MIB) == (8, 64 << 10, MIB, 4 * MIB)
    assert max(plan.sizes("pair", Request(), "nccl", 4 * GIB)) == 256 * MIB


def test_the_largest_message_fits_in_free_memory_and_obeys_the_user() -> None:
    assert plan.most_bytes(Request(), "nccl", 80 * GIB) == 4 * GIB
    assert plan.most_bytes(Request(), "nccl", GIB) == int(0.4 * GIB)
    assert plan.most_bytes(Request(max_bytes=MIB), "nccl", 80 * GIB) == MIB
    assert plan.most_bytes(Request(quick=True), "gloo", 8 * GIB) == 4 * MIB


def test_a_rank_alone_is_not_timed() -> None:
    steps = plan.steps("node", Request(), "nccl", 1, GIB)
    assert steps[0].name == plan.FIRST_STEP
    assert {step.kind for step in steps} == {"connect", "check"}
    assert "sendrecv correct" not in [step.name for step in steps]


def test_every_step_has_a_name_of_its_own_and_the_deadline_that_was_asked_for() -> None:
    steps = plan.steps("all", Request(step_timeout_s=7), "nccl", 8, 4 * GIB)
    assert len({step.name for step in steps}) == len(steps)
    assert {step.deadline_s for step in steps} == {7}
    assert "all_reduce 4 GiB" in [step.name for step in steps]
    assert plan.deadline_s(Request(step_timeout_s=60), "gloo") == plan.GLOO_DEADLINE_S


@pytest.mark.parametrize(
    ("collective", "factor"),
    [("all_reduce", 1.75), ("all_gather", 0.875), ("reduce_scatter", 0.875), ("all_to_all", 0.875), ("broadcast", 1.0),
     ("sendrecv", 1.0)],
)  # fmt: skip
def test_bus_bandwidth_is_that_of_nccl_tests(collective: str, factor: float) -> None:
    assert plan.bus_factor(collective, 8) == factor


def test_all_pairs_are_measured_unless_that_takes_too_long() -> None:
    assert [plan.pairs_of(Request(quick=True), num) for num in (2, 3, 16, 17)] == ["none", "all", "all", "quick"]
    assert plan.pairs_of(Request(), 64) == "all"
    assert plan.pairs_of(Request(pairs="none"), 3) == "none"
