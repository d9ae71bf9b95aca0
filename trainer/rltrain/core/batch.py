"""The batch: one TensorDict of samples, and the one table of its fields. Only this file knows tensordict."""

# Tensordict's classes are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from tensordict import TensorDict
from torch import Tensor


@dataclass(frozen=True)
class Field:
    """One field: B samples, P prompt tokens (left-padded), R response tokens (right-padded), T = P + R.

    `attention_mask` is true for every token, `response_mask` for those that the policy sampled: the loss counts these.
    """

    shape: str
    dtype: torch.dtype
    writer: str


FIELDS: Mapping[str, Field] = {
    "prompts": Field("B P", torch.int32, "rollout"),
    "responses": Field("B R", torch.int32, "rollout"),
    "input_ids": Field("B T", torch.int32, "rollout"),
    "attention_mask": Field("B T", torch.bool, "rollout"),
    "response_mask": Field("B R", torch.bool, "rollout"),
    "rollout_log_probs": Field("B R", torch.float32, "rollout"),
    "rollout_log_probs_asked": Field("B", torch.bool, "rollout"),
    "truncated": Field("B", torch.bool, "rollout"),
    "policy_version": Field("B", torch.int64, "rollout"),
    "rollout_prompt_lengths": Field("B", torch.int64, "rollout"),
    "rollout_prompt_digests": Field("B", torch.int64, "rollout"),
    "token_level_scores": Field("B R", torch.float32, "reward"),
    "old_log_probs": Field("B R", torch.float32, "actor"),
    "entropys": Field("B R", torch.float32, "actor"),
    "ref_log_probs": Field("B R", torch.float32, "ref"),
    "values": Field("B R", torch.float32, "critic"),
    "reward_baselines": Field("B", torch.float32, "rollout"),
    "token_level_rewards": Field("B R", torch.float32, "advantages"),
    "rollout_is_weights": Field("B R", torch.float32, "advantages"),
    "rollout_rs_kept": Field("B R", torch.bool, "advantages"),
    "advantages": Field("B R", torch.float32, "advantages"),
    "returns": Field("B R", torch.float32, "advantages"),
}


@dataclass(frozen=True)
class Sample:
    """What a row of the batch is about, besides tensors."""

    uid: str
    """Names the prompt; the samples of one group share it."""
    index: int
    """Row of the data set."""
    place: str = ""
    """`FILE:LINE` of that row, for errors."""
    sample: int = 0
    """Number of the sample within its group: 0 … n - 1."""
    data_source: str = ""
    prompt_text: str = ""
    """The prompt as the model saw it, template included."""
    messages: tuple[dict[str, str], ...] = ()
    """The prompt as chat messages."""
    response_text: str = ""
    """The decoded response, special tokens left out."""
    ground_truth: Any = None
    extra_info: Mapping[str, Any] = field(default_factory=dict[str, Any])
    prompt_ids: tuple[int, ...] = ()
    reward_parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What each rule, function or model gave, before weights."""


@dataclass(frozen=True)
class Batch:
    """Samples with their tensors, rows in step with each other."""

    tensors: TensorDict
    samples: tuple[Sample, ...]

    def __post_init__(self) -> None:
        if len(self.samples) != self.tensors.batch_size[0]:
            raise ValueError(f"{len(self.samples)} samples, tensors for {self.tensors.batch_size[0]}")

    @classmethod
    def of(cls, samples: Sequence[Sample], tensors: Mapping[str, Tensor] | None = None) -> Batch:
        """A batch of SAMPLES with TENSORS, checked against the table of fields."""
        batch = cls(TensorDict({}, batch_size=[len(samples)]), tuple(samples))
        return batch.with_fields(tensors or {})

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, name: str) -> Tensor:
        """The field NAME.

        Raises:
            KeyError: nothing has written it yet.
        """
        if name not in self.tensors.keys():  # noqa: SIM118 (TensorDict refuses `in`)
            raise KeyError(
                f"the batch has no '{name}', which {FIELDS[name].writer} writes; it has {sorted(self.names)}"
            )
        return self.tensors[name]

    @property
    def names(self) -> set[str]:
        """The fields that have been written."""
        return {str(name) for name in self.tensors.keys()}  # noqa: SIM118

    @property
    def engine_mask(self) -> Tensor:
        """`[B, R]` bool: tokens of the loss whose `rollout_log_probs` were asked for; those of others are 0."""
        mask = self["response_mask"]
        return mask & self["rollout_log_probs_asked"][:, None] if "rollout_log_probs_asked" in self.names else mask

    def with_fields(self, fields: Mapping[str, Tensor]) -> Batch:
        """This batch with FIELDS added or replaced, each checked against the table.

        Raises:
            ValueError: a field that is not in the table, or has another shape or dtype.
        """
        tensors = self.tensors.clone(recurse=False)
        for name, value in fields.items():
            tensors[name] = value
        check(tensors)
        return replace(self, tensors=tensors)

    def with_samples(self, samples: Iterable[Sample]) -> Batch:
        """This batch with other descriptions of its rows."""
        return replace(self, samples=tuple(samples))

    def select(self, rows: Sequence[int]) -> Batch:
        """The given ROWS, in that order."""
        index = torch.as_tensor(list(rows), dtype=torch.int64)
        return Batch(self.tensors[index], tuple(self.samples[row] for row in rows))

    def repeat(self, n: int) -> Batch:
        """Each row N times, side by side, numbered 0 … N - 1."""
        rows = [row for row in range(len(self)) for _ in range(n)]
        repeated = self.select(rows)
        return repeated.with_samples(replace(s, sample=i % n) for i, s in enumerate(repeated.samples))

    def only(self, names: Iterable[str]) -> Batch:
        """The same rows with the named fields alone (those that exist)."""
        return replace(self, tensors=self.tensors.select(*(set(names) & self.names)))

    def bare(self) -> dict[str, Tensor]:
        """The tensors by name: what crosses to a worker."""
        return {name: self[name] for name in sorted(self.names)}


def check(tensors: TensorDict) -> None:
    """Hold TENSORS against the table of fields.

    Raises:
        ValueError: an unknown field, a wrong dtype, or sizes that disagree.
    """
    sizes: dict[str, tuple[int, str]] = {"B": (int(tensors.batch_size[0]), "the batch")}
    for key in tensors.keys():  # noqa: SIM118
        name = str(key)
        if name not in FIELDS:
            raise ValueError(f"unknown batch field '{name}'")
        want, value = FIELDS[name], tensors[name]
        if value.dtype != want.dtype:
            raise ValueError(f"batch field '{name}' is {value.dtype}, must be {want.dtype}")
        dims = want.shape.split()
        if value.ndim != len(dims):
            raise ValueError(f"batch field '{name}' has shape {list(value.shape)}, must be [{want.shape}]")
        for dim, size in zip(dims, value.shape, strict=True):
            known, owner = sizes.setdefault(dim, (int(size), name))
            if known != size:
                raise ValueError(f"batch field '{name}' has {dim} = {size}, {owner} has {known}")


def concatenate(batches: Sequence[Batch]) -> Batch:
    """All rows of BATCHES in order, padded to the longest prompt and response among them. Fields must agree."""
    names = batches[0].names
    prompt = max(b["prompts"].shape[1] for b in batches)
    response = max(b["responses"].shape[1] for b in batches)
    fields = {name: torch.cat([_widened(b, name, prompt, response) for b in batches]) for name in sorted(names)}
    return Batch.of([sample for b in batches for sample in b.samples], fields)


def _widened(batch: Batch, name: str, prompt: int, response: int) -> Tensor:
    """Field NAME of BATCH, padded on the left to PROMPT and on the right to RESPONSE tokens."""
    value, shape = batch[name], FIELDS[name].shape
    left = prompt - batch["prompts"].shape[1] if "P" in shape or "T" in shape else 0
    right = response - batch["responses"].shape[1] if "R" in shape or "T" in shape else 0
    return torch.nn.functional.pad(value, (left, right)) if value.ndim == 2 else value
