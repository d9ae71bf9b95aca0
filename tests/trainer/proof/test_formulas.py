"""The reference's formulas, held against numbers worked out by hand and against torch's own AdamW."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from rltrain.proof import formulas, order, rewards
from rltrain.workers.sync.checksum import checksum


def d(*rows: Any) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


ALL = torch.ones(1, 2, dtype=torch.bool)


def test_kl_estimators() -> None:
    p, q = d(math.log(0.5)), d(math.log(0.25))
    assert float(formulas.kl("k1", p, q)) == pytest.approx(math.log(2))
    assert float(formulas.kl("abs", q, p)) == pytest.approx(math.log(2))
    assert float(formulas.kl("k2", p, q)) == pytest.approx(math.log(2) ** 2 / 2)
    assert float(formulas.kl("k3", p, q)) == pytest.approx(0.5 - math.log(0.5) - 1)
    assert float(formulas.kl("low_var_kl", d(-90.0), d(0.0))) == 10


def test_gae_by_hand() -> None:
    # delta_1 = 1 - 0.25 = 0.75; delta_0 = 0 + 0.5 * 0.25 - 0.5 = -0.375; A_0 = -0.375 + 0.5 * 0.5 * 0.75
    found = formulas.gae(d([0.0, 1.0]), d([0.5, 0.25]), ALL, 0.5, 0.5)
    assert found.tolist() == [[-0.1875, 0.75]]


def test_a_masked_token_is_skipped() -> None:
    mask = torch.tensor([[True, False, True]])
    found = formulas.gae(d([0.0, 9.0, 1.0]), d([0.5, 9.0, 0.25]), mask, 0.5, 0.5)
    assert found.tolist() == [[-0.1875, 0.0, 0.75]]


def test_groups_by_hand() -> None:
    assert formulas.scaled(d([1.0, 0.0])[0]).tolist() == pytest.approx([0.5**0.5, -(0.5**0.5)], rel=1e-5)
    assert formulas.scaled(d([0.1, 0.1, 0.1])[0]).tolist() == [0, 0, 0]
    assert formulas.left_out(d([1.0, 0.0, 0.5])[0]).tolist() == pytest.approx([0.75, -0.75, 0])
    assert formulas.left_out(d([3.0])[0]).tolist() == [0]


def test_whitened() -> None:
    assert formulas.whitened(d([1.0, 3.0]), ALL).tolist()[0] == pytest.approx([-(0.5**0.5), 0.5**0.5])
    assert formulas.whitened(d([0.3, 0.3]), ALL).tolist() == [[0, 0]]


def test_importance_is_truncated() -> None:
    settings = {"rollout_is": "token", "rollout_is_threshold": 2.0, "rollout_is_batch_normalize": False}
    old, engine = d([math.log(0.9), math.log(0.1)]), d([math.log(0.3), math.log(0.2)])
    found = formulas.importance(old, engine, ALL, settings)
    assert found is not None
    assert found.tolist()[0] == pytest.approx([2.0, 0.5])
    found = formulas.importance(old, engine, ALL, {**settings, "rollout_is": "sequence"})
    assert found is not None
    assert found.tolist()[0] == pytest.approx([1.5, 1.5])


LOSS = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.3, "clip_ratio_c": 3.0, "policy_loss": {"loss_mode": "vanilla"}}


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss"),
    [(1.1, 1.0, -1.1), (2.0, 1.0, -1.3), (0.5, 1.0, -0.5), (0.5, -1.0, 0.8), (2.0, -1.0, 2.0), (9.0, -1.0, 3.0)],
)
def test_ppo_by_hand(ratio: float, advantage: float, loss: float) -> None:
    one = torch.ones(1, 1, dtype=torch.bool)
    found = formulas.policy_terms(LOSS, d([math.log(ratio)]), d([0.0]), d([advantage]), one, d([1.0]))
    assert float(found) == pytest.approx(loss)


def test_other_losses_by_hand() -> None:
    new, old, adv, weights = d([0.2, 0.0]), d([0.0, 0.0]), d([1.0, 1.0]), d([1.0, 1.0])
    gspo = formulas.policy_terms({**LOSS, "policy_loss": {"loss_mode": "gspo"}}, new, old, adv, ALL, weights)
    assert gspo.tolist()[0] == pytest.approx([-math.exp(0.1)] * 2)
    cispo = formulas.policy_terms({**LOSS, "policy_loss": {"loss_mode": "cispo"}}, new, old, adv, ALL, weights)
    assert cispo.tolist()[0] == pytest.approx([-math.exp(0.2) * 0.2, 0.0])
    assert float(formulas.value_terms(d([2.0]), d([0.0]), d([1.0]), ALL[:, :1], 0.5)) == pytest.approx(0.5)


def test_aggregation_by_hand() -> None:
    terms, mask = d([1.0, 2.0], [6.0, 0.0]), torch.tensor([[True, True], [True, False]])
    modes = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    found = {mode: float(formulas.aggregate(terms, mask, mode, 3, 2, 4.0)) for mode in modes}
    assert found == {"token-mean": 3.0, "seq-mean-token-sum": 4.5, "seq-mean-token-mean": 3.75,
                     "seq-mean-token-sum-norm": 1.125}  # fmt: skip


def test_schedule_by_hand() -> None:
    optim = {"lr": 1.0, "lr_warmup_steps": 2, "lr_warmup_steps_ratio": 0.0, "min_lr_ratio": 0.1}
    cosine = [
        formulas.learning_rate({**optim, "lr_scheduler_type": "cosine"}, update, 6) for update in (0, 1, 2, 4, 6, 9)
    ]
    assert cosine == pytest.approx([0.0, 0.5, 1.0, 0.55, 0.1, 0.1])
    by_ratio = {**optim, "lr_warmup_steps": 0, "lr_warmup_steps_ratio": 0.5, "lr_scheduler_type": "constant"}
    assert [formulas.learning_rate(by_ratio, update, 5) for update in range(4)] == [0.0, 0.5, 1.0, 1.0]
    assert formulas.learning_rate({**optim, "lr_scheduler_type": "linear"}, 3, 6) == pytest.approx(0.775)


def test_adamw_is_torchs() -> None:
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(5, dtype=torch.float64))
    optimizer = torch.optim.AdamW([weight], lr=0.01, betas=(0.8, 0.95), eps=1e-6, weight_decay=0.1)
    settings = {"betas": (0.8, 0.95), "eps": 1e-6, "weight_decay": 0.1}
    state = (weight.detach().clone(), torch.zeros(5).double(), torch.zeros(5).double())
    for count in range(3):
        weight.grad = torch.randn(5, dtype=torch.float64)
        state = formulas.adamw(settings, state, weight.grad, 0.01, count)
        optimizer.step()
        assert torch.allclose(state[0], weight.detach(), rtol=1e-12, atol=0)


def test_overlong_and_clip() -> None:
    assert [formulas.overlong(n, 10, 4, 2.0) for n in (5, 6, 8, 10)] == [0, 0, -1, -2]
    assert (formulas.clip_factor(4.0, 1.0), formulas.clip_factor(0.5, 1.0), formulas.clip_factor(4.0, None)) == (
        0.25,
        1,
        1,
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64])
@pytest.mark.parametrize("shape", [(), (7,), (3, 5), (2, 3, 4)])
def test_checksums_agree(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape) * 100).to(dtype)
    assert order.checksum(tensor) == checksum(tensor)


@pytest.mark.parametrize(
    ("rule", "text", "truth", "score"),
    [
        ({"kind": "exact"}, " 12 ", "12", 1),
        ({"kind": "digits"}, "1235", "1234", 0.75),
        ({"kind": "digits"}, "12345678", "1234", 0.5),
        ({"kind": "gsm8k"}, "so #### 1,234", "#### 1234", 1),
        ({"kind": "gsm8k"}, "it is 1234", "1234", 0),
        ({"kind": "gsm8k", "method": "flexible"}, "it is 1,234.", "1234", 1),
        ({"kind": "format", "pattern": "a.*b"}, " a\nb ", "", 1),
        ({"kind": "regex", "pattern": "is (\\d+)"}, "is 1 is 2", "2", 1),
        ({"kind": "math"}, "the answer is $\\frac{1}{2}$", "0.5", 1),
    ],
)
def test_rules(rule: dict[str, Any], text: str, truth: str, score: float) -> None:
    assert rewards.parts(text, truth, "any", [{**rule, "data_sources": None}]) == {rule["kind"]: (score, 1.0)}
