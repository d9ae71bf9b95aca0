"""How completions end, and how they are distributed: the same on every engine."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.trainer.rollout.compare import PLAIN, logits_of, requests
from tests.trainer.rollout.conftest import Bench
from tests.trainer.rollout.tiny import EOS, VOCAB
from trainer.rollout.protocol import Request, Sampling
from trainer.rollout.sampling import token_log_probs

NUM_DRAWS = 1500
pytestmark = pytest.mark.timeout(400)


def text_of(tokens: tuple[int, ...]) -> str:
    return "".join(VOCAB[token] for token in tokens)


@pytest.mark.parametrize(
    "change",
    [{}, {"temperature": 0.6}, {"temperature": 1.4, "top_p": 0.8}, {"top_k": 4}, {"min_tokens": 1}],
    ids=["plain", "temperature", "top_p", "top_k", "min_tokens"],
)
def test_tokens_are_drawn_from_the_distribution_that_is_told(bench: Bench, change: dict[str, float]) -> None:
    sampling = replace(PLAIN, max_tokens=1, **change)
    prompt = requests(1)[0].prompt_ids
    answers = bench.child.generate([Request(prompt, seed) for seed in range(NUM_DRAWS)], sampling)
    logits = logits_of(bench.model, Request(prompt, 0), answers[0])
    banned = torch.zeros_like(logits, dtype=torch.bool)
    banned[:, EOS] = sampling.min_tokens > 0
    expected = token_log_probs(logits, sampling, banned)[0].exp().double() * NUM_DRAWS
    counts = torch.tensor([answer.token_ids[0] for answer in answers]).bincount(minlength=len(VOCAB)).double()
    assert counts[expected == 0].sum() == 0
    often = expected >= 5
    rest = torch.stack([counts[~often].sum(), expected[~often].sum()])
    seen, wanted = torch.cat([counts[often], rest[:1]]), torch.cat([expected[often], rest[1:].clamp(min=1e-9)])
    chi_square = ((seen - wanted) ** 2 / wanted)[wanted > 1].sum().item()
    # Seeds are fixed: this is a number, not a chance. Mean of the distribution: often.sum() degrees of freedom.
    assert chi_square < often.sum() + 5 * (2 * often.sum()).sqrt(), (seen, wanted)


def test_a_stop_token_ends_a_completion_and_stays_in_it(bench: Bench) -> None:
    asked = requests(40)
    free = replace(PLAIN, ignore_eos=True)
    plain = bench.child.generate(asked, free)
    stop = (plain[0].token_ids[3], plain[1].token_ids[5])
    stopped = bench.child.generate(asked, replace(free, stop_token_ids=stop))
    for whole, cut in zip(plain, stopped, strict=True):
        ends = [place for place, token in enumerate(whole.token_ids) if token in stop]
        length = ends[0] + 1 if ends else len(whole.token_ids)
        assert cut.token_ids == whole.token_ids[:length]
        assert cut.finish_reason == ("stop" if ends else "length")
    late = bench.child.generate(asked, replace(free, stop_token_ids=stop, min_tokens=8))
    assert all(not set(stop) & set(answer.token_ids[:8]) for answer in late)
    assert any(answer.finish_reason == "stop" for answer in late)


def test_a_stop_string_within_min_tokens_does_not_count(bench: Bench) -> None:
    asked = requests(1)
    free = replace(PLAIN, ignore_eos=True, min_tokens=9)
    whole = bench.child.generate(asked, free)[0]
    sampling: Sampling = replace(free, stop=(text_of(whole.token_ids[2:4]),))
    late = bench.child.generate(asked, sampling)[0]
    cut = text_of(late.token_ids)
    assert len(late.token_ids) > 9
    assert late.token_ids == whole.token_ids[: len(late.token_ids)]
    assert (late.finish_reason == "stop") == (sampling.stop[0] in cut[8:])


def test_max_tokens_and_the_models_length_are_limits(bench: Bench) -> None:
    asked = requests(6)
    for most in (1, 5):
        answers = bench.child.generate(asked, replace(PLAIN, ignore_eos=True, max_tokens=most))
        assert {(answer.finish_reason, len(answer.token_ids)) for answer in answers} == {("length", most)}
