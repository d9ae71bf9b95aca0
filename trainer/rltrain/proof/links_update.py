"""The links of an update: its rows, its forward passes, loss and gradient."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from rlcheck.facts.capsule import MiniRecord
from rlcheck.facts.step import Link
from rltrain.proof import compare, order
from rltrain.proof.compare import EPS, Numbers, Unknown, differs, row_name, same
from rltrain.proof.links_forward import has_critic, policy_causes
from rltrain.proof.read import Case
from rltrain.proof.reference import Reference, policy_stat, value_stat
from rltrain.proof.trl_update import TrlUpdate
from rltrain.proof.update import Counts, Update

_MOST_ROWS = 50_000_000
"""Of mini batches of all epochs."""
_COPIES = ("advantages", "old_log_probs", "values", "returns", "responses")


def updates(ref: Reference) -> list[Update]:
    """The roles that learnt in this step.

    Raises:
        Unknown: nothing was recorded of updates.
    """
    head = ref.case.head
    if not head.actor and not head.critic:
        raise Unknown("; ".join(head.missing) or "no update was recorded")
    if "updates" not in ref.kept:
        kind = TrlUpdate if ref.case.head.trainer == "trl" else Update
        ref.kept["updates"] = [kind(ref, role) for role in ("critic", "actor") if getattr(head, role)]
    return ref.kept["updates"]


def update_rows(ref: Reference) -> Link:
    """Which rows make a mini batch, which rank has them, in which pass; and that they carry what was computed."""
    case, head = ref.case, ref.case.head
    roles, links = updates(ref), list[Link]()
    learns = {"actor": head.step >= int(case.config("trainer.critic_warmup", 0)), "critic": has_critic(case)}
    for role, wanted in learns.items():
        if wanted != any(update.role == role for update in roles):
            how = "did not learn" if wanted else "learnt"
            return differs("update-rows", f"the {role} {how} at step {head.step}, unlike the config says", 1)
    if (ranks := _ranks(case)) and ranks != head.world_size:
        return differs("update-rows", f"{head.world_size} ranks learnt, the config asks for {ranks}", 1)
    if head.kept_rows is not None:
        said = f"the capsule keeps {len(case.rows)} of {head.rows} rows: which rank has which was not recomputed"
        links.append(Link(name="update-rows", status="unknown", said=said))
    else:
        for update in roles:
            if (found := _wrong_minis(ref, update)) is not None:
                return found
        links.append(same("update-rows", len(case.rows) * len(roles)))
    links += [link for update in roles for number in range(len(update.minis)) for link in copies(ref, update, number)]
    return compare.mixed("update-rows", links)


def _ranks(case: Case) -> int:
    """Training ranks by the config; 0 where it does not say."""
    if case.config("trainer.device") == "cpu":
        return int(case.config("trainer.num_cpu_ranks") or 0)
    return int(case.config("trainer.nnodes") or 0) * int(case.config("trainer.n_gpus_per_node") or 0)


def _wrong_minis(ref: Reference, update: Update) -> Link | None:
    case, role, settings = ref.case, update.role, update.settings
    size = int(settings["ppo_mini_batch_size"]) * int(case.config("actor_rollout_ref.rollout.n", 1))
    shuffle, epochs, head = bool(settings["shuffle"]), int(settings["ppo_epochs"]), case.head
    if size < 1 or epochs * len(case.rows) > _MOST_ROWS:
        raise Unknown(f"mini batches of {size} rows over {epochs} epochs are too many to be recomputed")
    wanted = order.minis_of(role, case.lengths, size, epochs, shuffle, head.seed, head.step)
    if len(wanted) != len(update.minis):
        said = f"the {role} took {len(update.minis)} optimizer steps, the config asks for {len(wanted)}"
        return differs("update-rows", said, len(wanted))
    for number, (rows, mini) in enumerate(zip(wanted, update.minis, strict=True)):
        words, had = f"mini batch {number} of the {role}", sorted(row for rank in mini.rows for row in rank)
        if had != sorted(rows):
            lost, more = sorted(set(rows) - set(had)), set(had) - set(rows)
            twice = len(had) - len(set(had))
            said = f"{words} lacks {len(lost)} of its {len(rows)} rows, has {len(more)} of others and {twice} twice"
            sets = [sorted(other) for other in wanted]
            causes = [f"its rows are those of mini batch {sets.index(had)}"] if had in sets else []
            other = order.minis_of(role, case.lengths, size, epochs, not shuffle, head.seed, head.step)[number]
            causes += ["shuffled otherwise than the config says"] if had == sorted(other) else []
            return differs("update-rows", said, len(rows), [row_name(case.rows[row], row) for row in lost], causes)
        if (found := _wrong_ranks(ref, mini, rows, words)) is not None:
            return found
    return None


def _wrong_ranks(ref: Reference, mini: MiniRecord, rows: Sequence[int], words: str) -> Link | None:
    case = ref.case
    shares = order.dealt(rows, case.lengths, case.head.world_size, bool(case.config("trainer.balance_batch", True)))
    had = [sorted(share) for share in mini.rows] + [[]] * (len(shares) - len(mini.rows))
    if odd := [rank for rank, share in enumerate(shares) if had[rank] != sorted(share)]:
        causes = ["the shares of ranks are exchanged"] if sorted(had) == sorted(map(sorted, shares)) else []
        said = f"{words}: rank {odd[0]} has other rows than it is dealt"
        return differs("update-rows", said, len(rows), [f"rank {rank}" for rank in odd], causes)
    for rank, share in enumerate(shares):
        read = sorted(row for micro in mini.micro_batches if micro.rank == rank for row in micro.rows)
        if read != sorted(share):
            lost = sorted(set(share) - set(read))
            said = f"{words}: the passes of rank {rank} read {len(read)} rows, {len(lost)} of its {len(share)} not"
            return differs("update-rows", said, len(rows), [row_name(case.rows[row], row) for row in lost])
    return None


def known_rows(update: Update, number: int) -> list[int]:
    """The rows of a mini batch whose readings were kept."""
    batch, key = update.case.batch, f"{update.role}.{number}"
    marks = batch.get(f"{key}/responses", batch.get(f"{key}/mask"))
    return [] if marks is None else [row for row in update.rows_of(number) if bool(marks[row].any())]


def copies(ref: Reference, update: Update, number: int) -> list[Link]:
    """The mask, advantages and so on that a mini batch read, beside those of the batch."""
    case, key, links = ref.case, f"{update.role}.{number}", list[Link]()
    rows = known_rows(update, number)
    chosen = torch.zeros(len(case.rows), 1, dtype=torch.bool)
    chosen[rows] = True
    for name in ("mask", *_COPIES):
        found, wanted = case.batch.get(f"{key}/{name}"), case.loss_mask if name == "mask" else case.batch.get(name)
        if name == "responses":
            wanted = case.batch["input_ids"][:, -case.mask.shape[1] :]
        if found is None or wanted is None:
            continue
        where = chosen.expand_as(case.mask) if name == "mask" else chosen & case.mask
        numbers = Numbers(found.double(), wanted.double(), torch.zeros(case.mask.shape), where)
        ranks = update.ranks_of(number)
        tries = {f"those of the row {'before' if by > 0 else 'after'}": wanted.double().roll(by, 0) for by in (1, -1)}
        tries |= {"padding counts": torch.ones_like(numbers.wanted), "with the opposite sign": -numbers.wanted}
        causes = compare.explained(numbers, tries) if bool(numbers.wrong.any()) else []
        places = compare.places(case.rows, numbers, ranks, where)
        what = f"numbers of '{name}' that mini batch {number} of the {update.role} read"
        links.append(compare.judged("update-rows", numbers, "", what, places, causes))
    return links


def update_log_probs(ref: Reference) -> Link:
    """What the first mini batch's forward passes gave. Later ones hang on its step: `optimizer` judges them."""
    roles = [(update.role, lambda u=update: _first_passes(ref, u)) for update in updates(ref)]
    return compare.each("update-log-probs", roles)


def _first_passes(ref: Reference, update: Update) -> Link:
    name, case, role = "update-log-probs", ref.case, update.role
    found, rows = case.batch.get(f"{role}.0/{update.field}"), known_rows(update, 0)
    if found is None or not rows:
        raise Unknown("the capsule does not hold what forward passes of updates gave")
    chosen = torch.zeros(len(case.rows), 1, dtype=torch.bool)
    chosen[rows] = True
    mask, ranks, moment = ref.read_mask & chosen, update.ranks_of(0), f"{role}.before"
    if role == "critic":
        reading = ref.read(moment, "critic", "values", value_stat)
    else:
        reading = ref.read(moment, "actor", f"policy {ref.temperature}", policy_stat(ref.temperature))
    numbers = reading.numbers(0, found, mask)
    causes = policy_causes(ref, numbers, moment, role, ref.temperature) if role == "actor" else []
    what = f"{'log-probabilities' if role == 'actor' else 'values'} of the {role}'s first mini batch"
    links = [compare.judged(name, numbers, "", what, compare.places(case.rows, numbers, ranks, mask), causes)]
    entropies = case.batch.get(f"{role}.0/entropys")
    if entropies is not None and role == "actor":
        numbers, what = reading.numbers(1, entropies, mask), "entropies of the first mini batch"
        places = compare.places(case.rows, numbers, ranks, mask)
        links.append(compare.judged(name, numbers, "nats", what, places))
    return compare.mixed(name, links)


def loss(ref: Reference) -> Link:
    """Each pass's share of the loss and of its parts, from what was recorded of its tokens."""
    return compare.each("loss", [(update.role, lambda u=update: _role_losses(ref, u)) for update in updates(ref)])


def _role_losses(ref: Reference, update: Update) -> Link:
    links = _losses(ref, update)
    if not links:
        raise Unknown("the capsule does not hold what forward passes of updates gave")
    count = sum(bool(micro.rows) for mini in update.minis for micro in mini.micro_batches)
    kept = max(link.compared for link in links)
    part = f"{kept} of {count} passes of the {update.role} were kept whole"
    return compare.mixed("loss", [*links, *([same("loss", 0, part)] if kept < count else [])])


def _losses(ref: Reference, update: Update) -> list[Link]:
    case, links = ref.case, list[Link]()
    passes: list[tuple[int, int]] = []
    for number, mini in enumerate(update.minis):
        known = (
            set(known_rows(update, number)) if f"{update.role}.{number}/{update.field}" in case.batch else set[int]()
        )
        passes += [
            (number, at)
            for at, micro in enumerate(mini.micro_batches)
            if micro.rows and len(here := case.here(micro.rows)) == len(micro.rows) and known.issuperset(here)
        ]
    for part in ("loss_tokens", "pg_loss", "vf_loss", "entropy_loss", "kl_loss", "loss"):
        here = [(number, at) for number, at in passes if part in update.minis[number].micro_batches[at].terms]
        if not here:
            continue
        found = torch.tensor(
            [_number(update.minis[number].micro_batches[at].terms[part]) for number, at in here]
        ).double()[:, None]
        wanted, size = _shares(update, here, part)
        if wanted is None:
            continue
        numbers = Numbers(found, wanted[:, None], (EPS * size)[:, None], torch.ones(len(here), 1, dtype=torch.bool))
        bad: Any = numbers.wrong[:, 0].nonzero().flatten().tolist()
        where = [f"mini batch {here[at][0]}, {_named(_micro(update, here[at]))}: {float(found[at, 0]):.6g}, "
                 f"the reference {float(wanted[at]):.6g}" for at in bad]  # fmt: skip
        causes = _loss_causes(update, here, part, numbers) if bad else []
        links.append(compare.judged("loss", numbers, "", f"passes' '{part}' of the {update.role}", where, causes))
    return links


def _micro(update: Update, place: tuple[int, int]) -> Any:
    return update.minis[place[0]].micro_batches[place[1]]


def _named(micro: Any) -> str:
    return f"rank {micro.rank}, rows {span(micro.rows)}"


def span(rows: Sequence[int]) -> str:
    """The first and the last of ROWS."""
    return f"{rows[0]}" if len(rows) == 1 else f"{rows[0]} … {rows[-1]}"


def _shares(
    update: Update, passes: Sequence[tuple[int, int]], part: str, changed: Mapping[str, Any] | None = None,
    counts_of: Callable[[int, Any], Counts] | None = None,
) -> tuple[Tensor | None, Tensor]:  # fmt: skip
    """PART of each of PASSES, and the sum of its terms' sizes, which rounding goes with."""
    batch, shares, sizes = update.case.batch, list[float](), list[float]()
    for number, at in passes:
        micro, key = update.minis[number].micro_batches[at], f"{update.role}.{number}"
        rows = update.case.here(micro.rows)
        if part == "loss_tokens":
            shares.append(float(update.case.loss_mask[rows].sum()))
            sizes.append(0.0)
            continue
        counts = counts_of(number, micro) if counts_of else update.counts_of(number)
        read = batch[f"{key}/{update.field}"].double()
        entropy = batch[f"{key}/entropys"].double() if f"{key}/entropys" in batch else None
        each = [
            update.terms([row], read[[row]], None if entropy is None else entropy[[row]], counts, changed)
            for row in rows
        ]
        if part not in each[0] or (
            part == "loss" and update.role == "actor" and entropy is None and update.settings["entropy_coeff"]
        ):
            return None, torch.zeros(0)
        shares.append(sum(float(one[part]) for one in each))
        of_ratio = sum(abs(float(value)) for one in each for value in one.values())
        sizes.append(of_ratio + abs(float(read[rows].abs().max())) * of_ratio / max(len(each), 1))
    return torch.tensor(shares).double(), torch.tensor(sizes).double()


def _settings_tried(update: Update) -> dict[str, dict[str, Any]]:
    """Other settings of a loss that are common mistakes."""
    if (own := update.tried()) is not None:
        return own
    settings = update.settings
    modes = ("token-mean", "seq-mean-token-sum", "seq-mean-token-mean", "seq-mean-token-sum-norm")
    tries: dict[str, dict[str, Any]] = {
        f"aggregated by {mode}": {"loss_agg_mode": mode} for mode in modes if mode != settings["loss_agg_mode"]
    }
    if update.role == "critic":
        return tries | {"values not clipped": {"cliprange_value": 1e9}}
    low, high = settings["clip_ratio_low"], settings["clip_ratio_high"]
    tries |= {
        "advantages with the opposite sign": {"sign": -1},
        "without importance weights": {"unweighted": True},
        "not clipped": {"clip_ratio_low": 1e9, "clip_ratio_high": 1e9, "clip_ratio_c": None},
        "without dual clip": {"clip_ratio_c": None},
        "the two clip ratios exchanged": {"clip_ratio_low": high, "clip_ratio_high": low},
    }
    tries |= {
        f"the loss '{mode}'": {"policy_loss": {"loss_mode": mode}} for mode in ("vanilla", "gspo", "cispo", "reinforce")
    }
    return tries | {f"KL by {kind}": {"kl_loss_type": kind} for kind in ("k1", "abs", "k2", "k3")}


def _number(value: float | None) -> float:
    """VALUE; not a number where the capsule has None for one that is not finite."""
    return torch.nan if value is None else value


def _loss_causes(update: Update, passes: Sequence[tuple[int, int]], part: str, numbers: Numbers) -> list[str]:
    """What the shares would be by other settings, counts and coefficients."""
    ranks, width = max(update.case.head.world_size, 1), update.case.mask.shape[1]
    if part == "loss_tokens":
        padded = torch.tensor([[len(_micro(update, place).rows) * width] for place in passes]).double()
        return compare.explained(numbers, {"padding counts": padded})
    tries = {words: _shares(update, passes, part, changed)[0] for words, changed in _settings_tried(update).items()}
    divisors: dict[str, Callable[[int, Any], Counts]] = {
        "divided by the counts of each pass, not of the mini batch": lambda _, micro: update.counts(
            update.case.here(micro.rows)
        ),
        "divided by the counts of one rank": lambda number, micro: update.counts(
            update.case.here(update.minis[number].rows[micro.rank])
        ),
        "padding counts in the divisor": lambda number, _: Counts(
            len(update.rows_of(number)) * width, len(update.rows_of(number))
        ),
    }
    tries |= {words: _shares(update, passes, part, None, counts)[0] for words, counts in divisors.items()}
    found = {words: shares[:, None] for words, shares in tries.items() if shares is not None}
    per_rank = max(sum(micro.rank == 0 for micro in mini.micro_batches) for mini in update.minis)
    factors = {ranks: "number of ranks", per_rank: "number of passes", ranks * per_rank: "ranks times passes"}
    for factor, words in factors.items():
        if factor > 1:
            found[f"times {factor}, the {words}"] = numbers.wanted * factor
            found[f"divided by {factor}, the {words}"] = numbers.wanted / factor
    found |= {"with the opposite sign": -numbers.wanted, "times 2": numbers.wanted * 2}
    if part == "loss" and update.role == "actor":
        found |= _coefficients(update, passes, numbers)
    return compare.explained(numbers, found)[:3]


def _coefficients(update: Update, passes: Sequence[tuple[int, int]], numbers: Numbers) -> dict[str, Tensor]:
    """The coefficients of entropy and KL that fit the recorded losses, by least squares."""
    names = [name for name in ("entropy_loss", "kl_loss") if name in _micro(update, passes[0]).terms]
    base, _ = _shares(update, passes, "pg_loss")
    if base is None or not names:
        return {}
    parts = [_shares(update, passes, name)[0] for name in names]
    matrix = torch.stack([part for part in parts if part is not None], dim=1)
    solved = torch.linalg.lstsq(matrix, numbers.found[:, 0] - base).solution
    keys = {"entropy_loss": ("entropy_coeff", -1), "kl_loss": ("kl_loss_coef", 1)}
    words: list[str] = []
    for name, value in zip(names, solved, strict=True):
        key, sign = keys[name]
        words.append(f"{key} {float(value) * sign:.4g}, the config says {float(update.settings[key]):g}")
    return (
        {" and ".join(words): (base + matrix @ solved)[:, None]} if len(passes) > len(names) or len(names) == 1 else {}
    )
