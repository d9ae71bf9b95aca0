"""What vLLM's and SGLang's servers are asked, and how their answers are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Protocol, cast

from rlcheck.facts.rollout import TemplateUse
from rlcheck.measure.rollout.http import Answer, Caller

_SHOWN = 2000


@dataclass(frozen=True)
class Wanted:
    """One generation. `prompt` is text, or token ids; without `ends` it goes on to `max_tokens`."""

    prompt: str | list[int]
    max_tokens: int
    temperature: float = 1.0
    ends: bool = False
    stop: str = ""
    stream: bool = False


@dataclass(frozen=True)
class Given:
    """What came. Log-probabilities that are no numbers are NaN."""

    text: str
    num_tokens: int
    log_probs: tuple[float, ...]
    reason: str


class Dialect(Protocol):
    """How one kind of server is spoken to."""

    engine: str
    generate_path: str

    def version(self, caller: Caller, timeout_s: float) -> str:
        """The server's own version; "" if it does not say."""
        ...

    def body(self, model: str, wanted: Wanted) -> dict[str, Any]:
        """The request of a generation."""
        ...

    def read(self, data: Any) -> Given | None:
        """A whole answer; None: it is none."""
        ...

    def piece(self, event: Any) -> str:
        """The text in one event of a stream; SGLang repeats what came before."""
        ...

    def template(self, caller: Caller, model: str, message: str, timeout_s: float) -> TemplateUse | None:
        """The chat template on one message; None: the server does not say."""
        ...


def _dict(value: Any) -> dict[str, Any]:
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else float("nan")


def _integer(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else -1


class OpenAi:
    """The OpenAI-compatible end points alone: what every server of the kind has."""

    engine = ""
    generate_path = "/v1/completions"

    def version(self, caller: Caller, timeout_s: float) -> str:
        """It does not say."""
        return ""

    def body(self, model: str, wanted: Wanted) -> dict[str, Any]:
        """As OpenAI has it."""
        found: dict[str, Any] = {
            "model": model,
            "prompt": wanted.prompt,
            "max_tokens": wanted.max_tokens,
            "temperature": wanted.temperature,
            "logprobs": 1,
            "seed": 1,
        }
        return found | ({"stop": [wanted.stop]} if wanted.stop else {}) | ({"stream": True} if wanted.stream else {})

    def read(self, data: Any) -> Given | None:
        """See `Dialect.read`."""
        choices = _list(_dict(data).get("choices"))
        if not choices:
            return None
        choice = _dict(choices[0])
        values = _list(_dict(choice.get("logprobs")).get("token_logprobs"))
        count = _integer(_dict(_dict(data).get("usage")).get("completion_tokens"))
        log_probs = tuple(_number(value) for value in values)
        return Given(str(choice.get("text") or ""), count, log_probs, str(choice.get("finish_reason") or ""))

    def piece(self, event: Any) -> str:
        """See `Dialect.piece`."""
        choices = _list(_dict(event).get("choices"))
        return str(_dict(choices[0]).get("text") or "") if choices else ""

    def template(self, caller: Caller, model: str, message: str, timeout_s: float) -> TemplateUse | None:
        """A chat that is answered needs one."""
        body = {"model": model, "messages": [{"role": "user", "content": message}], "max_tokens": 1}
        return _template_of(caller.call("POST", "/v1/chat/completions", body, timeout_s))


class Vllm(OpenAi):
    """vLLM. /tokenize renders templates.

    Source: https://docs.vllm.ai/en/latest/cli/serve/ and vllm/entrypoints of 0.26 and 0.32.
    """

    engine = "vllm"

    def version(self, caller: Caller, timeout_s: float) -> str:
        """From /version."""
        return str(_dict(caller.call("GET", "/version", None, timeout_s).data()).get("version") or "")

    def body(self, model: str, wanted: Wanted) -> dict[str, Any]:
        """With vLLM's own `ignore_eos`."""
        return super().body(model, wanted) | {"ignore_eos": not wanted.ends}

    def template(self, caller: Caller, model: str, message: str, timeout_s: float) -> TemplateUse | None:
        """From /tokenize, which renders it."""
        body = {"model": model, "messages": [{"role": "user", "content": message}], "return_token_strs": True}
        answer = caller.call("POST", "/tokenize", body, timeout_s)
        if answer.status in (404, 405):
            return super().template(caller, model, message, timeout_s)
        tokens = [str(token) for token in _list(_dict(answer.data()).get("token_strs"))]
        rendered = "".join(tokens).replace("\u0120", " ").replace("\u010a", "\n").replace("\u2581", " ")
        return _template_of(answer, rendered[:_SHOWN], _integer(_dict(answer.data()).get("count")))


class Sglang(OpenAi):
    """SGLang, by its own /generate.

    Source: https://docs.sglang.io/docs/basic_usage/native_api.md and python/sglang/srt/entrypoints/http_server.py.
    """

    engine = "sglang"
    generate_path = "/generate"

    def version(self, caller: Caller, timeout_s: float) -> str:
        """From /server_info, which older versions call /get_server_info."""
        for path in ("/server_info", "/get_server_info"):
            found = _dict(caller.call("GET", path, None, timeout_s).data()).get("version")
            if found:
                return str(found)
        return ""

    def body(self, model: str, wanted: Wanted) -> dict[str, Any]:
        """As SGLang has it."""
        parameters = {
            "max_new_tokens": wanted.max_tokens,
            "temperature": wanted.temperature,
            "ignore_eos": not wanted.ends,
        } | ({"stop": [wanted.stop]} if wanted.stop else {})
        prompt = {"text": wanted.prompt} if isinstance(wanted.prompt, str) else {"input_ids": wanted.prompt}
        return {**prompt, "sampling_params": parameters, "return_logprob": True, "stream": wanted.stream}

    def read(self, data: Any) -> Given | None:
        """See `Dialect.read`."""
        meta = _dict(_dict(data).get("meta_info"))
        if not meta:
            return None
        rows = [_list(row) for row in _list(meta.get("output_token_logprobs"))]
        reason = meta.get("finish_reason")
        return Given(
            str(_dict(data).get("text") or ""),
            _integer(meta.get("completion_tokens")),
            tuple(_number(row[0]) if row else float("nan") for row in rows),
            str(_dict(reason).get("type") or reason or ""),
        )

    def piece(self, event: Any) -> str:
        """See `Dialect.piece`."""
        return str(_dict(event).get("text") or "")


def _template_of(answer: Answer, rendered: str = "", num_tokens: int = 0) -> TemplateUse | None:
    if answer.status == 200:
        return TemplateUse(present=True, source="the server", rendered=rendered, num_tokens=max(num_tokens, 0))
    words = answer.words()
    if answer.status == 400 and "template" in words.lower():
        lacks = "no longer allowed" in words or "must provide a chat template" in words
        return TemplateUse(present=not lacks, source="the server", error="" if lacks else words)
    return None


def events(lines: list[bytes]) -> list[Any]:
    """The JSON of server-sent events."""
    found: list[Any] = []
    for line in lines:
        if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
            try:
                found.append(json.loads(line[5:]))
            except (ValueError, RecursionError):
                continue
    return found
