"""A tokenizer as its files say: how many tokens, which end a text, which template. It is not run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import msgspec

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.config import TokenizerFacts
from rlcheck.measure.config.mounts import file_size
from rlcheck.measure.config.trees import recordable

_MAX_JSON = 256 << 20
# Digits of a token's number; more are none.
_MAX_DIGITS = 10
_TOKEN_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json", "tiktoken.model", "tekken.json", "vocab.txt")


class _Added(msgspec.Struct):
    content: str = ""
    id: int = -1


class _Model(msgspec.Struct):
    vocab: dict[str, int] | list[Any] = {}


class _Tokenizer(msgspec.Struct):
    model: _Model = msgspec.field(default_factory=_Model)
    added_tokens: list[_Added] = []


def tokenizer_in(directory: Path, custom_template: str = "") -> Fact[TokenizerFacts]:
    """The tokenizer in DIRECTORY; CUSTOM_TEMPLATE is the config's own, which takes the place of its files'."""
    said = _json(directory / "tokenizer_config.json")
    if said is None and not any((directory / name).is_file() for name in _TOKEN_FILES):
        return absent(f"{directory} holds no tokenizer")
    said = said or {}
    ids, count = _vocabulary(directory)
    added: Any = said.get("added_tokens_decoder")
    for number, token in cast("dict[str, Any]", added if isinstance(added, dict) else {}).items():
        if isinstance(token, dict) and number.isdecimal() and len(number) < _MAX_DIGITS:
            ids.setdefault(str(cast("dict[str, Any]", token).get("content", "")), int(number))
    special = _json(directory / "special_tokens_map.json") or {}
    eos, pad, bos = (_token(said, special, name) for name in ("eos_token", "pad_token", "bos_token"))
    template, place = _template(directory, said)
    if custom_template:
        template, place = custom_template, "custom_chat_template"
    remote = said.get("auto_map")
    return known(
        TokenizerFacts(
            directory=str(directory),
            num_tokens=max(count, len(ids)),
            max_token_id=max(ids.values(), default=-1),
            eos_token=eos,
            eos_id=ids.get(eos, -1) if eos else -1,
            pad_token=pad,
            pad_id=ids.get(pad, -1) if pad else -1,
            bos_token=bos,
            chat_template=template,
            template_place=place,
            needs_remote_code=isinstance(remote, dict) and "AutoTokenizer" in remote,
            class_name=str(said.get("tokenizer_class") or ""),
        )
    )


def _vocabulary(directory: Path) -> tuple[dict[str, int], int]:
    """Tokens with their ids, and how many there are."""
    path = directory / "tokenizer.json"
    try:
        if file_size(path) > _MAX_JSON:
            return {}, 0
        found = msgspec.json.decode(path.read_bytes(), type=_Tokenizer)
    except (OSError, msgspec.DecodeError, msgspec.ValidationError, RecursionError):
        vocabulary = _json(directory / "vocab.json") or {}
        ids = {token: number for token, number in vocabulary.items() if type(number) is int}
        return ids, len(ids)
    vocab = found.model.vocab
    if isinstance(vocab, dict):
        ids = vocab
    else:
        rows = [cast("list[Any]", entry) for entry in vocab if isinstance(entry, list)]
        ids = {str(row[0]): number for number, row in enumerate(rows) if row}
    ids |= {token.content: token.id for token in found.added_tokens}
    return ids, len(ids)


def _token(said: dict[str, Any], special: dict[str, Any], name: str) -> str:
    value: Any = said.get(name) if said.get(name) is not None else special.get(name)
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("content")
    return value if isinstance(value, str) else ""


def _template(directory: Path, said: dict[str, Any]) -> tuple[str, str]:
    path = directory / "chat_template.jinja"
    try:
        file_size(path)
        return path.read_text(encoding="utf-8"), str(path)
    except (OSError, UnicodeDecodeError):
        pass
    for name in ("tokenizer_config.json", "chat_template.json"):
        value: Any = said.get("chat_template") if name == "tokenizer_config.json" else None
        if name != "tokenizer_config.json":
            value = (_json(directory / name) or {}).get("chat_template")
        if isinstance(value, list):
            value = _default_of(cast("list[Any]", value))
        if isinstance(value, str) and value:
            return value, str(directory / name)
    return "", ""


def _default_of(templates: list[Any]) -> Any:
    """Of several named templates the default one, or else the first."""
    pairs = [cast("dict[str, Any]", one) for one in templates if isinstance(one, dict)]
    named = {str(one.get("name")): one.get("template") for one in pairs}
    return named.get("default") or next(iter(named.values()), None)


def _json(path: Path) -> dict[str, Any] | None:
    try:
        if file_size(path) > _MAX_JSON:
            return None
        found: Any = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError, RecursionError):
        return None
    return cast("dict[str, Any]", recordable(found)) if isinstance(found, dict) else None
