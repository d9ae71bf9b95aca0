"""One role's update as the reference makes it: losses of rows, gradients, and its own AdamW from step to step."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rlcheck.facts.capsule import MiniRecord
from rlcheck.facts.step import Link
from rltrain.proof import formulas
from rltrain.proof import model as models
from rltrain.proof.compare import Unknown
from rltrain.proof.formulas import State
from rltrain.proof.model import Tokens
from rltrain.proof.read import DTYPES
from rltrain.proof.reference import Reference

Named = dict[str, Tensor]


_REINFORCE: Mapping[str, Any] = {"policy_loss": {"loss_mode": "reinforce"}}


@dataclass(frozen=True)
class Counts:
    """What the losses of a mini batch are divided by."""

    tokens: int
    rows: int


@dataclass(frozen=True)
class Step:
    """One optimizer step by the reference. `read`: log-probabilities or values of its rows, `[B, R]`. `norms`: of the
    gradient of each of `Update.passes`, for the first step."""

    gradient: Named
    read: Tensor
    norm: float
    norms: Sequence[float] = ()


class Update:
    """ROLE, `actor` or `critic`, of one capsule."""

    def __init__(self, ref: Reference, role: str) -> None:
        self.ref, self.case, self.role = ref, ref.case, role
        self.settings: Mapping[str, Any] = self.case.config("actor_rollout_ref.actor" if role == "actor" else "critic")
        self.minis: tuple[MiniRecord, ...] = self.case.head.actor if role == "actor" else self.case.head.critic
        self.field = "log_probs" if role == "actor" else "vpreds"

    @cached_property
    def dtype(self) -> torch.dtype:
        """The format of parameters and moments."""
        return DTYPES.get(str(self.settings["fsdp_config"]["model_dtype"]), torch.float32)

    def optim(self, name: str) -> Mapping[str, Any]:
        """AdamW's settings of the parameter NAME."""
        return self.settings["optim"]

    def clip_factor(self, norm: float) -> float:
        """What a gradient of this NORM is multiplied by."""
        return formulas.clip_factor(norm, self.settings["grad_clip"])

    def rates(self) -> Link | None:
        """Learning rates and counts of a trainer with schedules of its own."""
        return None

    def tried(self) -> dict[str, dict[str, Any]] | None:
        """Settings of its losses that are common mistakes, of a trainer with losses of its own."""
        return None

    def counts(self, rows: Sequence[int]) -> Counts:
        """Of the mini batch of ROWS."""
        mask = self.case.loss_mask[list(rows)]
        return Counts(int(mask.sum()), int(mask.any(-1).sum()))

    def rows_of(self, mini: int) -> list[int]:
        """The rows of a mini batch that the capsule keeps, by their places there, by what was recorded."""
        return sorted(self.case.here(row for rank in self.minis[mini].rows for row in rank))

    def ranks_of(self, mini: int) -> dict[int, int]:
        """The rank of each of `rows_of`."""
        shares = enumerate(self.minis[mini].rows)
        return {row: rank for rank, share in shares for row in self.case.here(share)}

    def require_rows(self, mini: int) -> None:
        """Refuse a mini batch of which rows were left out.

        Raises:
            Unknown: how many.
        """
        count, kept = sum(len(share) for share in self.minis[mini].rows), len(self.rows_of(mini))
        if kept < count:
            raise Unknown(f"the capsule keeps {kept} of the {count} rows of the {self.role}'s mini batch {mini}")

    def counts_of(self, mini: int) -> Counts:
        """Of a mini batch: by the rows that are kept, and what was recorded of passes with others."""
        found = self.counts(self.rows_of(mini))
        tokens, rows = found.tokens, found.rows
        for micro in self.minis[mini].micro_batches:
            here = self.case.here(micro.rows)
            if len(here) < len(micro.rows):
                tokens += int(micro.terms.get("loss_tokens") or 0) - self.counts(here).tokens
                rows += len(micro.rows) - len(here)
        return Counts(tokens, rows)

    def terms(
        self,
        rows: Sequence[int],
        read: Tensor,
        entropy: Tensor | None,
        counts: Counts,
        changed: Mapping[str, Any] | None = None,
    ) -> dict[str, Tensor]:
        """The shares of ROWS in the mini batch's loss: `loss` and its parts, from what was READ `[rows, R]` of them.

        CHANGED: settings to try instead of the config's.
        """
        correction = self.case.config("algorithm.rollout_correction") or {}
        own = self.settings if correction.get("loss_type") != "reinforce" else {**self.settings, **_REINFORCE}
        settings, wide = {**own, **(changed or {})}, read.shape[1]
        scale = settings.get("scale") or self.case.config("actor_rollout_ref.actor.loss_scale_factor")
        scale = float(scale or self.case.config("data.max_response_length"))
        mask = self.case.loss_mask[list(rows), :wide]

        def field(name: str) -> Tensor:
            return formulas.only(self.case.batch[name][list(rows), :wide].to(read.dtype), mask)

        def share(values: Tensor, kept: Tensor = mask) -> Tensor:
            return formulas.aggregate(values, kept, settings["loss_agg_mode"], counts.tokens, counts.rows, scale)

        read = formulas.only(read, mask)
        if self.role == "critic":
            clip = float(settings["cliprange_value"])
            loss = share(formulas.value_terms(read, field("values"), field("returns"), mask, clip))
            return {"loss": loss, "vf_loss": loss}
        weighted = "rollout_is_weights" in self.case.batch and not settings.get("unweighted")
        weights = field("rollout_is_weights") if weighted else torch.ones_like(read)
        adv, old, kept = field("advantages") * settings.get("sign", 1), field("old_log_probs"), mask
        if correction.get("bypass_mode"):
            found, kept = formulas.bypassed(correction, read, old, mask)
            weights = weights if found is None or settings.get("unweighted") else found
        parts = {"pg_loss": share(formulas.policy_terms(settings, read, old, adv, mask, weights), kept)}
        loss = parts["pg_loss"]
        if entropy is not None:
            parts["entropy_loss"] = share(formulas.only(entropy, mask))
            loss = loss - float(settings["entropy_coeff"]) * parts["entropy_loss"]
        if settings["use_kl_loss"]:
            parts["kl_loss"] = share(
                formulas.only(formulas.kl(settings["kl_loss_type"], read, field("ref_log_probs")), mask)
            )
            loss = loss + float(settings["kl_loss_coef"]) * parts["kl_loss"]
        return {"loss": loss, **parts}

    def loss_of(
        self, model: Any, row: int, counts: Counts, part: str, seen: Tensor, run: Tensor | None = None
    ) -> Tensor:
        """The share of ROW alone, with its gradient; what was read goes to SEEN. RUN: as of `gradient`."""
        tokens: Tokens = self.ref.tokens[row]
        if self.role == "critic":
            read, entropy = models.values_of(model, tokens), None
        else:
            log_p = models.log_softmax(models.logits_of(model, tokens), self.ref.temperature)
            read, entropy = models.picked(log_p, tokens.answer).cpu(), models.entropy(log_p)[None].cpu()
        seen[row, : len(read)] = read.detach()
        if run is not None and ("cliprange_value" if self.role == "critic" else "clip_ratio_low") in self.settings:
            read = self._on_its_side(row, read, run[row, : len(read)].to(read.dtype))
        return self.terms([row], read[None], entropy, counts)[part]

    def _on_its_side(self, row: int, read: Tensor, run: Tensor) -> Tensor:
        """READ, with the value of the RUN where that stands on the other side of a clip: rounding tips single tokens
        there, whose whole gradient comes or goes. What both read is judged by itself.
        """
        actor, count = self.role == "actor", len(read)
        old = self.case.batch["old_log_probs" if actor else "values"][row, :count].to(read.dtype)
        if actor:
            low, high = self.settings["clip_ratio_low"], self.settings["clip_ratio_high"]
            edges = (1 - float(low), 1 + float(high), float(self.settings.get("clip_ratio_c") or torch.inf))
        else:
            edges = (-float(self.settings["cliprange_value"]), float(self.settings["cliprange_value"]))

        def side(values: Tensor) -> Tensor:
            place = (values - old).exp() if actor else values - old
            return torch.bucketize(place.detach(), torch.tensor(edges, dtype=place.dtype))

        tipped = run.isfinite() & (side(run) != side(read))
        return torch.where(tipped, read + (run - read).detach(), read)

    def _as_run(self, number: int) -> Tensor | None:
        """What the run read in the mini batch NUMBER, `[B, R]`, not a number where that was not kept."""
        key = f"{self.role}.{number}"
        found, marks = (self.case.batch.get(f"{key}/{name}") for name in (self.field, "responses"))
        marks = self.case.batch.get(f"{key}/mask") if marks is None else marks
        if found is None or marks is None:
            return None
        return torch.where(marks.bool().any(-1, keepdim=True), found.double(), torch.nan)

    def gradient(
        self, model: Any, rows: Sequence[int], counts: Counts, part: str = "loss", run: Tensor | None = None
    ) -> tuple[Named, Tensor]:
        """Of the share of ROWS; and what was read of them, `[B, R]`.

        RUN: what the run read, `[B, R]`, which says on which side of a clip a token stands.
        """
        if missing := [row for row in rows if row not in self.ref.tokens and bool(self.case.mask[row].any())]:
            raise Unknown(f"the model is too large to read all rows here: {len(missing)} of {len(rows)} were left out")
        seen = torch.full(self.case.mask.shape, torch.nan, dtype=torch.float64)
        here = [row for row in rows if row in self.ref.tokens]
        return models.gradients(model, here, lambda row: self.loss_of(model, row, counts, part, seen, run)), seen

    def model(self, low: bool) -> Any:
        """The role's model before its update, with gradients: in float64, or LOW, in the run's format.

        Raises:
            Unknown: it cannot be built.
        """
        compute = self.ref.compute(self.role)
        weights, dtype = self.ref.weights(f"{self.role}.before"), compute if low else torch.float64
        critic = self.role == "critic"
        try:
            return models.build(self.ref.model_config(critic), weights, compute, dtype, critic)
        except models.CannotBuild as error:
            raise Unknown(str(error)) from None

    @cached_property
    def first(self) -> tuple[Step, Step]:
        """The first optimizer step's gradient: in float64, and in the run's format.

        Raises:
            Unknown: not all of its rows are here, or can be read.
        """
        self.require_rows(0)
        steps: list[Step] = []
        for low in (False, True):
            counts, model = self.counts(self.rows_of(0)), self.model(low)
            gradient, norms = Named(), list[float]()
            seen = torch.full(self.case.mask.shape, torch.nan, dtype=torch.float64)
            for rows in self.passes:
                part, read = self.gradient(model, rows, counts)
                gradient = {name: gradient[name] + found if gradient else found for name, found in part.items()}
                seen[rows], norms = read[rows], [*norms, norm(part.values())]
            steps.append(Step(gradient, seen, norm(gradient.values()), norms))
        return steps[0], steps[1]

    @cached_property
    def passes(self) -> list[list[int]]:
        """The rows of each pass of the first mini batch; all in one where passes do not share them out."""
        each = [self.case.here(micro.rows) for micro in self.minis[0].micro_batches]
        whole = self.rows_of(0)
        return each if sorted(row for rows in each for row in rows) == whole else [whole]

    def start(self, dtype: torch.dtype) -> dict[str, State]:
        """Weights and moments before the first step."""
        before = self.ref.weights(f"{self.role}.before")
        moments = [self.case.weights.get(f"{self.role}.{name}.before", {}) for name in ("exp_avg", "exp_avg_sq")]
        return {
            name: (
                w.to(dtype),
                *(m[name].to(dtype) if name in m else torch.zeros_like(w, dtype=dtype) for m in moments),
            )
            for name, w in before.items()
        }  # pyright: ignore[reportReturnType]

    def follow(self, low: bool) -> tuple[list[Step], dict[str, State]]:
        """All optimizer steps: the first with the recorded gradient, later ones with the reference's own."""
        model, dtype = self.model(low), self.dtype if low else torch.float64
        states, steps = self.start(dtype), list[Step]()
        recorded = self.case.weights.get(f"{self.role}.gradient", {})
        compute = self.ref.compute(self.role)
        named = dict(model.named_parameters())
        for number, mini in enumerate(self.minis):
            if number:
                self.require_rows(number)
                rows = self.rows_of(number)
                gradient, seen = self.gradient(model, rows, self.counts(rows), run=self._as_run(number))
            else:
                step = self.first[int(low)]
                gradient = {name: recorded.get(name, found).to(found.dtype) for name, found in step.gradient.items()}
                seen = step.read
            steps.append(Step(gradient, seen, norm(gradient.values())))
            if not mini.applied:
                continue
            factor = self.clip_factor(steps[-1].norm)
            for name, found in gradient.items():
                count = (mini.adam_steps or 0) if number == 0 or mini.adam_steps is not None else number
                states[name] = formulas.adamw(self.optim(name), states[name], found.to(dtype) * factor, mini.lr, count)
                # Ranks round stored weights to the format of their passes.
                rounded = (
                    states[name][0]
                    if name.startswith("head.") or compute == torch.float32
                    else states[name][0].to(compute)
                )
                named[name].data.copy_(rounded)
        return steps, states


def norm(tensors: Any) -> float:
    """L2, over all TENSORS."""
    return float(sum(float(tensor.double().square().sum()) for tensor in tensors)) ** 0.5
