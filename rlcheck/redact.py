"""Keeping secrets and names of people out of everything that leaves the doctor.

Works on encoded JSON, so that nothing that is added to a document later can be forgotten.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from rlcheck.facts.hygiene import without_surrogates

T = TypeVar("T")

_SECRET_NAME = rb"(?:api[_-]?key|access[_-]?key|token|secret|passw(?:or)?d|credentials?)"
_MIXED = rb"(?=[\w.~+/-]*[0-9])(?=[\w.~+/-]*[A-Za-z])"
# The start of a word in encoded JSON, where a line feed before it is the two characters `\n`.
_START = rb"(?:(?<!\w)|(?<=\\[bfnrt])|(?<=\\u[0-9a-f]{4}))"
_VALUE_NEXT = rb"[^\"\\]{0,80}\",\s*\"value\": ?\""
# Each with literals that must stand where it begins, in lower case: finding those first is ten times as fast.
_NAMES = re.compile(rb"api_?-?key|access_?-?key|token|secret|passw|credential")
_FORMS = re.compile(rb"hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|pypi-|akia|asia")
_LOGINS = re.compile(rb"(?<![a-z])(?:key\s*[=:]|password\s)")
_SCHEMES = re.compile(rb"bearer +|basic +")
_PATTERNS: tuple[tuple[re.Pattern[bytes] | None, re.Pattern[bytes], bytes], ...] = (
    (None, re.compile(rb"(://)[^/\s\"\\]+@"), rb"\1***@"),
    (_FORMS, re.compile(
        _START + rb"(hf_|sk-|gh[pousr]_|github_pat_|glpat-|xox[abprs]-|pypi-|AKIA|ASIA)[\w-]{12,}"), rb"\1***"),
    (_SCHEMES, re.compile(rb"(?i)" + _START + rb"(bearer|basic) +[A-Za-z0-9._~+/=-]{8,}"), rb"\1 ***"),
    # Plain text only (`token=…`): a JSON key ends in a quote, so that `"token": true` of our own documents stays whole.
    (_NAMES, re.compile(rb"(?i)(" + _SECRET_NAME + rb"\s*=\s*(?:\\?[\"'])?)[^\s\"'&,;<\\]{4,}"), rb"\1***"),
    (None, re.compile(rb"(?i)(--[\w-]{0,40}" + _SECRET_NAME + rb" +)[^\s\"'\\]{4,}"), rb"\1***"),
    # After a colon prose may follow ("no token: gated models …"); a secret is long, or has digits among its letters.
    (_NAMES, re.compile(
        rb"(?i)(" + _SECRET_NAME + rb":\s*)(?:[\w.~+/-]{16,}|" + _MIXED + rb"[\w.~+/-]{8,})"), rb"\1***"),
    (_NAMES, re.compile(rb"(?i)(" + _SECRET_NAME + rb"\\\"\s*:\s*\\\")[^\"\\]{4,}"), rb"\1***"),
    # `wandb.login(key="…")`, and the line of a .netrc: W&B's keys are 40 or more hexadecimal digits.
    (_LOGINS, re.compile(rb"(?i)((?:key\s*[=:]|password\s)\s*(?:\\?[\"'])?)[0-9a-f]{40,}(?![\w-])"), rb"\1***"),
    (None, re.compile(
        rb"(?i)(\"name\": ?\"[^\"\\]{0,80}" + _SECRET_NAME + _VALUE_NEXT + rb")[^\"\\]+"), rb"\1***"),
    (None, re.compile(rb"(/(?:home|Users)/)(?!\*\*\*)[^/\"\s\\:]+"), rb"\1***"),
)  # fmt: skip
# Accounts that are nobody's name, and would be found in every second path.
_SHARED_ACCOUNTS = frozenset({
    "root", "user", "ubuntu", "debian", "centos", "admin", "app", "nobody", "runner", "jenkins", "coder",
    "vscode", "jovyan", "ec2-user", "azureuser", "opc", "ray", "data", "tmp", "home", "opt", "usr", "var", "lib", "bin",
    "mnt", "work", "test", "train", "model", "models", "cache", "python", "conda", "torch",
    "vllm", "sglang", "verl", "slurm",
})  # fmt: skip


def redact(document: T, type_: type[T], environ: Mapping[str, str]) -> T:
    """`document` without tokens, URL credentials and the names of home directories.

    Args:
        document: a msgspec struct (a report, a facts file).
        type_: its type, to decode it again.
        environ: whose `HOME` becomes `~` and whose user's name becomes `$USER` in paths.
    """
    try:
        data = msgspec.json.encode(document)
    except UnicodeEncodeError:  # from a plug-in or a variable: facts have been through this already
        data = msgspec.json.encode(without_surrogates(document, type_))
    return msgspec.json.decode(redact_bytes(data, environ), type=type_)


def redact_bytes(data: bytes, environ: Mapping[str, str]) -> bytes:
    """The same for any text."""
    home = environ.get("HOME", "").rstrip("/")
    if home.count("/") >= 2:
        directory = re.escape(home.encode("utf-8", "replace"))
        # A shell expands `~` only outside of quotes, and a command of the report is there to be copied.
        data = re.sub(rb"'" + directory + rb"/", b"~/'", data)
        data = re.sub(directory + rb"(?![\w-])", b"~", data)
    user = environ.get("USER", "") or environ.get("LOGNAME", "")
    if len(user) >= 3 and user not in _SHARED_ACCOUNTS:
        data = re.sub(rb"(?<=[/_])" + re.escape(user.encode("utf-8", "replace")) + rb"(?![\w-])", b"$USER", data)
    for begins, pattern, replacement in _PATTERNS:
        data = pattern.sub(replacement, data) if begins is None else _replaced(data, begins, pattern, replacement)
    return data


def _replaced(data: bytes, begins: re.Pattern[bytes], pattern: re.Pattern[bytes], replacement: bytes) -> bytes:
    """`pattern.sub(replacement, data)`, tried only where `begins` is found."""
    parts: list[bytes] = []
    end = 0
    for hit in begins.finditer(data.lower()):
        match = pattern.match(data, hit.start()) if hit.start() >= end else None
        if match is not None:
            parts += (data[end : match.start()], match.expand(replacement))
            end = match.end()
    return b"".join((*parts, data[end:]))
