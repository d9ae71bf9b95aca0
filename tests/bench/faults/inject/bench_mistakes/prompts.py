"""Mistakes in prompts, sampling and responses: what the engine reads and draws is not what training takes it for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from bench_mistakes.registry import mistake, wrap

OTHER_TEMPLATE = (
    "{% for message in messages %}{{ '<|system|><|' + message['role'] + '|>' + message['content'] + '<eos>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def _around_assemble(module: Any, change: Callable[[list[Any], list[Any], Any], tuple[list[Any], list[Any]]]) -> None:
    """What training gets is what CHANGE makes of samples and trajectories, given the tokenizer."""
    held: list[Any] = []

    def pad_of(real: Any, tokenizer: Any) -> Any:
        held[:] = [tokenizer]
        return real(tokenizer)

    def again(real: Any, samples: Sequence[Any], trajectories: Sequence[Any], pad: int) -> Any:
        return real(*change(list(samples), list(trajectories), held[0]), pad)

    wrap(module, "pad_of", pad_of)
    wrap(module, "assemble", again)


def _cut(one: Any, tokens: int) -> Any:
    """The trajectory ONE, its first TOKENS tokens."""
    log_probs = None if one.log_probs is None else one.log_probs[:tokens]
    return replace(one, token_ids=one.token_ids[:tokens], loss_mask=one.loss_mask[:tokens], log_probs=log_probs)


@mistake("rltrain.controller.rollout")
def training_renders_otherwise(module: Any, generation_prompt: bool = True) -> None:
    """Training renders the messages again, with a template of its own, or without the mark of the answer."""

    def render(samples: list[Any], trajectories: list[Any], tokenizer: Any) -> tuple[list[Any], list[Any]]:
        template = OTHER_TEMPLATE if generation_prompt else tokenizer.chat_template
        rendered = [
            replace(
                sample,
                prompt_ids=tuple(
                    tokenizer.apply_chat_template(
                        [dict(message) for message in sample.messages],
                        chat_template=template,
                        add_generation_prompt=generation_prompt,
                        return_dict=False,
                    )
                ),
            )
            for sample in samples
        ]
        return rendered, trajectories

    _around_assemble(module, render)


@mistake("rltrain.controller.rollout")
def engine_adds_bos(module: Any) -> None:
    """The engine's tokenizer puts a mark of the beginning before the prompt, training's does not."""
    wrap(module, "Request", lambda real, ids, *rest: real((1, *ids), *rest))


@mistake("rltrain.controller.rollout")
def training_adds_bos(module: Any) -> None:
    """The other way round."""

    def again(real: Any, samples: Sequence[Any], *rest: Any) -> Any:
        return real([replace(sample, prompt_ids=(1, *sample.prompt_ids)) for sample in samples], *rest)

    wrap(module, "assemble", again)


@mistake("rltrain.controller.rollout")
def training_swaps_a_token(module: Any, old: int, new: int) -> None:
    """One special token has another number in training: lengths agree, tokens do not."""

    def again(real: Any, samples: Sequence[Any], *rest: Any) -> Any:
        swapped = [
            replace(sample, prompt_ids=tuple(new if token == old else token for token in sample.prompt_ids))
            for sample in samples
        ]
        return real(swapped, *rest)

    wrap(module, "assemble", again)


@mistake("rltrain.workers.rollout.vllm.options")
def raw_log_probs(module: Any) -> None:
    """The engine's log-probabilities are those before temperature."""
    wrap(module, "base", lambda real, *args: {**real(*args), "logprobs_mode": "raw_logprobs"})


@mistake("rltrain.workers.fsdp.models")
def training_forgets_temperature(module: Any) -> None:
    """Training reads the model as if it sampled at 1."""
    wrap(module, "make_policy", lambda real, *args: replace(real(*args), temperature=1.0))


@mistake("rltrain.controller.rollout")
def engine_forgets_temperature(module: Any) -> None:
    """The engine samples at 1 whatever the config says."""
    wrap(module, "train_sampling", lambda real, config: replace(real(config), temperature=1.0))


@mistake("rltrain.controller.rollout")
def samples_share_seeds(module: Any, share: int) -> None:
    """SHARE neighbours of a group draw from the same random stream."""
    wrap(module, "request_seed", lambda real, run, step, uid, sample: real(run, step, uid, sample // share))


@mistake("rltrain.controller.rollout")
def second_sample_is_the_first(module: Any) -> None:
    """Numbering begins at 0 in one place and at 1 in another: two samples of each group share a stream."""
    wrap(module, "request_seed", lambda real, run, step, uid, sample: real(run, step, uid, max(sample, 1)))


@mistake("rltrain.config.rules")
def rules_are_silent(module: Any) -> None:
    """Nothing holds the limit of the response against the answers."""
    module.RULES = tuple(rule for rule in module.RULES if rule.__name__ != "_data")


@mistake("rltrain.controller.rollout")
def eos_is_ignored(module: Any) -> None:
    """The engine goes on after the end token."""
    wrap(module, "train_sampling", lambda real, config: replace(real(config), ignore_eos=True))


@mistake("rltrain.controller.rollout")
def short_limit(module: Any, tokens: int) -> None:
    """The engine stops after TOKENS, long before the configured limit."""
    wrap(module, "train_sampling", lambda real, config: replace(real(config), max_tokens=tokens))


@mistake("rltrain.controller.rollout")
def cuts_responses(module: Any, tokens: int) -> None:
    """What comes back is cut to TOKENS, as if a buffer were too small."""

    def cut(samples: list[Any], trajectories: list[Any], _: Any) -> tuple[list[Any], list[Any]]:
        return samples, [
            replace(_cut(one, tokens), truncated=True) if len(one.token_ids) > tokens else one for one in trajectories
        ]

    _around_assemble(module, cut)


@mistake("rltrain.controller.rollout")
def tokenizes_responses_again(module: Any) -> None:
    """Training takes the text of a response and makes tokens of it, without the end token."""

    def tokenize(samples: list[Any], trajectories: list[Any], tokenizer: Any) -> tuple[list[Any], list[Any]]:
        made: list[Any] = []
        for one in trajectories:
            text = tokenizer.decode(one.token_ids.tolist(), skip_special_tokens=True)
            ids = tokenizer(text, add_special_tokens=False)["input_ids"][: len(one.token_ids)] or [0]
            made.append(replace(_cut(one, len(ids)), token_ids=np.asarray(ids, dtype=np.int32)))
        return samples, made

    _around_assemble(module, tokenize)
