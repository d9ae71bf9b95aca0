"""What a capsule holds, made of what the controller and the training ranks kept of a step."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

from rlcheck.facts.capsule import CapsuleRow, MiniRecord, OutputsRecord, Sampled
from rltrain.config.batch_plan import BatchPlan
from rltrain.config.schema import ModelConfig, RunConfig
from rltrain.controller.algorithm import group_ids
from rltrain.controller.witness import Witness
from rltrain.core.batch import Batch
from rltrain.core.tensors import floats, ints
from rltrain.core.trajectory import FloatArray, id_tuple
from rltrain.workers.fsdp.capture import Captured, finite
from rltrain.workers.fsdp.parts import joined

BATCH_BYTES = 40 << 20
"""Rows are left out of a larger batch, prompt by prompt."""
READ_BYTES = 24
"""Of each token in each mini batch: what its update read and computed."""


def rows_that_fit(batch: Batch, fields: Mapping[str, Tensor], config: RunConfig, watched: bool) -> list[int] | None:
    """Rows of the first prompts of BATCH whose FIELDS fit, and, if WATCHED, what updates read of them; None: all do."""
    row_bytes = sum(field[0].nbytes for field in fields.values() if len(field))
    if watched:
        minis = BatchPlan.of(config).optimizer_steps_per_iteration
        minis += BatchPlan.of_critic(config).optimizer_steps_per_iteration if config.critic.enable else 0
        row_bytes += READ_BYTES * minis * batch["response_mask"].shape[1]
    if row_bytes * len(batch) <= BATCH_BYTES:
        return None
    numbers = ints(group_ids(batch))
    most = max(BATCH_BYTES // row_bytes // max(numbers.count(0), 1), 1)
    return [row for row, number in enumerate(numbers) if number < most]


def sampled(witness: Witness) -> Sampled | None:
    """What engines were asked for; None: they were not asked."""
    asked = witness.sampling
    return None if asked is None else msgspec.convert(asked, Sampled, from_attributes=True)


def outputs(ranks: Sequence[Mapping[str, Captured]]) -> tuple[OutputsRecord, ...]:
    """Checksums of what modules gave in the first pass, by role and rank."""
    return tuple(
        OutputsRecord(role=role, rank=rank, digests=one.outputs)
        for rank, roles in enumerate(ranks)
        for role, one in roles.items()
    )


def minis(role: str, ranks: Sequence[Mapping[str, Captured]]) -> tuple[MiniRecord, ...]:
    """The optimizer steps of ROLE, ranks put together."""
    by_rank = [one[role].minis for one in ranks if role in one]
    found: list[MiniRecord] = []
    for parts in zip(*by_rank, strict=True):
        first, result = parts[0], parts[0].result
        assert result is not None
        found.append(
            MiniRecord(
                rows=tuple(mini.rows for mini in parts),
                micro_batches=tuple(micro for mini in parts for micro in mini.micro_batches),
                grad_norm=finite(result.grad_norm),
                applied=result.applied,
                lr=result.lr,
                optimizer_steps=first.optimizer_steps,
                adam_steps=first.adam_steps,
            )
        )
    return tuple(found)


def states(ranks: Sequence[Mapping[str, Captured]], elements: int | None) -> dict[str, Tensor]:
    """Weights, moments and gradients, `ROLE.MOMENT/NAME`, from what each rank holds of them.

    Raises:
        ValueError: ranks do not hold all of a tensor.
    """
    found: dict[str, Tensor] = {}
    for role, one in ranks[0].items() if ranks else ():
        for at in range(len(one.states)):
            whole = joined([rank[role].states[at] for rank in ranks], elements)
            found |= {f"{role}.{name}": tensor for name, tensor in whole.items()}
    return found


def readings(ranks: Sequence[Mapping[str, Captured]], role: str, kept: Sequence[int], width: int) -> dict[str, Tensor]:
    """What updates of ROLE read and computed of each token, `[K, R]` for the K rows KEPT; only what every rank kept."""
    found: dict[str, Tensor] = {}
    place = {row: at for at, row in enumerate(kept)}
    for key, value in ranks[0][role].readings.items():
        number = int(key.partition("/")[0])
        found[f"{role}.{key}"] = whole = torch.zeros((len(kept), width), dtype=value.dtype)
        for rank in ranks:
            if key in rank[role].readings:
                piece = rank[role].readings[key]
                at = torch.tensor([place[row] for row in rank[role].rows_of[number]], dtype=torch.long)
                whole[at[:, None], torch.arange(piece.shape[1])] = piece
    return found


def left_out(ranks: Sequence[Mapping[str, Captured]]) -> list[str]:
    """What ranks had no room for, in words."""
    return [
        f"what {one.left_out} passes of the {role} on rank {rank} read: there was no room for it"
        for rank, roles in enumerate(ranks)
        for role, one in roles.items()
        if one.left_out
    ]


def not_finite(ranks: Sequence[Mapping[str, Captured]]) -> tuple[str, ...]:
    """Tensors whose gradient was not finite when a step was skipped, by role and rank."""
    return tuple(
        f"{role}, rank {rank}: {name}"
        for rank, roles in enumerate(ranks)
        for role, one in roles.items()
        for name in one.not_finite
    )


def rows(batch: Batch, witness: Witness) -> list[CapsuleRow]:
    """BATCH as rows, with what WITNESS saw of them."""
    scores, versions = floats(batch["token_level_scores"].sum(-1)), ints(batch["policy_version"])
    found: list[CapsuleRow] = []
    for number, sample in enumerate(batch.samples):
        key = (sample.uid, sample.sample)
        request, answer = witness.requests.get(key), witness.completions.get(key)
        row = CapsuleRow(
            uid=sample.uid,
            index=sample.index,
            sample=sample.sample,
            data_source=sample.data_source,
            messages=sample.messages,
            prompt_text=sample.prompt_text,
            prompt_ids=request.prompt_ids if request else sample.prompt_ids,
            text=witness.texts.get(key, sample.response_text),
            ground_truth=sample.ground_truth,
            extra_info=dict(sample.extra_info),
            reward_parts=dict(sample.reward_parts),
            score=scores[number],
            seed=request.seed if request else None,
            response_ids=id_tuple(answer.token_ids) if answer else None,
            log_probs=_finite(answer.log_probs) if answer else None,
            finish_reason=answer.finish_reason if answer else "",
            versions=answer.versions if answer else ((0, versions[number]),),
            baseline_text=witness.baselines.get((sample.uid, 0)) if "reward_baselines" in batch.names else None,
        )
        found.append(row)
    return found


def _finite(log_probs: FloatArray | None) -> tuple[float | None, ...] | None:
    return None if log_probs is None else tuple(map(finite, log_probs.tolist()))


def model_config(model: ModelConfig, name: str = "config.json") -> dict[str, Any]:
    """The file NAME of MODEL, its config with what the run's config lays over it; empty where it cannot be read."""
    try:
        found = json.loads((Path(model.path or "") / name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found | model.override_config if name == "config.json" else found
