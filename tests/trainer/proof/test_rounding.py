"""What rounding alone does in 16 bits is no difference: tokens at the edge of a clip, lengths that agree by chance."""

# Torch is typed in part, and parts of an update are stood in for.
# pyright: reportUnknownMemberType=false, reportArgumentType=false, reportPrivateUsage=false, reportUnknownArgumentType=false

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from rltrain.proof import links_gradient
from rltrain.proof.update import Step, Update

EDGES = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0, "cliprange_value": 0.5}


@pytest.mark.parametrize("role", ["actor", "critic"])
def test_a_token_at_the_edge_of_the_clip_stands_where_the_run_had_it(role: str) -> None:
    """Its value is the run's, its gradient the reference's; others are as they were read."""
    edge = float(torch.tensor(1.2).log()) if role == "actor" else 0.5
    read = torch.tensor([0.0, edge - 1e-3, edge - 1e-3, 0.1], dtype=torch.float64, requires_grad=True)
    run = torch.tensor([1e-3, edge + 1e-3, edge - 2e-3, torch.nan], dtype=torch.float64)
    batch = dict.fromkeys(("old_log_probs", "values"), torch.zeros(1, 4))
    update = SimpleNamespace(role=role, settings=EDGES, case=SimpleNamespace(batch=batch))
    found = Update._on_its_side(update, 0, read, run)
    assert found.tolist() == [0.0, pytest.approx(edge + 1e-3), pytest.approx(edge - 1e-3), pytest.approx(0.1)]
    found.sum().backward()
    assert read.grad is not None
    assert read.grad.tolist() == [1.0] * 4


@pytest.mark.parametrize(("length", "status"), [(1.0015, "same"), (1.2, "differs")])
def test_lengths_of_a_pass_may_differ_by_as_much_as_gradients_do(length: float, status: str) -> None:
    """Rounding turned the gradient by 1 % here, and left its length as it was."""
    exact = {"w": torch.tensor([1.0, 0.0], dtype=torch.float64)}
    low = {"w": torch.tensor([0.99995, 0.01])}
    micro = SimpleNamespace(grad_norm=length, rank=0, rows=[0])
    update = SimpleNamespace(
        minis=[SimpleNamespace(micro_batches=[micro])],
        passes=[[0]],
        role="actor",
        case=SimpleNamespace(head=SimpleNamespace(world_size=1)),
        first=(Step(exact, torch.zeros(1), 1.0, [1.0]), Step(low, torch.zeros(1), 1.0, [1.0])),
    )
    (found,) = links_gradient._ranks_own(update)
    assert found.status == status
