"""The link from rewards to what updates learn from: KL in the reward, advantages, returns, importance weights."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from rlcheck.facts.step import Link
from rltrain.proof import anchor, compare, formulas
from rltrain.proof.compare import EPS, Numbers, Unknown
from rltrain.proof.reference import Reference

_BY_PROMPT = ("grpo", "rloo", "remax")
"""Estimators that compare the answers to one prompt, and nothing else."""
Formula = Callable[[torch.dtype, Mapping[str, Any]], Tensor]


def advantages(ref: Reference) -> Link:
    """Everything that `algorithm.*` makes of recorded scores, log-probabilities and values."""
    case, settings = ref.case, ref.case.config("algorithm")
    links: list[Link] = []
    few = f"the capsule keeps {len(case.rows)} of {case.head.rows} rows, and statistics are of all"
    if "token_level_rewards" in case.batch and "token_level_scores" in case.batch:
        links.append(_token_rewards(ref, settings))
    # With bypass_mode the update corrects by what it reads itself: the loss's link has it.
    correction: Mapping[str, Any] = settings.get("rollout_correction") or {}  # other trainers may have none
    asked = {} if correction.get("bypass_mode") else correction
    if asked.get("rollout_is") is not None or "rollout_is_weights" in case.batch:
        if case.head.kept_rows is not None and correction.get("rollout_is_batch_normalize"):
            links.append(Link(name="advantages", status="unknown", said=few))
        else:
            links.append(_weights(ref, correction))
    if asked.get("rollout_rs") is not None or "rollout_rs_kept" in case.batch:
        links.append(_rejected(ref, correction))
    needed = {"gae": "values", "remax": "reward_baselines"}.get(settings["adv_estimator"], "token_level_rewards")
    if missing := [name for name in ("advantages", "token_level_rewards", needed) if name not in case.batch]:
        raise Unknown(f"the capsule has no {missing[0]}")
    if case.head.kept_rows is not None and settings["adv_estimator"] not in _BY_PROMPT:
        return compare.mixed("advantages", [*links, Link(name="advantages", status="unknown", said=few)])
    for which, field in ((1, "returns"), (0, "advantages")):
        if field in case.batch:
            links.append(_estimated(ref, settings, which, field))
    return compare.mixed("advantages", links)


def _field(ref: Reference, name: str, dtype: torch.dtype) -> Tensor:
    found = ref.case.batch.get(name)
    if found is None:
        found = torch.zeros(ref.case.mask.shape if name != "reward_baselines" else (len(ref.case.rows),))
    found = found.to(dtype)
    return formulas.only(found, ref.case.mask) if found.ndim == 2 else found


def _estimated(ref: Reference, settings: Mapping[str, Any], which: int, field: str) -> Link:
    case = ref.case

    def wanted(dtype: torch.dtype, changed: Mapping[str, Any], shake: float = 0.0) -> Tensor:
        rewards, values = (_field(ref, name, dtype) for name in ("token_level_rewards", "values"))
        if shake:
            signs = torch.where(torch.rand(rewards.shape, generator=torch.Generator().manual_seed(7)) < 0.5, -1, 1)
            values = values * (1 + shake * signs)
            rewards = rewards * (1 + shake * signs) if settings["use_kl_in_reward"] else rewards
        chosen = {**settings, **changed}
        baselines = _field(ref, "reward_baselines", dtype)
        return formulas.estimate(chosen, rewards, case.mask, [row.uid for row in case.rows], values, baselines)[which]

    numbers = _numbers(ref, case.batch[field], wanted)
    causes: list[str] = []
    if bool(numbers.wrong.any()):
        tries = {words: wanted(torch.float64, changed) for words, changed in _settings_tried(settings).items()}
        causes = compare.explained(numbers, tries | _shapes_tried(ref, numbers, settings, which))
    return compare.judged("advantages", numbers, "", field, compare.places(case.rows, numbers, {}, case.mask), causes)


def _numbers(ref: Reference, found: Tensor, wanted: Callable[..., Tensor]) -> Numbers:
    """FOUND beside WANTED in float64; rounding: float32 beside it, and inputs moved by one rounding, worst of a row."""
    exact = wanted(torch.float64, {})
    noise = (wanted(torch.float32, {}).double() - exact).abs()
    noise = torch.maximum(noise, (wanted(torch.float64, {}, EPS) - exact).abs()).amax(-1, keepdim=True)
    noise = torch.maximum(noise, noise.median()) + EPS * exact.abs().amax(-1, keepdim=True)
    return Numbers(found, exact, noise.expand_as(exact), torch.ones_like(ref.case.mask))


def _settings_tried(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Other values of `algorithm.*` that are common mistakes."""
    name, gamma, lam = settings["adv_estimator"], float(settings["gamma"]), float(settings["lam"])
    tries: dict[str, dict[str, Any]] = {}
    if name in ("gae", "reinforce_plus_plus"):
        for other in (1.0, 0.99, 0.95, 0.9):
            tries[f"gamma {other:g}, the config says {gamma:g}"] = {"gamma": other}
            tries[f"lam {other:g}, the config says {lam:g}"] = {"lam": other}
        tries |= {"lam 0": {"lam": 0.0}, "gamma and lam exchanged": {"gamma": lam, "lam": gamma}}
    if name == "grpo":
        by_std = bool(settings["norm_adv_by_std_in_grpo"])
        words = "not divided by the standard deviation" if by_std else "divided by the standard deviation"
        tries[words] = {"norm_adv_by_std_in_grpo": not by_std}
    for other in ("grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"):
        if other != name:
            tries[f"those of {other}"] = {"adv_estimator": other}
    return tries


def _shapes_tried(ref: Reference, numbers: Numbers, settings: Mapping[str, Any], which: int) -> dict[str, Tensor]:
    case, mask, exact = ref.case, ref.case.mask, numbers.wanted
    rewards, values = (_field(ref, name, torch.float64) for name in ("token_level_rewards", "values"))
    uids = [row.uid for row in case.rows]
    raw = formulas.only(formulas.gae(rewards, values, mask, float(settings["gamma"]), float(settings["lam"])), mask)
    if settings["adv_estimator"] != "gae":
        present = mask.any(-1)
        raw = formulas.only(
            formulas.in_groups(rewards.sum(-1), present, uids, formulas.centred)[:, None] + 0 * rewards, mask
        )
        if settings["adv_estimator"] == "reinforce_plus_plus":
            raw = formulas.discounted(rewards, mask, float(settings["gamma"]))
    chosen = raw[mask]
    spread, mean = chosen.std().clamp(min=1e-12), chosen.mean()
    tries = {
        "with the opposite sign": -exact,
        "not whitened": raw,
        "divided by the standard deviation, the mean not taken off": formulas.only(raw / spread, mask),
        "the mean taken off, not divided by the standard deviation": formulas.only(raw - mean, mask),
        "those of the row before": exact.roll(1, 0),
        "those of the row after": exact.roll(-1, 0),
        "one token later": formulas.only(exact.roll(-1, 1), mask),
        "one token earlier": formulas.only(exact.roll(1, 1), mask),
        "the rewards themselves, without a baseline": formulas.only(rewards.sum(-1, keepdim=True) + 0 * rewards, mask),
        "all zero": torch.zeros_like(exact),
        "the mean of the whole batch taken off, not of the group": formulas.only(
            (rewards.sum(-1) - rewards.sum(-1).mean())[:, None] + 0 * rewards, mask
        ),
    }
    if which == 1:
        tries["advantages without values"] = raw
        tries["whitened advantages plus values"] = formulas.only(formulas.whitened(raw, mask) + values, mask)
    factor = float((numbers.found.double() * exact).sum() / exact.square().sum().clamp(min=1e-30))
    tries[f"times {factor:.4g}"] = exact * factor
    n = int(case.config("actor_rollout_ref.rollout.n", 1))
    if n > 1 and settings["adv_estimator"] in ("grpo", "rloo", "reinforce_plus_plus_baseline"):
        count = len(uids) // n
        strided = [str(at % count) for at in range(len(uids))]
        shifted = [str((at + n // 2) // n) for at in range(len(uids))]
        for words, others in (("groups taken as every n-th row", strided), ("groups shifted by half", shifted)):
            tries[words] = formulas.estimate(settings, rewards, mask, others, values, rewards[:, 0])[0]
        population = formulas.scaled(torch.tensor([0.0, 1.0, 1.0])) / formulas.scaled(torch.tensor([0.0, 1.0, 1.0]))
        tries["divided by the standard deviation with n, not n - 1, below"] = (
            exact * (n / (n - 1)) ** 0.5 * population[0]
        )
    return tries


def _token_rewards(ref: Reference, settings: Mapping[str, Any]) -> Link:
    case, mask = ref.case, ref.case.mask
    found, kind, coef = case.batch["token_level_rewards"], settings["kl_penalty"], 0.0
    if settings["use_kl_in_reward"]:
        fixed = settings["kl_ctrl"]["type"] == "fixed"
        known = float(settings["kl_ctrl"]["kl_coef"]) if fixed or case.head.step == 1 else case.head.kl_coef
        if known is None:
            raise Unknown("the capsule does not say the coefficient of KL in the reward")
        coef = float(known)
        wrong = "" if fixed else _not_due(ref, settings, coef) or _out_of_reach(ref, settings["kl_ctrl"], coef)
        if wrong:
            return compare.differs("advantages", wrong, 1)

    def wanted(dtype: torch.dtype, changed: Mapping[str, Any], shake: float = 0.0) -> Tensor:
        scores, old, reference = (
            _field(ref, name, dtype) for name in ("token_level_scores", "old_log_probs", "ref_log_probs")
        )
        kinds = changed.get("kind", kind)
        return formulas.rewards_with_kl(scores, old * (1 + shake), reference, mask, changed.get("coef", coef), kinds)

    numbers = _numbers(ref, found, wanted)
    causes: list[str] = []
    if bool(numbers.wrong.any()):
        kl = wanted(torch.float64, {"coef": 0.0}) - wanted(torch.float64, {"coef": 1.0})
        off = wanted(torch.float64, {"coef": 0.0}) - found.double()
        solved = float((off * kl).sum() / kl.square().sum().clamp(min=1e-30))
        tries = {"KL has the opposite sign": wanted(torch.float64, {"coef": -coef}),
                 f"a KL coefficient of {solved:.4g}, the config says {coef:g}": wanted(torch.float64, {"coef": solved}),
                 "without KL": wanted(torch.float64, {"coef": 0.0})}  # fmt: skip
        tries |= {f"KL by {other}": wanted(torch.float64, {"kind": other}) for other in ("k1", "abs", "k2", "k3")}
        causes = compare.explained(numbers, tries)
    return compare.judged(
        "advantages", numbers, "", "rewards of tokens", compare.places(case.rows, numbers, {}, mask), causes
    )


def _not_due(ref: Reference, settings: Mapping[str, Any], coef: float) -> str:
    """Why COEF is not what the adaptive controller makes of the step before, or nothing; that step's capsule is read.

    Ziegler et al. 2019, 2.2: times 1 + e n / horizon, e = KL / target - 1 held in ±0.2; the KL is the mean over each
    of n answers' tokens, then over answers, as verl takes it.
    """
    before = anchor.of_same_run(ref.case, ref.case.head.step - 1)
    if before is None or before.head.kl_coef is None or before.head.kept_rows is not None:
        return ""
    if not {"old_log_probs", "ref_log_probs"} <= before.batch.keys():
        return ""
    mask, control = before.mask, settings["kl_ctrl"]
    old, reference = (formulas.only(before.batch[name].double(), mask) for name in ("old_log_probs", "ref_log_probs"))
    tokens = formulas.only(formulas.kl(settings["kl_penalty"], old, reference), mask).sum(-1)
    mean = float((tokens / mask.sum(-1).clamp(min=1)).sum() / mask.any(-1).sum().clamp(min=1))
    target, horizon = float(control["target_kl"]), float(control["horizon"])
    due = before.head.kl_coef * (1 + min(max(mean / target - 1, -0.2), 0.2) * len(before.rows) / horizon)
    # Of KL near 0 the log-probabilities are rounded: to 2e-6 nats by far.
    if abs(coef - due) <= due * (1e-6 + 2e-6 / target * len(before.rows) / horizon):
        return ""
    return f"the coefficient of KL is {coef:g}; a KL of {mean:.4g} makes {due:g} of the {before.head.kl_coef:g} before"


def _out_of_reach(ref: Reference, control: Mapping[str, Any], coef: float) -> str:
    """Why the adaptive controller cannot have come to COEF, or nothing: Ziegler et al. 2019, arXiv:1909.08593, 2.2,
    multiplies by 1 + e n / horizon at each step, with the error e held in ±0.2 and n answers."""
    rows, steps = ref.case.head.rows, ref.case.head.step - 1
    most = 1 + 0.2 * rows / max(float(control.get("horizon") or 1.0), 1.0)
    begun = float(control["kl_coef"])
    low, high = begun * max(2 - most, 0.0) ** steps, begun * min(most**steps, 1e30)
    if low * 0.999 <= coef <= high * 1.001:
        return ""
    return f"the coefficient of KL is {coef:g}; from {begun:g} it can be {low:.4g} to {high:.4g} at this step"


def _weights(ref: Reference, settings: Mapping[str, Any]) -> Link:
    case, mask = ref.case, ref.case.mask
    found = case.batch.get("rollout_is_weights")
    if found is None or settings["rollout_is"] is None:
        asked = settings["rollout_is"]
        return compare.differs(
            "advantages", f"rollout_is is {asked}, and there are {'no ' if found is None else ''}weights", 0
        )

    def wanted(dtype: torch.dtype, changed: Mapping[str, Any], shake: float = 0.0) -> Tensor:
        old, engine = (_field(ref, name, dtype) for name in ("old_log_probs", "rollout_log_probs"))
        weights = formulas.importance(old * (1 + shake), engine, mask, {**settings, **changed})
        assert weights is not None
        return weights

    numbers = _numbers(ref, found, wanted)
    causes: list[str] = []
    if bool(numbers.wrong.any()):
        exact, level = numbers.wanted, settings["rollout_is"]
        other = "sequence" if level == "token" else "token"
        tries = {
            f"by {other}": wanted(torch.float64, {"rollout_is": other}),
            "not truncated": wanted(torch.float64, {"rollout_is_threshold": 1e30}),
            "normalised otherwise": wanted(
                torch.float64, {"rollout_is_batch_normalize": not settings["rollout_is_batch_normalize"]}
            ),
            "the inverse ratio": formulas.only(1 / exact.clamp(min=1e-12), mask),
            "all one": mask.double(),
        }
        causes = compare.explained(numbers, tries)
    return compare.judged(
        "advantages", numbers, "", "importance weights", compare.places(case.rows, numbers, {}, mask), causes
    )


def _rejected(ref: Reference, settings: Mapping[str, Any]) -> Link:
    """Which tokens were rejected; those at a bound but for rounding may be either."""
    case, mask = ref.case, ref.case.mask
    found, asked = case.batch.get("rollout_rs_kept"), settings.get("rollout_rs")
    if found is None or asked is None:
        there = "no record of what was rejected" if found is None else "a record of what was rejected"
        return compare.differs("advantages", f"rollout_rs is {asked}, and there is {there}", 0)
    old, engine = (_field(ref, name, torch.float64) for name in ("old_log_probs", "rollout_log_probs"))
    surely, perhaps = mask.clone(), mask.clone()
    for values, low, high in formulas.rejected(old, engine, mask, settings):
        slack = 4 * EPS * (1 + values.abs())
        surely &= (values - slack >= low) & (values + slack <= high)
        perhaps &= (values + slack >= low) & (values - slack <= high)
    wrong = mask & ((surely & ~found.bool()) | (~perhaps & found.bool()))
    if not bool(wrong.any()):
        return Link(name="advantages", status="same", compared=int(mask.sum()))
    kept = int((wrong & found.bool()).sum())
    rows = [f"row {case.rows[at].index}" for at in wrong.any(-1).nonzero()[:, 0].tolist()]
    said = f"{int(wrong.sum())} tokens are {'kept' if kept else 'rejected'} against rollout_rs={asked}"
    return compare.differs("advantages", said, int(mask.sum()), rows)
