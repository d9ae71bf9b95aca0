"""What a fact is: a value, or the reason that there is none.

Facts are plain immutable data. They are collected on one machine and may be judged on another, so nothing in here
touches the machine, and every type survives a round trip through JSON.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Generic, TypeVar

import msgspec

T = TypeVar("T")


class MissingKind(str, Enum):
    """Why a fact has no value. `absent` means that the thing is not there; all others mean that we could not look."""

    ABSENT = "absent"
    PERMISSION = "permission"
    TIMEOUT = "timeout"
    UNSUPPORTED = "unsupported"
    ERROR = "error"
    NOT_COLLECTED = "not_collected"


class Struct(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Base of every fact model: immutable, keyword-only, defaults left out of the JSON."""


class Missing(Struct, frozen=True):
    """The reason that a fact has no value. `reason` is one line for a reader."""

    kind: MissingKind
    reason: str


class Fact(Struct, Generic[T], frozen=True):
    """A value, or the reason that it is missing. The default is a fact that nobody collected."""

    value: T | None = None
    missing: Missing | None = None


class FactMissingError(Exception):
    """Raised by `need`; the engine turns it into *skip* (absent) or *unknown* (could not look)."""

    def __init__(self, missing: Missing) -> None:
        super().__init__(missing.reason)
        self.missing = missing


_NOT_COLLECTED = Missing(kind=MissingKind.NOT_COLLECTED, reason="was not collected")


def known(value: T) -> Fact[T]:
    """A fact with a value."""
    return Fact(value=value)


def missing(kind: MissingKind, reason: str) -> Fact[Any]:
    """A fact without a value, and why."""
    return Fact(missing=Missing(kind=kind, reason=reason))


def absent(reason: str) -> Fact[Any]:
    """A fact about something that this machine does not have."""
    return missing(MissingKind.ABSENT, reason)


def why_missing(fact: Fact[Any]) -> Missing | None:
    """The reason that `fact` has no value, or None when it has one."""
    if fact.missing is not None:
        return fact.missing
    return _NOT_COLLECTED if fact.value is None else None


def need(fact: Fact[T]) -> T:
    """The value of `fact`.

    Raises:
        FactMissingError: there is none; a check lets it pass and is then reported as skipped or unknown.
    """
    reason = why_missing(fact)
    if reason is not None:
        raise FactMissingError(reason)
    assert fact.value is not None
    return fact.value


def value_or(fact: Fact[T], default: T) -> T:
    """The value of `fact`, or `default` when it is missing for whatever reason."""
    return default if fact.value is None else fact.value
