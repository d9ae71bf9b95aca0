"""The `remote` engine: a server of vLLM or SGLang that the user runs, by its URL."""

from __future__ import annotations

import os
import time
from typing import Any
from urllib.parse import urlsplit

from rltrain.config.schema import RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.hf import saved_end_tokens
from rltrain.workers.rollout.protocol import Sampling
from rltrain.workers.rollout.served.client import Client
from rltrain.workers.rollout.served.dialect import Description, Dialect
from rltrain.workers.rollout.served.engine import ServedEngine
from rltrain.workers.rollout.served.probe import Habits, habits
from rltrain.workers.rollout.served.sglang import Sglang
from rltrain.workers.rollout.served.vllm import Vllm
from rltrain.workers.rollout.stream import generate

KEY = "actor_rollout_ref.rollout.engine_kwargs.remote"
TOKENS = ("RLTRAIN_API_KEY", "VLLM_API_KEY", "SGLANG_API_KEY")
"""Variables of which the first that is set is sent as the server's key."""


class RemoteEngine(ServedEngine):
    """See `RolloutEngine`. Whatever the server cannot do is refused in one line, when it is needed first."""

    def __init__(self, config: RunConfig, model_dir: str, saved_weights: bool = False) -> None:
        """With SAVED_WEIGHTS nobody brings weights: the server answers with those that it has."""
        super().__init__(config)
        self._model_dir, self._saved_weights = model_dir, saved_weights
        arguments = dict(self._rollout.engine_kwargs.get("remote", {}))
        self._url = str(arguments.pop("url", ""))
        if arguments or urlsplit(self._url).scheme not in ("http", "https") or not urlsplit(self._url).netloc:
            given = f"got {', '.join(sorted(arguments))}" if arguments else f"got url='{self._url}'"
            raise UserError(f"{KEY}: takes a url and nothing else, such as {KEY}.url=http://10.0.0.5:30000; {given}")
        self._habits: Habits | None = None

    def start(self) -> dict[str, Any]:
        """Look at the server; nothing is loaded.

        Raises:
            UserError: it is not there, or cannot do what the config asks for.
        """
        begun = time.perf_counter()
        key = next((os.environ[name] for name in TOKENS if os.environ.get(name)), "")
        self._client = Client(self._url, key, self._rollout.generate_timeout_s)
        try:
            self._dialect = self._recognized()
            found = self._dialect.describe()
            self._check(found)
            self._habits = habits(lambda requests, sampling: generate(self, requests, sampling))
        except RunFailure as failure:
            self.stop()
            raise UserError(f"{KEY}.url: {failure}") from failure
        except UserError:
            self.stop()
            raise
        return {
            "engine": self._dialect.engine,
            "engine_version": found.version,
            "start_s": time.perf_counter() - begun,
            "num_processes": 0,
            "url": self._url,
            "model": found.model,
            "seeds": self._habits.seeds,
            "log_probs_of_what_is_left": self._habits.cuts,
        }

    def stop(self) -> None:
        """Leave the server alone."""
        if self._client is not None:
            self._client.close()
            self._client = None

    def refuse(self, sampling: Sampling, log_probs: bool) -> None:
        """See `ServedEngine.refuse`."""
        if self._habits is None or self._habits.cuts or not log_probs:
            return
        altered = sampling.temperature not in (0.0, 1.0) and self.dialect.engine == "vllm"
        if altered or sampling.top_k > 0 or sampling.top_p < 1:
            raise UserError(
                f"{KEY}.url: the server's log-probabilities are not of the distribution that it draws from (temperature"
                f", top_k, top_p); {self.dialect.draw_advice}, or set actor_rollout_ref.rollout.calculate_log_probs="
                "false"
            )

    def _recognized(self) -> Dialect:
        assert self._client is not None
        cards: dict[str, Any] = self._client.must("GET", "/v1/models") or {}
        models: list[dict[str, Any]] = cards.get("data", [])
        owners = {str(card.get("owned_by")) for card in models}
        if "sglang" in owners:
            return Sglang(self._client, saved_end_tokens(self._config.actor_rollout_ref.model, self._model_dir))
        if "vllm" in owners:
            return Vllm(self._client, self._rollout.generate_timeout_s)
        raise RunFailure(f"the server at {self._url} is of {', '.join(owners) or 'nobody'}: neither vLLM nor SGLang")

    def _check(self, found: Description) -> None:
        longest, size = self._rollout.max_model_len, self._rollout.tensor_model_parallel_size
        assert longest is not None
        if 0 < found.max_model_len < longest:
            raise UserError(
                f"{KEY}.url: the server takes {found.max_model_len} tokens, actor_rollout_ref.rollout.max_model_len is "
                f"{longest}: lower data.max_prompt_length or data.max_response_length, or start it with more"
            )
        if self._saved_weights:
            return
        if not found.loads_weights:
            raise UserError(
                f"{KEY}.url: this {self.dialect.engine} server takes no weights, so it is good for evaluation alone; "
                f"to train with it, {self.dialect.weights_advice}"
            )
        if found.tensor_parallel not in (0, size):
            raise UserError(
                f"actor_rollout_ref.rollout.tensor_model_parallel_size: {size}, but the server has "
                f"{found.tensor_parallel} processes; set {found.tensor_parallel}"
            )
        if self._sleeps and not found.sleeps:
            raise UserError(
                f"{KEY}.url: the server on the ranks' own GPUs does not sleep (vLLM: --enable-sleep-mode, SGLang: "
                "--enable-memory-saver); start it so, or set actor_rollout_ref.rollout.free_cache_engine=false"
            )
