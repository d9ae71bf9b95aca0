"""A live server asked for log-probabilities of fixed prompts, and a saved checkpoint asked the same on the CPU."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.canary import CanaryFacts
from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe
from rlcheck.measure.rollout.bridge import failure_of
from rlcheck.measure.rollout.dialects import Sglang, Vllm
from rlcheck.measure.rollout.http import CallFailed, caller_of
from rlcheck.measure.rollout.server import KEYS

STAGE_S, TOTAL_S, ASK_S = 1800.0, 7200.0, 120.0
_PROMPTS, _PROMPT_TOKENS, _PREFIX_TOKENS, _NEW_TOKENS = 4, 48, 1024, 4
_TEXTS = (
    "What is 12 + 30? Think step by step.",
    " leading and trailing ",
    "tabs\tand\nlines\n\n",
    "naïve café 東京 🙂",
    "def f(x):\n    return x ** 2",
    "<think>\n</think> #### 42",
    "don't 1,234.50 3.14159 \\boxed{7}",
)


@dataclass(frozen=True)
class Asked:
    """The options of one call; see `rlcheck.cli.requests.records.CanaryRequest`."""

    url: str
    checkpoint: Path
    adapter: Path | None = None
    earlier: tuple[Path, ...] = ()
    model: str = ""
    dtype: str = ""


def examine_canary(
    asked: Asked,
    environ: Mapping[str, str] = os.environ,
    *,
    python: Sequence[str] = (),
    ask_s: float = ASK_S,
    on_stage: Callable[[str], None] = lambda _: None,
) -> CanaryFacts:
    """Ask the server, then compute.

    Args:
        asked: the server, the checkpoint, and what it may be mistaken for.
        environ: for the server's key.
        python: the interpreter that has the trainer; empty for the doctor's own.
        ask_s: longest time of one answer of the server.
        on_stage: told what is done, before it is.

    Raises:
        UserError: the server cannot be asked, or serves no such model.
    """
    vocabulary = _vocabulary(asked.checkpoint)
    try:
        server = _Server(asked, environ, ask_s)
        on_stage("the server: prompts")
        direct = server.direct(vocabulary)
        cached = server.cached(vocabulary)
        texts = server.texts()
    except CallFailed as error:
        raise UserError(f"{asked.url}: {error}") from None
    known = CanaryFacts(url=server.caller.url, engine=server.engine, version=server.version, model=server.model,
                        checkpoint=str(asked.checkpoint), adapter=str(asked.adapter or ""), dtype=server.dtype,
                        prefix_tokens=server.prefix_tokens, notes=tuple(server.notes))  # fmt: skip
    request = {
        "checkpoint": str(asked.checkpoint.resolve()),
        "adapter": "" if asked.adapter is None else str(asked.adapter.resolve()),
        "earlier": [str(path.resolve()) for path in asked.earlier],
        "dtype": server.dtype,
        "direct": direct,
        "cached": cached,
        "texts": texts,
    }
    try:
        found = run_probe(python, "canary", request, stage_timeout_s=STAGE_S, total_timeout_s=TOTAL_S,
                          on_stage=lambda stage, done, total: on_stage(f"the checkpoint: {stage}"))  # fmt: skip
        facts = decoded(found, CanaryFacts, "not measured")
    except ProbeFailed as error:
        failure = failure_of(error)
        facts = msgspec.structs.replace(error.facts(CanaryFacts, f"not reached: {failure.line}"), failure=failure)
    own = ("url", "engine", "version", "model", "checkpoint", "adapter", "dtype", "prefix_tokens", "notes")
    return msgspec.structs.replace(facts, **{name: getattr(known, name) for name in own})


def _vocabulary(checkpoint: Path) -> int:
    """How many tokens the checkpoint's model has.

    Raises:
        UserError: there is no config of a model.
    """
    file = checkpoint / "config.json"
    try:
        config: Any = json.loads(file.read_bytes())
        text: Any = config.get("text_config") or config
        sizes: list[Any] = [config.get("vocab_size"), text.get("vocab_size")]
        return next(size for size in sizes if isinstance(size, int) and size > 1)
    except OSError as error:
        raise UserError(f"{file}: {error.strerror}; --checkpoint names a directory with a saved model") from None
    except (ValueError, AttributeError, StopIteration):
        raise UserError(f"{file}: no config of a model with a vocab_size") from None


class _Server:
    """The server, by vLLM's or SGLang's protocol."""

    def __init__(self, asked: Asked, environ: Mapping[str, str], ask_s: float) -> None:
        key = next((environ[name].strip() for name in KEYS if environ.get(name, "").strip()), "")
        self.caller, notes = caller_of(asked.url, key)
        self.notes, self._ask_s = list(notes), ask_s
        cards = self._cards(bool(key))
        names = [str(card.get("id")) for card in cards]
        self.model = asked.model or names[0]
        if self.model not in names:
            raise UserError(f"{asked.url}: serves no model {self.model!r}; it has {', '.join(names[:8])} (--model)")
        card = cards[names.index(self.model)]
        owners = {str(one.get("owned_by")) for one in cards}
        self._sglang = "sglang" in owners
        dialect = Sglang() if self._sglang else Vllm()
        self.engine, self.version = dialect.engine, dialect.version(self.caller, ask_s)
        limit = card.get("max_model_len") or cards[0].get("max_model_len") or 2 * _PREFIX_TOKENS
        self.prefix_tokens = min(_PREFIX_TOKENS, int(limit) - 2 * _NEW_TOKENS)
        self.dtype = asked.dtype or self._dtype(asked.checkpoint)

    def _cards(self, has_key: bool) -> list[dict[str, Any]]:
        answer = self.caller.call("GET", "/v1/models", None, self._ask_s)
        if answer.status in (401, 403):
            given = "the key is refused" if has_key else "no key was sent; set RLCHECK_API_KEY"
            raise UserError(f"{self.caller.url}: GET /v1/models: HTTP {answer.status}, {given}")
        data: Any = answer.data()
        cards: Any = cast("dict[str, Any]", data).get("data") if isinstance(data, dict) else None
        if answer.status != 200 or not isinstance(cards, list) or not cards:
            raise UserError(f"{self.caller.url}: GET /v1/models: HTTP {answer.status}: no LLM server")
        return [cast("dict[str, Any]", card) for card in cast("list[Any]", cards)]

    def _dtype(self, checkpoint: Path) -> str:
        """Of the server, where it says so; else of the checkpoint."""
        said: Any = self.caller.call("GET", "/server_info", None, self._ask_s).data()
        text = json.dumps(said) if isinstance(said, dict) else ""
        for name in ("bfloat16", "float16", "float32"):
            if f"dtype=torch.{name}" in text or f'"dtype": "torch.{name}"' in text or f'"dtype": "{name}"' in text:
                return name
        config: Any = json.loads((checkpoint / "config.json").read_bytes())
        name = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16").removeprefix("torch.")
        self.notes.append(f"the server does not say its dtype; taken from the checkpoint: {name} (--dtype)")
        return name

    def direct(self, vocabulary: int) -> list[dict[str, Any]]:
        """Log-probabilities of prompts, computed without a cache: engines do not read their prefix cache for them."""
        count = min(_PROMPT_TOKENS, self.prefix_tokens)
        prompts = [_ids(seed, count, vocabulary) for seed in range(_PROMPTS)]
        return [{"ids": ids, "log_probs": self._of_prompt(ids)} for ids in prompts]

    def cached(self, vocabulary: int) -> list[dict[str, Any]]:
        """Of new tokens behind a long prefix, the same in each call of this command, asked twice."""
        ids = _ids(_PROMPTS, self.prefix_tokens, vocabulary)
        found: list[dict[str, Any]] = []
        for _ in range(2):
            new, log_probs = self._new(ids)
            found.append({"ids": [*ids, *new], "log_probs": log_probs})
        return found

    def texts(self) -> dict[str, list[int]]:
        """Token ids of fixed texts; nothing where the server does not tokenize."""
        found: dict[str, list[int]] = {}
        for text in _TEXTS:
            body = {"model": self.model, "prompt": text, "add_special_tokens": False}
            data: Any = self.caller.call("POST", "/tokenize", body, self._ask_s).data()
            tokens: Any = cast("dict[str, Any]", data).get("tokens") if isinstance(data, dict) else None
            if isinstance(tokens, list):
                found[text] = cast("list[int]", tokens)
        return found

    def _of_prompt(self, ids: list[int]) -> list[float]:
        if self._sglang:
            meta = self._generate(ids, {"logprob_start_len": 0}, 1)
            return [float(row[0]) for row in meta["input_token_logprobs"][1:]]
        choice = self._complete({"prompt": ids, "max_tokens": 1, "prompt_logprobs": 0})
        rows: list[dict[str, Any]] = choice["prompt_logprobs"][1:]
        return [float(row[str(token)]["logprob"]) for row, token in zip(rows, ids[1:], strict=True)]

    def _new(self, ids: list[int]) -> tuple[list[int], list[float]]:
        if self._sglang:
            rows = self._generate(ids, {}, _NEW_TOKENS)["output_token_logprobs"]
            return [int(row[1]) for row in rows], [float(row[0]) for row in rows]
        more = {"max_tokens": _NEW_TOKENS, "logprobs": 0, "return_tokens_as_token_ids": True, "ignore_eos": True}
        said = self._complete({"prompt": ids, **more})["logprobs"]
        return [int(token.rpartition(":")[2]) for token in said["tokens"]], list(map(float, said["token_logprobs"]))

    def _complete(self, body: dict[str, Any]) -> dict[str, Any]:
        return self._posted("/v1/completions", {"model": self.model, "temperature": 0, **body})["choices"][0]

    def _generate(self, ids: list[int], more: dict[str, Any], count: int) -> dict[str, Any]:
        parameters = {"max_new_tokens": count, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": ids, "sampling_params": parameters, "return_logprob": True, **more}
        return self._posted("/generate", body)["meta_info"]

    def _posted(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.caller.call("POST", path, body, self._ask_s)
        data: Any = answer.data()
        if answer.status != 200 or not isinstance(data, dict):
            raise UserError(f"{self.caller.url}: POST {path}: HTTP {answer.status}: {answer.words()}")
        return cast("dict[str, Any]", data)


def _ids(seed: int, count: int, vocabulary: int) -> list[int]:
    """COUNT tokens below VOCABULARY, the same for a seed on every machine and in every version."""
    chosen = random.Random(seed)
    return [int(chosen.random() * vocabulary) for _ in range(count)]
