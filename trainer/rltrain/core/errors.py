"""Errors that a user can fix."""

from __future__ import annotations


class UserError(Exception):
    """What is wrong, where, and how to fix it, in one line. The command prints it without a traceback."""


class RunFailure(Exception):
    """A run that broke: the message says what broke and where its log is."""


def first_line(error: BaseException) -> str:
    """The first line of what ERROR says; its kind, where it says nothing."""
    words = str(error).strip().splitlines()
    return words[0] if words else type(error).__name__


def kind_and_line(error: BaseException) -> str:
    """ERROR's kind and the first line of what it says: `KeyError: 'a'`."""
    kind, line = type(error).__name__, first_line(error)
    return line if line == kind else f"{kind}: {line}"
