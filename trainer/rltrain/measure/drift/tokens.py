"""Whether the training side would agree with other prompt tokens: those of the engine, or of another rendering."""

# Transformers' tokenizers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from rlcheck.facts.drift import Gap
from rltrain.config.schema import RunConfig
from rltrain.core.batch import Sample
from rltrain.core.errors import UserError
from rltrain.core.trajectory import id_tuple
from rltrain.data.template import PromptEncoder, load_tokenizer
from rltrain.measure.drift.agreement import trained_prompts, trained_responses
from rltrain.measure.drift.attempts import Attempts
from rltrain.measure.drift.measure import Measured, gap_of
from rltrain.measure.drift.reread import Reading
from rltrain.measure.drift.sides import Sides, renewed
from rltrain.measure.drift.variants import Change

Render = Callable[[Sample, tuple[int, ...]], tuple[int, ...]]
"""From a sample and the prompt tokens that training reads to others; none: not of this sample."""


def engine_tokens(trials: Attempts, sides: Sides, found: Measured) -> None:
    """Let the training side read the engine's tokens, where they are others than its own."""
    answers, trained = found.answers, trained_prompts(found.answers)
    engine = [id_tuple(one.prompt_ids) or ids for one, ids in zip(answers.completions, trained, strict=True)]
    if engine != trained:
        title = "the training side reads the prompt tokens that the engine read"
        change = Change("engine_prompts", title, family="wrong", side="training")
        trials.attempt(change, lambda: _read(sides, found, engine))
    elif trained_responses(answers) != [id_tuple(one.token_ids) for one in answers.completions]:
        title = "the training side reads the response tokens that the engine sampled"
        change = Change("engine_responses", title, family="wrong", side="training")
        trials.attempt(change, lambda: _read(sides, found, engine))


def other_renderings(trials: Attempts, sides: Sides, found: Measured) -> None:
    """Where the training side is far off, let it read other renderings of the prompts: an engine may hide its own."""
    if not trials.is_large:
        return
    samples, trained = found.answers.batch.samples, trained_prompts(found.answers)
    for change, render in _renderings(sides.config, sides.tokenizer):
        others = [render(sample, ids) for sample, ids in zip(samples, trained, strict=True)]
        if any(others) and others != trained and not trials.done:
            trials.attempt(change, partial(_read, sides, found, others))


def _read(sides: Sides, found: Measured, prompts: list[tuple[int, ...]]) -> Gap:
    """What is left of the gap with other PROMPTS, over those that are not empty."""
    rows = [row for row, ids in enumerate(prompts) if ids]
    answers = renewed(found.answers.rows(rows), [prompts[row] for row in rows], sides.tokenizer)
    return gap_of(answers, sides.reread(answers.batch, Reading())[0])


def _renderings(config: RunConfig, tokenizer: Any) -> list[tuple[Change, Render]]:
    found: list[tuple[Change, Render]] = []

    def add(name: str, title: str, render: Render, *overrides: str) -> None:
        found.append((Change(name, title, family="wrong", side="both", overrides=overrides), render))

    own = _own_template(config)
    if own is not None:
        title = "prompts rendered with the chat template of the tokenizer"
        add("own_template", title, own, "actor_rollout_ref.model.custom_chat_template=null")
    bos: int | None = tokenizer.bos_token_id
    if bos is not None:
        title = f"one more token, {tokenizer.bos_token}, at the beginning of the prompt"
        add("with_bos", title, lambda _, ids: (bos, *ids))
    add("without_first_token", "the prompt without its first token", lambda _, ids: ids[1:])
    add("without_last_token", "the prompt without its last token", lambda _, ids: ids[:-1])
    return found


def _own_template(config: RunConfig) -> Render | None:
    """Renders a sample with the tokenizer's own template, where the run has another."""
    model = config.actor_rollout_ref.model
    path = model.tokenizer_path or model.path
    if model.custom_chat_template is None or path is None:
        return None
    encoder = PromptEncoder(load_tokenizer(path, model.trust_remote_code), config.data.apply_chat_template_kwargs)

    def render(sample: Sample, _: tuple[int, ...]) -> tuple[int, ...]:
        if not sample.messages:
            return ()
        try:
            return tuple(encoder.encode(sample.messages, False, "a prompt")[1])
        except UserError:  # the template refuses these messages
            return ()

    return render
