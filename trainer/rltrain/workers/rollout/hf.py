"""The `hf` engine: transformers' forward pass with a key-value cache, and a sampling loop of our own.

For where no inference engine exists. One process, no continuous batching: requests run in batches of `max_num_seqs`,
in the order in which they came, each until its last completion is done; what ends earlier comes out when it ends. The
loop is ours because `generate` draws all rows from one random state; here each request has its own, so that a
completion does not depend on its neighbours (beyond rounding).
"""

# Transformers' Auto classes and configs are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from rltrain.config.schema import ModelConfig, RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.core.tensors import floats, ints
from rltrain.core.trajectory import FloatArray, float_array, int_array
from rltrain.tracing.listen import listening
from rltrain.tracing.recorder import add_log_probs
from rltrain.workers.rollout.protocol import Answer, Completion, FinishReason, Request, Sampling, SoFar, WakeTag
from rltrain.workers.rollout.sampling import draw, token_log_probs
from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.checksum import checksum
from rltrain.workers.sync.receiver import Receivers
from rltrain.workers.sync.transport import Descriptor


class HfEngine:
    """See `RolloutEngine`. It cannot sleep: its weights stay where they are."""

    def __init__(self, config: RunConfig, model_dir: str, saved_weights: bool = False) -> None:
        """With SAVED_WEIGHTS it starts with those of the model's files, not with random ones."""
        self._config = config
        self._saved_weights = saved_weights
        self._model_dir = model_dir
        self._rollout = config.actor_rollout_ref.rollout
        self._device = torch.device("cuda", 0) if config.trainer.device == "cuda" else torch.device("cpu")
        self._receivers = Receivers(self._device)
        self._loaded: set[str] = set()
        self._model: Any = None
        self._tokenizer: Any = None
        self._eos: frozenset[int] = frozenset()
        self._waiting: dict[int, tuple[Request, Sampling]] = {}
        self._running: _Batch | None = None
        self._sampled: dict[Sampling, dict[str, Any]] = {}

    def start(self) -> dict[str, Any]:
        """Build the model from its `config.json`."""
        begun = time.perf_counter()
        section = self._config.actor_rollout_ref.model
        trust = section.trust_remote_code
        self._tokenizer = AutoTokenizer.from_pretrained(
            section.tokenizer_path or self._model_dir, trust_remote_code=trust
        )
        hf_config = AutoConfig.from_pretrained(self._model_dir, trust_remote_code=trust, **section.override_config)
        dtype: torch.dtype = getattr(torch, self._rollout.dtype)
        model: Any
        try:
            if self._saved_weights:
                model = AutoModelForCausalLM.from_pretrained(
                    self._model_dir, config=hf_config, dtype=dtype, trust_remote_code=trust
                )
            else:
                model = AutoModelForCausalLM.from_config(hf_config, dtype=dtype, trust_remote_code=trust)
        except ValueError as error:
            raise UserError(
                f"actor_rollout_ref.rollout.name=hf: transformers {transformers.__version__} has no causal language "
                f"model of type '{hf_config.model_type}' ({self._model_dir}): choose another model"
            ) from error
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._eos = end_tokens(self._tokenizer, hf_config, self._model_dir)
        return {
            "engine": "hf",
            "engine_version": transformers.__version__,
            "start_s": time.perf_counter() - begun,
            "num_processes": 1,
        }

    def add(self, number: int, request: Request, sampling: Sampling) -> None:
        """See `Generates.add`."""
        assert self._rollout.max_model_len is not None
        check_length(len(request.prompt_ids), self._rollout.max_model_len)
        self._waiting[number] = (request, sampling)
        self._sampled[sampling] = {**asdict(sampling), "end_tokens": sorted(self._eos)}

    @torch.no_grad()
    def step(self) -> list[tuple[int, Answer]]:
        """One token of each request of the running batch."""
        if self._running is None:
            self._running = self._next_batch()
        if self._running is None:
            return []
        ended = self._running.step()
        if self._running.is_over:
            self._running = None
        return list(ended)

    def counters(self) -> dict[str, float]:
        """See `Counts`."""
        return {"running": self._running.num_left if self._running is not None else 0, "waiting": len(self._waiting)}

    def abort(self, numbers: Collection[int]) -> None:
        """See `Generates.abort`."""
        for number in numbers:
            self._waiting.pop(number, None)
        if self._running is not None:
            self._running.abort(numbers)
            if self._running.is_over:
                self._running = None

    def so_far(self, numbers: Collection[int]) -> dict[int, SoFar]:
        """See `Continues.so_far`."""
        running = {} if self._running is None else self._running.so_far()
        return {number: running.get(number, SoFar(int_array(), None)) for number in numbers}

    def sampled(self, sampling: Sampling) -> dict[str, Any]:
        """See `Generates.sampled`."""
        return self._sampled.get(sampling, {})

    def _next_batch(self) -> _Batch | None:
        """The first requests that wait, as many as fit, up to one that is to be sampled otherwise.

        Those that go on after an interruption differ in how long they may and must get.
        """
        longest = self._rollout.max_model_len
        assert longest is not None
        chosen: dict[int, Request] = {}
        limits: list[tuple[int, int]] = []
        first = next((sampling for _, sampling in self._waiting.values()), None)
        if first is None:
            return None
        for number, (request, sampling) in self._waiting.items():
            alike = replace(sampling, min_tokens=first.min_tokens, max_tokens=first.max_tokens) == first
            if not alike or len(chosen) == self._rollout.max_num_seqs:
                break
            chosen[number] = request
            limits.append((sampling.min_tokens, min(sampling.max_tokens, longest - len(request.prompt_ids))))
        for number in chosen:
            del self._waiting[number]
        return _Batch(self._model, self._tokenizer, self._eos, first, chosen, limits, self._device)

    @torch.no_grad()
    def trace(self, prompt_ids: Sequence[int], num_tokens: int, file: str) -> list[int]:
        """See `RolloutEngine.trace`."""
        assert self._rollout.max_model_len is not None
        num_rows = len(prompt_ids) + num_tokens - 1
        check_length(num_rows, self._rollout.max_model_len)
        ids, log_probs = list(prompt_ids), [torch.empty(0, device=self._device)]
        cache: Any = None
        with listening(self._model) as recorder:
            while len(ids) <= num_rows:
                new = torch.tensor([ids if cache is None else ids[-1:]], device=self._device)
                output: Any = self._model(input_ids=new, past_key_values=cache, use_cache=True)
                cache = output.past_key_values
                logits = output.logits[0].float()
                ids.append(int(logits[-1].argmax()))
                following = torch.tensor(ids[-len(logits) :], device=self._device)
                log_probs.append(logits.log_softmax(dim=-1).gather(1, following[:, None])[:, 0])
        add_log_probs(recorder, floats(torch.cat(log_probs)))
        recorder.save(Path(file), num_rows)
        return ids

    def connect_sync(self, address: Address, first_rank: int) -> None:
        """See `RolloutEngine.connect_sync`."""
        self._receivers.connect(address, first_rank)

    @torch.no_grad()
    def load_bucket(self, descriptor: Descriptor) -> None:
        """Copy the weights into the model's own."""
        if descriptor.bucket.index == 0:
            self._loaded = set()
        own = self._model.state_dict()
        for name, tensor in self._receivers.tensors(descriptor, keep=False):
            if name not in own or own[name].shape != tensor.shape:
                raise RunFailure(f"weight sync: the hf engine has no weight '{name}' of shape {list(tensor.shape)}")
            own[name].copy_(tensor)
            self._loaded.add(name)
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        if descriptor.bucket.is_last:
            self._receivers.close()
            self._check_complete(own)

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """See `RolloutEngine.checksums`."""
        own = self._model.state_dict()
        return {name: checksum(own[name]) for name in names}

    def wake(self, tag: WakeTag) -> None:
        """Nothing: this engine does not sleep."""

    def sleep(self) -> bool:
        """Nothing: this engine does not sleep."""
        return False

    def reset_prefix_cache(self) -> None:
        """Nothing: no prefix outlives its batch."""

    def stop(self) -> None:
        """Free the model."""
        self._receivers.close()
        self._model = None

    def _check_complete(self, own: dict[str, Tensor]) -> None:
        # Tied weights share memory: one of their names is enough.
        held = {own[name].data_ptr() for name in self._loaded}
        missing = [name for name, tensor in own.items() if tensor.data_ptr() not in held]
        if missing:
            raise RunFailure(f"weight sync: {len(missing)} weights did not come, the first is '{missing[0]}'")


class _Batch:
    """Requests that run in step: prompts padded on the left, one token each per forward pass."""

    def __init__(
        self,
        model: nn.Module,
        tokenizer: Any,
        eos: frozenset[int],
        sampling: Sampling,
        requests: Mapping[int, Request],
        limits: Sequence[tuple[int, int]],
        device: torch.device,
    ) -> None:
        self._model, self._tokenizer, self._eos = model, tokenizer, eos
        self._sampling, self._device = sampling, device
        self._least, self._most = [least for least, _ in limits], [most for _, most in limits]
        self._numbers, self._requests = list(requests), list(requests.values())
        self._generators = [torch.Generator(device).manual_seed(request.seed) for request in self._requests]
        self._tokens: list[list[int]] = [[] for _ in requests]
        self._log_probs: list[list[float]] = [[] for _ in requests]
        self._reasons: list[FinishReason | None] = [None] * len(requests)
        self._left = set(range(len(requests)))
        width = max(len(request.prompt_ids) for request in self._requests)
        rows = [[0] * (width - len(r.prompt_ids)) + list(r.prompt_ids) for r in self._requests]
        mask = [[0] * (width - len(r.prompt_ids)) + [1] * len(r.prompt_ids) for r in self._requests]
        self._input_ids = torch.tensor(rows, device=device)
        self._attention_mask = torch.tensor(mask, device=device)
        self._position_ids = (self._attention_mask.cumsum(-1) - 1).clamp(min=0)
        self._cache: Any = None

    @property
    def num_left(self) -> int:
        """Requests that have not ended."""
        return len(self._left)

    @property
    def is_over(self) -> bool:
        """Every request has ended or been aborted."""
        return not self._left

    def abort(self, numbers: Collection[int]) -> None:
        """Rows of NUMBERS run along, and nothing comes of them."""
        self._left -= {row for row in self._left if self._numbers[row] in numbers}

    def so_far(self) -> dict[int, SoFar]:
        """Of those that have not ended."""
        return {self._numbers[row]: SoFar(int_array(self._tokens[row]), self._log_probs_of(row)) for row in self._left}

    def step(self) -> list[tuple[int, Completion]]:
        """One token more of each; those that end with it."""
        output: Any = self._model(
            input_ids=self._input_ids,
            attention_mask=self._attention_mask,
            position_ids=self._position_ids,
            past_key_values=self._cache,
            use_cache=True,
            logits_to_keep=1,
        )
        self._cache = output.past_key_values
        self._input_ids = self._step(output.logits[:, -1])[:, None]
        self._attention_mask = torch.cat([self._attention_mask, torch.ones_like(self._input_ids)], dim=1)
        self._position_ids = self._position_ids[:, -1:] + 1
        ended = [row for row in sorted(self._left) if self._reasons[row] is not None]
        self._left.difference_update(ended)
        return [(self._numbers[row], self._completion(row)) for row in ended]

    def _completion(self, row: int) -> Completion:
        request = self._requests[row]
        reason = self._reasons[row] or "length"
        tokens = int_array(self._tokens[row])
        return Completion(tokens, self._log_probs_of(row), reason, int_array(request.prompt_ids))

    def _log_probs_of(self, row: int) -> FloatArray | None:
        return float_array(self._log_probs[row]) if self._requests[row].log_probs else None

    def _step(self, logits: Tensor) -> Tensor:
        banned = torch.zeros_like(logits, dtype=torch.bool)
        early = [row for row, tokens in enumerate(self._tokens) if len(tokens) < self._least[row]]
        ends = sorted(self._eos.union(self._sampling.stop_token_ids))
        if early and ends:
            banned[torch.tensor(early)[:, None], torch.tensor(ends)] = True
        log_probs = token_log_probs(logits, self._sampling, banned)
        chosen = draw(log_probs, self._sampling, self._generators)
        values = log_probs.gather(1, chosen[:, None])[:, 0]
        for row, (token, value) in enumerate(zip(ints(chosen), floats(values), strict=True)):
            if self._reasons[row] is None:
                self._tokens[row].append(token)
                if self._requests[row].log_probs:
                    self._log_probs[row].append(value)
                self._reasons[row] = self._finished(row)
        return chosen

    def _finished(self, row: int) -> FinishReason | None:
        tokens = self._tokens[row]
        if not self._sampling.ignore_eos and tokens[-1] in self._eos:
            return "stop"
        if tokens[-1] in self._sampling.stop_token_ids:
            return "stop"
        if self._sampling.stop and len(tokens) > self._least[row]:
            # One that ended earlier, within `min_tokens`, does not count.
            text, before = self._tokenizer.decode(tokens), self._tokenizer.decode(tokens[:-1])
            if any(text.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in self._sampling.stop):
                return "stop"
        return "length" if len(tokens) >= self._most[row] else None


def check_length(num_prompt_tokens: int, max_model_len: int) -> None:
    """Refuse a prompt that leaves no room for a token.

    Raises:
        RunFailure: with the numbers.
    """
    if num_prompt_tokens >= max_model_len:
        raise RunFailure(
            f"a prompt of {num_prompt_tokens} tokens leaves no room in actor_rollout_ref.rollout.max_model_len="
            f"{max_model_len}: lower data.max_prompt_length (with data.truncation) or raise max_model_len"
        )


def saved_end_tokens(section: ModelConfig, model_dir: str) -> frozenset[int]:
    """As `end_tokens`, of the files in MODEL_DIR alone."""
    trust = section.trust_remote_code
    tokenizer = AutoTokenizer.from_pretrained(section.tokenizer_path or model_dir, trust_remote_code=trust)
    hf_config = AutoConfig.from_pretrained(model_dir, trust_remote_code=trust, **section.override_config)
    return end_tokens(tokenizer, hf_config, model_dir)


def end_tokens(tokenizer: Any, hf_config: Any, model_dir: str) -> frozenset[int]:
    """Ids that end a completion: the tokenizer's, and those of `generation_config.json` (or `config.json`)."""
    try:
        generation = GenerationConfig.from_pretrained(model_dir)
    except OSError:
        generation = GenerationConfig.from_model_config(hf_config)
    listed = generation.eos_token_id
    ids = listed if isinstance(listed, list) else [listed]
    return frozenset(number for number in [tokenizer.eos_token_id, *ids] if number is not None)
