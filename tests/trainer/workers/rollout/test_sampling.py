"""Seeds and the distribution that the hf engine draws from."""

from __future__ import annotations

from dataclasses import replace

import torch

from rltrain.workers.rollout.sampling import draw, request_seed, token_log_probs
from tests.trainer.workers.rollout.compare import PLAIN

LOGITS = torch.tensor([[2.0, 1.0, 0.5, -1.0, -3.0], [0.0, 0.0, 3.0, 0.1, 0.2]])
NONE = torch.zeros(LOGITS.shape, dtype=torch.bool)


def test_a_seed_is_the_same_everywhere() -> None:
    # A change of this number changes every recorded run.
    assert request_seed(1, 2, "0-17", 3) == 589251203
    assert request_seed(1, 2, 17, 3) == request_seed(1, 2, "17", 3)


def test_seeds_differ_and_fit() -> None:
    seeds = {
        request_seed(run, step, prompt, sample)
        for run in range(2)
        for step in range(10)
        for prompt in range(20)
        for sample in range(10)
    }
    assert len(seeds) == 4000
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_temperature() -> None:
    assert torch.equal(token_log_probs(LOGITS, replace(PLAIN, temperature=0.5), NONE), (LOGITS / 0.5).log_softmax(-1))
    assert torch.equal(token_log_probs(LOGITS, replace(PLAIN, temperature=0.0), NONE), LOGITS.log_softmax(-1))


def test_top_k_keeps_k() -> None:
    kept = token_log_probs(LOGITS, replace(PLAIN, top_k=2), NONE)
    assert torch.isfinite(kept).tolist() == [[True, True, False, False, False], [False, False, True, False, True]]
    torch.testing.assert_close(kept.exp().sum(-1), torch.ones(2))


def test_top_p_keeps_the_smallest_set_that_reaches_p() -> None:
    for top_p in (0.05, 0.5, 0.8, 0.95):
        kept = torch.isfinite(token_log_probs(LOGITS, replace(PLAIN, top_p=top_p), NONE))
        for probs, mask in zip(LOGITS.softmax(-1), kept, strict=True):
            inside = probs[mask].sort().values
            assert inside.sum() >= top_p - 1e-6
            assert inside[1:].sum() < top_p
            assert probs[mask].min() >= probs[~mask].max() if (~mask).any() else True


def test_a_banned_token_never_comes() -> None:
    banned = NONE.clone()
    banned[:, 2] = True
    assert torch.isneginf(token_log_probs(LOGITS, PLAIN, banned)[:, 2]).all()


def test_draws_follow_the_distribution() -> None:
    log_probs = LOGITS[:1].log_softmax(-1).expand(20000, -1)
    generators = [torch.Generator().manual_seed(request_seed(0, 0, row, 0)) for row in range(20000)]
    counts = draw(log_probs, PLAIN, generators).bincount(minlength=5).double()
    expected = log_probs[0].exp().double() * 20000
    chi_square = ((counts - expected) ** 2 / expected).sum().item()
    # 4 degrees of freedom: 99.9 % lie below 18.5.
    assert chi_square < 18.5


def test_a_row_draws_the_same_in_any_company() -> None:
    log_probs = LOGITS.log_softmax(-1)
    alone = draw(log_probs[1:], PLAIN, [torch.Generator().manual_seed(5)])
    both = draw(log_probs, PLAIN, [torch.Generator().manual_seed(9), torch.Generator().manual_seed(5)])
    assert alone[0] == both[1]
