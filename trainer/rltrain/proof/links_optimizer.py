"""The links after the gradient: clip and optimizer."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlcheck.facts.step import Link
from rltrain.proof import compare, formulas
from rltrain.proof.compare import EPS, FACTOR, Unknown, differs, same
from rltrain.proof.formulas import State
from rltrain.proof.links_update import known_rows, updates
from rltrain.proof.reference import Reference, policy_stat, value_stat
from rltrain.proof.update import Step, Update, norm

_MOMENTS = ("", "exp_avg.", "exp_avg_sq.")
_WORDS = ("weights", "first moments", "second moments")
_SEEN = 1e-3


def clip(ref: Reference) -> Link:
    """The norm of the recorded gradient, what was skipped, and the factor that the moments show."""
    return compare.each("clip", [(update.role, lambda u=update: _clip(ref, u)) for update in updates(ref)])


def _clip(ref: Reference, update: Update) -> Link:
    first, recorded = update.minis[0], ref.case.weights.get(f"{update.role}.gradient")
    for number, mini in enumerate(update.minis):
        # A norm that is no finite number is None.
        if (mini.grad_norm is None) == mini.applied:
            return differs(
                "clip",
                f"step {number} of the {update.role}: norm {mini.grad_norm}, {'' if mini.applied else 'not '}applied",
                1,
            )
    if recorded is None or not ref.case.whole or first.grad_norm is None:
        raise Unknown("the whole gradient was not kept")
    length = norm(recorded.values())
    bound = FACTOR * EPS * length
    if abs(first.grad_norm - length) > bound:
        ranks = ref.case.head.world_size
        tries = {"the largest number of it": max(float(one.abs().max()) for one in recorded.values()),
                 "clipped already": float(update.settings["grad_clip"] or 0), "squared": length**2,
                 "times the number of ranks": length * ranks, "of one rank's share": length / ranks**0.5,
                 "the tensors' norms summed": sum(float(one.double().norm()) for one in recorded.values())}  # fmt: skip
        causes = [words for words, value in tries.items() if abs(value - first.grad_norm) <= max(bound, 1e-4 * length)]
        said, gap = (
            f"the norm is {first.grad_norm:.6g}, the recorded gradient's is {length:.6g}",
            first.grad_norm - length,
        )
        return Link(name="clip", status="differs", said=said, compared=1, largest=abs(gap), bound=bound,
                    where=(f"the {update.role}",), causes=tuple(causes))  # fmt: skip
    wanted = update.clip_factor(length)
    found = _factor(update, recorded)
    if found is not None and abs(found / wanted - 1) > _SEEN:
        limit = update.settings["grad_clip"]
        causes = (
            ["not clipped"] if abs(found - 1) < _SEEN else [f"clipped to {found * length:.4g}, the config says {limit}"]
        )
        if abs(found / wanted**2 - 1) < _SEEN:
            causes = ["clipped twice"]
        said = f"the gradient of the {update.role} was multiplied by {found:.5g}, not by {wanted:.5g}"
        return Link(name="clip", status="differs", said=said, compared=2, largest=abs(found - wanted),
                    bound=_SEEN * wanted, causes=tuple(causes))  # fmt: skip
    return Link(
        name="clip", status="same", compared=1 + (found is not None), largest=abs(first.grad_norm - length), bound=bound
    )


def _factor(update: Update, gradient: Mapping[str, Tensor]) -> float | None:
    """What the gradient was multiplied by, where both moments agree on it; None where they cannot show it."""
    weights = update.case.weights
    if len(update.minis) != 1 or not update.minis[0].applied:
        return None
    factors: list[float] = []
    for moment, beta, power in (
        ("exp_avg", update.settings["optim"]["betas"][0], 1),
        ("exp_avg_sq", update.settings["optim"]["betas"][1], 2),
    ):
        after, before = weights.get(f"{update.role}.{moment}.after"), weights.get(f"{update.role}.{moment}.before", {})
        if after is None:
            return None
        over = under = 0.0
        for name, found in gradient.items():
            if name in after:
                added = (1 - beta) * found.double() ** power
                old = before[name].double() if name in before else 0.0
                over += float(((after[name].double() - beta * old) * added).sum())
                under += float(added.square().sum())
        factors.append(max(over / under if under else 0.0, 0.0) ** (1 / power))
    first, second = factors
    return first if first and abs(second / first - 1) < _SEEN else None


def optimizer(ref: Reference) -> Link:
    """Learning rates, counts, and AdamW from the recorded gradient to the weights after the step."""
    parts: list[tuple[str, Callable[[], Link]]] = []
    for update in updates(ref):
        parts += [
            (update.role, lambda u=update: u.rates() or _rates(ref, u)),
            (update.role, lambda u=update: _state(ref, u)),
        ]
    idle = [role for role in ("critic", "actor") if not getattr(ref.case.head, role)]
    return compare.each("optimizer", [(role, lambda r=role: _idle(ref, r)) for role in idle] + parts)


def _idle(ref: Reference, role: str) -> Link:
    before, after = (ref.case.weights.get(f"{role}.{when}", {}) for when in ("before", "after"))
    moved = [name for name, tensor in before.items() if name in after and not torch.equal(tensor, after[name])]
    if moved:
        return differs(
            "optimizer", f"the {role} did not learn, and {len(moved)} of its tensors moved", len(before), moved
        )
    return same("optimizer", len(before)) if before else compare.absent("optimizer", "")


def _rates(ref: Reference, update: Update) -> Link:
    head, config, optim = ref.case.head, ref.case.config, update.settings["optim"]
    begins = max(int(config("trainer.critic_warmup", 0)), 1) if update.role == "actor" else 1
    per_step = int(config("data.train_batch_size"))
    each = -(-per_step // int(update.settings["ppo_mini_batch_size"])) * int(update.settings["ppo_epochs"])
    total, done, begun = head.total_steps, max(head.step - begins, 0), head.start_optimizer_steps.get(update.role, 0)
    # A run that was resumed may have had other mini batches before.
    most = begun + max(head.step - max(begins, head.start_step + 1), 0) * each
    first, epochs = update.minis[0], int(config("trainer.total_epochs") or 0)
    asked = int(config("trainer.total_training_steps") or epochs * (head.data_rows // per_step))
    if head.trainer == "rltrain" and asked not in (0, total):
        return differs("optimizer", f"the schedule is over {total} steps, the config asks for {asked}", 1)
    if head.start_step and not head.start_optimizer_steps and first.optimizer_steps > most:
        raise Unknown("the capsule does not say how many optimizer steps were taken before the run was resumed")
    if not begun <= first.optimizer_steps <= most or (most and not first.optimizer_steps):
        said = (
            f"the {update.role} has taken {first.optimizer_steps} optimizer steps before step {head.step}, not {most}"
        )
        return differs("optimizer", said, 1, causes=["the schedule began again"] if not first.optimizer_steps else [])
    for number, mini in enumerate(update.minis):
        if (mini.adam_steps or 0) != mini.optimizer_steps:
            causes = ["its state was not restored, or was made again"] if not mini.adam_steps else []
            said = (
                f"Adam has counted {mini.adam_steps or 0} steps of the {update.role}, {mini.optimizer_steps} were taken"
            )
            return differs("optimizer", said, 1, [f"mini batch {number}"], causes)
        wanted = formulas.learning_rate(optim, done, total)
        if abs(mini.lr - wanted) > 1e-6 * wanted:
            causes = [f"that of step {begins + other}" for other in range(total + 1)
                      if abs(formulas.learning_rate(optim, other, total) - mini.lr) <= 1e-6 * mini.lr][:1]  # fmt: skip
            causes = causes or [f"{mini.lr / float(optim['lr']):.4g} of the peak"]
            said = f"the learning rate of the {update.role} is {mini.lr:.6g}, the schedule says {wanted:.6g}"
            return differs("optimizer", said, len(update.minis), [f"mini batch {number}"], causes)
    return same("optimizer", len(update.minis))


def _state(ref: Reference, update: Update) -> Link:
    """Weights and moments after the step."""
    for moment in ("before", "gradient", "after"):
        if f"{update.role}.{moment}" not in ref.case.weights:
            raise Unknown("; ".join(ref.case.head.missing) or f"the capsule has no '{update.role}.{moment}'")
    return _one(ref, update) if len(update.minis) == 1 else _many(ref, update)


def _one(ref: Reference, update: Update) -> Link:
    wanted = stepped(update)
    eps = float(torch.finfo(update.dtype).eps)
    bad: list[tuple[float, str]] = []
    for name, states in wanted.items():
        before = update.case.weights[f"{update.role}.before"][name].double()
        for kind, words, exact in zip(_MOMENTS, _WORDS, states, strict=True):
            after = ref.case.weights.get(f"{update.role}.{kind}after", {}).get(name)
            if after is None:
                gone = bool((exact != 0).any()) and update.minis[0].applied
                if gone:
                    bad.append((math.inf, f"{words} of {name}: there are none after the step"))
                continue
            # Weights are rounded once by the decay and once by the step; moments by a product and a sum.
            bound = 2 * eps * exact.abs() + (
                FACTOR * eps * (exact - before).abs() if not kind else 6 * eps * exact.abs()
            )
            bound += FACTOR * eps * _terms(update, name, kind, states) + _betas(update, name, kind, states)
            gap = (after.double() - exact).abs().nan_to_num(nan=torch.inf)
            if bool((gap > bound + 1e-30).any()):
                share = float(gap.norm() / (exact - before if not kind else exact).norm().clamp(min=1e-30))
                bad.append(
                    (share, f"{words} of {name}: differ by {share:.3g} of {'the step' if not kind else 'their length'}")
                )
    if not bad:
        return same("optimizer", sum(states[0].numel() for states in wanted.values()))
    said = f"AdamW gives other numbers for {len(bad)} of {3 * len(wanted)} tensors of the {update.role}"
    places = [line for _, line in sorted(bad, key=lambda one: -one[0])]
    return differs("optimizer", said, len(wanted), places, _step_causes(ref, update))


def _terms(update: Update, name: str, kind: str, states: State) -> Tensor:
    """The size of what a moment is summed from; rounding goes with it, and through the first moment into the step."""
    before = update.case.weights.get(f"{update.role}.{kind or 'exp_avg.'}before", {}).get(name)
    size = torch.zeros(1).double() if before is None else before.double().abs()
    if kind:
        return size
    (b1, b2), count = update.settings["optim"]["betas"], (update.minis[0].adam_steps or 0) + 1
    root = (states[2] / (1 - b2**count)).sqrt() + float(update.settings["optim"]["eps"])
    return update.minis[0].lr * (2 * size + states[1].abs()) / (1 - b1**count) / root


def _betas(update: Update, name: str, kind: str, states: State) -> Tensor:
    """What an optimizer that keeps its betas in float32 makes of it, as torch's fused AdamW does on a GPU.

    1 - 0.999 is off by 1.3e-5 of itself there, in what is added to a moment and in the correction of its bias.
    """
    lost = [EPS / 4 / (1 - float(beta)) for beta in update.settings["optim"]["betas"]]
    if not kind:
        return sum(lost) * (states[0] - update.case.weights[f"{update.role}.before"][name].double()).abs()
    which = _MOMENTS.index(kind)
    old = update.case.weights.get(f"{update.role}.{kind}before", {}).get(name)
    beta = float(update.settings["optim"]["betas"][which - 1])
    added = states[which] if old is None else states[which] - beta * old.double()
    return lost[which - 1] * added.abs()


def stepped(update: Update, **changed: Any) -> dict[str, State]:
    """Weights and moments after one step from the recorded gradient, float64; CHANGED: what is tried otherwise."""
    weights, mini = update.case.weights, update.minis[0]
    gradient = weights[f"{update.role}.gradient"]
    length = mini.grad_norm if mini.grad_norm is not None else norm(gradient.values())
    factor = update.clip_factor(length)
    result: dict[str, State] = {}
    for name, found in gradient.items():
        optim = {**update.optim(name), **changed.get("optim", {})}
        before = weights[f"{update.role}.before"][name].double()
        moments = [weights.get(f"{update.role}.{kind}before", {}).get(name) for kind in _MOMENTS[1:]]
        first, second = (torch.zeros_like(before) if m is None or changed.get("empty") else m.double() for m in moments)
        grad = found.double() * factor + (float(optim["weight_decay"]) * before if changed.get("l2") else 0)
        used = {**optim, "weight_decay": 0.0} if changed.get("l2") else optim
        count = changed.get("count", mini.adam_steps or 0)
        state = formulas.adamw(used, (before, first, second), grad, changed.get("lr", mini.lr), count)
        result[name] = state if mini.applied else (before, first, second)
    return result


def _step_causes(ref: Reference, update: Update) -> list[str]:
    """AdamW otherwise: which of these gives the recorded weights."""
    mini, optim, weights = update.minis[0], update.settings["optim"], ref.case.weights
    before, after = weights[f"{update.role}.before"], weights[f"{update.role}.after"]
    still = [name for name in weights[f"{update.role}.gradient"] if torch.equal(before[name], after[name])]
    moved = stepped(update)
    if still and len(still) < len(before):
        return [f"{len(still)} tensors did not move, the first is '{still[0]}'"]
    if still:
        return ["no tensor moved"]
    b1, b2 = (float(beta) for beta in optim["betas"])
    tries: dict[str, dict[str, Any]] = {
        "its moments were empty": {"empty": True},
        "its moments were empty and its count 0": {"empty": True, "count": 0},
        "its count was 0": {"count": 0},
        "its count was one more": {"count": (mini.adam_steps or 0) + 1},
        "the bias of the moments was not corrected": {"count": 10**9},
        "no weight decay": {"optim": {"weight_decay": 0.0}},
        "weight decay in the gradient, as in Adam": {"l2": True},
        "betas (0.9, 0.95)": {"optim": {"betas": (0.9, 0.95)}},
        "betas (0.9, 0.999)": {"optim": {"betas": (0.9, 0.999)}},
        "betas exchanged": {"optim": {"betas": (b2, b1)}},
    }
    solved = _solved(moved, before, after, float(optim["weight_decay"]), mini.lr)
    if solved is not None:
        tries[f"a learning rate of {solved:.5g}, recorded is {mini.lr:.5g}"] = {"lr": solved}
    gaps = {words: _distance(stepped(update, **changed), after) for words, changed in tries.items()}
    whole = _distance(moved, after)
    return [words for words, gap in sorted(gaps.items(), key=lambda one: one[1]) if gap < compare.GONE * whole][:2]


def _distance(states: Mapping[str, State], after: Mapping[str, Tensor]) -> float:
    return norm(states[name][0] - after[name].double() for name in states)


def _solved(
    moved: Mapping[str, State], before: Mapping[str, Tensor], after: Mapping[str, Tensor], decay: float, lr: float
) -> float | None:
    """The learning rate that makes the recorded step of the reference's direction."""
    over = under = 0.0
    for name, (weights, _, _) in moved.items():
        way = (weights - before[name].double()) / lr
        over += float((way * (after[name].double() - before[name].double())).sum())
        under += float(way.square().sum())
    return over / under if under else None


def _many(ref: Reference, update: Update) -> Link:
    """Several steps: the reference follows them all; rounding is how far its float32 goes from its float64."""
    exact, low = update.follow(False), update.follow(True)
    for number in range(1, len(update.minis)):
        if (found := _later(ref, update, number, exact[0], low[0])) is not None:
            return found
    bad: list[tuple[float, str]] = []
    worst = (0.0, 0.0, 0.0)
    for name, states in exact[1].items():
        before = ref.case.weights[f"{update.role}.before"][name].double()
        for which, (kind, words) in enumerate(zip(_MOMENTS, _WORDS, strict=True)):
            after = ref.case.weights.get(f"{update.role}.{kind}after", {}).get(name)
            if after is None and any(mini.applied for mini in update.minis) and bool((states[which] != 0).any()):
                bad.append((math.inf, f"{words} of {name}: there are none after the step"))
            if after is None or (which == 0 and not after.is_floating_point()):
                continue
            noise = float((low[1][name][which].double() - states[which]).norm())
            bound = FACTOR * noise + float(torch.finfo(update.dtype).eps) * float(states[which].norm())
            bound += FACTOR * _floor(update, states, which, max(step.norm for step in exact[0]))
            bound += float(_betas(update, name, kind, states).norm())
            gap = float((after.double() - states[which]).norm())
            gap = gap if gap == gap else torch.inf
            worst = max(worst, (gap / max(bound, 1e-30), gap, bound))
            if gap > bound:
                share = gap / max(float((states[which] - (before if not kind else 0)).norm()), 1e-30)
                bad.append(
                    (share, f"{words} of {name}: differ by {share:.3g} of {'the step' if not kind else 'their length'}")
                )
    compared = 3 * len(exact[1])
    if not bad:
        return Link(name="optimizer", status="same", compared=compared, largest=worst[1], bound=worst[2])
    steps = f"{len(update.minis)} optimizer steps"
    said = f"after {steps} {len(bad)} of {compared} tensors of the {update.role} are not the reference's"
    places = [line for _, line in sorted(bad, key=lambda one: -one[0])]
    return differs("optimizer", said, compared, places, _many_causes(ref, update, exact[1]))


def _floor(update: Update, states: State, which: int, length: float) -> float:
    """What rounding of a gradient of LENGTH does to a tensor whose own gradient is no more than rounding.

    Such are biases of keys, which the softmax takes out again: Adam makes steps as long as any of them. Numbers that
    no token reaches, as rows of an embedding, have a gradient of exactly 0 on both sides.
    """
    small = 0.01 * EPS * length
    if which:
        return small**which
    taken = update.minis[-1]
    root = (states[2] / (1 - update.settings["optim"]["betas"][1] ** ((taken.adam_steps or 0) + 1))).sqrt()
    steps = (small / (root + float(update.settings["optim"]["eps"]))).clamp(max=1)
    return taken.lr * float(steps.where(states[2] > 0, 0.0).norm())


def _later(ref: Reference, update: Update, number: int, exacts: Sequence[Step], lows: Sequence[Step]) -> Link | None:
    """What a later step read and its norm, beside the reference's own way there."""
    exact, low, longest = exacts[number], lows[number], max(step.norm for step in exacts)
    mini, case, key = update.minis[number], ref.case, f"{update.role}.{number}"
    found, rows = case.batch.get(f"{key}/{update.field}"), known_rows(update, number)
    if found is not None and rows:
        chosen = torch.zeros(len(case.rows), 1, dtype=torch.bool)
        chosen[rows] = True
        mask = case.mask & chosen
        noise = torch.where(mask, (low.read - exact.read).abs(), 0.0).amax().clamp(min=EPS).expand(mask.shape)
        numbers = compare.Numbers(found, exact.read, noise, mask)
        if bool(numbers.wrong.any()):
            ranks = update.ranks_of(number)
            what = "log-probabilities" if update.role == "actor" else "values"
            what += f" of the {update.role} at its optimizer step {number}"
            first = ref.read(f"{update.role}.before", update.role, *_stat(ref, update)).exact[0]
            causes = compare.explained(numbers, {"the weights of the first step: it did not move": first})
            return compare.judged(
                "optimizer", numbers, "", what, compare.places(case.rows, numbers, ranks, mask), causes
            )
    if mini.grad_norm is not None and math.isfinite(mini.grad_norm):
        noise = norm(low.gradient[name].double() - exact.gradient[name] for name in exact.gradient)
        bound, gap = FACTOR * (noise + EPS * max(exact.norm, 0.01 * longest)), abs(mini.grad_norm - exact.norm)
        if gap > bound:
            said = f"the norm at step {number} of the {update.role} is {mini.grad_norm:.6g}, not {exact.norm:.6g}"
            return Link(name="optimizer", status="differs", said=said, compared=1, largest=gap, bound=bound)
    return None


def _stat(ref: Reference, update: Update) -> tuple[str, Any]:
    if update.role == "critic":
        return "values", value_stat
    return f"policy {ref.temperature}", policy_stat(ref.temperature)


def _many_causes(ref: Reference, update: Update, exact: Mapping[str, State]) -> list[str]:
    before, after = (ref.case.weights[f"{update.role}.{when}"] for when in ("before", "after"))
    still = [name for name in exact if name in after and torch.equal(before[name], after[name])]
    if still:
        return [f"{len(still)} of {len(exact)} tensors did not move, the first is '{still[0]}'"]
    over = under = 0.0
    for name, (weights, _, _) in exact.items():
        way, found = weights - before[name].double(), after[name].double() - before[name].double()
        over, under = over + float((way * found).sum()), under + float(way.square().sum())
    factor = over / under if under else 1.0
    return [f"the whole way is {factor:.4g} times as long"] if abs(factor - 1) > _SEEN else []
