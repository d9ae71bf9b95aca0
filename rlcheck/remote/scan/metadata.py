"""The few fields of METADATA, WHEEL and direct_url.json that compatibility rests on, read without an e-mail parser."""

from __future__ import annotations

import json
import re
from functools import lru_cache

from . import files

_LIMIT_BYTES = 4 << 20
_HEAD_BYTES = 1 << 16
_NAME = re.compile(r"\s*([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)\s*(?:\[([^\]]*)\])?")
_EXTRA = re.compile(r"""extra\s*==\s*['"]([^'"]+)['"]""")
_FIELDS = re.compile(rb"^(Requires-Dist|Requires-Python|Name|Version):([^\n]*)", re.M | re.I)
_CREDENTIALS = re.compile(r"(://)[^/@\s]*@")


class Metadata:
    """The header of a METADATA or PKG-INFO file. `broken` is why it cannot be trusted, or ""."""

    def __init__(self, path: str) -> None:
        self.name = self.version = self.requires_python = self.broken = ""
        self.requires: list[str] = []
        data = _header(path)
        label = path.rsplit("/", 1)[-1]
        if data is None:
            self.broken = f"no readable {label}"
            return
        self._parse(data)
        if not self.name or not self.version:
            lost = [field for field, value in (("Name", self.name), ("Version", self.version)) if not value]
            self.broken = f"{label} has no {' and no '.join(lost)}"

    def _parse(self, data: bytes) -> None:
        for key, raw in _FIELDS.findall(data.replace(b"\n ", b" ")):
            key, value = key.lower(), raw.decode("utf-8", "replace").strip()
            if key == b"requires-dist":
                self.requires.append(value)
            elif key == b"requires-python":
                self.requires_python = self.requires_python or value
            elif key == b"name":
                self.name = self.name or value
            else:
                self.version = self.version or value


def requires_python(path: str) -> str | None:
    """Only the Requires-Python of a METADATA file, for those that nothing else is asked of; None without a file."""
    data = files.read(path, _HEAD_BYTES)
    if data is None:
        return None
    start = data.find(b"\nRequires-Python:")
    if start < 0 or 0 <= data.find(b"\n\n") < start:
        return ""
    return data[start + 17 : data.find(b"\n", start + 17)].decode("utf-8", "replace").strip()


def _header(path: str) -> bytes | None:
    """The bytes up to the blank line before the description."""
    data = files.read(path, _HEAD_BYTES)
    if data is not None and len(data) == _HEAD_BYTES and b"\n\n" not in data:
        data = files.read(path, _LIMIT_BYTES)
    if data is None:
        return None
    if b"\r" in data:
        data = data.replace(b"\r\n", b"\n")
    end = data.find(b"\n\n")
    return data if end < 0 else data[:end]


def normalize(name: str) -> str:
    """The name of a distribution as in PEP 503."""
    name = name.lower().replace("_", "-").replace(".", "-")
    while "--" in name:
        name = name.replace("--", "-")
    return name


@lru_cache(maxsize=16384)
def parse_requirement(requirement: str) -> tuple[str, tuple[str, ...], str]:
    """The normalized name, the extras asked for, and the extra that the requirement itself belongs to ("": always)."""
    match = _NAME.match(requirement)
    if match is None:
        return "", (), ""
    extras = tuple(normalize(extra.strip()) for extra in (match.group(2) or "").split(",") if extra.strip())
    condition = _EXTRA.search(requirement)
    return normalize(match.group(1)), extras, normalize(condition.group(1)) if condition else ""


def wheel_tags(path: str) -> list[str]:
    """The compatibility tags in a WHEEL file."""
    return [line[4:].strip() for line in files.text(path, _HEAD_BYTES).splitlines() if line.startswith("Tag:")]


def direct_url(path: str) -> tuple[str, str]:
    """Where a distribution came from (URL without credentials, with its commit), and its editable directory."""
    data = files.text(path, _HEAD_BYTES)
    if not data:
        return "", ""
    try:
        document = json.loads(data)
        url = str(document["url"])
        commit = document.get("vcs_info", {}).get("commit_id", "")
        is_editable = document.get("dir_info", {}).get("editable") is True
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return "", ""
    editable = file_url_path(url) if is_editable else ""
    return without_credentials(url) + (f"@{commit}" if commit else ""), editable


def file_url_path(url: str) -> str:
    """The path in a `file:` URL, or "" for any other URL."""
    from urllib.parse import unquote  # slow to import, and few distributions are editable

    return unquote(url[len("file://") :]) if url.startswith("file:///") else ""


def without_credentials(url: str) -> str:
    """A URL whose user and password are masked, so that they never leave the machine that they were read on."""
    return _CREDENTIALS.sub(r"\1***@", url)
