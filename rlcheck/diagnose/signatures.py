"""The signatures of all playbooks, kept in one file: reading every playbook takes longer than the answer.

A wheel holds that file. In a checkout it is built when it is first needed, and again when a playbook has changed.
"""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from functools import cache, cached_property
from pathlib import Path

import msgspec

from rlcheck.diagnose.literals import any_of
from rlcheck.diagnose.needed import needed
from rlcheck.facts.base import Struct
from rlcheck.playbook import DIRECTORY, Library, PlaybookError, Relations, Signature

LONG_LITERAL = 10
"""From so many characters on a literal is rare in prose."""
_PACKAGE = Path(__file__).resolve().parents[1]
_BUILT = _PACKAGE / "data" / "signatures.json"


class Known(Struct, frozen=True, dict=True):
    """A playbook as far as it is needed to find it in a log."""

    id: str
    signatures: tuple[Signature, ...]
    relations: Relations = Relations()
    needed: tuple[tuple[str, ...], ...] = ()
    """For each signature, texts of which every match holds one; they take seconds to work out, so the file has them."""

    def texts(self) -> tuple[tuple[str, ...], ...]:
        """Return `needed`, worked out where this is of no file."""
        return self.needed or tuple(tuple(sorted(needed(one.pattern, one.literal))) for one in self.signatures)

    def of_failures(self) -> Known:
        """Return this without signatures of what only warns."""
        kept = [pair for pair in zip(self.signatures, self.texts(), strict=True) if pair[0].status == "fail"]
        return msgspec.structs.replace(
            self, signatures=tuple(one for one, _ in kept), needed=tuple(texts for _, texts in kept)
        )


class Kept(Struct, frozen=True):
    """The file: what wrote it (`code`), of which playbooks (`stamps`), and what they hold."""

    code: str
    stamps: dict[str, tuple[int, int, int]]
    playbooks: tuple[Known, ...]


class Index(Struct, frozen=True, dict=True):
    """Every playbook that a log can show."""

    playbooks: tuple[Known, ...] = ()

    @cached_property
    def by_literal(self) -> dict[str, tuple[tuple[Known, int], ...]]:
        """For each literal, the signatures (playbook, position) that need it."""
        found: dict[str, list[tuple[Known, int]]] = {}
        for known in self.playbooks:
            for number, signature in enumerate(known.signatures):
                found.setdefault(signature.literal, []).append((known, number))
        return {literal: tuple(users) for literal, users in found.items()}

    @cached_property
    def long_literal(self) -> re.Pattern[str]:
        """Found in every line that holds a literal of `LONG_LITERAL` characters or more."""
        return any_of(literal for literal in self.by_literal if len(literal) >= LONG_LITERAL)


@cache
def pattern_of(pattern: str) -> re.Pattern[str]:
    """The compiled pattern; compiled when it is first needed, since few of them are."""
    return re.compile(pattern)


def load() -> Index:
    """Return the index of the doctor's own playbooks; one that is older than a playbook is built again and kept.

    Raises:
        PlaybookError: a playbook cannot be read or does not hold to the schema.
    """
    if DIRECTORY.parent == _PACKAGE:  # installed: the wheel's index was built from the wheel's playbooks
        kept = _kept(_BUILT)
        if kept is not None:
            return Index(kept.playbooks)
    stamps = stamps_of(DIRECTORY)
    places = (_BUILT, _cache())
    for place in places:
        kept = _kept(place)
        if kept is not None and kept.code == _code() and kept.stamps == stamps:
            return Index(kept.playbooks)
    index = build(Library())
    for place in places:
        if _keep(Kept(_code(), stamps, index.playbooks), place):
            break
    return index


def build(library: Library) -> Index:
    """Read every playbook of LIBRARY and keep what the index needs.

    Raises:
        PlaybookError: one of them does not hold to the schema.
    """
    books = [library.get(playbook_id) for playbook_id in library.ids()]
    found = [Known(book.id, book.signatures, book.relations) for book in books if book.signatures]
    return Index(tuple(msgspec.structs.replace(known, needed=known.texts()) for known in found))


def write(path: Path) -> None:
    """Build the index for a wheel, at PATH.

    Raises:
        PlaybookError: a playbook does not hold to the schema.
        OSError: it cannot be written.
    """
    path.write_bytes(msgspec.json.encode(Kept(_code(), {}, build(Library()).playbooks)))


def stamps_of(directory: Path) -> dict[str, tuple[int, int, int]]:
    """Return for each playbook in DIRECTORY its size, and when its content and its inode changed, in ns.

    Raises:
        PlaybookError: the directory cannot be read.
    """
    try:
        with os.scandir(directory) as entries:
            found = {entry.name: entry.stat() for entry in entries if entry.name.endswith(".md")}
    except OSError as error:
        raise PlaybookError(f"{directory}: {error.strerror}; the installation is damaged") from None
    return {name: (stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns) for name, stat in sorted(found.items())}


def _code() -> str:
    """Return what tells an index that other code has written."""
    code = (Path(__file__), Path(__file__).with_name("needed.py"), _PACKAGE / "playbook.py")
    return f"{zlib.crc32(b''.join(path.read_bytes() for path in code)):08x}"


def _cache() -> Path:
    """Return where the index is kept when the package's directory cannot be written."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(base) / "rlcheck" / f"signatures-{zlib.crc32(os.fsencode(DIRECTORY)):08x}.json"


def _kept(path: Path) -> Kept | None:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Kept)
    except (OSError, msgspec.DecodeError):
        return None


def _keep(kept: Kept, path: Path) -> bool:
    """Write KEPT to PATH in one step: another process sees the whole file or none. Return whether that worked."""
    partial = path.with_suffix(f".{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(msgspec.json.encode(kept))
        partial.replace(path)
    except OSError:
        with suppress(OSError):
            partial.unlink()
        return False
    return True
