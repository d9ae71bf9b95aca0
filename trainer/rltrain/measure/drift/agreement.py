"""What must be equal before rounding can be spoken of: the weights of both sides, and the prompts that they read."""

# Transformers' tokenizers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedTokenizerBase

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.drift import PromptsUse, WeightsUse
from rltrain.core.errors import UserError
from rltrain.core.tensors import ints
from rltrain.core.trajectory import id_tuple
from rltrain.measure.drift.sides import Answers, Sides
from rltrain.workers.sync.checksum import combined

_SHOWN_TOKENS = 48
SCALE = 2.0
"""A power of two: multiplied and divided by it, weights are what they were, to the bit."""


@contextmanager
def synced_twice(sides: Sides) -> Generator[Fact[WeightsUse]]:
    """A rollout phase after two syncs, as the second step of a run has it; yields how the weights agree.

    The first sync brings weights that are twice as large, the second the true ones: an engine that took only one of
    them cannot hold these. Where the engine's weights cannot be read back, the fact says why.
    """
    train_group = sides.crew.train_group
    train_group.call("scale_weights", SCALE, doing="scaling the weights")
    before = _actors(sides)
    with sides.rollout.phase():
        pass
    train_group.call("scale_weights", 1 / SCALE, doing="scaling the weights back")
    train_group.policy_version += 1
    now = _actors(sides)
    with sides.rollout.phase():
        yield _compared(sides, now, before)


def _actors(sides: Sides) -> dict[str, str]:
    return combined(sides.crew.train_group.call("weight_pieces", doing="adding up the weights"))


def _compared(sides: Sides, now: dict[str, str], before: dict[str, str]) -> Fact[WeightsUse]:
    engine_group = sides.crew.engine_group.workers
    limit_s = sides.config.actor_rollout_ref.rollout.start_timeout_s
    try:
        held: list[dict[str, str]] = engine_group.all(
            "checksums", list(now), deadline_s=limit_s, doing="reading weights back from engines"
        )
    except UserError as error:
        return absent(str(error).removeprefix("trainer.verify_weight_sync: "))
    differing = [name for name, value in now.items() if any(one.get(name) != value for one in held)]
    stale = [name for name in differing if all(one.get(name) in (now[name], before[name]) for one in held)]
    return known(WeightsUse(num_tensors=len(now), differing=tuple(differing), num_stale=len(stale)))


def trained_prompts(answers: Answers) -> list[tuple[int, ...]]:
    """Prompt tokens of each row as the training side reads them."""
    width = answers.batch["response_mask"].shape[1]
    ids = answers.batch["input_ids"][:, :-width]
    real = answers.batch["attention_mask"][:, :-width].bool()
    return [tuple(ints(row[mask])) for row, mask in zip(ids, real, strict=True)]


def trained_responses(answers: Answers) -> list[tuple[int, ...]]:
    """Response tokens of each row as the training side reads them."""
    mask = answers.batch["response_mask"].bool()
    return [tuple(ints(row[real])) for row, real in zip(answers.batch["responses"], mask, strict=True)]


def prompts(answers: Answers, tokenizer: PreTrainedTokenizerBase) -> Fact[PromptsUse]:
    """How the prompts agree; absent where the engine does not say what it read."""
    engine = [id_tuple(completion.prompt_ids) for completion in answers.completions]
    if not all(engine):
        return absent("the engine does not say which prompt tokens it read")
    pairs = list(zip(engine, trained_prompts(answers), strict=True))
    other = [pair for pair in pairs if pair[0] != pair[1]]
    engine_text, train_text = "", ""
    if other:
        shown = min(other, key=lambda pair: len(pair[0]))
        engine_text, train_text = (_text(ids, tokenizer) for ids in shown)
    return known(
        PromptsUse(
            num_prompts=len(pairs),
            num_differing=len(other),
            length_diff_mean=sum(len(train) - len(read) for read, train in pairs) / len(pairs),
            example_rollout=engine_text,
            example_train=train_text,
        )
    )


def _text(ids: tuple[int, ...], tokenizer: Any) -> str:
    """IDS decoded; of many, their beginning and their end."""
    if len(ids) <= _SHOWN_TOKENS:
        return tokenizer.decode(list(ids), skip_special_tokens=False)
    half = _SHOWN_TOKENS // 2
    head, tail = (tokenizer.decode(list(part), skip_special_tokens=False) for part in (ids[:half], ids[-half:]))
    return f"{head} … {tail}"
