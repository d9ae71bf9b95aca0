"""Which distributions are installed: from the names in the `sys.path` directories, details only where they matter."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from typing import Any

from . import metadata
from .files import Listings, text

_REQUIRES_PYTHON_LIMIT = 2000
_PYTHON_SUFFIX = re.compile(r"-py\d[\d.]*(-.*)?$")


class Record:
    """One `*.dist-info` or `*.egg-info` on `sys.path`."""

    __slots__ = ("details", "info", "location", "name", "version")

    def __init__(self, name: str, version: str, location: str, info: str) -> None:
        self.name = name
        self.version = version
        self.location = location
        self.info = info
        self.details: dict[str, Any] = {}

    def file(self, name: str) -> str:
        """The path of a file of the record; a distutils `.egg-info` is itself the metadata file."""
        return f"{self.info}/{name}"

    @property
    def metadata_path(self) -> str:
        """METADATA or PKG-INFO."""
        if self.info.endswith(".dist-info"):
            return self.file("METADATA")
        return self.file("PKG-INFO") if os.path.isdir(self.info) else self.info

    def document(self) -> dict[str, Any]:
        """The record as the facts document has it."""
        return {"name": self.name, "version": self.version, "location": self.location, **self.details}


def find(sys_path: Iterable[str], listings: Listings) -> list[Record]:
    """Every distribution in the order of `sys.path`, duplicates included."""
    records: list[Record] = []
    for directory in dict.fromkeys(sys_path):
        names = listings.names(directory)
        for name in names:
            if name.endswith((".dist-info", ".egg-info")):
                records.append(_record(directory, name))
        if directory.endswith(".egg") and "EGG-INFO" in names:
            parent, egg = os.path.split(directory)
            stem = _PYTHON_SUFFIX.sub("", egg[: -len(".egg")])
            name, _, version = stem.rpartition("-")
            records.append(Record(metadata.normalize(name or stem), version, parent, f"{directory}/EGG-INFO"))
    _mark_develop_installs(records, sys_path, listings)
    return records


def _record(directory: str, entry: str) -> Record:
    stem = entry.rsplit(".", 1)[0]
    if entry.endswith(".egg-info"):
        stem = _PYTHON_SUFFIX.sub("", stem)
    name, dash, version = stem.rpartition("-")
    if not dash or not version[:1].isdigit():
        name, version = stem, ""
    record = Record(metadata.normalize(name), version, directory, f"{directory}/{entry}")
    if not version:
        _name_from_file(record)
    return record


def _name_from_file(record: Record) -> None:
    """Take name and version from the metadata file where the directory's name does not have them."""
    header = metadata.Metadata(record.metadata_path)
    if header.version:
        record.version = header.version
        record.name = metadata.normalize(header.name or record.name)
    else:
        record.details["broken"] = header.broken or "no version"


def _mark_develop_installs(records: list[Record], sys_path: Iterable[str], listings: Listings) -> None:
    """`setup.py develop` leaves an `.egg-link` in site-packages and the record beside the sources."""
    for directory in dict.fromkeys(sys_path):
        for entry in listings.names(directory):
            if not entry.endswith(".egg-link"):
                continue
            source = text(f"{directory}/{entry}", 4096).split("\n", 1)[0].strip().rstrip("/")
            name = metadata.normalize(entry[: -len(".egg-link")])
            for record in records:
                if record.name == name and record.location.rstrip("/") == source:
                    record.details["editable"] = source


def read_details(records: list[Record], is_stack: Callable[[str], bool]) -> list[Record]:
    """Read the requirements of the stack and of what it reaches; return those records.

    Extras are followed only where a requirement asks for them. The rest only say which Python they want, and that only
    in environments of an ordinary size.
    """
    by_name: dict[str, list[Record]] = {}
    for record in records:
        by_name.setdefault(record.name, []).append(record)
    reached = _closure(by_name, [name for name in by_name if is_stack(name)])
    if len(records) <= _REQUIRES_PYTHON_LIMIT:
        for record in records:
            if "requires_read" not in record.details and "broken" not in record.details:
                _read_requires_python(record)
    return reached


def _closure(by_name: dict[str, list[Record]], roots: list[str]) -> list[Record]:
    reached: dict[int, Record] = {}
    extras_of: dict[str, set[str]] = {name: {""} for name in roots}
    queue = list(roots)
    while queue:
        name = queue.pop()
        for record in by_name[name]:
            if id(record) not in reached:
                reached[id(record)] = record
                _read_record(record)
            for requirement in record.details["requires"]:
                wanted, extras, condition = metadata.parse_requirement(requirement)
                if wanted in by_name and condition in extras_of[name]:
                    known = extras_of.setdefault(wanted, set())
                    fresh = {"", *extras} - known
                    known.update(fresh)
                    queue.extend([wanted] if fresh else [])
    return [record for records in by_name.values() for record in records if id(record) in reached]


def _read_record(record: Record) -> None:
    header = metadata.Metadata(record.metadata_path)
    details = record.details
    details["requires"] = header.requires or _requires_txt(record)
    details["requires_python"] = header.requires_python
    details["requires_read"] = not header.broken
    broken = details.get("broken") or header.broken
    if not broken and metadata.normalize(header.name) != record.name:
        broken = f"{os.path.basename(record.metadata_path)} names {header.name!r}"
    if not header.broken:
        record.version = header.version
    if broken:
        details["broken"] = broken
    details["installer"] = text(record.file("INSTALLER"), 256).strip()[:40]
    # pip and uv always write one; a distribution's own packages (Debian's) have none.
    is_wheel = record.info.endswith(".dist-info") and details["installer"] in ("pip", "uv")
    if not broken and is_wheel and not os.path.exists(record.file("RECORD")):
        details["broken"] = "no RECORD: pip can neither upgrade nor remove it"
    details["wheel_tags"] = metadata.wheel_tags(record.file("WHEEL"))
    url, editable = metadata.direct_url(record.file("direct_url.json"))
    if url:
        details["direct_url"] = url
    if editable:
        details["editable"] = editable


def _requires_txt(record: Record) -> list[str]:
    """The requirements of a setuptools `.egg-info`, whose PKG-INFO seldom has them; `[extra:marker]` heads a group."""
    if record.info.endswith(".dist-info"):
        return []
    requires, condition = [], ""
    for line in text(record.file("requires.txt"), 1 << 16).splitlines():
        line = line.strip()
        if line.startswith("[") and line.endswith("]"):
            extra, _, marker = line[1:-1].partition(":")
            parts = [f'extra == "{extra}"'] if extra else []
            condition = " and ".join(parts + ([f"({marker})"] if marker else []))
        elif line:
            requires.append(f"{line} ; {condition}" if condition else line)
    return requires


def _read_requires_python(record: Record) -> None:
    wanted = metadata.requires_python(record.metadata_path)
    if wanted is None:
        record.details["broken"] = f"no readable {os.path.basename(record.metadata_path)}"
    elif wanted:
        record.details["requires_python"] = wanted
