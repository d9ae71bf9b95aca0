"""What the reference reads with a capsule's weights: each row alone, in float64, and in the run's format beside it."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rltrain.proof import anchor, compare, order
from rltrain.proof import model as models
from rltrain.proof.compare import EPS, Numbers, Unknown
from rltrain.proof.model import Named, Tokens
from rltrain.proof.read import DTYPES, Case

MOST_OPERATIONS = 2e11 if models.DEVICE == "cpu" else 2e13
"""Parameters times tokens that are read: of a larger model the first rows alone."""
Stat = Callable[[Any, Tokens], tuple[Tensor, ...]]
"""(model, row) to `[N]` numbers of its tokens."""


@dataclass(frozen=True)
class Reading:
    """Fields `[B, R]`: by the reference in float64, and how far the run's own format is from them."""

    exact: tuple[Tensor, ...]
    noise: tuple[Tensor, ...]
    coarse: bool

    def numbers(self, which: int, found: Tensor, mask: Tensor) -> Numbers:
        """FOUND beside field WHICH. Rounding is the worst of all tokens: which one it hits is chance."""
        known = mask & self.noise[which].isfinite()
        noise = torch.where(known, self.noise[which], 0.0).amax().clamp(min=EPS)
        usual = max(compare.rms(self.noise[which][known]), EPS)
        return Numbers(found, self.exact[which], noise.expand(mask.shape), mask, self.coarse, usual)


class Reference:
    """One capsule, and what was computed of it so far. `saved`: weights from `--checkpoint`, of the actor before;
    `score`: the file of `--score`."""

    def __init__(self, case: Case, saved: Named | None = None, score: Path | None = None) -> None:
        self.case, self.saved, self.score = case, saved, score
        self._models: dict[tuple[str, torch.dtype, torch.dtype], Any] = {}
        self._readings: dict[tuple[str, str, torch.dtype], Reading] = {}
        self._found: dict[str, Named | None] = {}
        self.kept: dict[str, Any] = {}
        """What one link leaves for a later one, such as the steps of an update."""

    @cached_property
    def ranks(self) -> dict[int, int]:
        """The rank that read each row, in passes without update; empty where rows were left out."""
        case = self.case
        if case.head.kept_rows is not None:
            return {}
        shares = order.dealt(
            range(len(case.rows)), case.lengths, case.head.world_size, case.config("trainer.balance_batch", True)
        )
        return {row: rank for rank, rows in enumerate(shares) for row in rows}

    @cached_property
    def temperature(self) -> float:
        """Of the policy, by the config."""
        return float(self.case.config("actor_rollout_ref.rollout.temperature", 1.0))

    def compute(self, role: str) -> torch.dtype:
        """The format of forward passes of ROLE: actor, reference, critic or engine."""
        key = {
            "actor": "actor_rollout_ref.actor.fsdp_config.dtype",
            "reference": "actor_rollout_ref.ref.fsdp_config.dtype",
            "critic": "critic.fsdp_config.dtype",
            "engine": "actor_rollout_ref.rollout.dtype",
        }[role]
        return DTYPES.get(str(self.case.config(key)), torch.float32)

    def weights(self, moment: str) -> Named:
        """The whole weights of MOMENT.

        Raises:
            Unknown: the capsule does not have them.
        """
        if moment == "actor.before" and self.saved is not None:
            held = self.case.weights.get(moment, {})
            if bad := anchor.kept_differ(held, self.saved):
                count = f"{len(bad)} of {len(held)} tensors, the first is '{bad[0]}'"
                raise Unknown(f"the checkpoint holds other weights than this step began with, in {count}")
            return self.saved
        if not self.case.whole:
            role = next((role for role, name in anchor.MOMENTS.items() if name == moment), None)
            if role is not None and moment not in self._found:
                self._found[moment] = anchor.whole_weights(self.case, role)
            if (found := self._found.get(moment)) is not None:
                return found
            words = (
                "its model's files do not hold these" if role == "reference" else "give the weights with --checkpoint"
            )
            raise Unknown(f"the capsule keeps {self.case.head.tensors}; {words}")
        if moment not in self.case.weights:
            reasons = "; ".join(self.case.head.missing)
            raise Unknown(f"the capsule has no weights '{moment}'" + (f" ({reasons})" if reasons else ""))
        return self.case.weights[moment]

    def model_config(self, critic: bool) -> Mapping[str, Any]:
        """Of the actor's model or the critic's."""
        return self.case.head.critic_config if critic and self.case.head.critic_config else self.case.head.model_config

    def model(self, moment: str, compute: torch.dtype, dtype: torch.dtype) -> Any:
        """A model with the weights of MOMENT, rounded to COMPUTE, held in DTYPE.

        Raises:
            Unknown: it cannot be built.
        """
        key = (moment, compute, dtype)
        if key not in self._models:
            try:
                critic = moment.startswith("critic")
                self._models[key] = models.build(
                    self.model_config(critic), self.weights(moment), compute, dtype, critic
                ).requires_grad_(False)
            except models.CannotBuild as error:
                raise Unknown(str(error)) from None
        return self._models[key]

    def read(self, moment: str, role: str, what: str, stat: Stat) -> Reading:
        """STAT, named WHAT, of each row by the weights of MOMENT as ROLE computes."""
        compute = self.compute(role)
        key = (moment, what, compute)
        if key not in self._readings:
            exact = self.fields(self.model(moment, compute, torch.float64), stat)
            rounded = self.fields(self.model(moment, compute, compute), stat)
            noise = tuple((a - b).abs() for a, b in zip(exact, rounded, strict=True))
            self._readings[key] = Reading(exact, noise, compute in (torch.bfloat16, torch.float16))
        return self._readings[key]

    @torch.no_grad()
    def fields(self, model: Any, stat: Stat, rows: Mapping[int, Tokens] | None = None) -> tuple[Tensor, ...]:
        """STAT of ROWS (none: all that are read), each alone, as `[B, R]` float64; NaN in rows that are not read."""
        shape = self.case.mask.shape
        rows = self.tokens if rows is None else rows
        found: tuple[Tensor, ...] = ()
        for row, tokens in rows.items():
            for place, values in enumerate(stat(model, tokens)):
                if len(found) <= place:
                    found = (*found, torch.full(shape, torch.nan, dtype=torch.float64))
                found[place][row] = 0.0
                found[place][row, : len(values)] = values.double()
        if not found:
            raise Unknown("the capsule has no rows")
        return found

    @cached_property
    def size(self) -> int:
        """Parameters of the actor."""
        try:
            shapes = self.weights("actor.before")
        except Unknown:
            shapes = self.saved or self.case.weights.get("actor.before", {})
        return sum(tensor.numel() for tensor in shapes.values())

    @cached_property
    def tokens(self) -> dict[int, Tokens]:
        """The rows that are read: all, or the first ones of a large model."""
        room, chosen = MOST_OPERATIONS, dict[int, Tokens]()
        for row in range(len(self.case.rows)):
            prompt, answer = self.case.tokens(row)
            room -= self.size * (len(prompt) + len(answer))
            if chosen and room < 0:
                break
            if prompt and answer:
                chosen[row] = Tokens(prompt, answer)
        return chosen

    @cached_property
    def read_mask(self) -> Tensor:
        """Tokens of answers in rows that are read."""
        read = torch.zeros(len(self.case.rows), 1, dtype=torch.bool)
        read[list(self.tokens)] = True
        return self.case.mask & read


def policy_stat(temperature: float) -> Stat:
    """Log-probabilities of the answer's tokens and entropies, of softmax(logits / TEMPERATURE)."""

    def stat(model: Any, row: Tokens) -> tuple[Tensor, ...]:
        log_p = models.log_softmax(models.logits_of(model, row), temperature)
        return models.picked(log_p, row.answer), models.entropy(log_p)

    return stat


def value_stat(model: Any, row: Tokens) -> tuple[Tensor, ...]:
    """Values before the answer's tokens."""
    return (models.values_of(model, row),)
