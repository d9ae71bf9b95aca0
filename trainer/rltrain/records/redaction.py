"""Keep passwords and keys out of what a run leaves behind: `run.json`, and what wandb is told.

The run itself has the true values. Paths stay whole, unlike in reports of the doctor (`rlcheck.redact`): `eval`,
`export` and whoever repeats a run read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, cast

import yaml

HIDDEN = "***"
_USER_INFO = re.compile(r"(?<=://)[^/\s\"']*@")
# A proxy may be written without `http://`.
_BARE_USER_INFO = re.compile(r"^[^/\s@]*(?:@[^/\s@]*)*@")
_QUERY = re.compile(r"(?i)([?&][\w-]*(?:token|key|sig|signature|secret|password)=)[^&\s\"']+")
_SECRET = re.compile(
    r"(?i)(?:(?:api|access|secret|private|auth|account|signing|encryption|openai)[_-]?keys?"
    r"|(?<![a-z])auth|secrets?|passw(?:or)?ds?|pwd|passphrase|credentials?|authorization|bearer|cookie|psk)$"
)
_TOKEN = re.compile(r"(?i)(?:token|(?:api|auth|access|bearer|hf)[_-]?tokens)$")
# Tokens of a vocabulary.
_VOCABULARY = re.compile(r"(?i)(?:bos|eos|pad|unk|sep|cls|mask|image|video|audio|stop|start|end)[_-]?token$")
_ASSIGNED = re.compile(r"(?P<key>[^=]+)=(?P<value>.*)", re.DOTALL)
_MARKS = re.compile(r"://\*\*\*@|[?&][\w-]+=\*\*\*")


def redacted(value: Any, name: str = "") -> Any:
    """VALUE (as JSON has it) with `***` for what NAME or the names in it call secret, and for credentials in URLs."""
    if isinstance(value, dict):
        inner = cast("dict[Any, Any]", value).items()
        return {key: redacted(each, name if _is_secret(name, each) else str(key)) for key, each in inner}
    if isinstance(value, list | tuple):
        return [redacted(each, name) for each in cast("Sequence[Any]", value)]
    if _is_secret(name, value):
        return HIDDEN
    return _without_credentials(value, name) if isinstance(value, str) else value


def redacted_command(command: Sequence[str]) -> list[str]:
    """COMMAND (`sys.argv`) with the values of its overrides as `redacted` has them."""
    return [_redacted_argument(argument) for argument in command]


def hidden_keys(tree: Any, above: str = "") -> Iterator[str]:
    """The dotted keys of TREE (a config) whose values `redacted` has changed; a list counts as one value."""
    if isinstance(tree, dict):
        for key, value in cast("dict[Any, Any]", tree).items():
            yield from hidden_keys(value, f"{above}.{key}" if above else str(key))
    elif isinstance(tree, list | tuple):
        if any(True for each in cast("Sequence[Any]", tree) for _ in hidden_keys(each, above)):
            yield above
    elif isinstance(tree, str) and _is_changed(tree, above):
        yield above


def _is_changed(text: str, key: str) -> bool:
    if text == HIDDEN:  # a separator, too, may be written so
        return any(_is_secret(part, text) for part in key.split("."))
    return text.startswith(f"{HIDDEN}@") or bool(_MARKS.search(text))


def _is_secret(name: str, value: Any) -> bool:
    """Whether NAME says that VALUE is one. `null`, an empty text and `token: true` tell nothing, and some need them."""
    if value is None or value == "" or isinstance(value, bool):
        return False
    if _SECRET.search(name):
        return True
    return isinstance(value, str) and bool(_TOKEN.search(name)) and not _VOCABULARY.search(name)


def _without_credentials(text: str, name: str) -> str:
    text = _QUERY.sub(rf"\1{HIDDEN}", _USER_INFO.sub(f"{HIDDEN}@", text))
    if name.lower().endswith("proxy") and "://" not in text:
        text = _BARE_USER_INFO.sub(f"{HIDDEN}@", text)
    return text


def _redacted_argument(argument: str) -> str:
    assigned = _ASSIGNED.fullmatch(argument)
    if assigned is None:
        return _without_credentials(argument, "")
    key, text = assigned["key"], assigned["value"]
    try:
        value = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError):  # no override
        value = text
    name = _name_of(key)
    clean = redacted(value, name)
    if repr(clean) == repr(value):
        return f"{key}={_without_credentials(text, name)}"
    return f"{key}={clean if isinstance(clean, str) else json.dumps(clean, default=str, ensure_ascii=False)}"


def _name_of(key: str) -> str:
    """The part of KEY (dotted) that tells whether its value is a secret: one that says so, or else the last name."""
    names = [part for part in re.split(r"[.\[\]]+", key) if part and not part.isdecimal()]
    return next((name for name in names if _SECRET.search(name)), names[-1] if names else "")
