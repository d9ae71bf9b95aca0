"""The environment variables that matter, without their secrets.

The rules (`rlcheck/data/environ.json`) come from the doctor; they are applied where the variables are, so that what is
not on the list never leaves that machine. `exact` names and `prefixes` are recorded. A name with one of `hidden` in it
is a secret, unless it is in `shown`.
"""

import re
from typing import Any, Dict, Mapping

SET = "<set>"
VALUE_LIMIT = 4096
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_URL_CREDENTIALS = re.compile(r"(?<=://)[^/\s\"']*@")
_BARE_CREDENTIALS = re.compile(r"^[^/\s@]*@")
_QUERY_SECRET = re.compile(r"(?i)([?&][\w-]*(?:token|key|sig|signature|secret|password)=)[^&\s]+")


def recorded(environ: Mapping[str, str], rules: Dict[str, Any]) -> Dict[str, str]:
    """The variables that the rules let through; of secrets, only that they are set. No rules, no variables."""
    exact, prefixes = frozenset(rules.get("exact", ())), tuple(rules.get("prefixes", ()))
    wanted = [name for name in sorted(environ) if name in exact or name.startswith(prefixes)]
    return {name: _shown(name, environ[name], rules) for name in wanted if _NAME.fullmatch(name)}


def _shown(name: str, value: str, rules: Dict[str, Any]) -> str:
    # An empty secret is recorded as empty: libraries treat it as not set.
    if value and name not in rules["shown"] and any(word in name.upper() for word in rules["hidden"]):
        return SET
    # Bytes that are not UTF-8 arrive as lone surrogates, which JSON cannot carry.
    text = value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    text = _QUERY_SECRET.sub(r"\1***", _URL_CREDENTIALS.sub("***@", text))
    if name.lower().endswith("_proxy") and "://" not in text:
        text = _BARE_CREDENTIALS.sub("***@", text)
    return text if len(text) <= VALUE_LIMIT else text[:VALUE_LIMIT] + "\u2026"
