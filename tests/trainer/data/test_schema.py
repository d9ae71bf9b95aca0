"""What a row must have: each wrong row is named by file, line and field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rltrain.core.errors import UserError
from tests.trainer.data.build import checked, jsonl, row


def test_verls_shape(tmp_path: Path) -> None:
    (got,) = checked(jsonl(tmp_path / "a.jsonl", row("copy 7", "7")))
    assert got.messages == ({"role": "user", "content": "copy 7"},)
    assert (got.data_source, got.ground_truth, got.extra_info) == ("toy/reverse", "7", {"split": "train"})
    assert (got.is_plain, got.response) == (False, None)


@pytest.mark.row("F62")
def test_gsm8ks_own_shape(tmp_path: Path) -> None:
    values = {"question": "2000 + 1?", "answer": "It is <<2000+1=2001>>2001.\n#### 2,001"}
    (got,) = checked(jsonl(tmp_path / "a.jsonl", values))
    request = 'Let\'s think step by step and output the final answer after "####".'
    assert got.messages == ({"role": "user", "content": f"2000 + 1? {request}"},)
    assert (got.data_source, got.ground_truth) == ("openai/gsm8k", "2001")
    (demonstration,) = checked(jsonl(tmp_path / "a.jsonl", values), split="sft")
    assert demonstration.response == values["answer"]


@pytest.mark.parametrize(("answer", "truth"), [("#### -3.5", "-3.5"), ("#### $18.", "18"), ("#### 1\n#### 2", "2")])
def test_gsm8k_answers(tmp_path: Path, answer: str, truth: str) -> None:
    (got,) = checked(jsonl(tmp_path / "a.jsonl", {"question": "q", "answer": answer}))
    assert got.ground_truth == truth


def test_other_columns_and_plain_strings(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "a.jsonl", {"text": "hello\tthere\x07", "from": "mine", "ground_truth": {"a": [1, 2.5]}})
    (got,) = checked(path, prompt_key="text", reward_fn_key="from")
    assert got.is_plain
    assert got.messages == ({"role": "user", "content": "hello\tthere\x07"},)
    assert (got.data_source, got.ground_truth, got.extra_info) == ("mine", {"a": [1, 2.5]}, {})


def test_parquets_nulls_in_messages_and_extra_info(tmp_path: Path) -> None:
    rows = [row(), row(prompt=[{"role": "user", "content": "x", "name": "n"}], extra_info=None)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    first, second = checked(tmp_path / "a.parquet")
    assert first.messages == ({"role": "user", "content": "reverse 1234"},)
    assert (second.messages[0]["name"], second.extra_info) == ("n", {})


def without(*keys: str) -> dict[str, Any]:
    return {key: value for key, value in row().items() if key not in keys}


def saying(*messages: Any) -> dict[str, Any]:
    return row(prompt=list(messages))


USER = {"role": "user", "content": "x"}


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (without("prompt"), "prompt: missing; expected a list of chat messages or a string"),
        (row(prompt=None), "prompt: expected a list of chat messages or a string"),
        (row(prompt=3), "prompt: expected a list of chat messages or a string, found int 3"),
        (row(prompt=float("nan")), "prompt: expected a list of chat messages or a string, found float nan"),
        (row(prompt=""), "prompt: empty"),
        (row(prompt=" \n"), "prompt: empty"),
        (row(prompt="a\0b"), "prompt: holds a NUL character (at 1)"),
        (row(prompt="a\ud800"), "prompt: holds half a surrogate pair"),
        (row(prompt=[]), "prompt: the prompt is empty"),
        (saying("hello"), "prompt[0]: expected an object with role and content, found str 'hello'"),
        (saying({"role": "user"}), "prompt[0].content: missing"),
        (saying({"role": "user", "content": None}), "prompt[0].content: missing"),
        (saying({"content": "x"}), "prompt[0].role: missing"),
        (saying({"role": "human", "content": "x"}), "prompt[0].role: expected one of system, user, assistant, tool"),
        (saying(USER, {"role": "user", "content": ["x"]}), "prompt[1].content: expected a string, found list ['x']"),
        (saying({"role": "user", "content": ""}), "prompt[0].content: empty"),
        (saying({"role": "user", "content": "\0"}), "prompt[0].content: holds a NUL"),
        (saying(USER, {"role": "assistant", "content": "y"}), "prompt: the last message is the assistant's"),
        (without("data_source"), "data_source: missing; expected a string that names the source"),
        (row(data_source=None), "data_source: expected"),
        (row(data_source=["a"]), "data_source: expected a string, found list"),
        (row(reward_model="rule"), "reward_model: expected an object with style and ground_truth, found str"),
        (row(truth=None), "reward_model.ground_truth: expected the answer, found null"),
        (row(truth=float("nan")), "reward_model.ground_truth: expected a finite number, found float nan"),
        (row(truth={"a": [1, float("inf")]}), "reward_model.ground_truth.a[1]: expected a finite number"),
        (row(truth="a\0"), "reward_model.ground_truth: holds a NUL"),
        (row(extra_info="x"), "extra_info: expected an object, found str"),
        (row(extra_info={"a": {"b": float("nan")}}), "extra_info.a.b: expected a finite number"),
        ({"question": "q", "answer": "42"}, "answer: expected text with '#### NUMBER', found str '42'"),
        ({"question": "q", "answer": None}, "prompt: missing"),
        ({"question": " ", "answer": "#### 1"}, "question: empty"),
    ],
)
def test_wrong_rows(tmp_path: Path, bad: dict[str, Any], expected: str) -> None:
    path = jsonl(tmp_path / "a.jsonl", row(), bad)
    with pytest.raises(UserError) as caught:
        checked(path)
    message = str(caught.value)
    assert message.startswith(f"{path}:2:{expected}")
    assert "\n" not in message


def test_a_row_without_ground_truth_has_none(tmp_path: Path) -> None:
    (got,) = checked(jsonl(tmp_path / "a.jsonl", without("reward_model")))
    assert got.ground_truth is None


@pytest.mark.parametrize("response", [None, "", 3])
def test_demonstrations_need_a_response(tmp_path: Path, response: Any) -> None:
    path = jsonl(tmp_path / "a.jsonl", row(response=response))
    with pytest.raises(UserError, match=r"a\.jsonl:1:response: "):
        checked(path, split="sft")
    assert len(checked(path)) == 1


def test_demonstrations_need_no_source(tmp_path: Path) -> None:
    (got,) = checked(jsonl(tmp_path / "a.jsonl", {"prompt": "copy 1", "response": "1"}), split="sft")
    assert (got.response, got.data_source) == ("1", "")
