"""Which distributions install the same files, from their RECORDs, without parsing the thousands of lines in them."""

from __future__ import annotations

from collections.abc import Iterator

from . import files
from .distributions import Record

_RECORD_LIMIT_BYTES = 8 << 20
_TOTAL_LIMIT_BYTES = 64 << 20
_TOPS_LIMIT = 500
# What RECORD says of an empty file, such as the `__init__.py` of an old-style namespace package.
_EMPTY_FILE = "sha256=47DEQpj8HBSa-_TImW-5JCeuQeRkm5NMpJWZG3hSuFU"
# Directories that careless wheels leave in site-packages; nobody imports them.
_NOT_MODULES = frozenset({"tests", "test", "docs", "doc", "examples", "benchmarks", "scripts", "__pycache__"})


class Contents:
    """What one distribution installs. `tops` are the first components of its paths, `data` its RECORD."""

    def __init__(self, record: Record, data: bytes) -> None:
        self.record = record
        self.data = b"\n" + (data.replace(b"\r\n", b"\n") if b"\r" in data else data)
        self.tops = tuple(dict.fromkeys(_first_components(self.data)))
        if not data:
            self.tops = _declared_tops(record)

    def files_under(self, top: str) -> dict[str, str]:
        """Path and hash of each file of module `top`; compiled bytecode and unhashed files are left out."""
        if self.data == b"\n":
            return {f"{top}/__init__.py": "?"} if top in self.tops else {}
        name = top.encode("utf-8", "surrogateescape")
        start = self.data.find(b"\n" + name)
        end = self.data.find(b"\n", self.data.rfind(b"\n" + name) + 1)
        found = {}
        for line in self.data[start : end if end >= 0 else None].decode("utf-8", "surrogateescape").splitlines():
            path, _, rest = line.partition(",")
            if (path.startswith(f"{top}/") or _module_of(path) == top) and not rest.startswith(","):
                found[path] = rest.partition(",")[0]
        return found

    def extension_files(self) -> Iterator[str]:
        """The paths of its compiled files, relative to its location."""
        data, place = self.data, self.data.find(b".so,")
        while place >= 0:
            yield data[data.rfind(b"\n", 0, place) + 1 : place + 3].decode("utf-8", "surrogateescape")
            place = data.find(b".so,", place + 4)

    @property
    def has_record(self) -> bool:
        """Whether the list of files is known."""
        return self.data != b"\n"


def tops_of(record: Record) -> tuple[str, ...]:
    """The first components of what a distribution installs, its record left out; its own name where nothing says."""
    found = Contents(record, files.read(record.file("RECORD"), _RECORD_LIMIT_BYTES) or b"").tops
    return tuple(top for top in found if not top.endswith((".dist-info", ".egg-info", "__pycache__"))) or (
        record.name.replace("-", "_"),
    )


def contents(records: list[Record]) -> list[Contents]:
    """The contents of each distribution, as long as all of them together stay within reason."""
    found, total = [], 0
    for record in records:
        data = (files.read(record.file("RECORD"), _RECORD_LIMIT_BYTES) or b"") if total < _TOTAL_LIMIT_BYTES else b""
        total += len(data)
        found.append(Contents(record, data))
    return found


def shared(all_contents: list[Contents]) -> dict[str, tuple[str, ...]]:
    """Import names of which two distributions install different files in the same place."""
    claims: dict[str, list[Contents]] = {}
    for item in all_contents:
        for top in {_module_of(top) for top in item.tops} - _NOT_MODULES:
            claims.setdefault(top, []).append(item)
    result: dict[str, tuple[str, ...]] = {}
    for top, claimants in sorted(claims.items()):
        if top and len({item.record.name for item in claimants}) > 1:
            for name, owners in _conflicts(top, claimants).items():
                result[name] = tuple(sorted(owners))
    return result


def _conflicts(top: str, claimants: list[Contents]) -> dict[str, set[str]]:
    """The owners of each module of `top` that has more than one; below a namespace package, of its parts."""
    hashes: dict[str, dict[str, str]] = {}
    for item in claimants:
        for path, digest in item.files_under(top).items():
            hashes.setdefault(_same_module(path, top), {})[item.record.name] = digest
    is_namespace = set(hashes.get(f"{top}/__init__.py", {}).values()) <= {_EMPTY_FILE}
    result: dict[str, set[str]] = {}
    for path, owners in hashes.items():
        if len(owners) > 1 and len(set(owners.values())) > 1:
            parts = path.split("/")
            is_inner = is_namespace and len(parts) > 2
            result.setdefault(f"{top}.{parts[1]}" if is_inner else top, set()).update(owners)
    return {top: set().union(*result.values())} if top in result else result


def _same_module(path: str, top: str) -> str:
    """`x.py` and `x/__init__.py` are one module to the import system."""
    return f"{top}/__init__.py" if "/" not in path else path


def _module_of(top: str) -> str:
    """The module that a first component stands for, or "" when it is none."""
    if top.endswith((".py", ".so", ".pth")):
        return top.partition(".")[0] if not top.endswith(".pth") else ""
    return top if top.isidentifier() else ""


def _first_components(data: bytes) -> Iterator[str]:
    """First components in a sorted RECORD, jumping from each to the last line that begins with it."""
    place = 1
    for _ in range(_TOPS_LIMIT):
        end = data.find(b"\n", place)
        line = data[place : end if end >= 0 else None]
        path = line.partition(b",")[0]
        name, slash, _ = path.partition(b"/")
        if name and name not in (b"..", b"."):
            yield name.decode("utf-8", "surrogateescape")
        if slash and not name.endswith(b".dist-info"):
            last = data.rfind(b"\n" + name + b"/")
            end = data.find(b"\n", max(last + 1, place))
        if end < 0 or end + 1 >= len(data):
            return
        place = end + 1


def _declared_tops(record: Record) -> tuple[str, ...]:
    """What an `.egg-info` says that it installs, namespace packages left out."""
    namespaces = set(files.text(record.file("namespace_packages.txt"), 1 << 16).split())
    tops = files.text(record.file("top_level.txt"), 1 << 16).split()
    return tuple(top for top in tops[:_TOPS_LIMIT] if top not in namespaces)
