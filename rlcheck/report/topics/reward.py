"""What a reward function gave, for a reader: right and wrong answers by form, and what solves nothing."""

from __future__ import annotations

from rlcheck.facts.document import Facts
from rlcheck.facts.reward import RewardFacts
from rlcheck.finding import Exhibit

_SHOWN = 8


def headline(facts: Facts) -> str:
    """The function in a line."""
    reward = facts.reward.value
    if reward is None:
        return ""
    if reward.failure is not None:
        return f"{reward.path}: {reward.failure.stage or 'start'} failed"
    best = reward.best
    apart = f"right {best.right:.3g}, wrong {best.wrong:.3g}" if best is not None else "right and wrong alike"
    return f"{reward.function} ({reward.style}), {reward.num_calls} calls; {apart}"


def exhibits(facts: Facts) -> tuple[Exhibit, ...]:
    """The tables of one function; nothing where none was called."""
    reward = facts.reward.value
    return () if reward is None or not reward.num_calls else (_forms(reward), *_shortcuts(reward))


def _forms(reward: RewardFacts) -> Exhibit:
    forms = sorted(reward.forms, key=lambda form: -abs(form.gain))[:_SHOWN]
    rows = tuple((repr(form.form)[1:-1][:48], f"{form.right:.3g}", f"{form.wrong:.3g}") for form in forms)
    slowest = f"the slowest call took {reward.slowest_s:.3g} s: {reward.slowest}"
    notes = (reward.path, f"{reward.data}: {', '.join(reward.rows)}", slowest, *reward.notes)
    return Exhibit(title="Mean score by form of answer", columns=("form", "right", "wrong"), rows=rows, notes=notes)


def _shortcuts(reward: RewardFacts) -> tuple[Exhibit, ...]:
    tried = reward.shortcuts.value or ()
    rows = tuple((one.text[:48], f"{one.mean:.3g}", f"{one.num_full} of {one.num_rows}") for one in tried)
    columns = ("answer", "mean score", "full score")
    return (Exhibit(title="Answers that solve nothing", columns=columns, rows=rows),) if rows else ()
