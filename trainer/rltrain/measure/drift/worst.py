"""The tokens that are furthest off, decoded, with the text around them."""

# Transformers' tokenizers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcheck.facts.drift import TokenGap
from rltrain.core.tensors import ints
from rltrain.core.trajectory import id_tuple
from rltrain.measure.drift.sides import Answers

SHOWN = 12
_BEFORE, _AFTER = 8, 4
"""Tokens of context."""


def worst(answers: Answers, train: Tensor, tokenizer: PreTrainedTokenizerBase) -> tuple[TokenGap, ...]:
    """The tokens whose probabilities differ most, the worst first.

    Args:
        answers: with the engine's log-probabilities.
        train: the training side's `[B, R]`.
        tokenizer: decodes.
    """
    rollout = answers.batch["rollout_log_probs"].double()
    gaps = (train.double().exp() - rollout.exp()).abs()
    gaps = gaps.masked_fill(~answers.batch["response_mask"] | ~gaps.isfinite(), -1.0)
    order = ints(gaps.flatten().argsort(descending=True)[:SHOWN])
    places = [divmod(place, gaps.shape[1]) for place in order]
    return tuple(
        _token(answers, row, position, rollout, train.double(), tokenizer)
        for row, position in places
        if gaps[row, position] >= 0
    )


def _token(answers: Answers, row: int, position: int, rollout: Tensor, train: Tensor, tokenizer: Any) -> TokenGap:
    sample, completion = answers.batch.samples[row], answers.completions[row]
    whole = [*sample.prompt_ids, *id_tuple(completion.token_ids)]
    place = len(sample.prompt_ids) + position

    def text(start: int, stop: int) -> str:
        return tokenizer.decode(whole[max(start, 0) : stop], skip_special_tokens=False)

    return TokenGap(
        token=text(place, place + 1),
        token_id=whole[place],
        position=position,
        rollout_prob=float(rollout[row, position].exp()),
        train_prob=float(train[row, position].exp()),
        before=text(place - _BEFORE, place),
        after=text(place + 1, place + 1 + _AFTER),
        prompt=sample.data_source,
    )
