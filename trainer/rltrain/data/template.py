"""The tokenizer, and from chat messages to token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import TemplateError
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from rltrain.core.errors import UserError, first_line, kind_and_line

OURS = (
    "conversation",
    "chat_template",
    "tokenize",
    "return_dict",
    "return_tensors",
    "return_assistant_tokens_mask",
    "tokenizer_kwargs",
    "add_generation_prompt",
    "continue_final_message",
    "padding",
    "truncation",
    "max_length",
)
"""Arguments of `apply_chat_template` that are not the user's to set."""


def load_tokenizer(
    path: str | Path, trust_remote_code: bool = False, custom_chat_template: str | None = None
) -> PreTrainedTokenizerBase:
    """The tokenizer in the directory PATH; without a padding token, the end token pads (padding is masked everywhere).

    Raises:
        UserError: PATH is no directory or holds no tokenizer, or the tokenizer has no end token.
    """
    place = Path(path).expanduser().absolute()
    if not place.is_dir():
        raise UserError(f"model directory {place} does not exist; set actor_rollout_ref.model.path to one")
    try:
        load: Any = AutoTokenizer
        tokenizer: Any = load.from_pretrained(str(place), trust_remote_code=trust_remote_code, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0][:300]
        raise UserError(f"no tokenizer can be loaded from {place}: {why}; set model.tokenizer_path") from None
    # Without its files transformers makes an empty one and says nothing.
    if not set(tokenizer("abc 123", add_special_tokens=False)["input_ids"]) - {tokenizer.unk_token_id}:
        raise UserError(f"the tokenizer in {place} makes no tokens of text; are its files (tokenizer.json) there?")
    if tokenizer.eos_token_id is None:
        raise UserError(f"the tokenizer in {place} has no eos_token, so no answer could end; add it to its config")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if custom_chat_template is not None:
        tokenizer.chat_template = custom_chat_template
    return tokenizer


class PromptEncoder:
    """Turns messages into text and token ids with a tokenizer's chat template.

    A prompt that was a plain string is one user message where there is a template, and is used as it is (with the
    tokenizer's own special tokens) where there is none: base models have none.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_kwargs: dict[str, Any]) -> None:
        """Hold TOKENIZER and the arguments of `data.apply_chat_template_kwargs`.

        Raises:
            UserError: an argument that the trainer sets itself.
        """
        if taken := sorted(set(template_kwargs) & set(OURS)):
            raise UserError(f"data.apply_chat_template_kwargs: remove {', '.join(taken)}: the trainer sets it itself")
        self._tokenizer: Any = tokenizer
        self._kwargs = template_kwargs
        self.has_template = self._tokenizer.chat_template is not None

    def encode(self, messages: tuple[dict[str, str], ...], is_plain: bool, place: str) -> tuple[str, list[int]]:
        """Text and token ids of MESSAGES, up to where the answer begins.

        Raises:
            UserError: there is no template for chat messages, the template refuses them, or nothing comes out.
        """
        if self.has_template:
            text, ids = self._chat(messages, place)
        elif is_plain:
            text = messages[0]["content"]
            ids = self._tokenizer(text)["input_ids"]
        else:
            raise UserError(
                f"{place}: the prompt is a list of chat messages, but the tokenizer has no chat template; give one "
                "with actor_rollout_ref.model.custom_chat_template, or write prompts as plain strings"
            )
        if not ids:
            raise UserError(f"{place}: the prompt has no tokens; give it text or drop the row")
        return text, list(ids)

    def decode(self, ids: list[int]) -> str:
        """The text of IDS, special tokens included."""
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def text(self, messages: Sequence[dict[str, str]], place: str, *, with_start: bool) -> str:
        """MESSAGES as the template writes them; WITH_START: up to where the assistant's answer begins.

        Raises:
            UserError: the template refuses them.
        """
        return self._applied(messages, place, add_generation_prompt=with_start, tokenize=False)

    def _chat(self, messages: tuple[dict[str, str], ...], place: str) -> tuple[str, list[int]]:
        text = self.text(messages, place, with_start=True)
        ids = self._applied(messages, place, add_generation_prompt=True, tokenize=True, return_dict=False)
        return text, ids

    def _applied(self, messages: Sequence[dict[str, str]], place: str, **how: bool) -> Any:
        chat = [dict(message) for message in messages]
        try:
            return self._tokenizer.apply_chat_template(chat, **how, **self._kwargs)
        except Exception as error:  # Jinja's own and whatever an expression of the template raises
            # The template's own words, if it raised them.
            why = first_line(error) if isinstance(error, TemplateError | ValueError) else kind_and_line(error)
            raise UserError(
                f"{place}: the chat template refuses the prompt: {why}; fix the prompt, or set another template "
                "with actor_rollout_ref.model.custom_chat_template"
            ) from None
