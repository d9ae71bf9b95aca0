"""What ends the reading of a config."""

from __future__ import annotations

from rlcheck.errors import UserError


class ReadError(UserError):
    """A config that cannot be read at all. The message is one line for the user: what, where, how to fix it."""
