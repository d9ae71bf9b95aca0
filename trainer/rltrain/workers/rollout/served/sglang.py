"""SGLang's server, by its own end points.

Source: sglang/srt/entrypoints/http_server.py, managers/io_struct.py and sampling/sampling_params.py of 0.5.12.
"""

from __future__ import annotations

import asyncio
import base64
import json
import pickle
from collections.abc import Collection, Mapping, Sequence
from typing import Any, cast

from rltrain.core.errors import RunFailure
from rltrain.core.trajectory import float_array, int_array
from rltrain.workers.rollout.protocol import Answer, Completion, WakeTag
from rltrain.workers.rollout.served.client import Client
from rltrain.workers.rollout.served.dialect import Asked, Description, Give
from rltrain.workers.sync.wire import SGLANG_FORMAT, Call

_NEVER = 1 << 30
"""Tokens between two events of one answer: only the first token and the end are told."""


class Sglang:
    """See `Dialect`. A batch is one call, whose answers come as events as they finish."""

    engine = "sglang"
    weights_advice = "start it with RLTRAIN_SGLANG=1 in an environment that has rlcheck installed, beside SGLang"
    draw_advice = weights_advice

    def __init__(self, client: Client, ends: Collection[int]) -> None:
        """ENDS: tokens that end an answer, as the other engines have them: of the tokenizer and the model's files."""
        self._client = client
        self._ends = frozenset(ends)
        self._processes = 1
        self._turn = asyncio.Lock()
        """A batch goes out when the one before has begun: SGLang holds the requests of one back until all have come."""

    def describe(self) -> Description:
        """See `Dialect.describe`."""
        said = self._client.must("GET", "/server_info")
        self._processes = int(said.get("tp_size") or 1)
        return Description(
            version=str(said.get("version") or "of an unknown version"),
            model=str(said.get("served_model_name") or said.get("model_path") or ""),
            max_model_len=int(said.get("context_length") or said.get("max_req_input_len") or 0),
            tensor_parallel=self._processes,
            loads_weights=self._has_part(),
            sleeps=bool(said.get("enable_memory_saver")),
        )

    def parameters(self, asked: Asked) -> dict[str, Any]:
        """See `Dialect.parameters`."""
        sampling = asked.sampling
        return {
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k if sampling.top_k > 0 else -1,
            "min_p": 0.0,
            "min_new_tokens": min(sampling.min_tokens, asked.most),
            "max_new_tokens": asked.most,
            "stop": list(sampling.stop),
            "stop_token_ids": sorted(self._ends_of(asked)),
            "ignore_eos": sampling.ignore_eos,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "repetition_penalty": 1.0,
            "sampling_seed": asked.request.seed,
            "stream_interval": _NEVER,
        }

    async def generate(self, batch: Mapping[str, Asked], give: Give) -> None:
        """See `Dialect.generate`."""
        body = {
            "rid": list(batch),
            "input_ids": [list(one.request.prompt_ids) for one in batch.values()],
            "sampling_params": [self.parameters(one) for one in batch.values()],
            "return_logprob": [one.request.log_probs for one in batch.values()],
            "stream": True,
        }
        events = self._client.events("/generate", body)
        async with self._turn:
            first = await anext(events, None)
        if first is not None:
            self._hear(first, batch, give)
        async for event in events:
            self._hear(event, batch, give)

    async def abort(self, ids: Sequence[str]) -> None:
        """See `Dialect.abort`."""
        for name in ids:
            await self._client.ask("POST", "/abort_request", {"rid": name})

    def do(self, call: Call, timeout_s: float) -> list[Any]:
        """By the end point for weights from tensors, in a format that only rltrain's part knows."""
        packed = base64.b64encode(pickle.dumps(json.dumps(call.written()))).decode()
        body: dict[str, Any] = {
            "serialized_named_tensors": [packed] * self._processes,
            "load_format": SGLANG_FORMAT,
            "flush_cache": False,
        }
        if call.descriptor is not None and call.descriptor.bucket.is_last:
            body["weight_version"] = str(call.descriptor.version)
        reply = self._client.call("POST", "/update_weights_from_tensor", body, timeout_s)
        data: Any = reply.data
        said = str(cast("dict[str, Any]", data).get("message", reply.words)) if isinstance(data, dict) else reply.words
        if reply.status != 200:
            raise RunFailure(f"weight sync: {' '.join(said.split()).removeprefix('weight sync: ')}")
        # With a version, SGLang adds words of its own behind ours.
        answers, _ = json.JSONDecoder().raw_decode(said)
        return cast("list[Any]", answers)

    def sleep(self, timeout_s: float) -> None:
        """Weights and cache. Graphs stay: they are small, and their memory is at the addresses that they know."""
        self.forget_prefixes(timeout_s)
        self._client.must("POST", "/release_memory_occupation", {"tags": ["kv_cache", "weights"]}, timeout_s)

    def wake(self, tag: WakeTag, timeout_s: float) -> None:
        """See `Dialect.wake`."""
        self._client.must("POST", "/resume_memory_occupation", {"tags": [tag]}, timeout_s)

    def forget_prefixes(self, timeout_s: float) -> None:
        """It waits until nothing runs: the last answers are out a moment before SGLang knows that it is idle."""
        self._client.must("POST", f"/flush_cache?timeout={timeout_s:g}", None, timeout_s + 10)

    def _hear(self, event: Any, batch: Mapping[str, Asked], give: Give) -> None:
        if "meta_info" not in event:
            words = cast("dict[str, Any]", event.get("error") or {}).get("message", "an event of no request")
            raise self._client.failed("POST", "/generate", " ".join(str(words).split()))
        name = str(event["meta_info"]["id"])
        if event["meta_info"].get("finish_reason") is not None and name in batch:
            give(name, answer_of(event, batch[name], self._ends_of(batch[name])))

    def _ends_of(self, asked: Asked) -> frozenset[int]:
        stops = frozenset(asked.sampling.stop_token_ids)
        return stops if asked.sampling.ignore_eos else stops | self._ends

    def _has_part(self) -> bool:
        try:
            return self.do(Call("hello"), 60.0) != []
        except RunFailure:
            return False


def answer_of(event: Mapping[str, Any], asked: Asked, ends: Collection[int]) -> Answer:
    """What the last event of a request says. One of ENDS in the last place is an end, which SGLang calls a length."""
    meta: dict[str, Any] = event["meta_info"]
    reason: dict[str, Any] = meta["finish_reason"]
    ids: list[int] = event.get("output_ids") or []
    kind = str(reason.get("type"))
    if not ids or kind not in ("stop", "length"):
        words = " ".join(str(reason.get("message") or reason).split())
        return f"sglang returned {len(ids)} tokens for a prompt of {len(asked.request.prompt_ids)} ({kind}: {words})"
    rows: list[list[Any]] | None = meta.get("output_token_logprobs") if asked.request.log_probs else None
    if rows is not None and [row[1] for row in rows] != ids:
        return f"sglang returned log-probabilities of {len(rows)} other tokens than the {len(ids)} of the answer"
    if rows is None and asked.request.log_probs:
        return "sglang returned no log-probabilities"
    version = str(meta.get("weight_version", ""))
    return Completion(
        int_array(ids),
        None if rows is None else float_array([row[0] for row in rows]),
        "stop" if kind == "stop" or ids[-1] in ends else "length",
        int_array(asked.request.prompt_ids),
        ((0, int(version)),) if version.removeprefix("-").isdigit() else (),
    )
