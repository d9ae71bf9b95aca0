"""Where answers end. Each answer is held against itself, so that a token which another batch would tip proves nothing
wrong."""

# Transformers' tokenizers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from transformers import GenerationConfig

from rlcheck.facts.rollout import Case
from rltrain.workers.rollout.protocol import Completion, Sampling

Generate = Callable[[int, Sampling], list[Completion]]
_GREEDY_TOKENS = 16


def end_tokens(tokenizer: Any, model_dir: str) -> frozenset[int]:
    """Ids that end an answer: the tokenizer's, and those of `generation_config.json`."""
    try:
        listed: Any = GenerationConfig.from_pretrained(model_dir).eos_token_id
    except OSError:
        listed = None
    ids = listed if isinstance(listed, list) else [listed]
    return frozenset(number for number in [tokenizer.eos_token_id, *ids] if number is not None)


def stop_cases(
    generate: Generate, sampling: Sampling, tokenizer: Any, ends: frozenset[int], count: int
) -> tuple[Case, ...]:
    """What was tried.

    Args:
        generate: answers to COUNT copies of one prompt.
        sampling: as in a run, without stops.
        tokenizer: the policy's.
        ends: ids of the end of sequence.
        count: of answers that may end by themselves.
    """
    free = generate(count, sampling)
    plain = generate(1, replace(sampling, temperature=0.0, max_tokens=min(_GREEDY_TOKENS, sampling.max_tokens)))[0]
    return (
        _end_of_sequence(free, ends),
        _ignored(generate(count, replace(sampling, ignore_eos=True)), sampling.max_tokens),
        _stop_token(generate, sampling, plain, ends),
        _stop_string(generate, sampling, plain, tokenizer, ends),
    )


def _end_of_sequence(answers: list[Completion], ends: frozenset[int]) -> Case:
    case = partial(Case, name="end of sequence", expected="an answer ends with it, and nowhere else")
    ended = sum(answer.finish_reason == "stop" for answer in answers)
    for answer in answers:
        passed_over = [token for token in map(int, answer.token_ids[:-1]) if token in ends]
        if passed_over:
            return case(found=f"token {passed_over[0]} inside an answer that went on", ok=False)
        at_end = int(answer.token_ids[-1]) in ends
        if at_end != (answer.finish_reason == "stop"):
            found = f"an answer whose last token is {answer.token_ids[-1]}, finish reason {answer.finish_reason}"
            return case(found=found, ok=False)
    longest = max(len(answer.token_ids) for answer in answers)
    if not ended:
        found = f"none of {len(answers)} answers ended by itself within {longest} tokens"
        return case(found=found, judged=False)
    return case(found=f"{ended} of {len(answers)} answers ended with it, the others at the limit", ok=True)


def _ignored(answers: list[Completion], limit: int) -> Case:
    case = partial(Case, name="ignore_eos", expected=f"every answer has {limit} tokens")
    short = [len(answer.token_ids) for answer in answers if len(answer.token_ids) != limit]
    found = f"one of {short[0]}" if short else f"{len(answers)} answers of {limit}"
    return case(found=found, ok=not short)


def _stop_token(generate: Generate, sampling: Sampling, plain: Completion, ends: frozenset[int]) -> Case:
    """The token that a greedy answer has latest for the first time is made one that ends it."""
    chosen = list(dict.fromkeys(token for token in map(int, plain.token_ids) if token not in ends))
    case = partial(Case, name="stop token", expected="a greedy answer ends with one of its own tokens")
    if not chosen:
        return case(found="the greedy answer has no token but the end of sequence", judged=False)
    stop = chosen[-1]
    answer = generate(1, replace(sampling, temperature=0.0, stop_token_ids=(stop,), max_tokens=_GREEDY_TOKENS))[0]
    last, inside = int(answer.token_ids[-1]), stop in answer.token_ids[:-1]
    stopped = last == stop or last in ends
    ok = not inside and stopped == (answer.finish_reason == "stop")
    found = f"{len(answer.token_ids)} tokens, the last {last}, the stop token {stop}, reason {answer.finish_reason}"
    return case(found=found, ok=ok)


def _stop_string(
    generate: Generate, sampling: Sampling, plain: Completion, tokenizer: Any, ends: frozenset[int]
) -> Case:
    case = partial(Case, name="stop string", expected="a greedy answer ends with a piece of its own text")
    pieces = [tokenizer.decode([token]) for token in map(int, plain.token_ids) if token not in ends]
    stop = next((p.strip() for p in reversed(pieces) if p.strip() and p.isprintable() and "\ufffd" not in p), "")
    if not stop:
        return case(found="the greedy answer has no readable text", judged=False)
    answer = generate(1, replace(sampling, temperature=0.0, stop=(stop,), max_tokens=_GREEDY_TOKENS))[0]
    text = tokenizer.decode(answer.token_ids.tolist())
    stopped = stop in text or int(answer.token_ids[-1]) in ends
    before = tokenizer.decode(answer.token_ids[:-1].tolist())
    ok = stopped == (answer.finish_reason == "stop") and (stop not in before or not stopped)
    found = f"{len(answer.token_ids)} tokens, '{stop}' {'in' if stop in text else 'not in'} them"
    return case(found=f"{found}, reason {answer.finish_reason}", ok=ok)
