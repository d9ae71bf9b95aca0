"""TRL's formulas of a GRPO step, by its config: advantages, losses, and the update that follows from them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rlcheck.facts.step import Link
from rltrain.proof import trl_config
from rltrain.proof.compare import Unknown, differs, same
from rltrain.proof.formulas import only
from rltrain.proof.reference import Reference
from rltrain.proof.update import Counts, Update

_EPS = 1e-4
"""TRL's, beside a standard deviation."""
_CLIP_EPS = 1e-6
"""torch.nn.utils.clip_grad_norm_'s, beside the norm."""
LOSSES = ("grpo", "bnpo", "dr_grpo", "dapo", "luspo", "cispo", "sapo")


def spread(x: Tensor, dim: int | None = None) -> Tensor:
    """Standard deviation with n - 1 below over what is a number along DIM (None: all); 0 of one number."""
    known = ~x.isnan()
    away = torch.where(known, x - x.nanmean(), 0.0) if dim is None else only(x - x.nanmean(dim, keepdim=True), known)
    square = away.square()
    count = known.sum() if dim is None else known.sum(dim, keepdim=True)
    return ((square.sum() if dim is None else square.sum(dim, keepdim=True)) / (count - 1).clamp(min=1)).sqrt()


def totals(parts: Tensor, weights: Tensor) -> Tensor:
    """The sum by WEIGHTS `[K]` of PARTS `[B, K]`; NaN where no function gave a number."""
    found = (parts * weights).nansum(-1)
    return found.masked_fill(parts.isnan().all(-1), torch.nan)


def advantages(parts: Tensor, weights: Tensor, n: int, args: Mapping[str, Any]) -> Tensor:
    """`[B]` from PARTS `[B, K]`, N neighbours each a group. GRPO, arXiv:2402.03300, section 4.1.2, with TRL's 1e-4;
    `batch`: Liu et al. 2025, arXiv:2508.08221; `none`: Dr.GRPO, arXiv:2503.20783; `normalize_then_sum`: GDPO,
    arXiv:2601.05242.
    """
    if args["multi_objective_aggregation"] == "normalize_then_sum":
        groups = parts.view(-1, n, parts.shape[-1])
        each = (groups - groups.nanmean(1, keepdim=True)) / (spread(groups, 1) + _EPS)
        found = totals(each.reshape(parts.shape), weights)
        found = (found - found.nanmean()) / (spread(found) + _EPS)
        return found.nan_to_num(nan=0.0)
    rewards = totals(parts, weights)
    groups = rewards.view(-1, n)
    away = groups - groups.nanmean(1, keepdim=True)
    kind = {True: "group", False: "none"}.get(args["scale_rewards"], args["scale_rewards"])
    if kind == "group":
        away = away / (spread(groups, 1) + _EPS)
    elif kind == "batch":
        away = away / (spread(rewards) + _EPS)
    return away.reshape(-1).nan_to_num(nan=0.0)


class TrlUpdate(Update):
    """The update of TRL's GRPOTrainer; every pass divides by counts of its own, as `loss_type` says."""

    def __init__(self, ref: Reference, role: str) -> None:
        super().__init__(ref, role)
        self.args: Mapping[str, Any] = self.case.config("trl")
        names = {"top_entropy_quantile": 1.0, "off_policy_mask_threshold": None, "use_adaptive_entropy": False}
        odd = [name for name, plain in names.items() if self.args.get(name, plain) not in (plain, None)]
        if self.args.get("use_vllm"):
            odd.append("use_vllm's importance weights")
        if self.args["loss_type"] not in LOSSES:
            odd.append(f"loss_type {self.args['loss_type']}")
        self.odd = odd

    @cached_property
    def pass_of(self) -> dict[int, tuple[int, ...]]:
        """The rows of the pass that each row is in; the same in every iteration."""
        return {row: micro.rows for mini in self.minis for micro in mini.micro_batches for row in micro.rows}

    def _divisor(self, row: int, args: Mapping[str, Any]) -> float:
        """What the sum over the tokens of ROW is divided by."""
        mask, own = self.case.mask, list(self.pass_of[row])
        kind, steps = args["loss_type"], float(args["gradient_accumulation_steps"])
        if kind in ("grpo", "sapo"):
            return float(mask[row].sum().clamp(min=1)) * len(own) * steps
        if kind == "bnpo":
            return float(mask[own].sum().clamp(min=1)) * steps
        if kind == "dr_grpo":
            return len(own) * float(args["max_completion_length"]) * steps
        if kind == "luspo":
            return len(own) * steps
        size = max(int(args["generation_batch_size"]), 1)
        start = row // size * size
        tokens = float(mask[start : start + size].sum().clamp(min=1))
        return tokens * steps / float(args["steps_per_generation"])

    def terms(
        self,
        rows: Sequence[int],
        read: Tensor,
        entropy: Tensor | None,
        counts: Counts,
        changed: Mapping[str, Any] | None = None,
    ) -> dict[str, Tensor]:
        """As `Update.terms`: `loss`, and `kl_loss` as TRL averages it into the loss, before `beta`."""
        if self.odd:
            raise Unknown(f"TRL's {self.odd[0]} is not recomputed")
        args, wide = {**self.args, **(changed or {})}, read.shape[1]
        mask = self.case.mask[list(rows), :wide]

        def field(name: str) -> Tensor:
            return only(self.case.batch[name][list(rows), :wide].to(read.dtype), mask)

        log_p = only(read, mask)
        old = field("old_log_probs") if "old_log_probs" in self.case.batch else log_p.detach()
        ratio = only(log_p - old, mask)
        if args["importance_sampling_level"] == "sequence":  # GSPO, arXiv:2507.18071, equation 5
            ratio = (ratio.sum(-1) / mask.sum(-1).clamp(min=1))[:, None].expand_as(log_p)
        ratio = ratio.exp()
        loss = _policy(args, log_p, ratio, field("advantages") * args.get("sign", 1), mask)
        parts: dict[str, Tensor] = {}
        divisors = torch.tensor([self._divisor(row, args) for row in rows]).to(read.dtype)
        if self.args["beta"]:  # k3 of Schulman 2020, joschu.net/blog/kl-approx.html
            away = field("ref_log_probs") - log_p
            kl = only(away.exp() - away - 1, mask) * (ratio if args["use_bias_correction_kl"] else 1)
            parts["kl_loss"] = (kl.sum(-1) / divisors).sum()
            loss = loss + float(args["beta"]) * kl
        total = (only(loss, mask).sum(-1) / divisors).sum()
        if entropy is not None and float(args["entropy_coef"]):
            steps = float(args["gradient_accumulation_steps"])
            own = torch.tensor([float(self.case.mask[list(self.pass_of[row])].sum().clamp(min=1)) for row in rows])
            parts["entropy_loss"] = (only(entropy, mask).sum(-1) / own.to(read.dtype) / steps).sum()
            total = total - float(args["entropy_coef"]) * parts["entropy_loss"]
        return {"loss": total, **parts}

    def tried(self) -> dict[str, dict[str, Any]]:
        """Other settings of TRL that are common mistakes."""
        args, beta = self.args, float(self.args["beta"])
        tries: dict[str, dict[str, Any]] = {"advantages with the opposite sign": {"sign": -1}}
        tries |= {f"loss_type '{kind}'": {"loss_type": kind} for kind in LOSSES if kind != args["loss_type"]}
        tries |= {f"loss_type '{kind}', without gradient accumulation":
                  {"loss_type": kind, "gradient_accumulation_steps": 1} for kind in (args["loss_type"],)}  # fmt: skip
        if beta:
            tries |= {"KL with the opposite sign": {"beta": -beta}, "without KL": {"beta": 0.0}}
            tries |= {f"beta {factor * beta:g}": {"beta": factor * beta} for factor in (2, 0.5, 10, 0.1)}
        other = "token" if args["importance_sampling_level"] == "sequence" else "sequence"
        return tries | {f"importance_sampling_level '{other}'": {"importance_sampling_level": other}}

    def optim(self, name: str) -> Mapping[str, Any]:
        """AdamW's settings of a parameter: norms and biases do not decay."""
        settings = self.settings["optim"]
        return settings if trl_config.decays(name) else {**settings, "weight_decay": 0.0}

    def clip_factor(self, norm: float) -> float:
        """As torch's `clip_grad_norm_`."""
        largest = self.settings["grad_clip"]
        return 1.0 if largest is None else min(1.0, float(largest) / (norm + _CLIP_EPS))

    def rates(self) -> Link:
        """Learning rates and Adam's count of each optimizer step."""
        kind, head = str(self.args["optim"]).rpartition(".")[2].lower(), self.case.head
        if kind not in ("adamw_torch", "adamw_torch_fused"):
            raise Unknown(f"the optimizer '{kind}' is not recomputed")
        for number, mini in enumerate(self.minis):
            if (mini.adam_steps or 0) != mini.optimizer_steps:
                said = f"Adam has counted {mini.adam_steps or 0} steps, {mini.optimizer_steps} were taken"
                return differs("optimizer", said, 1, [f"optimizer step {number}"])
            wanted = trl_config.learning_rate(self.args, mini.optimizer_steps, head.total_steps)
            if wanted is None:
                schedule = self.args["lr_scheduler_type"]
                return same("optimizer", 0, f"the schedule '{schedule}' was not recomputed: its rates are as recorded")
            if abs(mini.lr - wanted) > 1e-6 * wanted:
                said = f"the learning rate is {mini.lr:.6g}, the schedule says {wanted:.6g}"
                return differs("optimizer", said, len(self.minis), [f"optimizer step {number}"])
        return same("optimizer", len(self.minis))


def _policy(args: Mapping[str, Any], log_p: Tensor, ratio: Tensor, adv: Tensor, mask: Tensor) -> Tensor:
    """The loss of each token `[B, R]`. PPO's clip (arXiv:1707.06347, equation 7) with `delta` of INTELLECT-2
    (arXiv:2505.07291, section 3.4); CISPO: arXiv:2506.13585, equation 4; SAPO: arXiv:2511.20347, equation 5.
    """
    low, kind = float(args["epsilon"]), args["loss_type"]
    high = low if args["epsilon_high"] is None else float(args["epsilon_high"])
    if kind == "cispo":
        return only(-ratio.clamp(max=high).detach() * adv * log_p, mask)
    if kind == "sapo":
        warm = torch.where(adv > 0, float(args["sapo_temperature_pos"]), float(args["sapo_temperature_neg"]))
        return only(-(warm * (ratio - 1)).sigmoid() * 4 / warm * adv, mask)
    free = ratio if args["delta"] is None else ratio.clamp(max=float(args["delta"]))
    return only(-torch.minimum(free * adv, ratio.clamp(1 - low, 1 + high) * adv), mask)
