"""Between a request and vLLM's parameters of it, and between vLLM's output and a completion."""

# vLLM has no stubs.
# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rltrain.core.trajectory import FloatArray, float_array, int_array
from rltrain.workers.rollout.protocol import Answer, Completion, Request, Sampling, SoFar


def params_maker(sampling: Sampling) -> Callable[[Request], Any]:
    """Makes vLLM's parameters of one request.

    Raises:
        ValueError or VLLMValidationError (by version): vLLM refuses SAMPLING.
    """
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    shared: dict[str, Any] = {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_tokens": min(sampling.min_tokens, sampling.max_tokens),
        "max_tokens": sampling.max_tokens,
        "stop": list(sampling.stop),
        "stop_token_ids": list(sampling.stop_token_ids),
        "ignore_eos": sampling.ignore_eos,
        # Text is needed to find stop strings, and for nothing else.
        "detokenize": bool(sampling.stop),
        "output_kind": RequestOutputKind.FINAL_ONLY,
    }
    if "flat_logprobs" in getattr(SamplingParams, "__struct_fields__", ()):
        # Lists of numbers in place of an object for each token, which the cyclic collector would walk.
        shared["flat_logprobs"] = True
    SamplingParams(seed=0, **shared)
    # Log-probabilities: the sampled token's, and no other.
    return lambda request: SamplingParams(seed=request.seed, logprobs=0 if request.log_probs else None, **shared)


def answer_of(output: Any) -> Answer:
    """What vLLM's OUTPUT, finished, says."""
    answer = output.outputs[0]
    if not len(answer.token_ids) or answer.finish_reason not in ("stop", "length"):
        return (
            f"vllm returned {len(answer.token_ids)} tokens for a prompt of {len(output.prompt_token_ids)} "
            f"(finish reason: {answer.finish_reason}, stop reason: {answer.stop_reason})"
        )
    token_ids = int_array(answer.token_ids)
    log_probs = None if answer.logprobs is None else _log_probs(answer.logprobs, answer.token_ids)
    return Completion(token_ids, log_probs, answer.finish_reason, int_array(output.prompt_token_ids))


def so_far_of(processor: Any) -> dict[str, SoFar]:
    """What vLLM's output PROCESSOR has of each request that has not ended, by the names that they were given.

    With final outputs alone, vLLM hands out nothing before the end: what it would hand out then is read where it grows
    (vllm/v1/engine/output_processor.py of 0.32.0: `RequestState._new_completion_output`).
    """
    found: dict[str, SoFar] = {}
    for state in processor.request_states.values():
        token_ids = list(state.detokenizer.output_token_ids)
        held = state.logprobs_processor.logprobs
        log_probs = None if held is None else _log_probs(held, token_ids)
        # A version in which the engine renames no request has the second alone.
        name = getattr(state, "external_req_id", None) or state.request_id
        found[name] = SoFar(int_array(token_ids), log_probs)
    return found


def _log_probs(found: Any, token_ids: Any) -> FloatArray:
    """Of each of TOKEN_IDS: from lists of numbers, or from a dict of objects for each token (older versions)."""
    flat = getattr(found, "logprobs", None)
    if flat is not None and len(flat) == len(token_ids) and list(found.token_ids) == list(token_ids):
        return float_array(flat)
    return float_array([place[token].logprob for place, token in zip(found, token_ids, strict=True)])
