"""`rlcheck list`: every check, or every playbook, without looking at any machine."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rlcheck.check import Check
from rlcheck.cli.requests.answers import ListFormat, ListRequest
from rlcheck.doctor import clinic
from rlcheck.errors import UserError
from rlcheck.playbook import PlaybookError
from rlcheck.report.wording import ascii_wanted, to_ascii


def run(request: ListRequest) -> int:
    """Print every check, or every playbook, as text or JSON.

    Raises:
        UserError: a selection that does not exist.
    """
    format, select = request.format, request.select
    doctor = clinic.summon()
    try:
        checks = doctor.select(select)
        rows = _playbook_rows(doctor, checks, select) if request.playbooks else _check_rows(checks)
    except PlaybookError as error:
        raise UserError(str(error)) from None
    if format is ListFormat.JSON:
        sys.stdout.write(json.dumps(rows, indent=2) + "\n")
        return 0
    text = "".join(f"{row['id']}  {row['title']}\n" for row in rows)
    sys.stdout.write(to_ascii(text) if ascii_wanted(sys.stdout) else text)
    return 0


def _check_rows(checks: Sequence[Check]) -> list[dict[str, object]]:
    return [
        {"id": check.id, "title": check.title, "family": check.family, "needs": check.needs, "playbook": check.playbook}
        for check in checks
    ]


def _playbook_rows(doctor: clinic.Doctor, checks: Sequence[Check], select: tuple[str, ...]) -> list[dict[str, object]]:
    """The playbooks of the families, or of the checks, that `select` names; without it, all."""
    books = [doctor.library.get(playbook_id) for playbook_id in doctor.library.ids()]
    wanted = {check.id for check in checks}
    return [
        {
            "id": book.id,
            "title": book.title,
            "families": book.families,
            "checks": book.checks,
            "in_logs": bool(book.signatures),
            "fixes": [
                {"title": fix.title, "command": fix.command.strip() or None, "safety": fix.safety} for fix in book.fixes
            ],
        }
        for book in books
        if not select or wanted & set(book.checks) or set(select) & set(book.families)
    ]
