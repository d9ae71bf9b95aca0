"""Rows with a response, as tokens and labels for supervised training."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from rltrain.core.errors import UserError
from rltrain.data.schema import Row

IGNORED = -100
"""Label of a token that is not learned; `torch.nn.functional.cross_entropy` skips it."""


def encode_demonstration(
    row: Row, tokenizer: PreTrainedTokenizerBase, max_response_length: int
) -> tuple[list[int], list[int]]:
    """Token ids of prompt, response and end token, and as many labels: the prompt's are `IGNORED`.

    Raises:
        UserError: the row has no response, or one longer than MAX_RESPONSE_LENGTH tokens, the end token included.
    """
    if row.response is None:
        raise UserError(f"{row.place}:response: missing; a demonstration needs a prompt and a response")
    encoder: Any = tokenizer
    response: list[int] = [*encoder(row.response, add_special_tokens=False)["input_ids"], encoder.eos_token_id]
    if len(response) > max_response_length:
        raise UserError(
            f"{row.place}:response: {len(response)} tokens with the end token, data.max_response_length is "
            f"{max_response_length}; raise it or shorten the response"
        )
    return [*row.prompt_ids, *response], [IGNORED] * len(row.prompt_ids) + response
