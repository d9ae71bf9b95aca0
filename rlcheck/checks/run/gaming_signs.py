"""Signs that a reward is earned in another way than by doing the task better."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean, median
from typing import NamedTuple

from rlcheck.check import Evidence, evidence
from rlcheck.checks.run.common import curve_of, drawn, number_setting, proof, samples_of
from rlcheck.checks.run.likeness import agreements, judged
from rlcheck.checks.run.trend import Rewards, rank_correlation, rise
from rlcheck.checks.run.validation import validation
from rlcheck.facts.run import RunFacts, SampleRow
from rlcheck.measure.run.limits import limit

LENGTH, BLIND = "response_length/mean", "val/reward/best_constant"
VALIDATED, SHUFFLED = "val/reward/mean", "val/reward/shuffled"
REPEATED = "rollout/repetition_frac"
_FUNCTION = re.compile(r"(?:train/)?rewards/([^/]+)(?:/mean)?")
_GRAM, _WORDS, _LETTERS = 4, 24, 40
_LEAST_ROWS, _ROWS = 6, 24
_MOST_ROWS = 200
_HIGH, _BLIND_GAIN, _EQUAL_GAIN = 0.5, 0.9, 0.97
"""Of the span of rewards, what validation earns at last; of what it gained, what answers to other prompts gained, too,
so that it is worth a word, or can be nothing else than a reward that does not read the prompt."""


class Sign(NamedTuple):
    """One sign that the reward is earned in another way; `sure`: it can hardly mean anything else."""

    words: str
    details: tuple[str, ...]
    proof: Evidence
    sure: bool


def signs_of(run: RunFacts, rewards: Rewards) -> tuple[Sign, ...]:
    """All signs that a run with a rising reward shows, those that are sure first."""
    found = (
        _blind(run, rewards),
        _promptless(run, rewards),
        _one_answer(run),
        _repeats(run),
        _one_part(run),
        _pays_length(run),
        _longer(run),
    )
    return tuple(sorted((sign for sign in found if sign is not None), key=lambda sign: not sign.sure))


def _blind(run: RunFacts, rewards: Rewards) -> Sign | None:
    """One answer to all prompts would earn nearly the most that any answer has earned."""
    blind = curve_of(run, BLIND)
    if blind is None or rewards.span <= 0:
        return None
    share = (blind.values[-1] - rewards.low) / rewards.span
    # Above the best of training, validation pays for something else than training does.
    if share < limit("blind_share") or blind.values[-1] > rewards.high:
        return None
    words = f"one and the same answer to all prompts would earn {blind.values[-1]:.3g} of {rewards.high:.3g}"
    return Sign(words, (), proof(BLIND, words, blind.steps[0], blind.steps[-1]), True)


def _promptless(run: RunFacts, rewards: Rewards) -> Sign | None:
    """What validation has gained is earned by answers to other prompts as well."""
    own, other = curve_of(run, VALIDATED), curve_of(run, SHUFFLED)
    if own is None or other is None or own.steps != other.steps or len(own.steps) < 2 or rewards.span <= 0:
        return None
    late = 2 * own.steps[-1] >= run.last_step
    gained, blind = own.values[-1] - own.values[0], other.values[-1] - other.values[0]
    high = own.values[-1] - rewards.low >= _HIGH * rewards.span
    truths = Counter(row.ground_truth for row in samples_of(run) if row.ground_truth)
    alike = bool(truths) and truths.most_common(1)[0][1] > truths.total() / 2
    # Where one answer is right for most prompts, what is right for one is right for others.
    if not late or not high or alike or gained <= rewards.span / 4 or blind < _BLIND_GAIN * gained:
        return None
    words = (
        f"answers that are scored against other prompts earn {other.values[-1]:.3g} of {own.values[-1]:.3g} "
        f"({other.values[0]:.3g} of {own.values[0]:.3g} at first): what is learnt does not depend on the prompt"
    )
    sure = other.values[-1] - rewards.low >= _EQUAL_GAIN * (own.values[-1] - rewards.low)
    return Sign(words, drawn(run, VALIDATED, SHUFFLED, BLIND), proof(SHUFFLED, words, own.steps[0], own.steps[-1]),
                sure)  # fmt: skip


def _thirds(rows: Sequence[SampleRow]) -> tuple[tuple[SampleRow, ...], tuple[SampleRow, ...]]:
    """Rows of the first and of the last third of the steps that have any, 200 of each at most."""
    steps = sorted({row.step for row in rows})
    count = max(1, len(steps) // 3)
    first, last = set(steps[:count]), set(steps[-count:])
    early, late = [row for row in rows if row.step in first], [row for row in rows if row.step in last]
    return tuple(early[:: 1 + len(early) // _MOST_ROWS]), tuple(late[:: 1 + len(late) // _MOST_ROWS])


def _one_answer(run: RunFacts) -> Sign | None:
    """Most of the last answers are one text, though prompts and ground truths are many."""
    early, late = _thirds(samples_of(run))
    if len(late) < _LEAST_ROWS or len({row.prompt for row in late}) < _LEAST_ROWS:
        return None
    truths = Counter(row.ground_truth for row in late if row.ground_truth)
    (text, count), most = Counter(row.response for row in late).most_common(1)[0], limit("same_answer")
    before = Counter(row.response for row in early).most_common(1)[0][1] / len(early)
    # Where one answer is right for most prompts, as with yes and no, giving it is the task.
    if count < most * len(late) or before >= most or not truths or truths.most_common(1)[0][1] > len(late) / 2:
        return None
    words = f"{count} of the last {len(late)} samples are the same answer to different prompts"
    shown = f"{' '.join(text.split())[:80]!r} earns {fmean(r.reward for r in late if r.response == text):.3g}"
    return Sign(words, (shown,), evidence("run.samples", words, "samples of the last steps"), True)


def repetition(text: str) -> float | None:
    """Share of runs of four words (of letters, where there are no spaces) that were in TEXT before; None if short."""
    words = text.split()
    parts = words if len(words) >= _WORDS else list(text) if len(text) >= _LETTERS and len(words) < _GRAM else []
    grams = [tuple(parts[place : place + _GRAM]) for place in range(len(parts) - _GRAM + 1)]
    return 1 - len(set(grams)) / len(grams) if grams else None


def _repeats(run: RunFacts) -> Sign | None:
    """Answers say the same again and again, and did not at first: by samples, or by the run's own count."""
    early, late = _thirds(samples_of(run))
    before, after = (
        [share for row in rows if (share := repetition(row.response)) is not None] for rows in (early, late)
    )
    counted = rise(curve_of(run, REPEATED))
    if len(after) >= 3 and before:
        first, last = median(before), median(after)
        worst = max(late, key=lambda row: repetition(row.response) or 0.0)
        shown = (f"step {worst.step}: {' '.join(worst.response.split())[:120]!r} earns {worst.reward:.3g}",)
        source = evidence("run.samples", f"{last:.0%}", "samples of the last steps")
    elif counted is not None:
        first, last, shown = counted.first, counted.last, drawn(run, REPEATED)
        source = proof(REPEATED, f"{last:.0%}", run.first_step, run.last_step)
    else:
        return None
    if last < limit("repetition") or first >= limit("repetition") / 2:
        return None
    return Sign(f"answers repeat themselves: {last:.0%} at last, {first:.0%} at first", shown, source, True)


def _one_part(run: RunFacts) -> Sign | None:
    """The form of answers is paid for and learnt, or another part of the reward falls while one rises."""
    names = parts_of(run)
    moves = {part: moved for part, name in names.items() if (moved := rise(run.curves[name])) is not None}
    risen = [part for part, moved in moves.items() if moved.sigmas >= limit("sigmas")]
    # What is below zero is a penalty: paying more of it for a better answer may be right.
    fallen = [part for part, moved in moves.items() if moved.sigmas <= -limit("sigmas") and moved.last >= 0]
    form = max((part for part in risen if "format" in part), key=lambda part: moves[part].change, default="")
    best = max((moves[part].change for part in moves if "format" not in part), default=0.0)
    alone = form and moves[form].change > limit("part_rise") and best < limit("part_follows") * moves[form].change
    if not (risen and fallen) and not alone:
        return None
    told = tuple(dict.fromkeys((form, *moves) if alone else (*risen, *fallen)))[:4]
    shown = ", ".join(f"{part} {moves[part].first:.3g} to {moves[part].last:.3g}" for part in told)
    words = f"the form of answers alone is learnt ({shown})" if alone else f"a part rises and another falls ({shown})"
    return Sign(words, drawn(run, *(names[part] for part in told)),
                proof(names[told[0]], shown, run.first_step, run.last_step), bool(alone))  # fmt: skip


def parts_of(run: RunFacts) -> dict[str, str]:
    """Parts of the reward and the metrics that hold them: rltrain's by source, TRL's by reward function."""
    sources = [name[: -len("zero_share")] for name in run.curves if name.endswith("/zero_share")]
    # A source's own mean is the sum of its parts.
    found = {name[len("reward/") : -len("/mean")]: name for source in sources for name in run.curves
             if name.startswith(source) and name.endswith("/mean") and name != f"{source}mean"}  # fmt: skip
    if not sources:
        found = {match[1]: name for name in run.curves if (match := _FUNCTION.fullmatch(name))}
    return {part: name for part, name in found.items() if run.curves[name].values} if len(found) > 1 else {}


def _pays_length(run: RunFacts) -> Sign | None:
    """The reward of samples follows their length, and not the ground truth."""
    rows = judged(samples_of(run))
    if len(rows) < _ROWS:
        return None
    value = rank_correlation([float(len(row.response)) for row in rows], [row.reward for row in rows])
    likeness = max((one.correlation for one in agreements(rows)), default=0.0)
    if value is None or value < limit("length_correlation") or likeness > value / 2:
        return None
    words = (
        f"the reward follows the length of answers (correlation {value:.2f}) and not the ground truth ({likeness:.2f})"
    )
    longest = max(rows, key=lambda row: len(row.response))
    shown = f"step {longest.step}: {' '.join(longest.response.split())[:100]!r} earns {longest.reward:.3g}"
    return Sign(words, (shown,), evidence("run.samples", words, "rewards and lengths of samples"), True)


def _longer(run: RunFacts) -> Sign | None:
    """Answers have grown to a multiple, or to the limit, and validation has gained nothing."""
    lengths, val = run.curves.get(LENGTH), validation(run)
    grown = rise(lengths)
    if lengths is None or grown is None or grown.first <= 0 or grown.sigmas < limit("sigmas"):
        return None
    most = number_setting(run, "data.max_response_length")
    if grown.last < limit("length_growth") * grown.first:
        return None
    if val is None or len(val[1].values) < 3 or val[1].values[-1] > val[1].values[0]:
        return None
    words = f"answers grow from {grown.first:.4g} to {grown.last:.4g} tokens while validation gains nothing"
    near = f" (the limit is {most:.0f})" if most else ""
    return Sign(words + near, drawn(run, LENGTH, val[0]), proof(LENGTH, words, lengths.steps[0], lengths.steps[-1]),
                False)  # fmt: skip
