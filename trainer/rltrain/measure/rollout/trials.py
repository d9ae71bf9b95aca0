"""What is tried with an engine that has started: speed, log-probabilities, where answers end, lengths, sleep."""

# Transformers' tokenizers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.rollout import Case, LogProbs, SleepUse, Speed
from rltrain.config.schema import RunConfig
from rltrain.core import nvml
from rltrain.core.errors import RunFailure
from rltrain.core.trajectory import FloatArray, float_array
from rltrain.measure.rollout.stopping import end_tokens, stop_cases
from rltrain.workers.rollout.protocol import Completion, Request, RolloutEngine, Sampling, Syncs
from rltrain.workers.rollout.sampling import request_seed
from rltrain.workers.rollout.stream import generate

_REQUESTS = {"cuda": 64, "cpu": 8}
_TOKENS = {"cuda": 256, "cpu": 32}
_LONGEST = {"cuda": 65536, "cpu": 2048}
"""A prompt of up to so many tokens is read for a trial of the lengths: more would take minutes."""
_POSITIVE = 1e-4
"""A log-probability above it is more than a rounding error."""


class Trials:
    """One engine, one prompt, and all answers so far.

    Args:
        engine: started.
        config: resolved.
        tokenizer: the policy's.
        prompt: token ids, of at most half of `max_model_len`.
        before: how full the GPUs were before the engine started; None on a CPU.
    """

    def __init__(
        self,
        engine: RolloutEngine,
        config: RunConfig,
        tokenizer: Any,
        prompt: tuple[int, ...],
        before: tuple[nvml.Used, ...] | None,
    ) -> None:
        self._engine, self._config, self._tokenizer, self._prompt = engine, config, tokenizer, prompt
        self._before = before
        self._rollout = config.actor_rollout_ref.rollout
        self._device = config.trainer.device
        self._answers: list[Completion] = []
        self._seed = 0
        assert self._rollout.max_model_len is not None
        self._longest = self._rollout.max_model_len
        room = min(config.data.max_response_length, self._longest - len(prompt), _TOKENS[self._device])
        self._tokens = max(1, room)
        self._sampling = Sampling(
            temperature=self._rollout.temperature,
            top_p=self._rollout.top_p,
            top_k=self._rollout.top_k,
            min_tokens=0,
            max_tokens=self._tokens,
            stop=(),
            stop_token_ids=(),
            ignore_eos=False,
        )

    def first(self) -> None:
        """Generate once: what is compiled on the way is compiled now."""
        self._generate(1, replace(self._sampling, max_tokens=1))

    def all(self) -> Iterator[tuple[str, Callable[[], dict[str, Fact[Any]]]]]:
        """Name and trial, in order; a trial gives fields of `RolloutFacts`."""
        yield "speed", self.speed
        yield "stops", self.stops
        yield "lengths", self.lengths
        yield "log-probabilities", self.log_probs
        yield "sleep", self.sleep

    def speed(self) -> dict[str, Fact[Any]]:
        """Time of a first token, and tokens per second of a batch that does not end early."""
        if isinstance(self._engine, Syncs):
            self._engine.reset_prefix_cache()
        begun = time.perf_counter()
        self._generate(1, replace(self._sampling, max_tokens=1))
        first_s = time.perf_counter() - begun
        count = min(self._rollout.max_num_seqs, _REQUESTS[self._device])
        # A first batch of this size may still make the engine set something up.
        self._generate(count, replace(self._sampling, max_tokens=1))
        begun = time.perf_counter()
        answers = self._generate(count, replace(self._sampling, ignore_eos=True))
        seconds = time.perf_counter() - begun
        return {
            "speed": known(
                Speed(
                    first_token_s=first_s,
                    tokens_per_s=sum(len(answer.token_ids) for answer in answers) / seconds,
                    num_requests=count,
                    prompt_tokens=len(self._prompt),
                    tokens_per_request=self._tokens,
                )
            )
        }

    def stops(self) -> dict[str, Fact[Any]]:
        """Where answers end: at the end of sequence, at a stop token, at a stop string; and where they must not."""
        ends = end_tokens(self._tokenizer, self._config.actor_rollout_ref.model.path or "")
        found = stop_cases(self._generate, self._sampling, self._tokenizer, ends, min(self._rollout.max_num_seqs, 16))
        return {"stops": known(found)}

    def lengths(self) -> dict[str, Fact[Any]]:
        """The limits of the model's length and of the response."""
        return {"lengths": known((self._too_long(), self._cut_at_response(), self._cut_at_model_len()))}

    def _too_long(self) -> Case:
        case = partial(Case, name="prompt of max_model_len", expected="refused")
        prompt = self._repeated(self._longest)
        try:
            self._ask([prompt], replace(self._sampling, max_tokens=1))
        except RunFailure:
            return case(found=f"refused: {self._longest} tokens leave no room for an answer")
        return case(found=f"answered, with a prompt of {self._longest} tokens", ok=False)

    def _cut_at_response(self) -> Case:
        answer = self._generate(1, replace(self._sampling, ignore_eos=True))[0]
        return Case(
            name="answer without an end",
            expected=f"{self._tokens} tokens, finish reason length",
            found=f"{len(answer.token_ids)} tokens, finish reason {answer.finish_reason}",
            ok=(len(answer.token_ids), answer.finish_reason) == (self._tokens, "length"),
        )

    def _cut_at_model_len(self) -> Case:
        """One with room for three tokens, asked for eight."""
        name, room = "prompt leaving three tokens", 3
        if not 8 < self._longest <= _LONGEST[self._device]:
            reason = f"not tried: max_model_len is {self._longest}"
            return Case(name=name, expected="three tokens", found=reason, judged=False)
        sampling = replace(self._sampling, max_tokens=8, ignore_eos=True)
        answer = self._ask([self._repeated(self._longest - room)], sampling)[0]
        return Case(
            name=name,
            expected="3 tokens, finish reason length",
            found=f"{len(answer.token_ids)} tokens, finish reason {answer.finish_reason}",
            ok=(len(answer.token_ids), answer.finish_reason) == (room, "length"),
        )

    def log_probs(self) -> dict[str, Fact[Any]]:
        """Of all answers so far: one for each token, finite, and of no more than certainty."""
        values = [float(value) for answer in self._answers for value in _log_probs(answer)]
        finite = [value for value in values if math.isfinite(value)]
        return {
            "log_probs": known(
                LogProbs(
                    num_completions=len(self._answers),
                    num_tokens=sum(len(answer.token_ids) for answer in self._answers),
                    num_log_probs=len(values),
                    num_not_finite=len(values) - len(finite),
                    num_positive=sum(value > _POSITIVE for value in finite),
                    mean=sum(finite) / len(finite) if finite else 0.0,
                    lowest=min(finite, default=0.0),
                    worst=next((flaw for flaw in map(_flaw, range(len(self._answers)), self._answers) if flaw), ""),
                )
            )
        }

    def sleep(self) -> dict[str, Fact[Any]]:
        """What the device gets back while the engine sleeps."""
        before = self._before
        if before is None:
            return {"sleep": absent("does not apply: an engine on a CPU has no device memory to give back")}
        now = nvml.used()
        # The GPU of which the engine took most: others may be full of somebody else's.
        gpu = max(range(len(now)), key=lambda index: now[index].used_bytes - before[index].used_bytes)
        awake = now[gpu]
        begun = time.perf_counter()
        engine = self._engine
        forgets = isinstance(engine, Syncs) and engine.sleep()
        sleep_s = time.perf_counter() - begun
        asleep = nvml.used()[gpu]
        if not forgets or not isinstance(engine, Syncs):
            why = "the engine does not sleep: rollout.free_cache_engine is off, it has GPUs of its own, or it is hf"
            return {"sleep": absent(why)}
        begun = time.perf_counter()
        engine.wake("weights")
        engine.wake("kv_cache")
        wake_s = time.perf_counter() - begun
        return {
            "sleep": known(
                SleepUse(
                    before_start_bytes=before[gpu].used_bytes,
                    awake_bytes=awake.used_bytes,
                    asleep_bytes=asleep.used_bytes,
                    again_bytes=nvml.used()[gpu].used_bytes,
                    total_bytes=awake.total_bytes,
                    sleep_s=sleep_s,
                    wake_s=wake_s,
                    forgets=forgets,
                )
            )
        }

    def _repeated(self, length: int) -> tuple[int, ...]:
        return (self._prompt * (length // len(self._prompt) + 1))[:length]

    def _generate(self, count: int, sampling: Sampling) -> list[Completion]:
        return self._ask([self._prompt] * count, sampling)

    def _ask(self, prompts: Sequence[tuple[int, ...]], sampling: Sampling) -> list[Completion]:
        self._seed += 1
        seed = self._config.trainer.seed
        requests = [Request(prompt, request_seed(seed, self._seed, 0, n)) for n, prompt in enumerate(prompts)]
        answers = generate(self._engine, requests, sampling, self._rollout.max_retries)
        self._answers += answers
        return answers


def _log_probs(answer: Completion) -> FloatArray:
    return float_array() if answer.log_probs is None else answer.log_probs


def _flaw(number: int, answer: Completion) -> str:
    log_probs = _log_probs(answer)
    if len(log_probs) != len(answer.token_ids):
        return f"completion {number}: {len(answer.token_ids)} tokens, {len(log_probs)} log-probabilities"
    for position, value in enumerate(map(float, log_probs)):
        if not math.isfinite(value) or value > _POSITIVE:
            return f"completion {number}, token {position} (id {answer.token_ids[position]}): {value}"
    return ""
