"""The signatures of all playbooks, from one generated file: reading every playbook takes longer than the answer."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache, cached_property
from pathlib import Path

import msgspec

from rlcheck.diagnose.literals import any_of
from rlcheck.facts.base import Struct
from rlcheck.playbook import Library, PlaybookError, Relations, Signature

LONG_LITERAL = 10
"""From so many characters on a literal is rare in prose."""
INDEX = Path(__file__).resolve().parents[1] / "data" / "signatures.json"


class Known(Struct, frozen=True, dict=True):
    """A playbook as far as it is needed to find it in a log."""

    id: str
    signatures: tuple[Signature, ...]
    relations: Relations = Relations()


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


def load(path: Path = INDEX) -> Index:
    """The index as it was generated.

    Raises:
        PlaybookError: the file is missing or damaged.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Index)
    except (OSError, msgspec.DecodeError) as error:
        raise PlaybookError(f"{path.name}: {error}; the installation is damaged") from None


def build(library: Library, ids: Iterable[str]) -> Index:
    """Read the playbooks `ids` and keep what the index needs.

    Raises:
        PlaybookError: one of them does not hold to the schema.
    """
    books = [library.get(playbook_id) for playbook_id in ids]
    return Index(tuple(Known(book.id, book.signatures, book.relations) for book in books if book.signatures))
