"""`fsdp_size`: several copies of a model, each in shards, are one model in one copy."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
import torch

from rltrain.workers.sync.checksum import checksum, combined
from tests.trainer.workers.fsdp import four_ranks, scenes
from tests.trainer.workers.fsdp.test_equivalence import Metrics, agree

pytestmark = pytest.mark.timeout(300)  # four processes start on however few cores

Played = list[dict[str, Any]]


@pytest.fixture(scope="module")
def four(models: Path) -> Played:
    return four_ranks.play(models)


def timeless(steps: Metrics) -> Metrics:
    return [scenes.timeless(step) for step in steps]


@pytest.mark.parametrize("copies", ["two_copies", "four_copies"])
def test_copies_learn_as_one(four: Played, copies: str) -> None:
    for part in ("first", "then"):
        agree(four[0]["one_copy"][part], four[0][copies][part])
    one, other = four[0]["one_copy"]["weights"], four[0][copies]["weights"]
    assert max(float((one[name] - other[name]).abs().max()) for name in one) < 1e-5


def test_two_ranks_with_a_copy_each_learn_to_the_bit_as_with_one(four: Played) -> None:
    """A sum of two numbers has no order. What is told of the traffic is of reduce-scatters, which the one has not."""
    one, other = four[0]["pair_with_one_copy"], four[0]["pair_with_two_copies"]
    for part in ("first", "then"):
        for left, right in zip(timeless(one[part]), timeless(other[part]), strict=True):
            norms = {name for name in left if "grad_norm" in name}
            assert {name: left[name] for name in right if name not in norms} == {
                name: right[name] for name in right if name not in norms
            }
            assert left["actor/grad_norm"] == pytest.approx(right["actor/grad_norm"], rel=1e-14)
            assert {name for name in left if name not in right} <= {
                *(f"{role}/grad_norm_rank_{end}" for role in ("actor", "critic") for end in ("min", "max", "of_min")),
                *(f"{role}/grad_reduce_error" for role in ("actor", "critic")),
            }
    assert all(torch.equal(one["weights"][name], other["weights"][name]) for name in one["weights"])


def test_all_ranks_return_the_same_metrics_and_copies_are_equal_to_the_bit(four: Played) -> None:
    found = [rank["two_copies"] for rank in four]
    assert all(one["first"] == found[0]["first"] and one["then"] == found[0]["then"] for one in found)
    hashes = [one["hash"] for one in found]
    assert hashes[0] == hashes[2] != hashes[1] == hashes[3]
    assert len({rank["four_copies"]["hash"] for rank in four}) == 1
    assert [round(rank["two_copies"]["share"], 1) for rank in four] == [0.5] * 4


def test_pieces_of_all_copies_make_up_the_checksums_of_what_is_published(four: Played) -> None:
    for copies in ("one_copy", "two_copies", "four_copies"):
        whole = {name: checksum(tensor) for name, tensor in four[0][copies]["weights"].items()}
        assert combined([rank[copies]["pieces"] for rank in four]) == whole


@pytest.mark.parametrize("resumed", ["one_copy_of_two", "two_copies_of_one"])
def test_a_checkpoint_goes_on_with_another_number_of_copies(four: Played, resumed: str) -> None:
    saved = "two_copies" if resumed == "one_copy_of_two" else "one_copy"
    agree(four[0][saved]["then"], four[0][resumed])


def test_a_share_that_is_lost_between_copies_is_seen(four: Played) -> None:
    for rank in four:
        assert rank["lost"]["sound"]["actor/grad_reduce_error"] < 1e-5
        assert rank["lost"]["silent"]["actor/grad_reduce_error"] > 1e-2
    found = combined([rank["lost"]["pieces"] for rank in four])
    assert all("differ" in value for value in found.values())


def test_collectives_within_and_between_copies_have_the_runs_deadline(four: Played) -> None:
    wait = datetime.timedelta(seconds=60)
    assert [four[0][name]["timeouts"] for name in ("one_copy", "two_copies")] == [[wait], [wait] * 2]


def test_time_between_copies_counts(four: Played) -> None:
    assert all(0 < step["timing_s/grad_comm"] < 10 for step in four[0]["two_copies"]["first"])
