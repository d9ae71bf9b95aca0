"""From files to rows in tokens: templates, limits, choice, and the report."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rltrain.config.schema import DataConfig
from rltrain.core.errors import UserError
from rltrain.data.dataset import Dataset, build_dataset
from rltrain.data.template import load_tokenizer
from tests.trainer.data.build import jsonl, numbered, row, tokenizer


def build(path: Path, template: bool = True, split: Any = "train", **config: Any) -> Dataset:
    return build_dataset(str(path), DataConfig(**config), tokenizer(template), split)


def test_prompts_go_through_the_chat_template(tmp_path: Path) -> None:
    built = build(jsonl(tmp_path / "a.jsonl", row("reverse 12")))
    assert built[0].prompt_text == "<|user|>reverse 12<|assistant|>"
    assert tokenizer().convert_ids_to_tokens(list(built[0].prompt_ids)) == [
        "<|user|>", "reverse", "1", "2", "<|assistant|>",
    ]  # fmt: skip
    assert (built[0].place, built[0].uid, built[0].index) == (f"{tmp_path}/a.jsonl:1", "train-0", 0)


def test_template_arguments(tmp_path: Path) -> None:
    made = tokenizer()
    made.chat_template = "{{ messages[0].content }}{% if twice %}{{ messages[0].content }}{% endif %}"
    path = jsonl(tmp_path / "a.jsonl", row("12"))
    built = build_dataset(str(path), DataConfig(apply_chat_template_kwargs={"twice": True}), made, "train")
    assert built[0].prompt_text == "1212"
    names = ("tokenize", "truncation", "max_length", "padding", "chat_template", "conversation", "tokenizer_kwargs")
    for name in names:
        with pytest.raises(UserError, match=f"remove {name}: the trainer sets it"):
            build(path, apply_chat_template_kwargs={name: 1})


def test_a_template_that_refuses(tmp_path: Path) -> None:
    made = tokenizer()
    made.chat_template = "{{ raise_exception('roles must alternate') }}"
    path = jsonl(tmp_path / "a.jsonl", row())
    with pytest.raises(UserError, match=r"a\.jsonl:1: the chat template refuses the prompt: roles must alternate"):
        build_dataset(str(path), DataConfig(), made, "train")


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ 1/0 }}", "ZeroDivisionError: division by zero"),
        ("{{ messages[0].content.nothing.more }}", "'str object' has no attribute 'nothing'"),
        ("{{ raise_exception('one\\ntwo') }}", "one"),
        ("{% for m in messages %}", "Unexpected end of template"),
    ],
)
def test_a_template_that_breaks_is_told_in_one_line(template: str, words: str, tmp_path: Path) -> None:
    made = tokenizer()
    made.chat_template = template
    path = jsonl(tmp_path / "a.jsonl", row())
    with pytest.raises(UserError, match=r"a\.jsonl:1: the chat template refuses the prompt: ") as caught:
        build_dataset(str(path), DataConfig(), made, "train")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_without_a_template_only_plain_strings_pass(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"a\.jsonl:1: .*no chat template; give one .*custom_chat_template"):
        build(jsonl(tmp_path / "a.jsonl", row()), template=False)
    plain = jsonl(tmp_path / "a.jsonl", row(prompt="copy 12"))
    built = build(plain, template=False)
    assert built[0].prompt_text == "copy 12"
    assert len(built[0].prompt_ids) == 3
    assert "1 used without a chat template" in built.report.line()
    assert build(plain)[0].prompt_text == "<|user|>copy 12<|assistant|>"


def lengths(tmp_path: Path) -> Path:
    return jsonl(tmp_path / "a.jsonl", row("copy 1"), row("copy 123456"), row("copy 12"))


def test_too_long_is_an_error_that_names_both_remedies(tmp_path: Path) -> None:
    with pytest.raises(UserError) as caught:
        build(lengths(tmp_path), max_prompt_length=5)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/a.jsonl:2: the prompt has 9 tokens, data.max_prompt_length is 5")
    assert "data.filter_overlong_prompts=true" in message
    assert "data.truncation=left|right|middle" in message


def test_filter(tmp_path: Path) -> None:
    built = build(lengths(tmp_path), max_prompt_length=5, filter_overlong_prompts=True)
    assert [r.place[-1] for r in built] == ["1", "3"]
    assert [(r.index, r.uid) for r in built] == [(0, "train-0"), (1, "train-1")]
    report = built.report
    assert (report.num_read, report.num_filtered, report.num_truncated, report.longest_prompt) == (3, 1, 0, 9)
    assert report.line() == "train data: 2 rows, longest prompt 9 tokens, 1 too long and left out"


def test_filter_that_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"all 3 prompts are longer than data.max_prompt_length=2 .*has 9 tokens"):
        build(lengths(tmp_path), max_prompt_length=2, filter_overlong_prompts=True)


@pytest.mark.parametrize(
    ("truncation", "kept"),
    [
        ("left", "3456<|assistant|>"),
        ("right", "<|user|>copy123"),
        ("middle", "<|user|>copy56<|assistant|>"),
    ],
)
def test_truncation(tmp_path: Path, truncation: str, kept: str) -> None:
    built = build(lengths(tmp_path), max_prompt_length=5, truncation=truncation)
    assert built[1].prompt_text == kept
    assert len(built[1].prompt_ids) == 5
    assert (built.report.num_truncated, built.report.num_filtered) == (1, 0)
    assert "1 cut to the limit" in built.report.line()


def test_max_samples_takes_the_first_or_draws_by_seed(tmp_path: Path) -> None:
    path = numbered(tmp_path / "a.jsonl", 50)

    def truths(**config: Any) -> list[str]:
        return [r.ground_truth for r in build(path, train_max_samples=10, **config)]

    assert truths(shuffle=False) == [f"{i:04d}" for i in range(10)]
    drawn = truths(seed=1)
    assert drawn == truths(seed=1) == sorted(drawn)
    assert len(set(drawn)) == 10
    assert drawn != truths(seed=2)
    assert len(build(path, val_max_samples=10)) == 50
    assert len(build(path, split="val", val_max_samples=10)) == 10


def test_no_file_no_rows(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.val_files is not set"):
        build_dataset(None, DataConfig(), tokenizer(), "val")
    with pytest.raises(UserError, match=r"a\.jsonl holds no rows"):
        build(jsonl(tmp_path / "a.jsonl"))


def test_load_tokenizer(tmp_path: Path) -> None:
    made: Any = tokenizer(template=False)
    made.pad_token = None
    made.save_pretrained(str(tmp_path / "t"))
    loaded: Any = load_tokenizer(tmp_path / "t", custom_chat_template="{{ messages[0].content }}")
    assert loaded.pad_token_id == loaded.eos_token_id == made.eos_token_id
    assert loaded.chat_template == "{{ messages[0].content }}"


def test_tokenizers_that_will_not_do(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=f"model directory {tmp_path}/gone does not exist"):
        load_tokenizer(tmp_path / "gone")
    with pytest.raises(UserError, match="no tokenizer can be loaded"):
        load_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')  # of which transformers makes an empty one
    with pytest.raises(UserError, match="makes no tokens of text"):
        load_tokenizer(tmp_path)
    made: Any = tokenizer()
    made.eos_token = None
    made.save_pretrained(str(tmp_path / "t"))
    with pytest.raises(UserError, match="has no eos_token"):
        load_tokenizer(tmp_path / "t")
