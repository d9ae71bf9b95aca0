"""Rows that the rewards of a run cannot score are found before it starts, each with its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrain.controller.reward_manager import request as asked
from rltrain.core.errors import UserError
from rltrain.data.loader import to_prompt_batch
from rltrain.data.schema import Row
from rltrain.rewards.combine import combine
from rltrain.rewards.coverage import check_rows
from rltrain.rewards.request import RewardResult
from rltrain.rewards.spec import spec_of
from tests.trainer.controller.build import batch
from tests.trainer.rewards.support import request, run_config, write

Rules = tuple[dict[str, Any], ...]

GSM: dict[str, Any] = {"kind": "gsm8k", "data_sources": ["gsm8k"]}


def row(source: str = "gsm8k", truth: Any = "4", line: int = 1) -> Row:
    return Row(line, (), "", (1,), source, truth, place=f"train.jsonl:{line}", uid=f"0-{line}")


def check(
    *rows: Row, rules: tuple[dict[str, Any], ...] = (GSM,), model: bool = False, custom: Path | None = None
) -> None:
    check_rows(rows, spec_of(run_config(*rules, custom=custom)), model)


def test_a_source_that_nothing_scores_is_named_with_its_first_row(tmp_path: Path) -> None:
    rows = [row(), row("math", line=2), row("math", line=3)]
    with pytest.raises(UserError, match=r"^train\.jsonl:2: nothing scores data_source 'math': name it in"):
        check(*rows)
    check(*rows, model=True)
    check(*rows, custom=write(tmp_path, "return 1.0"))
    check(*rows, rules=(GSM, {"kind": "exact"}))


@pytest.mark.parametrize(
    ("rule", "truth", "words"),
    [
        ({"kind": "exact"}, None, "rule 'exact' cannot score this row .*: it has no ground_truth"),
        ({"kind": "math", "name": "sums"}, None, "rule 'sums' cannot score this row .*: it has no ground_truth"),
        ({"kind": "regex", "pattern": "a(.)"}, ["4"], "rule .* its ground_truth is list, must be text or a number"),
        ({"kind": "digits"}, " ", "rule 'digits' .*its ground_truth is empty"),
    ],
)
def test_a_row_without_the_truth_that_a_rule_needs(rule: dict[str, Any], truth: Any, words: str) -> None:
    with pytest.raises(UserError, match=rf"^train\.jsonl:7: the reward {words}"):
        check(row(), row(truth=truth, line=7), rules=(rule,))


@pytest.mark.parametrize(
    "rules",
    [({"kind": "format", "pattern": "a"},), ({"kind": "regex", "pattern": "a"},), ({"kind": "exact"},)],
)
def test_only_rules_that_need_a_truth_ask_for_it(rules: tuple[dict[str, Any], ...]) -> None:
    if rules[0]["kind"] == "exact":
        check(row("other", 4), rules=(*rules, GSM))
    else:
        check(row(truth=None), row("other", truth=["x"]), rules=rules)


def test_a_reward_error_names_the_row() -> None:
    (sample,) = to_prompt_batch([row(line=9)]).samples
    assert "row train.jsonl:9" in asked(sample).words()
    assert request(place="train.jsonl:9").words().count("row train.jsonl:9") == 1
    with pytest.raises(UserError, match=r"of sample 0-9/0 \(data_source 'gsm8k', row train\.jsonl:9\) is nan"):
        combine([RewardResult(float("nan"), {}, 0.0)], [sample], batch().select([0])["response_mask"])
