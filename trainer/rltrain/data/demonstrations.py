"""Rows to learn from as they are, in tokens: conversations, and prompts with a response; which tokens are learnt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from transformers import PreTrainedTokenizerBase

from rltrain.core.errors import UserError
from rltrain.data.schema import CheckedRow, Message
from rltrain.data.template import PromptEncoder

IGNORED = -100
"""Label of a token that is not learned; `torch.nn.functional.cross_entropy` skips it."""

Encoded = tuple[list[int], list[int]]
"""Token ids, and as many labels: the token itself, or `IGNORED`. Labels are beside their own tokens, not shifted."""


class DemonstrationEncoder:
    """Turns rows into tokens and labels with a tokenizer and its chat template."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, template_kwargs: dict[str, Any]) -> None:
        """As `PromptEncoder`."""
        self._prompts = PromptEncoder(tokenizer, template_kwargs)
        self._tokenizer: Any = tokenizer
        added: dict[int, Any] = self._tokenizer.added_tokens_decoder
        self._marks = {*self._tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}

    def answer(self, row: CheckedRow) -> Encoded:
        """ROW's prompt as a rollout would begin with it, its response and the end token: these two are learnt.

        Raises:
            UserError: ROW has no response, or as of `PromptEncoder.encode`.
        """
        if row.response is None:
            raise UserError(f"{row.raw.place}:response: missing; a demonstration needs a prompt and a response")
        _, prompt = self._prompts.encode(row.messages, row.is_plain, row.raw.place)
        response = [*self._ids(row.response), self._tokenizer.eos_token_id]
        return [*prompt, *response], [IGNORED] * len(prompt) + response

    def conversation(self, messages: Sequence[Message], place: str) -> Encoded:
        """All MESSAGES, of which every turn of the assistant is learnt: what follows the template's start of it.

        A turn ends with its end mark: what the template puts behind that (a line break) is no part of it.

        Raises:
            UserError: the tokenizer has no template, or it refuses the conversation, or masks cannot be cut from it.
        """
        text, turns = self._turns(messages, place)
        cuts = sorted({0, len(text), *(border for turn in turns for border in turn)})
        pieces = self._pieces(text, cuts, place)
        starts = {start for start, _ in turns}
        ids: list[int] = []
        labels: list[int] = []
        for begin, piece in zip(cuts, pieces, strict=False):
            learnt = self._until_mark(piece) if begin in starts else 0
            ids += piece
            labels += [*piece[:learnt], *[IGNORED] * (len(piece) - learnt)]
        return ids, labels

    def _turns(self, messages: Sequence[Message], place: str) -> tuple[str, list[tuple[int, int]]]:
        """The conversation's text, and where in it each turn of the assistant begins and ends."""
        if not self._prompts.has_template:
            raise UserError(
                f"{place}: the row is a conversation, but the tokenizer has no chat template; give one with "
                "model.custom_chat_template, or write rows as prompt and response"
            )
        text = self._prompts.text(messages, place, with_start=False)
        turns: list[tuple[int, int]] = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._prompts.text(messages[:number], place, with_start=True)
            after = self._prompts.text(messages[: number + 1], place, with_start=False)
            if not (after.startswith(before) and text.startswith(after)):
                raise UserError(
                    f"{place}: the chat template is not append-only: with later messages it writes message {number} or "
                    "those before otherwise, so that what the model sees in a rollout is not what it would learn; cut "
                    "the row after its first answer, or set another template with model.custom_chat_template"
                )
            turns.append((len(before), len(after)))
        return text, turns

    def _pieces(self, text: str, cuts: Sequence[int], place: str) -> list[list[int]]:
        """TEXT in tokens, cut at CUTS, of which the first is 0 and the last its length."""
        whole = self._ids(text)
        pieces = [self._ids(text[start:end]) for start, end in pairwise(cuts)]
        if [token for piece in pieces for token in piece] == whole:
            return pieces
        # A tokenizer that begins each text with a blank: its pieces are those of the whole.
        borders = [len(self._ids(text[:cut])) for cut in cuts]
        if all(self._ids(text[:cut]) == whole[:border] for cut, border in zip(cuts, borders, strict=True)):
            return [whole[start:end] for start, end in pairwise(borders)]
        # A token that spans a border (two line breaks): a rollout starts with the first part alone, and so does this.
        if self._prompts.decode([token for piece in pieces for token in piece]) == self._prompts.decode(whole):
            return pieces
        raise UserError(
            f"{place}: the tokens of the turns do not add up to those of the conversation, so that no mask can be cut; "
            "set another template with model.custom_chat_template"
        )

    def _until_mark(self, piece: Sequence[int]) -> int:
        """Tokens of PIECE, a turn, up to its last special token; all of them where it has none."""
        marks = [number for number, token in enumerate(piece) if token in self._marks]
        return marks[-1] + 1 if marks else len(piece)

    def _ids(self, text: str) -> list[int]:
        return list(self._tokenizer(text, add_special_tokens=False)["input_ids"]) if text else []
