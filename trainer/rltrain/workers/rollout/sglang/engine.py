"""The `sglang` engine: a server of SGLang that this process starts, asks over HTTP, and ends."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, cast

from rltrain.config.schema import RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.hf import saved_end_tokens
from rltrain.workers.rollout.protocol import Sampling
from rltrain.workers.rollout.served.client import Client
from rltrain.workers.rollout.served.engine import ServedEngine
from rltrain.workers.rollout.served.sglang import Sglang
from rltrain.workers.rollout.sglang import arguments
from rltrain.workers.rollout.sglang.server import Server


class SglangEngine(ServedEngine):
    """See `RolloutEngine`.

    Seeds, log-probabilities and weights are those of rltrain's part, which runs inside the server (`plugin.py`): SGLang
    itself draws by seeds only in its deterministic mode, and tells log-probabilities of what is there before top-k and
    top-p.
    """

    def __init__(self, config: RunConfig, model_dir: str, saved_weights: bool = False) -> None:
        """With SAVED_WEIGHTS it starts with those of the model's files, not with random ones."""
        super().__init__(config)
        self._model_dir, self._saved_weights = model_dir, saved_weights
        extra = dict(self._rollout.engine_kwargs.get("sglang", {}))
        python, environ = extra.pop("python", ""), extra.pop("environ", {})
        if not isinstance(python, str) or not isinstance(environ, Mapping):
            raise UserError(f"{arguments.KEY}: python is a path, environ a mapping of variables")
        variables = {str(name): str(value) for name, value in cast("Mapping[Any, Any]", environ).items()}
        own = arguments.base(config, model_dir, saved_weights, self._sleeps)
        self._arguments = arguments.with_user(own, extra)
        self._server = Server(python, variables)

    def start(self) -> dict[str, Any]:
        """See `RolloutEngine.start`."""
        begun = time.perf_counter()
        version = self._server.version()
        self._server.start(arguments.command_line(self._arguments), self._limit_s)
        self._client = Client(self._server.url, "", self._rollout.generate_timeout_s)
        self._dialect = Sglang(self._client, saved_end_tokens(self._config.actor_rollout_ref.model, self._model_dir))
        found = self._dialect.describe()
        if not found.loads_weights:
            raise RunFailure(f"rltrain's part does not run inside the sglang server: {self._server.last_words()}")
        return {
            "engine": "sglang",
            "engine_version": str(version),
            "start_s": time.perf_counter() - begun,
            "num_processes": self._rollout.tensor_model_parallel_size,
            "arguments": {name: value for name, value in self._arguments.items() if name != "model_path"},
        }

    def refuse(self, sampling: Sampling, log_probs: bool) -> None:
        """See `ServedEngine.refuse`."""
        if self._arguments["skip_tokenizer_init"] and (sampling.stop or sampling.min_tokens):
            raise UserError(
                "actor_rollout_ref.rollout: stop and min_tokens need SGLang's tokenizer; set "
                f"{arguments.KEY}.skip_tokenizer_init=false"
            )

    def broke(self, failure: BaseException) -> None:
        """A server that is gone takes this process along, so that the run finds its engine dead and restarts it."""
        deadline = time.monotonic() + 2.0
        while self._server.is_alive() and time.monotonic() < deadline:
            time.sleep(0.1)  # the end of a process comes a moment after that of its connections
        if not self._server.is_alive():
            sys.stderr.write(f"{failure}; the sglang server has ended: {self._server.last_words()}\n")
            sys.stderr.flush()
            self._server.stop()
            os._exit(1)

    def stop(self) -> None:
        """See `RolloutEngine.stop`."""
        if self._client is not None:
            self._client.close()
            self._client = None
        self._server.stop()
