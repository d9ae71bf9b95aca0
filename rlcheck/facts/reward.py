"""What `rlcheck reward` found out about a reward function by calling it."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct
from rlcheck.facts.rollout import Failure, StageTime


class Outcome(Struct, frozen=True):
    """One call that went wrong. `text`: the answer that was scored, in words; `row`: whose; `said`: what came of it."""

    text: str
    row: str = ""
    said: str = ""


class FormScore(Struct, frozen=True):
    """Answers of one form, `#### {}` for example: mean score with the row's own ground truth in the place of `{}`, and
    with that of another row."""

    form: str
    right: float
    wrong: float
    num_rows: int

    @property
    def gain(self) -> float:
        """What a right answer earns more."""
        return self.right - self.wrong


class Shortcut(Struct, frozen=True):
    """An answer that solves nothing: in how many of the rows on which it was tried it earned what a right one earns.

    `hedges`: it names many candidates, the right one among them.
    """

    text: str
    num_rows: int
    num_full: int
    mean: float
    hedges: bool = False


class ThreadUse(Struct, frozen=True):
    """The same calls from several threads at once. `other`: another score than alone; `failed`: no score at all."""

    num_threads: int
    num_calls: int
    num_other: int = 0
    num_failed: int = 0
    other: tuple[Outcome, ...] = ()
    failed: tuple[Outcome, ...] = ()


class Repeats(Struct, frozen=True):
    """The same calls again, in another process and in another order. `other`: those that got another score."""

    num_calls: int
    num_other: int = 0
    other: tuple[Outcome, ...] = ()


class RewardFacts(Struct, frozen=True):
    """A reward function, called on answers that were made from rows of data.

    `style`: by whose signature it was called: verl (rltrain's own is the same) or trl. `reads_truth`: whether its code
    loads the ground truth at all, where that can be seen. `varies`: whether any two ordinary answers got different
    scores. `empty`: answers that returned no finite number; `raised`; `late`: took longer than `limit_s`, or ended the
    process. `pickle`: why it cannot be sent to another process, "" where it can.
    """

    path: str = ""
    function: str = ""
    style: str = ""
    data: str = ""
    rows: tuple[str, ...] = ()
    limit_s: float = 0.0
    num_calls: int = 0
    slowest_s: float = 0.0
    slowest: str = ""
    empty: tuple[Outcome, ...] = ()
    raised: tuple[Outcome, ...] = ()
    late: tuple[Outcome, ...] = ()
    forms: tuple[FormScore, ...] = ()
    reads_truth: Fact[bool] = Fact()
    varies: bool = False
    shortcuts: Fact[tuple[Shortcut, ...]] = Fact()
    repeats: Fact[Repeats] = Fact()
    threads: Fact[ThreadUse] = Fact()
    pickle: Fact[str] = Fact()
    stages: tuple[StageTime, ...] = ()
    failure: Failure | None = None
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> FormScore | None:
        """The form in which right and wrong answers are furthest apart; None where no form makes a difference."""
        best = max(self.forms, key=lambda form: abs(form.gain), default=None)
        return best if best is not None and best.gain != 0 else None
