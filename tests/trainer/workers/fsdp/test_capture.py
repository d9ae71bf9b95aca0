"""What ranks keep of a step for its capsule: their own numbers, joined by the controller, and nothing gathered."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from rltrain.controller import kept
from rltrain.workers.fsdp.parts import joined
from rltrain.workers.sync.checksum import checksum, combined

ROLES = ("actor", "critic")


def step(played: list[dict[str, Any]], elements: str) -> tuple[Any, ...]:
    """Weights before and after, what both ranks kept, and the metrics."""
    ranks = [rank["captured"][elements] for rank in played]
    before, after, _, _, metrics = ranks[0]
    return before, after, [rank[2] for rank in ranks], [rank[3] for rank in ranks], metrics


def cut(tensor: Tensor, elements: str) -> Tensor:
    """What is kept of TENSOR."""
    few = elements != "None" and tensor.numel() > int(elements)
    return tensor.flatten()[: int(elements)] if few else tensor


@pytest.mark.parametrize("elements", ["None", "40"])
def test_states_are_those_before_and_after(played: list[dict[str, Any]], elements: str) -> None:
    before, after, _, ended, _ = step(played, elements)
    count = None if elements == "None" else int(elements)
    found = kept.states([roles for roles, _, _ in ended], count)
    for when, whole in (("before", before), ("after", after)):
        assert all(torch.equal(found[f"actor.{when}/{name}"], cut(whole[name], elements)) for name in whole)
    assert any(not torch.equal(found[f"actor.before/{n}"], found[f"actor.after/{n}"]) for n in before)
    for role in ROLES:
        names = {name.partition("/")[2] for name in found if name.startswith(f"{role}.after/")}
        assert {name.partition("/")[2] for name in found if name.startswith(f"{role}.gradient/")} == names
        assert {name.partition("/")[2] for name in found if name.startswith(f"{role}.exp_avg_sq.after/")} == names


@pytest.mark.parametrize("elements", ["None", "40"])
def test_the_reference_and_checksums_come_along(played: list[dict[str, Any]], elements: str) -> None:
    before, after, pieces, ended, _ = step(played, elements)
    references = [reference for _, reference, _ in ended]
    start = played[0]["captured"]["None"][0]
    found = joined(references, None if elements == "None" else int(elements))
    assert all(torch.equal(found[f"reference/{name}"], cut(start[name], elements)) for name in start)
    name = "model.norm.weight"
    assert combined(pieces) == {name: checksum(before[name])}
    assert combined([given for _, _, given in ended]) == {name: checksum(after[name])}


def test_a_rank_sends_its_own_numbers_alone(played: list[dict[str, Any]]) -> None:
    """Of the first 40 numbers most tensors have none on the second rank."""
    _, _, _, ended, _ = step(played, "40")
    sizes = [sum(len(flat) for one in roles["actor"].states for flat in one.flat.values()) for roles, _, _ in ended]
    assert sizes[1] < sizes[0] / 2


def test_a_part_that_no_rank_has_is_an_error(played: list[dict[str, Any]]) -> None:
    _, _, _, ended, _ = step(played, "None")
    with pytest.raises(ValueError, match="numbers of"):
        joined([ended[1][0]["actor"].states[0]], None)


def test_rows_are_chosen_before_they_are_sent(played: list[dict[str, Any]]) -> None:
    _, _, _, ended, _ = step(played, "40")
    rows = [row for roles, _, _ in ended for mini in roles["actor"].rows_of for row in mini]
    assert rows
    assert set(rows) <= {0, 1, 2, 3}
    ranks = [roles for roles, _, _ in ended]
    found = kept.readings(ranks, "actor", [0, 1, 2, 3], 10)
    assert all(len(field) == 4 for field in found.values())


def test_gradient_norms_of_passes_are_those_of_the_wire(played: list[dict[str, Any]]) -> None:
    """The metrics have them over all passes of the update: squares add up."""
    _, _, _, ended, metrics = step(played, "None")
    norms = [
        sum(float(micro.grad_norm or 0) ** 2 for mini in roles["actor"].minis for micro in mini.micro_batches) ** 0.5
        for roles, _, _ in ended
    ]
    assert min(norms) == pytest.approx(metrics["actor/grad_norm_rank_min"], rel=1e-4)
    assert max(norms) == pytest.approx(metrics["actor/grad_norm_rank_max"], rel=1e-4)


def test_a_skipped_update_leaves_weights_and_names(played: list[dict[str, Any]]) -> None:
    late = [rank["captured"]["late"] for rank in played]
    ranks = [roles for _, (roles, _, _) in late]
    found = kept.states(ranks, 40)
    assert all(torch.equal(found[f"actor.after/{name}"], cut(whole, "40")) for name, whole in late[0][0].items())
    bad = kept.not_finite(ranks)
    assert any(name.startswith("actor, rank 0: model.") for name in bad)
    assert not any("critic" in name for name in bad)
