"""Sums with worked columns: no operand in two splits, what is wrong with demonstrations, what the rule pays."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rltrain.config import load
from rltrain.config.load import load_sft
from rltrain.config.schema import DataConfig, RunConfig, ToyConfig
from rltrain.core.errors import UserError
from rltrain.data.dataset import build_dataset
from rltrain.data.demonstrations import IGNORED
from rltrain.data.sft import SftSettings, build_sft
from rltrain.data.template import load_tokenizer
from rltrain.rewards.rules import regex
from rltrain.rewards.spec import spec_of
from rltrain.toy.addition import split_of, total, worked
from rltrain.toy.make import make_toy
from rltrain.toy.rows import Rows, make_rows
from tests.trainer.toy.test_toy import QWEN2

PAIRS = (("arithmetic-sft", "arithmetic-grpo"), ("toy-add-sft", "toy-add-grpo"))
WRONG = {"carryless": 0.5, "slip": 0.25}


def operands(rows: Rows) -> set[str]:
    return {operand for row in rows for operand in row["prompt"][0]["content"].split("+")}


def toy(**values: Any) -> ToyConfig:
    sizes = {"num_train": 100, "num_val": 50, "num_demos": 200, "num_digits": 4}
    return ToyConfig.model_validate({"task": "add", **sizes, **values})


def sums(num_digits: int) -> st.SearchStrategy[str]:
    number = st.integers(10 ** (num_digits - 1), 10**num_digits - 1)
    return st.builds(lambda a, b: f"{a}+{b}", number, number)


@settings(max_examples=25, deadline=None)
@given(
    seeds=st.tuples(*[st.integers(0, 2**32 - 1)] * 2),
    digits=st.integers(3, 32),
    sizes=st.tuples(*[st.integers(2, 300)] * 3),
)
def test_no_operand_is_in_two_splits_whatever_seeds_and_sizes(
    seeds: tuple[int, int], digits: int, sizes: tuple[int, int, int]
) -> None:
    """Two commands make their data apart from each other, with seeds and sizes of their own."""
    settings = dict(zip(("num_train", "num_val", "num_demos"), sizes, strict=True))
    parts: dict[str, set[str]] = {"train": set(), "val": set(), "demonstration": set()}
    for seed, values in zip(seeds, (settings, {}), strict=True):
        made = make_rows(toy(num_digits=digits, **values), seed)
        for name, rows in zip(("train", "val", "demonstration", "val"), made, strict=True):
            parts[name] |= operands(rows)
            assert {len(operand) for operand in operands(rows)} == {digits}
    assert sum(map(len, parts.values())) == len(set().union(*parts.values()))
    assert all(split_of(operand) == name for name, found in parts.items() for operand in found)


@pytest.mark.parametrize("pair", PAIRS, ids=lambda pair: pair[0])
def test_the_recipes_share_no_operand(pair: tuple[str, str]) -> None:
    sft, rl = load_sft(pair[0]).config, load(pair[1], ["actor_rollout_ref.model.path=m"])
    assert sft.toy is not None
    assert rl.toy is not None
    _, sft_val, demos, _ = make_rows(sft.toy, sft.trainer.seed)
    train, val, _, _ = make_rows(rl.toy, rl.trainer.seed)
    assert operands(demos).isdisjoint(operands(train) | operands(val) | operands(sft_val))
    assert operands(train).isdisjoint(operands(val) | operands(sft_val))
    assert len({row["prompt"][0]["content"] for row in demos}) == sft.toy.num_demos


@given(sums(5))
def test_a_worked_sum_is_right_in_every_column(problem: str) -> None:
    *columns, answer = worked(problem).split(";")
    left, right = problem.split("+")
    carry = 0
    for x, y, column in zip(reversed(left), reversed(right), columns, strict=True):
        terms, said = column.split("=")
        assert terms == f"{x}+{y}+{carry}"
        assert int(said) == int(x) + int(y) + carry
        carry = int(said) // 10
    assert answer == total(problem) == str(int(left) + int(right))
    assert f"{carry or ''}{''.join(column[-1] for column in reversed(columns))}" == answer


@given(sums(5), st.integers(0, 2**32))
def test_what_is_wrong_with_the_others(problem: str, seed: int) -> None:
    left, right = problem.split("+")
    carries = any(int(x) + int(y) > 9 for x, y in zip(left, right, strict=True))
    *columns, answer = worked(problem, "carry").split(";")
    assert all(column[3:6] == "+0=" for column in columns)
    assert (answer == total(problem)) == (not carries)
    *columns, answer = worked(problem, "digit", random.Random(seed)).split(";")
    wrong = [column for column in columns if sum(map(int, column[:5].split("+"))) != int(column[6:])]
    assert len(wrong) == 1
    assert answer != total(problem)


def test_the_rule_of_the_recipes_pays_the_right_sum_alone() -> None:
    for _, name in PAIRS:
        (rule,) = spec_of(load(name, ["actor_rollout_ref.model.path=m"])).rules
        assert regex(worked("478516+907662"), "1386178", rule) == 1
        assert regex("1386178", "1386178", rule) == 1  # so that an answer that is the same for all can earn it
        for response in ("", worked("478516+907662", "carry"), "86178", "01386178", worked("478516+907662") + ";"):
            assert regex(response, "1386178", rule) == 0


def test_rows_pass_the_readers_and_the_longest_answer_is_as_long_as_the_config_says(tmp_path: Path) -> None:
    made = toy(model=QWEN2, demo_mixture=WRONG)
    run = {"actor_rollout_ref": {"rollout": {"name": "hf"}}, "toy": made}
    paths = make_toy(RunConfig.model_validate(run), tmp_path / "toy")
    tokenizer: Any = load_tokenizer(paths.model)
    for file, split in ((paths.train_file, "train"), (paths.val_file, "val")):
        for row in build_dataset(str(file), DataConfig(), tokenizer, split):
            problem = row.messages[0]["content"]
            assert tokenizer.decode(row.prompt_ids) == f"<|user|>{problem}<|assistant|>"
            assert row.ground_truth == total(problem)
    longest = 0
    for file in (paths.sft_file, paths.sft_val_file):
        settings = SftSettings(max_length=64, length_key="data.max_length", overlong="error")
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for demo, row in zip(build_sft(str(file), "data.train_files", settings, tokenizer), rows, strict=True):
            learnt = [token for token, label in zip(demo.input_ids, demo.labels, strict=True) if label != IGNORED]
            assert tokenizer.decode(learnt) == row["response"] + "<eos>"
            longest = max(longest, len(learnt))
    assert longest == made.response_tokens


def test_demonstrations_are_right_as_often_as_the_mixture_says() -> None:
    _, _, demos, held_out = make_rows(toy(num_demos=2000, demo_mixture=WRONG), 1)
    right = [row["response"].split(";")[-1] == row["reward_model"]["ground_truth"] for row in demos]
    drawn = [row["extra_info"]["demonstrator"] for row in demos]
    assert sum(right) / 2000 == pytest.approx(0.25 + 0.5 * 0.55**4, abs=0.05)  # 0.55: a column without a carry
    assert all(ok for ok, who in zip(right, drawn, strict=True) if who == "add")
    assert not any(ok for ok, who in zip(right, drawn, strict=True) if who == "slip")
    assert all(row["response"] == worked(row["prompt"][0]["content"]) for row in held_out)


def test_settings_that_cannot_be_met() -> None:
    with pytest.raises(ValueError, match="copy does not answer the prompts of the task add"):
        toy(demo_mixture={"copy": 0.5})
    with pytest.raises(ValueError, match="slip does not answer the prompts of the task copy"):
        toy(task="copy", demo_mixture={"slip": 0.5})
    with pytest.raises(UserError, match=r"different prompts, toy\.num_demos asks for 5000"):
        make_rows(toy(num_digits=2, num_demos=5000), 1)
