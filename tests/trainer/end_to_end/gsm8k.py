"""Grade-school mathematics in the shapes of GSM8K, and a model of random weights with a tokenizer trained on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerFast

NAMES = ("Ada", "Ben", "Cem", "Dia", "Eli", "Fay", "Gus", "Ida", "Jon", "Kim", "Leo", "Mia")
END, TURN, TURN_END = SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def rows() -> list[dict[str, str]]:
    """A dozen, as the data set has them; half of the answers are 5, half 1,000."""
    sums = [(2, 3, 5) if number % 2 else (400, 600, 1000) for number in range(len(NAMES))]
    return [
        {
            "question": f"{name} has {a} pears and picks {b} more. How many pears has {name} now?",
            "answer": f"{name} has {a} + {b} = <<{a}+{b}={c}>>{c} pears.\n#### {c:,}",
        }
        for name, (a, b, c) in zip(NAMES, sums, strict=True)
    ]


def write(directory: Path) -> tuple[str, ...]:
    """Model, tokenizer and data in DIRECTORY; values that name them.

    The training prompts are in the data set's own shape, the validation prompts in that of verl's preparation; the
    demonstrations for a warm-up are no more than the answer.
    """
    given = rows()
    prompts = [[{"role": "user", "content": row["question"]}] for row in given]
    truths = [row["answer"].partition("#### ")[2].replace(",", "") for row in given]
    verl = [
        {
            "data_source": "openai/gsm8k",
            "prompt": prompt,
            "ability": "math",
            "reward_model": {"style": "rule", "ground_truth": truth},
            "extra_info": {"split": "test", "index": number},
        }
        for number, (prompt, truth) in enumerate(zip(prompts, truths, strict=True))
    ]
    pq.write_table(pa.Table.from_pylist(given), directory / "train.parquet")
    pq.write_table(pa.Table.from_pylist(verl[:6]), directory / "test.parquet")
    demonstrations = [
        {"prompt": prompt, "response": f"#### {truth}"} for prompt, truth in zip(prompts, truths, strict=True)
    ]
    (directory / "answers.jsonl").write_text("".join(json.dumps(row) + "\n" for row in demonstrations))
    _write_model(directory / "model", [row["question"] + row["answer"] for row in given])
    return (
        f"actor_rollout_ref.model.path={directory / 'model'}",
        f"data.train_files={directory / 'train.parquet'}",
        f"data.val_files={directory / 'test.parquet'}",
        f"sft_warmup.files={directory / 'answers.jsonl'}",
    )


def _write_model(directory: Path, texts: list[str]) -> None:
    """A Qwen2 of two layers, and a byte-level BPE with the marks of its chats."""
    core: Any = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer: Any = trainers.BpeTrainer
    core.train_from_iterator(
        texts, trainer(vocab_size=320, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False)
    )
    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=core, eos_token=TURN_END, pad_token=END)
    tokenizer.chat_template = CHAT_TEMPLATE
    tokenizer.save_pretrained(directory)
    config = AutoConfig.for_model(
        "qwen2",
        vocab_size=384,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
    )
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.save_pretrained(directory)
