"""The sizes of a model, as its `config.json` or the config's own `toy.model` gives them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from rltrain.config.messages import shown
from rltrain.config.schema import ModelConfig, ToyConfig
from rltrain.core.errors import UserError

TOY = "toy.model"
# What must be > 0 wherever it is given, and what may be null as well.
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "ffn_dim")
_OPTIONAL = ("num_key_value_heads", "head_dim", "word_embed_proj_dim")
# Kinds of rotary embedding whose `max_position_embeddings` is the length that they reach; others stretch it further.
_UNSTRETCHED = (None, "default", "llama3", "longrope")


def sizes_in(model: ModelConfig) -> tuple[dict[str, Any], str] | None:
    """What the `config.json` of MODEL (its path has been resolved) says, its overrides applied, and where it is said.

    Returns:
        None if there is no such file.

    Raises:
        UserError: it cannot be read, or holds no JSON object.
    """
    if model.path is None:
        return None
    file = Path(model.path) / "config.json"
    if not os.path.isfile(file):
        return None
    place = f"{file} with override_config" if model.override_config else str(file)
    return {**_read(file), **model.override_config}, place


def _read(file: Path) -> dict[str, Any]:
    try:
        found: Any = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{file}: cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"{file}: not JSON: {error}") from None
    if not isinstance(found, dict):
        raise UserError(f"{file}: expected a JSON object with the sizes of a model, got {shown(found)}")
    return cast("dict[str, Any]", found)


def count(sizes: Mapping[str, Any], name: str, place: str) -> int:
    """The size NAME of SIZES.

    Raises:
        UserError: it is no integer > 0, or missing; PLACE names the file.
    """
    if name not in sizes:
        raise UserError(f"{place}: no '{name}', which memory is counted from; is it a decoder-only model?")
    value = sizes[name]
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise UserError(f"{place}: {name}: expected an integer > 0, got {shown(value)}")
    return value


def count_or(sizes: Mapping[str, Any], name: str, place: str, usual: int) -> int:
    """As `count`; USUAL where the size is left out or null.

    Raises:
        UserError: as `count`.
    """
    return usual if sizes.get(name) is None else count(sizes, name, place)


def toy_problems(toy: ToyConfig) -> Iterator[str]:
    """Sizes of the toy's model that are none."""
    for name in (*_SIZES, *_OPTIONAL):
        try:
            if name in _OPTIONAL:
                count_or(toy.model, name, TOY, usual=1)
            elif name in toy.model:
                count(toy.model, name, TOY)
        except UserError as error:
            yield str(error)


def longest_sequence(sizes: Mapping[str, Any], place: str) -> int | None:
    """Tokens that a model of SIZES has positions for; None where its file does not say.

    Raises:
        UserError: the number is none.
    """
    scaling: Any = sizes.get("rope_parameters") or sizes.get("rope_scaling")
    words = cast("dict[str, Any]", scaling) if isinstance(scaling, dict) else {}
    if words.get("rope_type", words.get("type")) not in _UNSTRETCHED:
        return None
    most = count_or(sizes, "max_position_embeddings", place, usual=0)
    return most or None
