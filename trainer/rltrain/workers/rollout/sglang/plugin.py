"""rltrain's part in SGLang's processes, by SGLang's own hooks (sglang/srt/plugins of 0.5.12). Idle elsewhere.

What it changes, where RLTRAIN_SGLANG=1 is set:
- a request's seed decides its draws, without the batch-invariant kernels that SGLang couples that to;
- top-k and top-p renormalise the distribution before it is drawn from, so that its log-probabilities are of the draw;
- tokens that end an answer count also where the end of sequence does not, and stop strings not within `min_new_tokens`;
- calls of weight sync are answered (`inside.py`).
"""

# SGLang has no stubs.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

SWITCH, WARD = "RLTRAIN_SGLANG", "RLTRAIN_SGLANG_WARD"
_SAMPLING = "sglang.srt.sampling.sampling_batch_info.SamplingBatchInfo.from_schedule_batch"
_DRAW = "sglang.srt.layers.sampler.Sampler._sample_from_probs"
_ENDS = "sglang.srt.managers.schedule_batch.Req._check_token_based_finish"
_STOPS = "sglang.srt.managers.schedule_batch.Req._check_str_based_finish"
_WEIGHTS = "sglang.srt.model_executor.model_runner.ModelRunner.update_weights_from_tensor"
_POLL_S = 1.0


def install() -> None:
    """Register the hooks; SGLang calls this in each of its processes."""
    if os.environ.get(SWITCH) != "1":
        return
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    HookRegistry.register(_SAMPLING, with_seeds, HookType.AFTER)
    HookRegistry.register(_DRAW, draw, HookType.AROUND)
    HookRegistry.register(_ENDS, ends_by_token, HookType.AROUND)
    HookRegistry.register(_STOPS, ends_by_text, HookType.AROUND)
    HookRegistry.register(_WEIGHTS, weights, HookType.AROUND)
    if (ward := os.environ.get(WARD)) and os.getppid() == int(ward):
        threading.Thread(target=_end_with, args=(int(ward),), name="rltrain-ward", daemon=True).start()


def with_seeds(info: Any, _cls: Any, batch: Any, *_: Any, **__: Any) -> Any:
    """After SGLang has put parameters of a BATCH of requests together."""
    seeds = [request.sampling_params.sampling_seed for request in batch.reqs]
    if info.sampling_seed is None:
        # All batches have seeds or none has: SGLang merges them.
        values = [42 if seed is None else seed for seed in seeds]
        info.sampling_seed = torch.tensor(values, dtype=torch.int64, device=batch.device)
    return info


def draw(
    original: Callable[..., Tensor], sampler: Any, probs: Tensor, info: Any, positions: Tensor, simple: bool
) -> Any:
    """Around SGLang's draw: PROBS `[B, V]` become those drawn from, and are read for log-probabilities after it."""
    if not simple and not info.need_min_p_sampling:
        cut(probs, info.top_ks, info.top_ps)
        simple = True
    return original(sampler, probs, info, positions, simple)


def cut(probs: Tensor, top_ks: Tensor, top_ps: Tensor) -> None:
    """Leave of each row of PROBS `[B, V]` what its top-k and then its top-p leave, normalised again; in place."""
    ordered, order = probs.sort(dim=-1, descending=True)
    place = torch.arange(probs.shape[-1], device=probs.device)
    ordered.masked_fill_(place[None, :] >= top_ks[:, None], 0.0)
    ordered /= ordered.sum(-1, keepdim=True)
    before = ordered.cumsum(-1) - ordered
    ordered.masked_fill_((before >= top_ps[:, None]) & (place[None, :] > 0), 0.0)
    ordered /= ordered.sum(-1, keepdim=True)
    probs.scatter_(-1, order, ordered)


def ends_by_token(original: Callable[..., bool], request: Any, tokens: list[int]) -> bool:
    """Stop tokens end an answer also with `ignore_eos`, which in SGLang switches off both."""
    params = request.sampling_params
    if not params.ignore_eos or not params.stop_token_ids:
        return original(request, tokens)
    params.ignore_eos, ends = False, request.eos_token_ids
    tokenizer, request.tokenizer, request.eos_token_ids = request.tokenizer, None, None
    try:
        return original(request, tokens)
    finally:
        params.ignore_eos, request.tokenizer, request.eos_token_ids = True, tokenizer, ends


def ends_by_text(original: Callable[..., bool], request: Any) -> bool:
    """A stop string that was whole within `min_new_tokens` does not count."""
    params = request.sampling_params
    if not params.stop_strs or params.min_new_tokens <= 0:
        return original(request)
    if len(request.output_ids) <= params.min_new_tokens:
        return False
    text, before = (request.tokenizer.decode(ids) for ids in (request.output_ids, request.output_ids[:-1]))
    if not any(text.find(stop, max(0, len(before) - len(stop) + 1)) >= 0 for stop in params.stop_strs):
        return False
    kept, params.min_new_tokens = params.min_new_tokens, 0
    try:
        return original(request)
    finally:
        params.min_new_tokens = kept


def weights(original: Callable[..., Any], runner: Any, named_tensors: Any, load_format: str | None = None) -> Any:
    """Calls in rltrain's own format are for `inside.py`."""
    from rltrain.workers.rollout.sglang.inside import answer
    from rltrain.workers.sync.wire import SGLANG_FORMAT

    if load_format != SGLANG_FORMAT:
        return original(runner, named_tensors, load_format)
    return answer(runner, str(named_tensors))


def _end_with(ward: int) -> None:
    """End this server when the process that started it is gone; SGLang's other processes end with it."""
    while os.getppid() == ward:
        time.sleep(_POLL_S)
    os.kill(os.getpid(), signal.SIGKILL)
