"""The environment variables that matter, without their secrets.

An allow list decides what is recorded at all. A name that looks like a secret is recorded as `<set>`, so that a check
can know that it is there.
"""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.probes.context import ProbeContext

SET = "<set>"
VALUE_LIMIT = 4096
_DATA = Path(__file__).resolve().parent.parent / "data" / "environ.json"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s\"']*@")
_BARE_CREDENTIALS = re.compile(r"^[^/\s@]*@")
_QUERY_SECRET = re.compile(r"(?i)([?&][\w-]*(?:token|key|sig|signature|secret|password)=)[^&\s]+")


class Rules(Struct, frozen=True):
    """Which variables are recorded (`exact` names and `prefixes`) and which of those only as set.

    A name with one of `hidden` in it is a secret, unless it is in `shown`.
    """

    exact: frozenset[str]
    prefixes: tuple[str, ...]
    hidden: tuple[str, ...]
    shown: frozenset[str]


def collect(ctx: ProbeContext) -> dict[str, str]:
    """The recorded variables, by name, in order of name."""
    rules = msgspec.json.decode(_DATA.read_bytes(), type=Rules)
    return {name: _recorded(name, ctx.environ[name], rules) for name in sorted(ctx.environ) if _is_wanted(name, rules)}


def _is_wanted(name: str, rules: Rules) -> bool:
    known_name = name in rules.exact or name.startswith(rules.prefixes)
    return known_name and _NAME.fullmatch(name) is not None


def _recorded(name: str, value: str, rules: Rules) -> str:
    """What goes into the document for `value`. An empty secret is recorded as empty: libraries treat it as not set."""
    if value and name not in rules.shown and any(word in name.upper() for word in rules.hidden):
        return SET
    # Bytes that are not UTF-8 arrive as lone surrogates, which JSON cannot carry.
    text = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = _QUERY_SECRET.sub(r"\1***", _URL_CREDENTIALS.sub("***@", text))
    if name.lower().endswith("_proxy") and "://" not in text:
        text = _BARE_CREDENTIALS.sub("***@", text)
    return text if len(text) <= VALUE_LIMIT else text[:VALUE_LIMIT] + "…"
