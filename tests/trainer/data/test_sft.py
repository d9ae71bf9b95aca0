"""Data sets of supervised training: limits, choice, what is left out, and marks of the files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrain.config import Machine, load, resolve
from rltrain.config.schema.sft import SftDataConfig
from rltrain.core.errors import UserError
from rltrain.data.demonstrations import IGNORED
from rltrain.data.loader import Loader
from rltrain.data.sft import SftDataset, SftSettings, build_sft
from tests.trainer.data.build import jsonl, tokenizer

SHORT = "<|user|>copy1<|assistant|>1<eos>"


def talk(*turns: str) -> dict[str, Any]:
    roles = ("user", "assistant")
    return {"messages": [{"role": roles[n % 2], "content": text} for n, text in enumerate(turns)]}


def answer(digits: str) -> dict[str, Any]:
    return {"prompt": f"copy {digits}", "response": digits}


def build(path: Path, **data: Any) -> SftDataset:
    config = SftDataConfig(**data)
    return build_sft(str(path), "data.train_files", SftSettings.of(config, config.train_max_samples), tokenizer())


def test_conversations_and_answers_in_one_file(tmp_path: Path) -> None:
    built = build(jsonl(tmp_path / "a.jsonl", talk("copy 1", "1", "copy 23", "23"), answer("45")))
    made: Any = tokenizer()
    assert [made.decode(row.input_ids) for row in built] == [
        "<|user|>copy1<|assistant|>1<eos><|user|>copy23<|assistant|>23<eos>", "<|user|>copy45<|assistant|>45<eos>",
    ]  # fmt: skip
    assert [row.num_learnt for row in built] == [2 + 3, 3]
    assert (built.report.num_tokens, built.report.num_learnt) == (14 + 8, 8)
    assert built.report.line() == "train data: 2 rows of 22 tokens, 8 of them learnt, longest 14 tokens"


def test_columns_have_the_names_of_the_config(tmp_path: Path) -> None:
    rows = ({"chat": talk("copy 1", "1")["messages"]}, {"q": "copy 2", "a": "2"})
    keys = {"messages_key": "chat", "prompt_key": "q", "response_key": "a"}
    path = jsonl(tmp_path / "a.jsonl", *rows)
    assert len(build(path, **keys)) == 2
    with pytest.raises(UserError, match=r"a\.jsonl:1: neither messages .* nor prompt and response; the row has chat;"):
        build(path)


def test_gsm8ks_own_rows_are_understood(tmp_path: Path) -> None:
    built = build(jsonl(tmp_path / "a.jsonl", {"question": "1 2", "answer": "3 #### 3"}))
    assert built[0].num_learnt == 3  # its words are unknown to the toy's tokenizer


@pytest.mark.parametrize(
    ("how", "kept", "left_out", "cut"),
    [
        ({"truncation": "right"}, [SHORT], 1, 1),  # of the first row nothing that is learnt is left
        ({"truncation": "left"}, ["<|assistant|>1234<eos>", SHORT], 0, 1),
        ({"filter_overlong_rows": True}, [SHORT], 1, 0),
    ],
)
def test_rows_that_are_too_long(how: dict[str, Any], kept: list[str], left_out: int, cut: int, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", answer("1234"), answer("1"))
    with pytest.raises(UserError, match=r"a\.jsonl:1: the row has 12 tokens, data\.max_length is 6; raise it, leave"):
        build(path, max_length=6)
    built = build(path, max_length=6, **how)
    made: Any = tokenizer()
    assert [made.decode(row.input_ids) for row in built] == kept
    assert (built.report.num_left_out, built.report.num_cut) == (left_out, cut)
    if left_out == 0:
        assert built[0].labels == (IGNORED, *built[0].input_ids[1:])


def test_so_many_rows_are_drawn_by_the_seed(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", *(answer(f"{number:03d}") for number in range(50)))
    drawn = [build(path, train_max_samples=5, seed=seed).rows for seed in (1, 1, 2)]
    assert len(drawn[0]) == 5
    assert drawn[0] == drawn[1] != drawn[2]
    first = build(path, train_max_samples=5, shuffle=False)
    assert [row.place for row in first] == [f"{path}:{number}" for number in range(1, 6)]


def test_a_file_that_has_changed_is_noticed_when_a_run_goes_on(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", *(answer(f"{number:03d}") for number in range(8)))
    loader = Loader(build(path), 4, 1, shuffle=True)
    seen = [next(loader) for _ in range(3)]
    state = loader.state_dict()
    again = Loader(build(path), 4, 1, shuffle=True)
    again.load_state_dict(state)
    assert next(again) == next(loader)
    assert {row.place for row in (*seen[0], *seen[1])} == {f"{path}:{number}" for number in range(1, 9)}
    jsonl(path, *(answer(f"{number:03d}") for number in range(1, 9)))
    with pytest.raises(UserError, match=r"a\.jsonl changed since the run stopped"):
        Loader(build(path), 4, 1, shuffle=True).load_state_dict(state)


def test_a_warm_up_reads_the_same_rows_within_the_runs_lengths(tmp_path: Path) -> None:
    run = resolve(load("toy-ppo"), Machine("cpu", 0, 1))
    settings = SftSettings.of_warmup(run)
    assert settings.max_length == run.data.max_prompt_length + run.data.max_response_length == 22
    path = jsonl(tmp_path / "a.jsonl", answer("12"), talk("copy 3", "3"))
    warm = build_sft(str(path), "sft_warmup.files", settings, tokenizer())
    assert warm.rows == build(path).rows
    with pytest.raises(UserError, match=r"tokens, data\.max_prompt_length \+ data\.max_response_length is 22"):
        build_sft(str(jsonl(path, answer("1" * 20))), "sft_warmup.files", settings, tokenizer())
