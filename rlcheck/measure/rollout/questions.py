"""What a server that generates is asked: speed, log-probabilities, where answers end, lengths, template."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from rlcheck.facts.base import absent, known
from rlcheck.facts.rollout import Case, LogProbs, Speed
from rlcheck.measure.rollout.dialects import Dialect, Given, Wanted, events
from rlcheck.measure.rollout.http import Answer, Caller

MESSAGE = "What is two plus three? Answer with one number."
_TOKENS = 16
_STREAMED = 32
_POSITIVE = 1e-4
"""A log-probability above it is more than a rounding error."""
_LONGEST = 262144
"""A prompt of up to so many token ids is sent to see it refused: more is megabytes of JSON."""


class Questions:
    """One server that speaks `dialect`; every answer counts for the log-probabilities."""

    def __init__(self, caller: Caller, dialect: Dialect, model: str, limit_s: float) -> None:
        self._caller, self._dialect, self._model, self._limit_s = caller, dialect, model, limit_s
        self._given: list[Given] = []
        self._prompt: str | list[int] = MESSAGE
        self._tokens = _TOKENS

    def first(self) -> str:
        """Generate once, with fewer tokens if the model is too short for the message; why it cannot, "" if it can."""
        words = ""
        for prompt, tokens in ((MESSAGE, _TOKENS), ([5, 6, 7, 8], _TOKENS), ([5, 6, 7, 8], 4)):
            self._prompt, self._tokens = prompt, tokens
            answer = self._post(Wanted(prompt, tokens))
            if self._take(answer) is not None:
                return ""
            words = words or f"POST {self._dialect.generate_path}: HTTP {answer.status}, {answer.words()}"
            if answer.status != 400:
                break
        return words

    def all(self, max_model_len: int | None) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """Stage and question, in order; a question gives fields of `RolloutFacts`."""
        yield "speed", self.speed
        yield "stops", self.stops
        yield "lengths", lambda: self.lengths(max_model_len)
        yield "log-probabilities", self.log_probs
        yield "template", self.template

    def speed(self) -> dict[str, Any]:
        """The first piece of a streamed answer, and the others."""
        tokens = min(_STREAMED, 2 * self._tokens)
        body = self._dialect.body(self._model, Wanted(self._prompt, tokens, stream=True))
        begun, first_s, lines, rest = time.monotonic(), 0.0, list[bytes](), b""
        for _, _, chunk in self._caller.stream("POST", self._dialect.generate_path, body, self._limit_s):
            *whole, rest = (rest + chunk).split(b"\n")
            lines += whole
            if not first_s and any(self._dialect.piece(event) for event in events(whole)):
                first_s = time.monotonic() - begun
        seconds = time.monotonic() - begun
        pieces = [event for event in events([*lines, rest]) if self._dialect.piece(event)]
        if not pieces:
            return {"speed": absent("the answer is not streamed")}
        per_s = (len(pieces) - 1) / (seconds - first_s) if len(pieces) > 1 and seconds > first_s else 0.0
        found = Speed(first_token_s=first_s, tokens_per_s=per_s, num_requests=1, tokens_per_request=tokens,
                      chunks=len(pieces), stream_s=seconds)  # fmt: skip
        return {"speed": known(found)}

    def stops(self) -> dict[str, Any]:
        """A stop string of the answer's own text; and an answer that goes on past the end of sequence."""
        plain = self._ask(Wanted(self._prompt, self._tokens, temperature=0.0))
        if plain is None:
            return {"stops": absent("a greedy generation is refused")}
        cases = [self._stopped(plain.text)]
        if self._dialect.engine:
            cases.append(Case(
                name="ignore_eos", expected=f"{self._tokens} tokens, finish reason length",
                found=f"{plain.num_tokens} tokens, finish reason {plain.reason}",
                ok=(plain.num_tokens, plain.reason) == (self._tokens, "length"),
            ))  # fmt: skip
        return {"stops": known(tuple(cases))}

    def _stopped(self, text: str) -> Case:
        case = Case(name="stop string", expected="a greedy answer stops before a piece of its own text", found="")
        words = [word for word in text.split() if word.isprintable()] or ([text.strip()] if text.strip() else [])
        stop = words[-1][:8] if words else ""
        if not stop:
            return _replaced(case, found="the greedy answer has no readable text", judged=False)
        given = self._ask(Wanted(self._prompt, self._tokens, temperature=0.0, stop=stop))
        if given is None:
            return _replaced(case, found=f"a generation with stop '{stop}' is refused", ok=False)
        found = f"{given.num_tokens} tokens, finish reason {given.reason}, stop string '{stop}'"
        if given.reason != "stop" and stop not in given.text:
            # Another batch may round otherwise, so that the text is another one.
            return _replaced(case, found=f"{found}: it did not come this time", judged=False)
        return _replaced(case, found=found, ok=given.reason == "stop" and stop not in given.text)

    def lengths(self, max_model_len: int | None) -> dict[str, Any]:
        """The limits of the answer and of the model."""
        given = self._ask(Wanted(self._prompt, 3))
        asked = Case(name="max_tokens", expected="at most 3 tokens", found="refused", ok=False)
        if given is not None:
            asked = _replaced(asked, found=f"{given.num_tokens} tokens", ok=0 < given.num_tokens <= 3)
        return {"lengths": known((asked, self._too_long(max_model_len)))}

    def _too_long(self, max_model_len: int | None) -> Case:
        case = Case(name="prompt of max_model_len", expected="refused", found="")
        if max_model_len is None or max_model_len > _LONGEST:
            reason = "the server does not say its limit" if max_model_len is None else f"{max_model_len} tokens"
            return _replaced(case, found=f"not tried: {reason}", judged=False)
        answer = self._post(Wanted([5] * max_model_len, 1))
        if answer.status == 200:
            return _replaced(case, found=f"answered, with a prompt of {max_model_len} tokens", ok=False)
        return _replaced(case, found=f"HTTP {answer.status}: {answer.words()[:120]}", judged=400 <= answer.status < 500)

    def log_probs(self) -> dict[str, Any]:
        """Of all answers so far."""
        values = [value for given in self._given for value in given.log_probs]
        finite = [value for value in values if math.isfinite(value)]
        return {"log_probs": known(LogProbs(
            num_completions=len(self._given),
            num_tokens=sum(max(given.num_tokens, 0) for given in self._given),
            num_log_probs=len(values),
            num_not_finite=len(values) - len(finite),
            num_positive=sum(value > _POSITIVE for value in finite),
            mean=sum(finite) / len(finite) if finite else 0.0,
            lowest=min(finite, default=0.0),
            worst=next((flaw for flaw in map(_flaw, range(len(self._given)), self._given) if flaw), ""),
        ))}  # fmt: skip

    def template(self) -> dict[str, Any]:
        """The chat template on one message."""
        found = self._dialect.template(self._caller, self._model, MESSAGE, self._limit_s)
        return {"template": absent("the server does not say") if found is None else known(found)}

    def _post(self, wanted: Wanted) -> Answer:
        body = self._dialect.body(self._model, wanted)
        return self._caller.call("POST", self._dialect.generate_path, body, self._limit_s)

    def _ask(self, wanted: Wanted) -> Given | None:
        return self._take(self._post(wanted))

    def _take(self, answer: Answer) -> Given | None:
        given = self._dialect.read(answer.data()) if answer.status == 200 else None
        if given is not None:
            # A server that does not count is taken at the word of its log-probabilities.
            counted = given if given.num_tokens >= 0 else replace(given, num_tokens=len(given.log_probs))
            self._given.append(counted)
            return counted
        return None


def _replaced(case: Case, **values: Any) -> Case:
    import msgspec

    return msgspec.structs.replace(case, **values)


def _flaw(number: int, given: Given) -> str:
    if len(given.log_probs) != given.num_tokens:
        return f"answer {number}: {given.num_tokens} tokens, {len(given.log_probs)} log-probabilities"
    for position, value in enumerate(given.log_probs):
        if not math.isfinite(value) or value > _POSITIVE:
            return f"answer {number}, token {position}: {value}"
    return ""
