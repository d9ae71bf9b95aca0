"""The reward model, on tiny random classifiers with tokenizers of their own."""

from __future__ import annotations

import logging
import string
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from torch import nn
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification, PreTrainedTokenizerFast

from rltrain.config.schema import RewardModelConfig
from rltrain.core.errors import UserError
from rltrain.rewards.model import Conversation, RewardModel, conversation

TEMPLATE = "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}{{ eos_token }}{% endfor %}"
LETTERS = string.ascii_letters + string.digits + " :.?"
MODEL_TYPES = ("qwen2", "llama", "opt")
PROMPT = [{"role": "user", "content": "What is it?"}]
TALKS = [conversation(PROMPT, "x" * n + "yes") for n in (0, 1, 2, 5, 9, 17, 3, 30)]


def tokenizer(letters: str = LETTERS, template: str | None = TEMPLATE, first: str = "<pad>") -> PreTrainedTokenizerFast:
    """A tokenizer of characters, numbered in the order of `letters` behind the special tokens, `first` first."""
    # Byte-level BPE without merges: what transformers makes of a Qwen2 tokenizer's files whatever else they say.
    tokens = [*sorted(("<pad>", "<eos>"), key=lambda name: name != first), *letters.replace(" ", "\u0120")]
    backend = Tokenizer(models.BPE(vocab={token: number for number, token in enumerate(tokens)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="<pad>", eos_token="<eos>", unk_token="<eos>")
    made.chat_template = template
    return made


def save(directory: Path, model_type: str = "qwen2", own: PreTrainedTokenizerFast | None = None, **keys: Any) -> Path:
    """A random classifier whose scores spread over a few units."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    if model_type == "opt":
        sizes |= {"ffn_dim": 64, "word_embed_proj_dim": 32}
    settings = {"intermediate_size": 64, "vocab_size": 80, "max_position_embeddings": 64, "num_labels": 1}
    settings |= {"pad_token_id": None, "bos_token_id": None, "eos_token_id": 1}
    config = AutoConfig.for_model(model_type, **{**sizes, **settings, **keys})
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
    model.save_pretrained(directory)
    (own or tokenizer()).save_pretrained(directory)
    return directory


def reward_model(path: Path, transform: Callable[[nn.Module], nn.Module] | None = None, **keys: Any) -> RewardModel:
    model = keys.pop("model", {})
    config = RewardModelConfig.model_validate({"enable": True, "model": {"path": str(path), **model}, **keys})
    return RewardModel(config, device="cpu", dtype=torch.float32, transform=transform)


def alone(path: Path, ids: list[int], **keys: Any) -> float:
    """What transformers gives for one row, unpadded."""
    model = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32, **keys).eval()
    with torch.no_grad():
        return float(model(input_ids=torch.tensor([ids])).logits[0, 0])


def encoded(talk: Conversation, own: PreTrainedTokenizerFast) -> list[int]:
    text = "".join(f"{m['role'][0]}:{m['content']}<eos>" for m in talk.messages)
    return own.encode(text, add_special_tokens=False)


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_each_score_is_that_of_the_row_alone_read_at_its_last_token(tmp_path: Path, model_type: str) -> None:
    path = save(tmp_path, model_type)
    scores, num_truncated = reward_model(path).score(TALKS)
    expected = [alone(path, encoded(talk, tokenizer())) for talk in TALKS]
    assert scores == pytest.approx(expected, abs=1e-5)
    assert num_truncated == 0
    assert max(scores) - min(scores) > 0.1


@pytest.mark.parametrize("pad", [None, 0, 1, -1])
@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_scores_do_not_depend_on_the_company(tmp_path: Path, model_type: str, pad: int | None) -> None:
    if model_type == "opt" and pad == -1:
        pad = 79  # its embedding refuses -1 when it is built
    path = save(tmp_path, model_type, pad_token_id=pad)
    scores = reward_model(path).score(TALKS)[0]
    for size in (1, 3):
        assert reward_model(path, micro_batch_size_per_gpu=size).score(TALKS)[0] == pytest.approx(scores, abs=1e-5)
    assert reward_model(path).score(TALKS[::-1])[0][::-1] == pytest.approx(scores, abs=1e-5)
    assert reward_model(path).score(TALKS[2:3])[0] == pytest.approx(scores[2:3], abs=1e-5)


def test_padding_is_never_the_token_that_ends_a_row(tmp_path: Path) -> None:
    # Here every conversation ends with token 0, and the config names no padding.
    own = tokenizer(first="<eos>")
    path = save(tmp_path, own=own, eos_token_id=0)
    expected = [alone(path, encoded(talk, own)) for talk in TALKS]
    assert reward_model(path).score(TALKS)[0] == pytest.approx(expected, abs=1e-5)


def test_a_model_that_pads_with_eos_is_read_where_it_was_trained_to_be(tmp_path: Path) -> None:
    # transformers reads behind the last token that is not padding; the config's own choice is kept.
    path = save(tmp_path, pad_token_id=1)
    ids = encoded(TALKS[3], tokenizer())
    assert reward_model(path).score(TALKS)[0][3] == pytest.approx(alone(path, ids[:-1]), abs=1e-5)


@pytest.mark.row("F32", "F34")
def test_its_own_tokenizer_reads_the_text(tmp_path: Path) -> None:
    # The policy's ids would be others: the vocabulary here is in reverse order.
    own = tokenizer(LETTERS[::-1])
    path = save(tmp_path, own=own)
    scores = reward_model(path).score(TALKS)[0]
    assert scores == pytest.approx([alone(path, encoded(talk, own)) for talk in TALKS], abs=1e-5)
    foreign = [alone(path, encoded(talk, tokenizer())) for talk in TALKS]
    assert max(abs(a - b) for a, b in zip(scores, foreign, strict=True)) > 0.1


def test_a_tokenizer_and_a_template_of_another_place(tmp_path: Path) -> None:
    path = save(tmp_path / "model", own=tokenizer(template=None))
    other = tmp_path / "tokenizer"
    tokenizer(LETTERS[::-1], template=None).save_pretrained(other)
    model = {"tokenizer_path": str(other), "custom_chat_template": TEMPLATE}
    scores = reward_model(path, model=model).score(TALKS)[0]
    expected = [alone(path, encoded(talk, tokenizer(LETTERS[::-1]))) for talk in TALKS]
    assert scores == pytest.approx(expected, abs=1e-5)


@pytest.mark.row("F32")
def test_long_texts_are_cut_from_the_left_counted_and_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = save(tmp_path)
    with caplog.at_level(logging.WARNING):
        scores, num_truncated = reward_model(path, max_length=24).score(TALKS)
    ids = [encoded(talk, tokenizer()) for talk in TALKS]
    assert scores == pytest.approx([alone(path, row[-24:]) for row in ids], abs=1e-5)
    assert num_truncated == sum(len(row) > 24 for row in ids)
    assert 0 < num_truncated < len(TALKS)
    assert f"{num_truncated} of 8 conversations were longer than 24 tokens" in caplog.text
    # Without max_length the model's own limit holds.
    assert reward_model(path).score([conversation(PROMPT, "x" * 100)])[1] == 1


class Counting(nn.Module):
    """Counts the forward passes that go through it."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner
        self.calls = 0

    def forward(self, **inputs: torch.Tensor) -> Any:
        self.calls += 1
        return self.inner(**inputs)


def test_all_ranks_can_make_the_same_number_of_passes(tmp_path: Path) -> None:
    path = save(tmp_path)
    model = reward_model(path, transform=Counting, micro_batch_size_per_gpu=3)
    assert isinstance(model.module, Counting)
    assert model.num_batches(0) == 0
    assert model.num_batches(8) == 3
    expected = model.score(TALKS)[0]
    assert model.module.calls == 3
    assert model.score(TALKS, num_batches=5)[0] == expected
    assert model.module.calls == 8
    assert model.score([], num_batches=2) == ([], 0)
    assert model.module.calls == 10


def test_nothing_learns(tmp_path: Path) -> None:
    model = reward_model(save(tmp_path))
    assert not any(parameter.requires_grad for parameter in model.module.parameters())
    assert not model.module.training


def refused(path: Path, **keys: Any) -> str:
    with pytest.raises(UserError) as error:
        reward_model(path, **keys)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_no_reward_model_is_refused(tmp_path: Path) -> None:
    assert "there is no model in" in refused(tmp_path / "none")
    assert "has 2 labels, a reward model has 1" in refused(save(tmp_path / "two", num_labels=2))
    language_model = tmp_path / "lm"
    config = AutoConfig.from_pretrained(save(tmp_path / "good"))
    AutoModelForCausalLM.from_config(config).save_pretrained(language_model)
    tokenizer().save_pretrained(language_model)
    words = refused(language_model, model={"override_config": {"num_labels": 1}})
    assert "holds no weights for score.weight" in words


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    assert "has no chat template" in refused(save(tmp_path / "a", own=tokenizer(template=None)))
    assert "has 68 tokens, the model in" in refused(save(tmp_path / "b", vocab_size=60))
    assert "max_length is 65, the model takes 64" in refused(save(tmp_path / "c"), max_length=65)
    bare = save(tmp_path / "d")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (bare / name).unlink()
    assert "makes no tokens of text" in refused(bare)


def test_a_broken_file_is_one_line(tmp_path: Path) -> None:
    path = save(tmp_path)
    (path / "model.safetensors").write_bytes(b"x" * 100)
    assert "cannot be loaded" in refused(path)


def test_a_template_that_refuses_and_a_score_that_is_not_finite(tmp_path: Path) -> None:
    path = save(tmp_path)
    template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(UserError, match="refuses a conversation: roles must alternate"):
        reward_model(path, model={"custom_chat_template": template}).score(TALKS)
    model = reward_model(path)
    with torch.no_grad():
        next(model.module.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match='gave nan, must be finite; response "yes"'):
        model.score(TALKS)


def test_errors_name_the_sample(tmp_path: Path) -> None:
    path, named = save(tmp_path), [conversation(PROMPT, "yes", "sample 0-3/1 (row train.jsonl:4)")]
    with pytest.raises(UserError, match=r"no token of a conversation; sample 0-3/1 \(row train\.jsonl:4\)"):
        reward_model(path, model={"custom_chat_template": "{{ '' }}"}).score(named)
    with pytest.raises(UserError, match=r"refuses a conversation: .*; sample 0-3/1"):
        reward_model(path, model={"custom_chat_template": "{{ 1/0 }}"}).score(named)
    model = reward_model(path)
    with torch.no_grad():
        next(model.module.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match=r"gave nan, must be finite; sample 0-3/1"):
        model.score(named)
