"""The link from loss to gradient, and what a wrong gradient is made of."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from rlcheck.facts.step import Link
from rltrain.proof import compare, formulas
from rltrain.proof.compare import EPS, FACTOR, Unknown
from rltrain.proof.links_update import span, updates
from rltrain.proof.reference import Reference
from rltrain.proof.update import Update, norm

_MOST_PASSES = 32


def gradient(ref: Reference) -> Link:
    """The reduced gradient of each role's first mini batch, tensor by tensor."""
    return compare.each("gradient", [(update.role, lambda u=update: _gradient(ref, u)) for update in updates(ref)])


def _gradient(ref: Reference, update: Update) -> Link:
    recorded = ref.case.weights.get(f"{update.role}.gradient")
    if recorded is None:
        raise Unknown(f"the capsule has no gradient of the {update.role}")
    exact, low = update.first
    bad: list[tuple[float, str]] = []
    worst = (0.0, 0.0, 0.0)
    for name, wanted in exact.gradient.items():
        if name not in recorded:
            bad.append((torch.inf, f"{name}: it has no gradient"))
            continue
        found, wanted = recorded[name].double(), _cut(wanted, recorded[name])
        noise = float((_cut(low.gradient[name], recorded[name]).double() - wanted).norm())
        # A bias of the last layer is a sum over all tokens: it is rounded otherwise in each order.
        bound = FACTOR * noise + EPS * float(wanted.norm()) + 0.5 * EPS * exact.norm
        gap = float((found - wanted).norm())
        if not (gap < torch.inf and bound < torch.inf):  # what is no number here or there is never the same
            gap, bound = torch.inf, 0.0
        worst = max(worst, (gap / max(bound, 1e-30), gap, bound))
        if gap > bound:
            bad.append(
                (
                    gap / max(bound, 1e-30),
                    f"{name}: differs by {gap / max(float(wanted.norm()), 1e-30):.3g} of its length",
                )
            )
    compared = len(exact.gradient)
    result = Link(name="gradient", status="differs" if bad else "same", compared=compared, unit="",
                  largest=worst[1] if worst[1] < torch.inf else None, bound=worst[2])  # fmt: skip
    if not bad:
        return compare.mixed("gradient", [result, *_ranks_own(update)])
    places = [line for _, line in sorted(bad, key=lambda one: -one[0])]
    said = f"the gradient of the {update.role} differs in {len(bad)} of {compared} tensors"
    causes = _causes(update, recorded)
    return Link(name="gradient", status="differs", said=said, compared=compared, largest=result.largest,
                bound=result.bound, where=tuple(places[:5]), causes=tuple(causes))  # fmt: skip


def _ranks_own(update: Update) -> list[Link]:
    """What each rank gave to the reduction of the first mini batch, pass by pass: ranks times its share's gradient."""
    micros, (exact, low) = update.minis[0].micro_batches, update.first
    known = [at for at, micro in enumerate(micros) if micro.grad_norm is not None]
    if not known or len(update.passes) != len(micros):
        return []
    ranks, bad, worst = update.case.head.world_size, list[str](), (0.0, 0.0, 0.0)
    size = sum(tensor.numel() for tensor in exact.gradient.values())
    apart = norm(low.gradient[name].double() - found.double() for name, found in exact.gradient.items())
    for at in known:
        found, wanted = float(micros[at].grad_norm or 0.0), ranks * exact.norms[at]
        # Squares are summed in float32: its errors go as the root of their number.
        # The difference of two lengths may be 0 by chance; that of the gradients is not.
        bound = FACTOR * (ranks * abs(low.norms[at] - exact.norms[at]) + EPS * ranks * exact.norm)
        bound += EPS * size**0.5 * wanted + ranks * apart
        gap = abs(found - wanted)
        worst = max(worst, (gap / max(bound, 1e-30), gap, bound))
        if not gap <= bound:
            words = (
                f"rank {micros[at].rank}, rows {span(micros[at].rows)}"
                if micros[at].rows
                else f"rank {micros[at].rank}"
            )
            bad.append(f"{words}: {found:.6g}, the reference {wanted:.6g}")
    said = (
        f"{len(bad)} of {len(known)} passes of the {update.role} gave ranks' gradients of another length" if bad else ""
    )
    return [Link(name="gradient", status="differs" if bad else "same", said=said, compared=len(known), largest=worst[1],
                 bound=worst[2], where=tuple(bad[:5]))]  # fmt: skip


def _cut(tensor: Tensor, like: Tensor) -> Tensor:
    """TENSOR, or as many of its first numbers as LIKE has."""
    return tensor if tensor.shape == like.shape else tensor.flatten()[: like.numel()].reshape(like.shape)


def _causes(update: Update, recorded: Mapping[str, Tensor]) -> list[str]:
    """The recorded gradient as a sum of those of passes, of ranks and of the loss's parts, by least squares."""
    mini, counts, model = update.minis[0], update.counts(update.rows_of(0)), update.model(False)
    factors = _fit(recorded, [update.first[0].gradient])
    if factors is not None and abs(factors[0] - 1) > 1e-3:
        return [_named_factor(update, factors[0])]
    parts = [name for name in ("pg_loss", "entropy_loss", "kl_loss") if name in mini.micro_batches[0].terms]
    if update.role == "actor" and len(parts) > 1:
        found = _fit(recorded, [update.gradient(model, update.rows_of(0), counts, part)[0] for part in parts])
        wanted = {
            "pg_loss": 1.0,
            "entropy_loss": -float(update.settings["entropy_coeff"]),
            "kl_loss": float(update.settings["kl_loss_coef"]),
        }
        if found is not None:
            both = {part: (value, wanted[part]) for part, value in zip(parts, found, strict=True)}
            odd = {part: pair for part, pair in both.items() if abs(pair[0] - pair[1]) > 1e-3 * abs(pair[1]) + 1e-6}
            return [f"'{part}' counts {has:.4g} times, the config says {right:g}" for part, (has, right) in odd.items()]
    passes = [micro for micro in mini.micro_batches if micro.rows][:_MOST_PASSES]
    here = update.case.here
    groups = {f"rank {rank}": here(share) for rank, share in enumerate(mini.rows) if share}
    if len(passes) > len(groups):
        groups = {f"the pass of rank {micro.rank} over rows {span(micro.rows)}": here(micro.rows) for micro in passes}
    if len(groups) > 1:
        found = _fit(recorded, [update.gradient(model, rows, counts)[0] for rows in groups.values()])
        if found is not None:
            return [
                f"{name} counts {value:.3g} times"
                for name, value in zip(groups, found, strict=True)
                if abs(value - 1) > 1e-2
            ][:4]
    lost = [name for name in recorded if not bool(recorded[name].any())]
    return [f"no gradient reached {len(lost)} tensors"] if lost else []


def _fit(recorded: Mapping[str, Tensor], gradients: Sequence[Mapping[str, Tensor]]) -> list[float] | None:
    """Factors with which GRADIENTS add up to what was RECORDED; None where they do not."""
    count = len(gradients)
    gram, right, whole = torch.zeros(count, count).double(), torch.zeros(count).double(), 0.0
    for name, found in recorded.items():
        if name not in gradients[0]:
            continue
        columns = torch.stack([_cut(one[name], found).double().flatten() for one in gradients])
        gram, right = gram + columns @ columns.T, right + columns @ found.double().flatten()
        whole += float(found.double().square().sum())
    solved = torch.linalg.lstsq(gram, right).solution
    left = whole - float(2 * solved @ right - solved @ gram @ solved)
    if not whole or not left <= (1e-3 * whole**0.5) ** 2:
        return None
    return [float(value) for value in solved]


def _named_factor(update: Update, factor: float) -> str:
    """FACTOR, with what else is as large."""
    ranks, mini = update.case.head.world_size, update.minis[0]
    passes = max(sum(micro.rank == rank for micro in mini.micro_batches) for rank in range(ranks))
    names = {
        ranks: "ranks",
        passes: "passes of a rank",
        ranks * passes: "passes of all ranks",
        len(update.minis): "mini batches",
    }
    for number, words in names.items():
        for value, how in ((float(number), "times"), (1 / max(number, 1), "divided by")):
            if number > 1 and abs(factor / value - 1) < 1e-3:
                return f"all of it {how} {number}, the number of {words}"
    clipped = formulas.clip_factor(update.first[0].norm, update.settings["grad_clip"])
    if abs(factor / clipped - 1) < 1e-3 and clipped != 1:
        return "it was already clipped"
    return "it has the opposite sign" if abs(factor + 1) < 1e-3 else f"all of it times {factor:.4g}"
