"""How a command ends when not with a report: what the user can fix, and the exit codes."""

from __future__ import annotations

USAGE_ERROR = 2
DOCTOR_FAILED = 3
INTERRUPTED = 130


class UserError(Exception):
    """Something that the user can fix: one line, without a traceback, exit code 2."""
