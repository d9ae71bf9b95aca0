"""The reward model: a sequence classifier with one label, its own tokenizer and its own chat template.

It is given text, never the policy's tokens: the two vocabularies need not agree (nor need the architectures).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from rltrain.config.schema import ModelConfig, RewardModelConfig
from rltrain.core.errors import UserError
from rltrain.rewards.request import SHOWN_CHARACTERS, one_line

Messages = Sequence[Mapping[str, str]]
Transform = Callable[[nn.Module], nn.Module]
Loader = Callable[[ModelConfig, torch.dtype], Any]

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Conversation:
    """What the reward model reads, and which sample it is."""

    messages: tuple[dict[str, str], ...]
    sample: str = ""
    """Names the sample in an error."""

    def words(self) -> str:
        """Which one it is."""
        return self.sample or f'response "{one_line(self.messages[-1]["content"], SHOWN_CHARACTERS)}"'


def conversation(messages: Messages, response: str, sample: str = "") -> Conversation:
    """The prompt's MESSAGES with the policy's RESPONSE as the assistant's next turn; SAMPLE: its name in an error."""
    return Conversation((*map(dict, messages), {"role": "assistant", "content": response}), sample)


class RewardModel:
    """Scores conversations. A conversation's score does not depend on which others share its batch.

    TRANSFORM gets what LOAD gives and returns what shall be called in its place, on DEVICE (sharded, say). A sharded
    model is called by all ranks at once: they agree on `num_batches` and pass it to `score`.

    Raises:
        UserError: the model or its tokenizer cannot be loaded, it has no trained score head of one label, or there is
            no chat template.
    """

    def __init__(
        self,
        config: RewardModelConfig,
        *,
        device: str,
        dtype: torch.dtype,
        load: Loader | None = None,
        transform: Transform | None = None,
    ) -> None:
        self._micro_batch_size = config.micro_batch_size_per_gpu
        self._device = torch.device(device)
        path = _path(config.model)
        self._tokenizer = load_tokenizer(config.model)
        model = (load or load_model)(config.model, dtype)
        self._config: Any = (
            model.config.get_text_config()
        )  # the object that the forward pass looks at, also under a wrapper
        own_pad: int | None = self._config.pad_token_id
        vocabulary: int = self._config.vocab_size
        self._config.use_cache = False
        # Old Llama configs say -1.
        self._pad_token_id = own_pad if own_pad is not None and 0 <= own_pad < vocabulary else None
        self._limit = _limit(config, model.config, self._tokenizer)
        self._check_vocabulary(path)
        module: nn.Module = model.eval().requires_grad_(False)
        self._model = transform(module) if transform is not None else module.to(self._device)

    @property
    def module(self) -> nn.Module:
        """What is called: for moving it between devices."""
        return self._model

    def num_batches(self, num_conversations: int) -> int:
        """Micro batches that so many conversations make."""
        return math.ceil(num_conversations / self._micro_batch_size)

    @torch.no_grad()
    def score(self, conversations: Sequence[Conversation], num_batches: int | None = None) -> tuple[list[float], int]:
        """The scores, in order, and how many conversations were cut from the left to fit.

        NUM_BATCHES: forward passes to make, the largest number that any rank needs; null: what is needed here.

        Raises:
            UserError: a template that refuses a conversation, or a score that is not finite.
        """
        tokens = [self._tokens(one) for one in conversations]
        num_truncated = sum(len(row) > self._limit for row in tokens)
        if num_truncated:
            logger.warning(
                "reward model: %d of %d conversations were longer than %d tokens and were cut from the left",
                num_truncated,
                len(tokens),
                self._limit,
            )
        rows = [row[-self._limit :] for row in tokens]
        # Rows of like length together: less padding.
        order = sorted(range(len(rows)), key=lambda row: len(rows[row]))
        scores = [0.0] * len(rows)
        wanted = self.num_batches(len(rows)) if num_batches is None else num_batches
        for start in range(0, wanted * self._micro_batch_size, self._micro_batch_size):
            chosen = order[start : start + self._micro_batch_size]
            values = self._forward([rows[row] for row in chosen] or [[0]])
            for row, value in zip(chosen, values, strict=False):
                scores[row] = value
        self._check_finite(scores, conversations)
        return scores, num_truncated

    def _tokens(self, one: Conversation) -> list[int]:
        try:
            ids = self._tokenizer.apply_chat_template(list(one.messages), tokenize=True, return_dict=False)
        except Exception as error:  # Jinja's own and whatever the template raises
            why = one_line(str(error), 200)
            raise UserError(f"the reward model's chat template refuses a conversation: {why}; {one.words()}") from None
        if not ids:
            raise UserError(f"the reward model's chat template makes no token of a conversation; {one.words()}")
        return [int(token) for token in ids]

    def _forward(self, rows: Sequence[list[int]]) -> list[float]:
        """Scores of one micro batch, padded on the right."""
        pad = self._padding(rows)
        width = max(map(len, rows))
        ids = torch.full((len(rows), width), pad, dtype=torch.int64)
        mask = torch.zeros((len(rows), width), dtype=torch.int64)
        for row, tokens in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
            mask[row, : len(tokens)] = 1
        output = self._model(input_ids=ids.to(self._device), attention_mask=mask.to(self._device))
        logits: Tensor = output.logits
        return [float(value) for value in logits[:, 0].float().cpu()]

    def _padding(self, rows: Sequence[list[int]]) -> int:
        """The padding token, where the score is read: behind the last token that is not padding.

        A model whose config names none would refuse batches; it gets a token that ends no row, so that each row is
        read at its true last token, as it would be alone.
        """
        if self._pad_token_id is not None:
            return self._pad_token_id
        ends = {row[-1] for row in rows}
        pad = next(token for token in range(len(ends) + 1) if token not in ends)
        self._config.pad_token_id = pad
        return pad

    def _check_vocabulary(self, path: Path) -> None:
        size: int = self._config.vocab_size
        if len(self._tokenizer) > size:
            raise UserError(
                f"reward_model.model: the tokenizer has {len(self._tokenizer)} tokens, "
                f"the model in {path} knows {size}; set reward_model.model.tokenizer_path to the model's own"
            )

    def _check_finite(self, scores: Sequence[float], conversations: Sequence[Conversation]) -> None:
        for score, one in zip(scores, conversations, strict=True):
            if not math.isfinite(score):
                raise UserError(f"the reward model gave {score}, must be finite; {one.words()}")


def load_model(config: ModelConfig, dtype: torch.dtype) -> Any:
    """The classifier, on the host.

    Raises:
        UserError: there is none in `config.path`, or it has more labels than one, or no trained head.
    """
    path = _path(config)
    with _refusals(path):
        loaded: Any = cast("Any", AutoModelForSequenceClassification).from_pretrained(
            path,
            config=_model_config(config, path),
            dtype=dtype,
            trust_remote_code=config.trust_remote_code,
            local_files_only=True,
            output_loading_info=True,
        )
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise UserError(
            f"reward_model.model.path: {path} holds no weights for {', '.join(missing[:3])}: "
            "a language model is no reward model, its score head would be random"
        )
    return model


def make_model(config: ModelConfig, dtype: torch.dtype) -> Any:
    """The same classifier with random weights, of which no file is read.

    Raises:
        UserError: there is no config in `config.path`, or it has more labels than one.
    """
    path = _path(config)
    with _refusals(path):
        return cast("Any", AutoModelForSequenceClassification).from_config(
            _model_config(config, path), dtype=dtype, trust_remote_code=config.trust_remote_code
        )


def _model_config(config: ModelConfig, path: Path) -> Any:
    found: Any = cast("Any", AutoConfig).from_pretrained(
        path, trust_remote_code=config.trust_remote_code, local_files_only=True, **config.override_config
    )
    if found.num_labels != 1:
        raise UserError(
            f"reward_model.model.path: the model in {path} has {found.num_labels} labels, a reward model has 1"
        )
    return found


@contextmanager
def _refusals(path: Path) -> Generator[None]:
    """Say in one line what transformers and safetensors cannot do with the model in PATH."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, SafetensorError) as error:
        raise UserError(f"reward_model.model.path: {path} cannot be loaded: {one_line(str(error), 300)}") from None


def load_tokenizer(config: ModelConfig) -> Any:
    """The reward model's own tokenizer, with a chat template.

    Raises:
        UserError: it cannot be loaded, or has no template.
    """
    path = Path(config.tokenizer_path).expanduser() if config.tokenizer_path else _path(config)
    try:
        tokenizer = cast("Any", AutoTokenizer).from_pretrained(
            path, trust_remote_code=config.trust_remote_code, local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise UserError(
            f"reward_model.model: the tokenizer in {path} cannot be loaded: {one_line(str(error), 300)}"
        ) from None
    # Without its files transformers makes an empty one and says nothing.
    if not set(tokenizer("abc 123", add_special_tokens=False)["input_ids"]) - {tokenizer.unk_token_id}:
        raise UserError(f"reward_model.model: the tokenizer in {path} makes no tokens of text: are its files complete?")
    if config.custom_chat_template is not None:
        tokenizer.chat_template = config.custom_chat_template
    if tokenizer.chat_template is None:
        raise UserError(
            f"reward_model.model: the tokenizer in {path} has no chat template; "
            "set reward_model.model.custom_chat_template"
        )
    return tokenizer


def _path(config: ModelConfig) -> Path:
    if config.path is None:
        raise UserError("reward_model.enable is true, but reward_model.model.path names no model")
    path = Path(config.path).expanduser()
    if not (path / "config.json").is_file():
        raise UserError(f"reward_model.model.path: there is no model in {path} (no config.json)")
    return path


def _limit(config: RewardModelConfig, model_config: Any, tokenizer: Any) -> int:
    """Most tokens that the model takes: the least of what the config, the model and its tokenizer say."""
    own: object = model_config.get_text_config().to_dict().get("max_position_embeddings")
    limits = [config.max_length, own, tokenizer.model_max_length]
    known = [limit for limit in limits if isinstance(limit, int)]
    if config.max_length is not None and isinstance(own, int) and config.max_length > own:
        raise UserError(f"reward_model.max_length is {config.max_length}, the model takes {own} tokens")
    return min(known)
