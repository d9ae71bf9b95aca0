"""A tokenizer of a few words: one token a digit, one for the name of each task or its signs, the marks of a chat.

It is a byte-level BPE (Sennrich et al. 2016) without merges, and the names of the tasks are added tokens, because that
is what survives loading: for some architectures (Qwen2) `AutoTokenizer` takes vocabulary, merges and added tokens from
the files but builds the rest its own way, so that a word-level tokenizer would come back losing words.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from rltrain.core.errors import UserError
from rltrain.toy.task import DIGITS
from rltrain.toy.tasks import NAMES

PAD, BOS, EOS, UNK = SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ '<eos>' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def vocabulary(vocab_size: int | None, symbols: str = "") -> dict[str, int]:
    """Token to id, padded with reserved tokens to VOCAB_SIZE, so that every id that can be sampled has a text.

    Raises:
        UserError: VOCAB_SIZE is too small.
    """
    tokens = [*SPECIAL, *ROLES, *DIGITS, *NAMES, *symbols]
    size = len(tokens) if vocab_size is None else vocab_size
    if size < len(tokens):
        raise UserError(f"toy.vocab_size={size} is less than the {len(tokens)} tokens that the toy needs; raise it")
    tokens += [f"<reserved{i}>" for i in range(size - len(tokens))]
    return {token: number for number, token in enumerate(tokens)}


def build_tokenizer(vocab_size: int | None, symbols: str = "") -> PreTrainedTokenizerFast:
    """Task names, digits and SYMBOLS are tokens, all else vanishes; decoding joins without spaces."""
    core: Any = Tokenizer(models.BPE(vocab=vocabulary(vocab_size, symbols), merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_tokens([AddedToken(name, normalized=False) for name in NAMES])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNK,
        additional_special_tokens=list(ROLES),
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def hold_loaded_equal(directory: Path, tokenizer: PreTrainedTokenizerFast, model_type: str, symbols: str = "") -> None:
    """Load the tokenizer that is beside the model in DIRECTORY, as everyone will, and compare it with TOKENIZER.

    Raises:
        UserError: it splits otherwise: `transformers` has its own idea of a tokenizer for this architecture.
    """
    load: Any = AutoTokenizer
    built: Any = tokenizer
    loaded = load.from_pretrained(str(directory), local_files_only=True)
    text = "".join([*ROLES, *NAMES, " ", DIGITS, symbols, EOS])
    ids = built(text, add_special_tokens=False)["input_ids"]
    same_ids = loaded(text)["input_ids"] == ids == built(text)["input_ids"]
    if not same_ids or loaded.decode(ids) != built.decode(ids) or len(loaded) != len(built):
        raise UserError(
            f"toy.model.model_type={model_type}: transformers loads {type(loaded).__name__} for it, which splits text "
            "otherwise than the toy's tokenizer; take qwen2, llama or opt"
        )
