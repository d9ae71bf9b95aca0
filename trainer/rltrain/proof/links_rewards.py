"""The link from answers to rewards: parts by the config's rules, weights, the length penalty, greedy baselines."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from msgspec.structs import replace
from torch import Tensor

from rlcheck.facts.capsule import CapsuleRow
from rlcheck.facts.step import Link
from rltrain.proof import compare, formulas
from rltrain.proof import rewards as rules
from rltrain.proof.compare import EPS, Numbers, Unknown
from rltrain.proof.links_custom import custom
from rltrain.proof.reference import Reference


def rewards(ref: Reference) -> Link:
    """Rules on texts, weights, the length penalty; the score at the last token."""
    case, rule_list = ref.case, ref.case.config("reward_model.rules") or []
    unread = [str(rule.get("kind")) for rule in rule_list if rule.get("kind") not in
              ("exact", "digits", "gsm8k", "format", "regex", "math")]  # fmt: skip
    if unread:
        raise Unknown(f"the rule '{unread[0]}' is not known here")
    own = [
        {} if "failed" in row.reward_parts else rules.parts(row.text, row.ground_truth, row.data_source, rule_list)
        for row in case.rows
    ]
    names = sorted({name for one in own for name in one})
    found = torch.tensor([[row.reward_parts.get(name, torch.nan) for name in names] for row in case.rows]).double()
    wanted = torch.tensor([[one[name][0] if name in one else 0.0 for name in names] for one in own]).double()
    mask = torch.tensor([[name in one for name in names] for one in own], dtype=torch.bool)
    parts, links = Numbers(found, wanted, torch.full_like(wanted, EPS), mask), list[Link]()
    if names:
        causes = _reward_causes(ref, parts, lambda row: _values(rules.parts(*row, rule_list), names))
        places = compare.places(case.rows, parts, ref.ranks, mask)
        links.append(compare.judged("rewards", parts, "", "parts of rewards", places, causes))
    if (own_function := custom(ref)) is not None:
        links.append(own_function)
    total = torch.tensor([_total(ref, at, one) for at, one in enumerate(own)]).double()
    size = EPS * total.abs().clamp(min=1.0)
    scores = torch.tensor([row.score for row in case.rows]).double()
    summed = Numbers(scores[:, None], total[:, None], size[:, None], torch.ones(len(total), 1, dtype=torch.bool))
    links.append(compare.judged("rewards", summed, "", "scores", compare.places(case.rows, summed, {}, summed.mask),
                                _reward_causes(ref, summed, None)))  # fmt: skip
    if "token_level_scores" in case.batch:
        last = case.mask & (case.mask.long().cumsum(-1) == case.mask.sum(-1, keepdim=True))
        at_end = torch.where(last, scores[:, None], torch.zeros(1, dtype=torch.float64))
        placed = Numbers(case.batch["token_level_scores"], at_end, size[:, None], torch.ones_like(case.mask))
        tries = {"at the first token": scores[:, None] * (torch.arange(case.mask.shape[1]) == 0)}
        for shift in (-1, 1):
            tries[f"those of the row {'before' if shift > 0 else 'after'}"] = scores.roll(shift)[:, None] * last
        tries["with the opposite sign"] = -at_end
        places, causes = compare.places(case.rows, placed, {}, placed.mask), compare.explained(placed, tries)
        links.append(compare.judged("rewards", placed, "", "scores of tokens", places, causes))
    if (undropped := _undropped(ref, rule_list)) is not None:
        links.append(undropped)
    found_link = compare.mixed("rewards", links)
    if own_function is not None and found_link.status != "differs":
        found_link = replace(found_link, status=own_function.status)
    taken = sorted({part for row in case.rows for part in row.reward_parts if part == rules.MODEL})
    note = [f"taken as recorded: {', '.join(taken)}"] if taken else []
    if "reward_baselines" in case.batch and found_link.status == "same":
        found_link = compare.mixed("rewards", [found_link, _baselines(ref, rule_list)])
    return _noted(found_link, note)


def _undropped(ref: Reference, rule_list: Sequence[Any]) -> Link | None:
    """Groups that dynamic sampling (Yu et al. 2025, arXiv:2503.14476, 3.2) had to drop: all answers count alike."""
    case, groups = ref.case, dict[str, list[CapsuleRow]]()
    if not case.config("algorithm.filter_groups.enable"):
        return None
    wanted = str(case.config("algorithm.filter_groups.metric", "acc"))
    for row in case.rows:
        groups.setdefault(row.uid, []).append(row)
    counted = {uid: [_counted(row, wanted, rule_list) for row in rows] for uid, rows in groups.items()}
    alike = [uid for uid, found in counted.items() if len(found) > 1 and found[0] and len(set(found)) == 1]
    if not alike:
        return compare.same("rewards", sum(all(found) for found in counted.values()))
    said = f"'{wanted}' is the same for all answers of {len(alike)} of {len(groups)} groups, which are to be dropped"
    return compare.differs("rewards", said, len(groups), [f"prompt {uid}" for uid in alike])


def _counted(row: CapsuleRow, wanted: str, rule_list: Sequence[Any]) -> tuple[Any, ...]:
    """The parts of ROW's reward that the metric WANTED is made of; empty where it has none of them."""
    parts, own = row.reward_parts, [rule.get("name") or rule["kind"] for rule in rule_list]
    truths = [rule.get("name") or rule["kind"] for rule in rule_list if rule["kind"] != "format"]
    ways = {"score": [[*own, "custom", rules.MODEL]],
            "acc": [["custom/acc"], ["acc"], truths, ["custom"], [rules.MODEL]]}  # fmt: skip
    if "failed" in parts:
        return ("failed",)
    names = next((way for way in ways.get(wanted, [[wanted]]) if any(name in parts for name in way)), [])
    return tuple(parts.get(name) for name in names)


def _baselines(ref: Reference, rule_list: Sequence[Any]) -> Link:
    """ReMax's baselines: scores of the greedy answers, whose texts the capsule keeps."""
    case, found = ref.case, ref.case.batch["reward_baselines"].double()
    others = [
        part
        for row in case.rows
        for part in row.reward_parts
        if part == rules.MODEL or part.partition("/")[0] == "custom"
    ]
    texts = [row.baseline_text for row in case.rows]
    if others or None in texts or case.config("reward_model.overlong_buffer.enable"):
        why = "baselines of greedy answers were taken as recorded"
        return Link(name="rewards", status="unknown", said=why)
    wanted = [sum(value * weight for value, weight in
                  rules.parts(text or "", row.ground_truth, row.data_source, rule_list).values())
              for text, row in zip(texts, case.rows, strict=True)]  # fmt: skip
    exact = torch.tensor(wanted).double()[:, None]
    numbers = Numbers(found[:, None], exact, EPS * exact.abs().clamp(min=1.0), torch.ones_like(exact, dtype=torch.bool))
    places = compare.places(case.rows, numbers, {}, numbers.mask)
    return compare.judged(
        "rewards", numbers, "", "baselines of greedy answers", places, _reward_causes(ref, numbers, None)
    )


def _values(found: dict[str, tuple[float, float]], names: Sequence[str]) -> list[float]:
    return [found[name][0] for name in names]


def _noted(link: Link, notes: Sequence[str]) -> Link:
    return replace(link, said="; ".join([*filter(None, [link.said]), *notes]))


def _total(ref: Reference, at: int, own: dict[str, tuple[float, float]]) -> float:
    """The score of row AT: OWN parts by weight, those that others gave as recorded, the length penalty."""
    config, row = ref.case.config, ref.case.rows[at]
    total = float(config("reward_model.default_score")) if "failed" in row.reward_parts else 0.0
    total += sum(row.reward_parts.get(name, value) * weight for name, (value, weight) in own.items())
    keys = {"custom": "custom_reward_function.weight", "model": "reward_model.weight"}
    total += sum(row.reward_parts[part] * float(config(keys[part], 1.0)) for part in keys if part in row.reward_parts)
    if config("reward_model.overlong_buffer.enable"):
        length = int(ref.case.mask[at].sum())
        buffer, factor = (config(f"reward_model.overlong_buffer.{key}") for key in ("len", "penalty_factor"))
        total += formulas.overlong(length, int(config("data.max_response_length")), int(buffer), float(factor))
    return total


def _reward_causes(
    ref: Reference, numbers: Numbers, score: Callable[[tuple[str, Any, str]], list[float]] | None
) -> list[str]:
    if not bool(numbers.wrong.any()):
        return []
    wanted, found, mask, rows = numbers.wanted, numbers.found, numbers.mask, ref.case.rows
    n = int(ref.case.config("actor_rollout_ref.rollout.n", 1))
    tries: dict[str, Tensor] = {
        f"those of {by} row{'s' if abs(by) > 1 else ''} before": wanted.roll(by, 0) for by in {1, -1, n, -n}
    }
    tries |= {"with the opposite sign": -wanted, "one minus the reward": 1 - wanted}
    tries["the same for all"] = found[mask].median().expand_as(wanted)
    factor = float((found * wanted)[mask].sum() / (wanted**2)[mask].sum().clamp(min=1e-30))
    tries[f"times {factor:.4g}: a weight"] = wanted * factor
    tries[f"{float((found - wanted)[mask].median()):+.4g} for all"] = wanted + (found - wanted)[mask].median()
    if score is not None and bool(mask.all()):
        cuts: dict[str, Callable[[CapsuleRow], str]] = {
            "the text without its last character": lambda row: row.text[:-1],
            "the text without its first character": lambda row: row.text[1:],
            "the prompt scored with the answer": lambda row: row.prompt_text + row.text,
        }
        for name, cut in cuts.items():
            tries[name] = torch.tensor([score((cut(row), row.ground_truth, row.data_source)) for row in rows]).double()
        truths = [row.ground_truth for row in rows]
        shifted = truths[-n:] + truths[:-n]
        tries["the ground truth of the prompt before"] = torch.tensor(
            [score((row.text, truth, row.data_source)) for row, truth in zip(rows, shifted, strict=True)]
        ).double()
    return compare.explained(numbers, tries)
