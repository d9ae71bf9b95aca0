"""Whether the reward of a run can score its data: found before the cluster starts, not in the middle of the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from rltrain.core.errors import UserError
from rltrain.data.schema import Row
from rltrain.rewards.rules import needs_truth, text_of
from rltrain.rewards.spec import RuleSpec, ScorerSpec


def check_rows(rows: Iterable[Row], spec: ScorerSpec, model_scores: bool) -> None:
    """Hold ROWS against the rules of SPEC; MODEL_SCORES: a reward model scores every data source.

    What a user's function and the `math` rule make of a ground truth only they know. One look at each row.

    Raises:
        UserError: the first row that nothing scores, or without the ground truth that a rule needs; names its place.
    """
    checks: dict[str, Callable[[Row], None]] = {}
    for row in rows:
        check = checks.get(row.data_source)
        if check is None:
            if not (model_scores or spec.covers(row.data_source)):
                raise UserError(
                    f"{row.place}: nothing scores data_source '{row.data_source}': name it in `data_sources` of one of "
                    "reward_model.rules, or set custom_reward_function.path"
                )
            check = checks[row.data_source] = _truth_check(spec.rules_of(row.data_source))
        check(row)


def _truth_check(rules: tuple[RuleSpec, ...]) -> Callable[[Row], None]:
    """What looks at the ground truth of a row that RULES score."""
    needing = next((rule for rule in rules if needs_truth(rule)), None)
    digits = next((rule for rule in rules if rule.kind == "digits"), None)

    def check(row: Row) -> None:
        if needing is None:
            return
        try:
            truth = text_of(row.ground_truth)
        except ValueError as error:
            raise UserError(_words(row, needing, str(error))) from None
        if digits is not None and not truth.strip():
            raise UserError(_words(row, digits, "its ground_truth is empty"))

    return check


def _words(row: Row, rule: RuleSpec, why: str) -> str:
    if row.ground_truth is None:
        why = "it has no ground_truth"
    return (
        f"{row.place}: the reward rule '{rule.name}' cannot score this row (data_source '{row.data_source}'): {why}; "
        "fix the row, or name in `data_sources` of reward_model.rules what the rule is for"
    )
