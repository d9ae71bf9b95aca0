"""The `vllm` engine: `vllm.LLM` in this process, generation and weight sync through its public calls."""

# vLLM has no stubs.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.hf import check_length
from rltrain.workers.rollout.protocol import Completion, OnProgress, Request, Sampling, WakeTag
from rltrain.workers.rollout.vllm import options, versions
from rltrain.workers.rollout.vllm.progress import Progress
from rltrain.workers.rollout.vllm.retry import Answer, answered
from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.checksum import Piece, combine
from rltrain.workers.sync.transport import Descriptor

# In this process, not in a child of it: one process less to start and to lose, and weights come in directly.
_ENVIRON = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_NO_USAGE_STATS": "1"}

SAMPLED = ("temperature", "top_p", "top_k", "min_p", "min_tokens", "max_tokens", "stop", "stop_token_ids", "ignore_eos",
           "presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "allowed_token_ids",
           "bad_words")  # fmt: skip
"""Of vLLM's parameters of a request, those that change which tokens are drawn."""


class VllmEngine:
    """See `RolloutEngine`.

    Seeds: each request has its own random stream, so that its tokens depend neither on the order of requests nor on
    which others run beside it, as long as its logits are the same to the bit. Matrix kernels may round differently for
    other batch sizes, so another batch may, rarely, tip a token; the same calls in the same order repeat exactly.
    """

    def __init__(self, config: RunConfig, model_dir: str, saved_weights: bool = False) -> None:
        """With SAVED_WEIGHTS it starts with those of the model's files, not with random ones."""
        self._config = config
        self._saved_weights = saved_weights
        self._model_dir = model_dir
        self._rollout = config.actor_rollout_ref.rollout
        self._package, self._version = versions.installed()
        self._adapter = versions.choose(config.trainer.device, self._package, self._version)
        self._llm: Any = None
        self._sampled: dict[str, Any] = {}

    def start(self) -> dict[str, Any]:
        """See `RolloutEngine.start`."""
        begun = time.perf_counter()
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.update(_ENVIRON | self._adapter.environ())
        from vllm import LLM
        from vllm.engine.arg_utils import EngineArgs

        imported = time.perf_counter()
        own = options.base(self._config, self._model_dir, self._saved_weights)
        own |= self._adapter.arguments(self._config, self._model_dir)
        known = EngineArgs.__dataclass_fields__
        arguments = options.with_user(own, self._rollout.engine_kwargs.get("vllm", {}), known)
        self._adapter.prepare(self._config, self._model_dir)
        try:
            self._llm = LLM(**arguments)
        except ValueError as error:  # pydantic's are of this kind
            raise self._refused(error) from error
        if self._rollout.tensor_model_parallel_size > 1:
            # Without one of its workers an engine is lost: it ends, so that it is found dead and restarted.
            self._llm.llm_engine.model_executor.register_failure_callback(_end_process)
        cache = self._llm.llm_engine.vllm_config.cache_config
        return {
            "engine": "vllm",
            "kv": {"num_blocks": int(cache.num_gpu_blocks or 0), "block_size": int(cache.block_size or 0)},
            "engine_version": str(self._version),
            "import_s": imported - begun,
            "start_s": time.perf_counter() - begun,
            "num_processes": self._rollout.tensor_model_parallel_size,
            "arguments": {name: value for name, value in arguments.items() if name != "model"},
        }

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> list[Completion]:
        """See `RolloutEngine.generate`."""
        from vllm import SamplingParams
        from vllm.exceptions import VLLMValidationError

        assert self._rollout.max_model_len is not None
        for request in requests:
            check_length(len(request.prompt_ids), self._rollout.max_model_len)
        try:
            make_params = _params_maker(SamplingParams, sampling)
        except (ValueError, VLLMValidationError) as error:
            raise UserError(f"actor_rollout_ref.rollout: vLLM does not sample like this: {error}") from error

        def ask(some: Sequence[Request]) -> list[Answer]:
            params = [make_params(request.seed) for request in some]
            outputs: list[Any] = self._llm.generate(
                [{"prompt_token_ids": list(request.prompt_ids)} for request in some],
                params,
                use_tqdm=False if on_progress is None else Progress.factory(on_progress),
            )
            if len(outputs) != len(some):
                raise RunFailure(f"vllm answered {len(outputs)} of {len(some)} requests")
            # With vLLM's own defaults; of a version that has no such setting, None.
            self._sampled = {name: getattr(params[0], name, None) for name in SAMPLED} if params else {}
            return [_answer(output) for output in outputs]

        return answered(ask, requests, self._rollout.max_retries)

    def sampled(self) -> dict[str, Any]:
        """See `RolloutEngine.sampled`."""
        return self._sampled

    def trace(self, prompt_ids: Sequence[int], num_tokens: int, file: str) -> list[int]:
        """See `RolloutEngine.trace`."""
        from vllm import SamplingParams

        self._refuse_to_trace(len(prompt_ids), num_tokens)
        greedy = SamplingParams(
            temperature=0.0, max_tokens=num_tokens, ignore_eos=True, logprobs=0, prompt_logprobs=0, detokenize=False
        )
        self._llm.reset_prefix_cache()
        log_probs: list[float] | None = None
        self._llm.collective_rpc("rltrain_trace")
        try:
            [output] = self._llm.generate([{"prompt_token_ids": list(prompt_ids)}], [greedy], use_tqdm=False)
            sampled = _answer(output)
            if isinstance(sampled, str):
                raise RunFailure(sampled)
            read = [
                position[token].logprob
                for position, token in zip(output.prompt_logprobs, prompt_ids, strict=True)
                if position
            ]
            log_probs = [*map(float, read), *sampled.log_probs]
        finally:
            num_rows = len(prompt_ids) + num_tokens - 1
            self._llm.collective_rpc("rltrain_end_trace", args=(file, len(prompt_ids), num_rows, log_probs))
        return [*prompt_ids, *sampled.token_ids]

    def _refuse_to_trace(self, num_prompt: int, num_tokens: int) -> None:
        assert self._rollout.max_model_len is not None
        check_length(num_prompt + num_tokens - 1, self._rollout.max_model_len)
        if self._rollout.tensor_model_parallel_size > 1:
            raise UserError(
                "operations are not traced with actor_rollout_ref.rollout.tensor_model_parallel_size="
                f"{self._rollout.tensor_model_parallel_size}: each process holds a part; set it to 1"
            )
        if not self._llm.llm_engine.vllm_config.model_config.enforce_eager:
            raise UserError(
                "operations are traced only where the engine runs them one by one: set "
                "actor_rollout_ref.rollout.enforce_eager=true"
            )

    def connect_sync(self, address: Address, first_rank: int) -> None:
        """See `RolloutEngine.connect_sync`."""
        self._llm.collective_rpc("rltrain_connect", args=(address, first_rank))

    def load_bucket(self, descriptor: Descriptor) -> None:
        """See `RolloutEngine.load_bucket`."""
        self._llm.collective_rpc("rltrain_load", args=(descriptor, self._adapter.packs_weights))

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Read back from the layers of every worker, and put together; see `readback.py`."""
        held: dict[str, list[Piece]] = defaultdict(list)
        for worker in self._llm.collective_rpc("rltrain_pieces", args=(list(names),)):
            for name, parts in worker.items():
                held[name] += parts
        return {name: combine(held[name]) for name in names}

    def wake(self, tag: WakeTag) -> None:
        """See `RolloutEngine.wake`."""
        self._adapter.wake(self._llm, tag)

    def sleep(self) -> bool:
        """See `RolloutEngine.sleep`."""
        return self._adapter.sleep(self._llm)

    def reset_prefix_cache(self) -> None:
        """See `RolloutEngine.reset_prefix_cache`.

        Raises:
            RunFailure: requests are still running.
        """
        if not self._llm.reset_prefix_cache():
            raise RunFailure("vllm did not reset its prefix cache: requests are still running")

    def stop(self) -> None:
        """Shut the engine core down, with its workers."""
        if self._llm is not None:
            self._llm.llm_engine.engine_core.shutdown()
            self._llm = None

    def _refused(self, error: ValueError) -> UserError:
        """What vLLM said when it was to start, in one line."""
        words = " ".join(str(error).split())
        if "architectures" in words:
            names = re.findall(r"\w+", words.partition("architectures")[2].partition("]")[0])
            words = f"it does not serve the architecture {', '.join(names)} of {self._model_dir}: choose another model"
        return UserError(f"actor_rollout_ref.rollout.name=vllm: {self._package} {self._version} refuses: {words}")


def _end_process() -> None:
    os._exit(1)


def _params_maker(cls: Callable[..., Any], sampling: Sampling) -> Callable[[int], Any]:
    """Makes vLLM's parameters of one request from its seed.

    Raises:
        ValueError or VLLMValidationError (by version): vLLM refuses SAMPLING.
    """
    shared = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_tokens": min(sampling.min_tokens, sampling.max_tokens),
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        # The sampled token's, and no other.
        "logprobs": 0 if sampling.log_probs else None,
        # Text is needed to find stop strings, and for nothing else.
        "detokenize": bool(sampling.stop),
    }
    cls(seed=0, **shared)
    return lambda seed: cls(seed=seed, **shared)


def _answer(output: Any) -> Answer:
    answer = output.outputs[0]
    token_ids = tuple(int(token) for token in answer.token_ids)
    if not token_ids or answer.finish_reason not in ("stop", "length"):
        return (
            f"vllm returned {len(token_ids)} tokens for a prompt of {len(output.prompt_token_ids)} "
            f"(finish reason: {answer.finish_reason}, stop reason: {answer.stop_reason})"
        )
    asked = answer.logprobs is not None
    pairs = zip(answer.logprobs, token_ids, strict=True) if asked else ()
    log_probs = tuple(float(position[token].logprob) for position, token in pairs)
    return Completion(token_ids, log_probs, answer.finish_reason, tuple(output.prompt_token_ids))
