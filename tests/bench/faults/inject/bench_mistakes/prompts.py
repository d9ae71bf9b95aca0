"""Mistakes in prompts, sampling and responses: what the engine reads and draws is not what training takes it for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from bench_mistakes.registry import mistake, wrap

OTHER_TEMPLATE = (
    "{% for message in messages %}{{ '<|system|><|' + message['role'] + '|>' + message['content'] + '<eos>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


@mistake("rltrain.controller.rollout")
def training_renders_otherwise(module: Any, generation_prompt: bool = True) -> None:
    """Training renders the messages again, with a template of its own, or without the mark of the answer."""

    def again(real: Any, samples: Sequence[Any], completions: Any, tokenizer: Any, *rest: Any) -> Any:
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
        return real(rendered, completions, tokenizer, *rest)

    wrap(module, "assemble", again)


@mistake("rltrain.controller.rollout")
def engine_adds_bos(module: Any) -> None:
    """The engine's tokenizer puts a mark of the beginning before the prompt, training's does not."""
    wrap(module, "Request", lambda real, ids, seed: real((1, *ids), seed))


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

    def again(real: Any, samples: Any, completions: Sequence[Any], *rest: Any) -> Any:
        cut = [
            replace(one, token_ids=one.token_ids[:tokens], log_probs=one.log_probs[:tokens], finish_reason="length")
            if len(one.token_ids) > tokens
            else one
            for one in completions
        ]
        return real(samples, cut, *rest)

    wrap(module, "assemble", again)


@mistake("rltrain.controller.rollout")
def tokenizes_responses_again(module: Any) -> None:
    """Training takes the text of a response and makes tokens of it, without the end token."""

    def again(real: Any, samples: Any, completions: Sequence[Any], tokenizer: Any, *rest: Any) -> Any:
        made: list[Any] = []
        for one in completions:
            text = tokenizer.decode(list(one.token_ids), skip_special_tokens=True)
            ids = tuple(tokenizer(text, add_special_tokens=False)["input_ids"])[: len(one.token_ids)] or (0,)
            made.append(replace(one, token_ids=ids, log_probs=one.log_probs[: len(ids)]))
        return real(samples, made, tokenizer, *rest)

    wrap(module, "assemble", again)
