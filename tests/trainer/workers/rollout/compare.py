"""Completions held against the model that should have made them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rltrain.core.trajectory import id_tuple
from rltrain.workers.rollout.protocol import Completion, Request, Sampling
from rltrain.workers.rollout.sampling import token_log_probs
from tests.trainer.workers.rollout.tiny import DEVICE, EOS

PLAIN = Sampling(
    temperature=1.0,
    top_p=1.0,
    top_k=-1,
    min_tokens=0,
    max_tokens=16,
    stop=(),
    stop_token_ids=(),
    ignore_eos=False,
)


def requests(count: int, first_seed: int = 0) -> list[Request]:
    """COUNT requests with prompts of several lengths."""
    lengths = [3, 11, 6, 40, 1]
    return [
        Request(tuple(2 + (7 * row + 3 * place) % 40 for place in range(lengths[row % 5])), first_seed + row)
        for row in range(count)
    ]


def tokens_of(answers: Sequence[Completion]) -> list[tuple[int, ...]]:
    """The tokens of each answer."""
    return [id_tuple(answer.token_ids) for answer in answers]


def to_the_bit(answers: Sequence[Completion]) -> list[tuple[object, ...]]:
    """All that answers say, to be compared."""
    return [
        (one.token_ids.tobytes(), None if one.log_probs is None else one.log_probs.tobytes(), one.finish_reason,
         one.prompt_ids.tobytes(), one.versions)
        for one in answers
    ]  # fmt: skip


@torch.no_grad()
def logits_of(model: torch.nn.Module, request: Request, completion: Completion) -> Tensor:
    """Of the model, at the places of the completion's tokens `[tokens, V]`, without padding or cache."""
    ids = [*request.prompt_ids, *completion.token_ids.tolist()]
    place = next(model.parameters()).device
    return model(torch.tensor([ids], device=place)).logits[0, len(request.prompt_ids) - 1 : -1].float().cpu()


def differences(
    model: torch.nn.Module, asked: Sequence[Request], answers: Sequence[Completion], sampling: Sampling = PLAIN
) -> tuple[float, float]:
    """Mean |Δ log p| and mean |Δ p| between what the engine says of its tokens and what MODEL says."""
    engine, ours = [], []
    for request, completion in zip(asked, answers, strict=True):
        assert completion.log_probs is not None
        assert len(completion.log_probs) == len(completion.token_ids) > 0
        logits = logits_of(model, request, completion)
        banned = torch.zeros_like(logits, dtype=torch.bool)
        banned[: sampling.min_tokens, EOS] = True
        values = token_log_probs(logits, sampling, banned)
        ours.append(values.gather(1, torch.from_numpy(completion.token_ids).long()[:, None])[:, 0])
        engine.append(torch.from_numpy(completion.log_probs))
    mine, theirs = torch.cat(ours).double(), torch.cat(engine).double()
    if DEVICE == "cuda":
        # Which token is the last that top-k leaves is a matter of rounding in bfloat16.
        there = mine.isfinite()
        assert there.double().mean() > 0.97
        mine, theirs = mine[there], theirs[there]
    return (mine - theirs).abs().mean().item(), (mine.exp() - theirs.exp()).abs().mean().item()
