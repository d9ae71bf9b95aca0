"""Which tokens of a conversation are learnt, proven by reading its text and its tokens again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rltrain.core.errors import UserError
from rltrain.data.demonstrations import IGNORED, DemonstrationEncoder
from rltrain.data.readers import RawRow
from rltrain.data.schema import Message, check_conversation
from tests.trainer.data.build import checked, jsonl, row, tokenizer

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = (
    "{{ '<bos>' }}{% for m in messages %}{{ '<|start|>' + m['role'] + '<|end|>\n\n' + m['content'] + '<|eot|>' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\n\n' }}{% endif %}"
)
THINKING = (  # as Qwen3's: what earlier turns thought is taken away
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
    "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1] }}"
    "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
MARKS = ("<|im_start|>", "<|im_end|>", "<|start|>", "<|end|>", "<|eot|>", "<bos>", "<eos>")
TALK = (
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": "one plus one?"},
    {"role": "assistant", "content": "two"},
    {"role": "user", "content": "twice that?\n"},
    {"role": "assistant", "content": "four\nor so"},
)


def bytes_tokenizer(template: str, prefix_space: bool = False) -> Any:
    """One token a byte, and one for two line breaks: a token that may span the border of a turn."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    vocabulary = {letter: number for number, letter in enumerate(sorted(letters))}
    vocabulary["\u010a\u010a"] = len(vocabulary)
    core: Any = Tokenizer(models.BPE(vocab=vocabulary, merges=[("\u010a", "\u010a")]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix_space, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(mark, normalized=False, special=True) for mark in MARKS])
    made = PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token="<bos>", eos_token="<eos>", clean_up_tokenization_spaces=False
    )
    made.chat_template = template
    return made


def learnt(made: Any, ids: list[int], labels: list[int]) -> list[str]:
    """The text of each run of learnt tokens."""
    assert len(ids) == len(labels)
    assert all(label in (token, IGNORED) for token, label in zip(ids, labels, strict=True))
    runs: list[list[int]] = []
    for place, label in enumerate(labels):
        if label != IGNORED:
            if place == 0 or labels[place - 1] == IGNORED:
                runs.append([])
            runs[-1].append(label)
    return [made.decode(run, skip_special_tokens=False) for run in runs]


@pytest.mark.parametrize(
    ("template", "end"), [(CHATML, "<|im_end|>"), (LLAMA, "<|eot|>")], ids=["ChatML", "as Llama 3"]
)
def test_every_turn_of_the_assistant_is_learnt_with_its_end_mark(template: str, end: str) -> None:
    made = bytes_tokenizer(template)
    ids, labels = DemonstrationEncoder(made, {}).conversation(TALK, "here")
    assert learnt(made, ids, labels) == [f"two{end}", f"four\nor so{end}"]
    # The tokens are those of the whole conversation, read again as one text.
    text = made.apply_chat_template(list(TALK), tokenize=False)
    assert ids == made(text, add_special_tokens=False)["input_ids"]
    # What comes before each learnt run is what a rollout would start from.
    for number, message in enumerate(TALK):
        if message["role"] == "assistant":
            start = made.apply_chat_template(
                list(TALK[:number]), add_generation_prompt=True, tokenize=True, return_dict=False
            )
            assert ids[: len(start)] == start
            assert labels[len(start) - 1] == IGNORED
            assert labels[len(start)] == ids[len(start)]


def test_a_token_that_would_span_a_border_is_cut_where_a_rollout_starts() -> None:
    made = bytes_tokenizer(CHATML)
    talk = (*TALK[:2], {"role": "assistant", "content": "\ntwo"})
    ids, labels = DemonstrationEncoder(made, {}).conversation(talk, "here")
    start = made.apply_chat_template(list(talk[:2]), add_generation_prompt=True, tokenize=True, return_dict=False)
    text = made.apply_chat_template(list(talk), tokenize=False)
    assert made(text, add_special_tokens=False)["input_ids"][: len(start)] != start
    assert ids[: len(start)] == start
    assert made.decode(ids) == text
    assert learnt(made, ids, labels) == ["\ntwo<|im_end|>"]


def test_a_template_that_rewrites_what_came_before_is_refused_in_one_line() -> None:
    encoder = DemonstrationEncoder(bytes_tokenizer(THINKING), {})
    thought = {"role": "assistant", "content": "<think>1+1</think>two"}
    ids, labels = encoder.conversation((*TALK[:2], thought), "here")
    assert learnt(bytes_tokenizer(THINKING), ids, labels) == ["<think>1+1</think>two<|im_end|>"]
    with pytest.raises(UserError, match=r"^f\.jsonl:3: the chat template is not append-only: .* message 2 ") as caught:
        encoder.conversation((*TALK[:2], thought, *TALK[3:]), "f.jsonl:3")
    assert "\n" not in str(caught.value)


def test_without_a_template_there_are_no_turns() -> None:
    with pytest.raises(UserError, match=r"^here: the row is a conversation, but the tokenizer has no chat template"):
        DemonstrationEncoder(tokenizer(template=False), {}).conversation(TALK, "here")


def test_a_tokenizer_that_begins_each_text_with_a_blank() -> None:
    made = bytes_tokenizer("{% for m in messages %}{{ m['content'] + '<eos>' }}{% endfor %}", prefix_space=True)
    talk = ({"role": "user", "content": "one"}, {"role": "assistant", "content": "two"})
    ids, labels = DemonstrationEncoder(made, {}).conversation(talk, "here")
    assert ids == made("one<eos>two<eos>", add_special_tokens=False)["input_ids"]
    assert [text.strip() for text in learnt(made, ids, labels)] == ["two<eos>"]


@pytest.mark.parametrize("template", [True, False])
def test_of_a_prompt_and_its_response_the_response_and_the_end_are_learnt(template: bool, tmp_path: Path) -> None:
    made: Any = tokenizer(template)
    values = row("copy 12", response="12") if template else {"prompt": "copy 12", "response": "12"}
    (found,) = checked(jsonl(tmp_path / "a.jsonl", values), split="sft")
    ids, labels = DemonstrationEncoder(made, {}).answer(found)
    assert made.convert_ids_to_tokens(ids[-3:]) == ["1", "2", "<eos>"]
    assert labels == [IGNORED] * (len(ids) - 3) + ids[-3:]
    assert made.convert_ids_to_tokens(ids[:-3])[-1] == ("<|assistant|>" if template else "2")


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", r"expected a list of chat messages, found str"),
        ([{"role": "user", "content": "a"}], r"no message is the assistant's"),
        ([{"role": "assistant", "content": "a"}], r"the first message is the assistant's"),
        ([{"role": "user", "content": "a"}, {"role": "assistant"}], r"messages\[1\]\.content: missing"),
    ],
)
def test_what_is_no_conversation_is_named(messages: Any, words: str) -> None:
    with pytest.raises(UserError, match=words):
        check_conversation(RawRow(Path("f"), "f:1", {"messages": messages}), "messages")


def test_a_parquet_row_gives_every_message_every_key() -> None:
    messages: list[dict[str, Any]] = [{**message, "name": None} for message in TALK]
    found: tuple[Message, ...] = check_conversation(RawRow(Path("f"), "f:1", {"m": messages}), "m")
    assert found == TALK
