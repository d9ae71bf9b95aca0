"""What the user can mend."""

from __future__ import annotations


class UserError(Exception):
    """Something that the user can mend: one line, without a traceback, exit code 2."""
