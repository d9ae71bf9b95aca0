"""Mini batches, and micro batches: cut a rank's share of a mini batch into passes that fit the device.

Pure: the same rows give the same cut in the controller and on every rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rltrain.algos.aggregation import AggNormalizer
from rltrain.config.schema import ActorConfig, CriticConfig, RunConfig
from rltrain.core.tensors import ints

Shard = Mapping[str, Tensor]
"""Fields of some rows, as in `core.batch.FIELDS`; needs `input_ids`, `attention_mask`, `position_ids` [B, T] and
`response_mask` [B, R]."""

FULL_WIDTH = ("input_ids", "attention_mask", "position_ids")


@dataclass(frozen=True)
class MiniBatch:
    """One rank's share of one optimizer step. Made by `rltrain.workers.fsdp.split` for all ranks together."""

    shard: dict[str, Tensor]
    """Fields of this rank's rows."""
    normalizer: AggNormalizer
    """Counts of the whole mini batch, over all ranks."""
    micro_batches: int
    """Passes that every rank makes, idle ones included."""
    rows: tuple[int, ...] = ()
    """Of the batch: what `shard` holds."""


@dataclass(frozen=True)
class MicroSize:
    """How large a micro batch may be: rows, or tokens (then `num_rows` is None)."""

    num_rows: int | None
    num_tokens: int | None

    @classmethod
    def of(cls, config: ActorConfig | CriticConfig, num_rows: int | None = None) -> MicroSize:
        """The size for updates of a role, or for NUM_ROWS when a pass has its own. CONFIG is resolved."""
        if config.use_dynamic_bsz:
            return cls(None, config.ppo_max_token_len_per_gpu)
        return cls(num_rows or config.ppo_micro_batch_size_per_gpu, None)

    @classmethod
    def of_log_probs(cls, config: RunConfig) -> MicroSize:
        """The size for the actor's old log-probabilities."""
        section = config.actor_rollout_ref
        return cls.of(section.actor, section.rollout.log_prob_micro_batch_size_per_gpu)

    @classmethod
    def of_reference(cls, config: RunConfig) -> MicroSize:
        """The size for the reference's log-probabilities."""
        section = config.actor_rollout_ref
        return cls.of(section.actor, section.ref.log_prob_micro_batch_size_per_gpu)


def row_lengths(shard: Shard) -> list[int]:
    """Tokens of each row."""
    return ints(shard["attention_mask"].sum(dim=-1))


def cut(lengths: Sequence[int], size: MicroSize) -> list[list[int]]:
    """Groups of rows, each row in one group.

    By rows: neighbours together. By tokens: longest first, each into the first group with room (first-fit
    decreasing); a row longer than `num_tokens` stands alone.
    """
    if size.num_rows is not None:
        return [
            list(range(start, min(start + size.num_rows, len(lengths))))
            for start in range(0, len(lengths), size.num_rows)
        ]
    assert size.num_tokens is not None
    groups: list[list[int]] = []
    loads: list[int] = []
    for row in sorted(range(len(lengths)), key=lambda row: (-lengths[row], row)):
        free = next((i for i, load in enumerate(loads) if load + lengths[row] <= size.num_tokens), None)
        if free is None:
            groups.append([row])
            loads.append(lengths[row])
        else:
            groups[free].append(row)
            loads[free] += lengths[row]
    return [sorted(group) for group in groups]


def micro_batches(shard: Shard, size: MicroSize, count: int, device: str) -> Iterator[tuple[list[int], Shard]]:
    """COUNT micro batches of SHARD on DEVICE, each with the rows that it holds.

    Where the shard gives fewer, idle ones follow: no rows, one token that counts nowhere. So all ranks make the same
    passes, which FSDP's collectives need.

    Raises:
        ValueError: the shard gives more than COUNT.
    """
    groups = cut(row_lengths(shard), size)
    if len(groups) > count:
        raise ValueError(f"{len(groups)} micro batches do not fit in {count}: controller and rank cut differently")
    for group in groups:
        yield group, {name: tensor.to(device) for name, tensor in take(shard, group).items()}
    for _ in range(count - len(groups)):
        yield [], {name: tensor.to(device) for name, tensor in idle(shard).items()}


def take(shard: Shard, rows: Sequence[int]) -> dict[str, Tensor]:
    """ROWS of SHARD, less the columns that are padding in all of them; with `position_ids`, and ids as int64."""
    index = torch.as_tensor(list(rows))
    picked = {name: tensor[index] for name, tensor in shard.items()}
    prompt, response = _used_columns(picked)
    num_prompt = picked["input_ids"].shape[1] - picked["response_mask"].shape[1]
    result: dict[str, Tensor] = {}
    for name, tensor in picked.items():
        if name in FULL_WIDTH:
            result[name] = tensor[:, num_prompt - prompt : num_prompt + response]
        else:
            result[name] = tensor[:, :response] if tensor.ndim == 2 else tensor
    # Half the bytes on the way here, but an index on the device.
    result["input_ids"] = result["input_ids"].long()
    result.setdefault("position_ids", (result["attention_mask"].long().cumsum(-1) - 1).clamp(min=0))
    return result


def _used_columns(rows: Shard) -> tuple[int, int]:
    """Columns of prompt (from the right) and of response (from the left) that hold a token; at least 1 each."""
    real, num_response = rows["attention_mask"].bool(), rows["response_mask"].shape[1]
    used = real.any(dim=0)
    prompt, response = used[:-num_response], used[-num_response:]
    first = int(prompt.int().argmax()) if bool(prompt.any()) else len(prompt) - 1
    last = int(response.nonzero()[-1]) if bool(response.any()) else 0
    return len(prompt) - first, last + 1


def idle(shard: Shard) -> dict[str, Tensor]:
    """A micro batch of the same fields that counts nowhere: a prompt and a response of one token, outside the mask."""
    result: dict[str, Tensor] = {}
    for name, tensor in shard.items():
        shape = [1] if tensor.ndim == 1 else [1, 2] if name in FULL_WIDTH else [1, 1]
        result[name] = torch.zeros(shape, dtype=tensor.dtype)
    result["attention_mask"] = torch.ones_like(result["attention_mask"])
    result["input_ids"] = result["input_ids"].long()
    result["position_ids"] = torch.arange(2)[None]
    return result
