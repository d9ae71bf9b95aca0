"""Keeping secrets and names of people out of everything that leaves the doctor.

Works on encoded JSON, so that nothing that is added to a document later can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

T = TypeVar("T")

_SECRET_NAME = rb"(?:api[_-]?key|access[_-]?key|token|secret|passw(?:or)?d|credentials?)"
_PATTERNS: tuple[tuple[re.Pattern[bytes], bytes], ...] = (
    (re.compile(rb"(://)[^/\s\"\\@]+@"), rb"\1***@"),
    (re.compile(rb"\b(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|pypi-|AKIA|ASIA)[\w-]{12,}"), rb"\1***"),
    (re.compile(rb"(?i)\b(bearer|basic) +[A-Za-z0-9._~+/=-]{8,}"), rb"\1 ***"),
    # Plain text only (`token=…`): a JSON key ends in a quote, so that `"token": true` of our own documents stays whole.
    (re.compile(rb"(?i)(" + _SECRET_NAME + rb"\s*[=:]\s*)[^\s\"'&,;<\\]{4,}"), rb"\1***"),
    (re.compile(rb"(?i)(" + _SECRET_NAME + rb"\\\"\s*:\s*\\\")[^\"\\]{4,}"), rb"\1***"),
    (re.compile(rb"(/(?:home|Users)/)(?!\*\*\*)[^/\"\s\\:]+"), rb"\1***"),
)  # fmt: skip
_SHARED_ACCOUNTS = frozenset({"root", "user", "ubuntu", "admin", "app", "nobody", "runner", "ray", "data", "tmp"})


def redact(document: T, type_: type[T], environ: Mapping[str, str]) -> T:
    """`document` without tokens, URL credentials and the names of home directories.

    Args:
        document: a msgspec struct (a report, a facts file).
        type_: its type, to decode it again.
        environ: whose `HOME` becomes `~` and whose user's name becomes `$USER` in paths.
    """
    return msgspec.json.decode(redact_bytes(msgspec.json.encode(document), environ), type=type_)


def redact_bytes(data: bytes, environ: Mapping[str, str]) -> bytes:
    """The same for any text."""
    home = environ.get("HOME", "").rstrip("/")
    if home.count("/") >= 2:
        data = re.sub(re.escape(home.encode("utf-8", "replace")) + rb"(?=[/\"\s:]|$)", b"~", data)
    user = environ.get("USER", "") or environ.get("LOGNAME", "")
    if len(user) >= 3 and user not in _SHARED_ACCOUNTS:
        data = re.sub(rb"(?<=/)" + re.escape(user.encode("utf-8", "replace")) + rb"(?=[/\"\s:]|$)", b"$USER", data)
    for pattern, replacement in _PATTERNS:
        data = pattern.sub(replacement, data)
    return data
