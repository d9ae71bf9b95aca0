"""vLLM's server: OpenAI's completions with token ids in and out, and the calls that its development mode offers.

Source: vllm/entrypoints/openai/completion/protocol.py and vllm/entrypoints/serve/dev of 0.32.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from rltrain.core.errors import RunFailure
from rltrain.core.trajectory import float_array, int_array
from rltrain.workers.rollout.protocol import Answer, Completion, WakeTag
from rltrain.workers.rollout.served.client import Client
from rltrain.workers.rollout.served.dialect import Asked, Description, Give
from rltrain.workers.sync.wire import Call

EXTENSION = "rltrain.workers.rollout.vllm.extension.SyncExtension"


class Vllm:
    """See `Dialect`. Each request is a call: a seed counts for a whole call."""

    engine = "vllm"
    weights_advice = f"start it with VLLM_SERVER_DEV_MODE=1 and --worker-extension-cls {EXTENSION}"
    draw_advice = "start it with --logprobs-mode processed_logprobs"

    def __init__(self, client: Client, read_s: float) -> None:
        self._client, self._read_s = client, read_s
        self._model = ""

    def describe(self) -> Description:
        """See `Dialect.describe`."""
        card: dict[str, Any] = self._client.must("GET", "/v1/models")["data"][0]
        self._model = str(card["id"])
        version: dict[str, Any] = self._client.call("GET", "/version").data or {}
        processes = self._processes()
        return Description(
            version=str(version.get("version", "of an unknown version")),
            model=self._model,
            max_model_len=int(card.get("max_model_len") or 0),
            tensor_parallel=processes,
            loads_weights=processes > 0,
            sleeps=self._client.call("GET", "/is_sleeping").status == 200,
        )

    def parameters(self, asked: Asked) -> dict[str, Any]:
        """See `Dialect.parameters`."""
        sampling = asked.sampling
        found: dict[str, Any] = {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": 0.0,
            "min_tokens": min(sampling.min_tokens, asked.most),
            "max_tokens": asked.most,
            "stop": list(sampling.stop),
            "stop_token_ids": list(sampling.stop_token_ids),
            "ignore_eos": sampling.ignore_eos,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "seed": asked.request.seed,
        }
        return found | ({"logprobs": 0} if asked.request.log_probs else {})

    async def generate(self, batch: Mapping[str, Asked], give: Give) -> None:
        """See `Dialect.generate`."""
        await asyncio.gather(*(self._complete(name, asked, give) for name, asked in batch.items()))

    async def abort(self, ids: Sequence[str]) -> None:
        """Closed connections do it."""

    def do(self, call: Call, timeout_s: float) -> list[Any]:
        """By `collective_rpc`."""
        body = {"method": "rltrain_call", "args": [json.dumps(call.written())], "timeout": timeout_s}
        said = self._client.must("POST", "/collective_rpc", body, timeout_s + 10)
        answers = cast("list[dict[str, Any]]", said["results"])
        for answer in answers:
            if "error" in answer:
                raise RunFailure(str(answer["error"]))
        return [answer["value"] for answer in answers]

    def sleep(self, timeout_s: float) -> None:
        """Level 2: weights come again with each sync."""
        self._client.must("POST", "/sleep?level=2", None, timeout_s)

    def wake(self, tag: WakeTag, timeout_s: float) -> None:
        """See `Dialect.wake`."""
        self._client.must("POST", f"/wake_up?tags={tag}", None, timeout_s)

    def forget_prefixes(self, timeout_s: float) -> None:
        """See `Dialect.forget_prefixes`."""
        self._client.must("POST", "/reset_prefix_cache", None, timeout_s)

    async def _complete(self, name: str, asked: Asked, give: Give) -> None:
        body = {
            "model": self._model,
            "prompt": list(asked.request.prompt_ids),
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "include_stop_str_in_output": True,
            "skip_special_tokens": False,
            **self.parameters(asked),
        }
        reply = await self._client.ask("POST", "/v1/completions", body, self._read_s)
        if reply.status != 200:
            raise self._client.failed("POST", "/v1/completions", f"HTTP {reply.status}: {reply.words}")
        give(name, answer_of(reply.data["choices"][0], asked))

    def _processes(self) -> int:
        """Processes with rltrain's part; 0: they have none, or the server has no such call."""
        try:
            return len(self.do(Call("hello"), 60.0))
        except RunFailure:
            return 0


def answer_of(choice: Mapping[str, Any], asked: Asked) -> Answer:
    """What a choice says."""
    ids: list[int] = choice.get("token_ids") or []
    reason = choice.get("finish_reason")
    if not ids or reason not in ("stop", "length"):
        return (
            f"vllm returned {len(ids)} tokens for a prompt of {len(asked.request.prompt_ids)} "
            f"(finish reason: {reason}, stop reason: {choice.get('stop_reason')})"
        )
    said: dict[str, Any] | None = choice.get("logprobs") if asked.request.log_probs else None
    if said is None and asked.request.log_probs:
        return "vllm returned no log-probabilities"
    return Completion(
        int_array(ids),
        None if said is None else float_array(said["token_logprobs"]),
        "stop" if reason == "stop" else "length",
        int_array(choice.get("prompt_token_ids") or ()),
    )
