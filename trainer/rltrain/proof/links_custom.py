"""The part of rewards that a user's own function gave: judged where the user names its file, not by a capsule."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from rlcheck.facts.step import Link
from rltrain.proof import compare
from rltrain.proof.compare import EPS, Numbers
from rltrain.proof.reference import Reference
from rltrain.proof.score import NoScore, Scored, scores

_PART = "custom"


def custom(ref: Reference) -> Link | None:
    """The parts `custom` and `custom/…` by the file of `--score`; None where the config names no function."""
    case, section = ref.case, ref.case.config("custom_reward_function") or {}
    recorded = any(_PART in row.reward_parts for row in case.rows)
    if not section.get("path") and not recorded:
        return None
    name = str(section.get("name") or "compute_score")
    if ref.score is None:
        file = Path(str(section.get("path") or "?")).name
        said = f"the function '{name}' of {file} was not run: `rlcheck step CAPSULE --score FILE` judges it"
        return Link(name="rewards", status="unknown", said=said)
    try:
        found = _scores(ref, name, dict(section.get("reward_kwargs") or {}))
    except NoScore as error:
        return Link(name="rewards", status="unknown", said=f"--score: {error}")
    numbers = _numbers(ref, found)
    causes: list[str] = []
    if bool(numbers.wrong.any()):
        n, wanted = int(case.config("actor_rollout_ref.rollout.n", 1)), numbers.wanted
        tries = {f"those of {by} row{'s' if abs(by) > 1 else ''} before": wanted.roll(by, 0) for by in {1, -1, n, -n}}
        tries |= {"with the opposite sign": -wanted, "one minus the reward": 1 - wanted}
        factor = float((numbers.found * wanted).nansum() / wanted.square().nansum().clamp(min=1e-30))
        causes = compare.explained(numbers, tries | {f"times {factor:.4g}": wanted * factor})
    places = compare.places(case.rows, numbers, ref.ranks, numbers.mask)
    return compare.judged("rewards", numbers, "", f"rewards of '{name}'", places, causes)


def _scores(ref: Reference, name: str, kwargs: dict[str, Any]) -> list[Scored]:
    assert ref.score is not None
    rows, seed = ref.case.rows, ref.case.head.seed
    calls = [
        {"data_source": row.data_source, "solution_str": row.text, "ground_truth": row.ground_truth,
         "extra_info": row.extra_info, **kwargs}
        for row in rows
    ]  # fmt: skip
    seeds = [f"{seed}|{row.uid}|{row.sample}|{row.text}" for row in rows]
    found = scores(ref.score, name, calls, seeds, float(ref.case.config("reward_model.timeout_s", 30.0)))
    if not all(isinstance(one, (list, tuple)) and len(one) == 2 and isinstance(one[1], dict) for one in found):
        raise NoScore(f"'{name}' returned a list, not one number")
    return [(score, others) for score, others in found]


def _numbers(ref: Reference, found: list[Scored]) -> Numbers:
    """What was recorded beside what the function gives, `[B, K]` for the score and the other numbers."""
    own = [{_PART: score, **{f"{_PART}/{key}": value for key, value in others.items()}} for score, others in found]
    names = sorted({key for one in own for key in one})
    recorded = [[row.reward_parts.get(key, torch.nan) for key in names] for row in ref.case.rows]
    wanted = torch.tensor([[one.get(key, 0.0) for key in names] for one in own]).double()
    mask = torch.tensor([[key in one for key in names] for one in own])
    return Numbers(torch.tensor(recorded).double(), wanted, EPS * wanted.abs().clamp(min=1.0), mask)
