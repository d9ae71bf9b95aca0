"""Puts the parts of the reward together: one score a sample, on its last response token, and statistics by source."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rltrain.core.batch import Sample
from rltrain.core.errors import RunFailure, UserError
from rltrain.rewards.request import RewardResult


def combine(
    results: Sequence[RewardResult], samples: Sequence[Sample], response_mask: Tensor
) -> tuple[Tensor, dict[str, float]]:
    """The scores of B samples as `token_level_scores` [B, R] float32, and statistics by source.

    RESPONSE_MASK: [B, R] bool, as in the batch. Statistics: `reward/<source>/{mean,count,zero_share}` and
    `reward/<source>/<part>/{mean,count}`; a part's mean is over the samples that have it, before weights.

    Raises:
        ValueError: not one result and one row of the mask for each sample.
        UserError: a score or part that is not finite, with its sample.
        RunFailure: a sample without response tokens.
    """
    if not len(results) == len(samples) == len(response_mask):
        raise ValueError(f"{len(samples)} samples, {len(results)} rewards, {len(response_mask)} rows of the mask")
    for sample, result in zip(samples, results, strict=True):
        _check_finite(sample, {**result.parts, "score": result.score})
    scores = [result.score for result in results]
    placed = on_last_token(scores, response_mask, samples)
    return placed, statistics([s.data_source for s in samples], scores, [result.parts for result in results])


def on_last_token(scores: Sequence[float], response_mask: Tensor, samples: Sequence[Sample]) -> Tensor:
    """[B, R] float32 with each score at the last True of its row of RESPONSE_MASK.

    Raises:
        RunFailure: a row without response tokens.
    """
    positions = torch.arange(1, response_mask.shape[1] + 1, device=response_mask.device)
    last = torch.zeros(len(samples), dtype=torch.int64, device=response_mask.device)
    if response_mask.numel():
        last = (response_mask.long() * positions).amax(dim=1)
    empty = [sample.uid for sample, position in zip(samples, last, strict=True) if int(position) == 0]
    if empty:
        raise RunFailure(f"{len(empty)} of {len(samples)} responses have no token, the first is sample {empty[0]}")
    placed = torch.zeros(response_mask.shape, dtype=torch.float32, device=response_mask.device)
    values = torch.tensor(scores, dtype=torch.float32, device=response_mask.device)
    return placed.scatter_(1, last[:, None] - 1, values[:, None])


def statistics(
    data_sources: Sequence[str], scores: Sequence[float], parts: Sequence[Mapping[str, float]]
) -> dict[str, float]:
    """Means and counts by source; `zero_share` is the share of samples whose score is exactly 0."""
    by_source: dict[str, list[int]] = defaultdict(list)
    for row, source in enumerate(data_sources):
        by_source[source or "unnamed"].append(row)
    metrics: dict[str, float] = {}
    for source, rows in by_source.items():
        metrics[f"reward/{source}/mean"] = math.fsum(scores[row] for row in rows) / len(rows)
        metrics[f"reward/{source}/count"] = float(len(rows))
        metrics[f"reward/{source}/zero_share"] = sum(scores[row] == 0.0 for row in rows) / len(rows)
        for name in sorted({name for row in rows for name in parts[row]}):
            values = [parts[row][name] for row in rows if name in parts[row]]
            metrics[f"reward/{source}/{name}/mean"] = math.fsum(values) / len(values)
            metrics[f"reward/{source}/{name}/count"] = float(len(values))
    return metrics


def _check_finite(sample: Sample, parts: Mapping[str, float]) -> None:
    for name, value in parts.items():
        if not math.isfinite(value):
            row = f", row {sample.place}" if sample.place else ""
            raise UserError(
                f"the reward '{name}' of sample {sample.uid}/{sample.sample} (data_source '{sample.data_source}'{row}) "
                f"is {value}, must be finite"
            )
