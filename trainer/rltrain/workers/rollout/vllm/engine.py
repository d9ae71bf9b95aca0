"""The `vllm` engine: `vllm.LLM` in this process, stepped by us; weight sync through its public calls."""

# vLLM has no stubs.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from itertools import count
from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.core.collector import collector_off
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.hf import check_length
from rltrain.workers.rollout.protocol import Answer, Request, Sampling, SoFar, WakeTag
from rltrain.workers.rollout.vllm import options, versions
from rltrain.workers.rollout.vllm.answers import answer_of, params_maker, so_far_of
from rltrain.workers.rollout.vllm.watched import Watched
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
        self._asked: dict[str, int] = {}
        """Numbers of what is under way, by vLLM's names for it. A name is not used again: what a pass that was begun
        still says of a request that was aborted is not taken for the one that goes on from it."""
        self._names = count()
        self._makers: dict[Sampling, Callable[[Request], Any]] = {}
        self._sampled: dict[Sampling, dict[str, Any]] = {}
        self._watched = Watched()

    def start(self) -> dict[str, Any]:
        """See `RolloutEngine.start`."""
        begun = time.perf_counter()
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "WARNING")
        os.environ.update(_ENVIRON | self._adapter.environ())
        with collector_off():
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

    def add(self, number: int, request: Request, sampling: Sampling) -> None:
        """See `Generates.add`."""
        from vllm.exceptions import VLLMValidationError

        assert self._rollout.max_model_len is not None
        check_length(len(request.prompt_ids), self._rollout.max_model_len)
        if sampling not in self._makers:
            try:
                self._makers[sampling] = params_maker(sampling)
            except (ValueError, VLLMValidationError) as error:
                raise UserError(f"actor_rollout_ref.rollout: vLLM does not sample like this: {error}") from error
        params, name = self._makers[sampling](request), str(next(self._names))
        prompt = {"type": "token", "prompt_token_ids": list(request.prompt_ids)}
        self._llm.llm_engine.add_request(name, prompt, params)
        self._asked[name] = number
        if sampling not in self._sampled:
            # With vLLM's own defaults; of a version that has no such setting, None.
            self._sampled[sampling] = {one: getattr(params, one, None) for one in SAMPLED}

    def step(self) -> list[tuple[int, Answer]]:
        """One pass of vLLM's scheduler: a token of each running request, or a piece of new prompts."""
        core = self._llm.llm_engine
        found: list[tuple[int, Answer]] = [
            (self._asked.pop(output.request_id), answer_of(output))
            for output in core.step()
            if output.finished and output.request_id in self._asked
        ]
        if self._asked and not core.has_unfinished_requests():
            found += [(number, f"vllm dropped request {number}") for number in self._asked.values()]
            self._asked = {}
        return found

    def counters(self) -> dict[str, float]:
        """See `Counts`: of vLLM's scheduler, which is in this process."""
        return self._watched.counters(self._llm)

    def abort(self, numbers: Collection[int]) -> None:
        """See `Generates.abort`."""
        gone = set(numbers)
        names = [name for name, number in self._asked.items() if number in gone]
        for name in names:
            del self._asked[name]
        if names:
            self._llm.llm_engine.abort_request(names)

    def so_far(self, numbers: Collection[int]) -> dict[int, SoFar]:
        """See `Continues.so_far`: of vLLM's output processor, which is in this process."""
        found = so_far_of(self._llm.llm_engine.output_processor)
        wanted = set(numbers)
        return {number: found[name] for name, number in self._asked.items() if number in wanted}

    def sampled(self, sampling: Sampling) -> dict[str, Any]:
        """See `Generates.sampled`."""
        return self._sampled.get(sampling, {})

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
            sampled = answer_of(output)
            if isinstance(sampled, str):
                raise RunFailure(sampled)
            read = [
                position[token].logprob
                for position, token in zip(output.prompt_logprobs, prompt_ids, strict=True)
                if position
            ]
            assert sampled.log_probs is not None
            log_probs = [*map(float, read), *map(float, sampled.log_probs)]
        finally:
            num_rows = len(prompt_ids) + num_tokens - 1
            self._llm.collective_rpc("rltrain_end_trace", args=(file, len(prompt_ids), num_rows, log_probs))
        return [*prompt_ids, *map(int, sampled.token_ids)]

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
