"""Whether a model's LM head can be read by blocks (`fused_head`): by trial, as packing is."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rltrain.core.errors import first_line
from rltrain.workers.fsdp.forward import Policy, response_outputs
from rltrain.workers.fsdp.fused_head import FusedHead, probing
from rltrain.workers.fsdp.micro import Shard

PROBES = (1.0, 50.0)
"""The head gives numbers between these, and less than 0 as far, in place of logits."""
SAME_FACTOR = 1e-5
"""Relative: how far what becomes of a probe may be from the factor that the model multiplies its logits by."""
BLOCKS = 3
"""Of the vocabulary, in the trial."""


def proven(
    policy: Policy, rows: Shard, bound: float, worst: Callable[[float], float] = lambda gap: gap
) -> FusedHead | str:
    """The head of POLICY's model (collective), or why its logits must exist whole.

    Args:
        policy: reads the logits whole.
        rows: to try, on the model's device.
        bound: of the mean difference of log-probabilities and of entropies, in nats: what rounding explains.
        worst: the largest of all ranks' values.
    """
    assert isinstance(policy.model, PreTrainedModel)
    module = policy.model.get_output_embeddings()
    if not isinstance(module, nn.Linear) or type(module).forward is not nn.Linear.forward:
        return f"its head is no plain linear layer ({type(module).__name__})"
    try:
        with torch.no_grad():
            whole = policy(rows)
            head = _probed(policy, module, rows)
            if isinstance(head, str):
                return head
            found = replace(policy, head=head)(rows)
    except (torch.OutOfMemoryError, torch.distributed.DistError):
        raise
    except (TypeError, AttributeError, KeyError, IndexError, ValueError, RuntimeError) as error:
        return f"its head cannot be called by itself: {type(error).__name__}: {first_line(error)}"
    gap = worst(max(_mean_gap(whole.log_probs, found.log_probs), _mean_gap(whole.entropys, found.entropys)))
    # "not <=": a gap that is no number is one.
    if not gap <= bound:
        return f"read by blocks its log-probabilities are others (by {gap:.2g} nats)"
    return replace(head, block=FusedHead.block)


def _probed(policy: Policy, module: nn.Linear, rows: Shard) -> FusedHead | str:
    """The head for a trial in `BLOCKS` blocks, with the factor that the model multiplies its logits by."""
    count = int(rows["attention_mask"][:, -rows["response_mask"].shape[1] :].sum())
    count = count if policy.packed else rows["response_mask"].numel()
    ramp = torch.linspace(*PROBES, count, device=rows["input_ids"].device)
    probes = torch.stack([-ramp, ramp], dim=-1)
    with probing(module, probes):
        given, _ = response_outputs(policy.model, rows, policy.packed)
    if given.shape != probes.shape or given.dtype != torch.float32:
        return f"what its head gives becomes {given.dtype} {list(given.shape)}"
    factors = given / probes
    factor = float(factors.median())
    if not float((factors - factor).abs().max()) <= SAME_FACTOR * abs(factor):
        return "it changes its logits otherwise than by a factor"
    scale = 1.0 if abs(factor - 1) <= SAME_FACTOR else factor
    return FusedHead(module, scale, max(count * len(module.weight) // BLOCKS, 2))


def _mean_gap(one: Tensor | None, other: Tensor | None) -> float:
    assert one is not None
    assert other is not None
    return float((one - other).double().abs().mean())
