"""Errors that a user can mend."""

from __future__ import annotations


class UserError(Exception):
    """What is wrong, where, and how to mend it, in one line. The command prints it without a traceback."""


class RunFailure(Exception):
    """A run that broke: the message says what broke and where its log lies."""
