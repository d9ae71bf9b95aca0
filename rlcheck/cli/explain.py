"""`rlcheck explain` and `rlcheck list`: the knowledge itself, without looking at any machine."""

from __future__ import annotations

import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from rlcheck import doctor as clinic
from rlcheck.check import Check
from rlcheck.cli.app import UserError
from rlcheck.cli.options import Format
from rlcheck.diagnose.decode import filled
from rlcheck.playbook import Playbook, PlaybookError
from rlcheck.report.wording import ascii_wanted, to_ascii


def run_explain(name: str, ascii_only: bool) -> int:
    """Print the page of a check, or a playbook.

    Raises:
        UserError: neither a check nor a playbook has this name.
    """
    doctor = clinic.summon()
    by_id = {check.id: check for check in doctor.checks}
    try:
        if name.upper() in by_id:
            check = by_id[name.upper()]
            playbook = doctor.library.get(check.playbook)
            head = check_page(check) + "\n\n"
        else:
            playbook = doctor.library.get(name.lower())
            head = ""
    except PlaybookError as error:
        if name.upper() in by_id or name.lower() in doctor.library.ids():
            raise UserError(str(error)) from None
        raise UserError(f"nothing is called {name!r}{_nearest(name, (*by_id, *doctor.library.ids()))}") from None
    ascii_only = ascii_only or ascii_wanted(sys.stdout)
    before, body, after = head + playbook_head(playbook), playbook.body, playbook_tail(playbook)
    if sys.stdout.isatty() and not ascii_only:
        from rich.console import Console
        from rich.markdown import Markdown

        sys.stdout.write(before + "\n\n")
        Console(width=_width()).print(Markdown(body))
        sys.stdout.write("\n" + after + "\n")
    else:
        text = f"{before}\n\n{body.strip()}\n\n{after}\n"
        sys.stdout.write(to_ascii(text) if ascii_only else text)
    return 0


def run_list(format: Format, select: tuple[str, ...], playbooks: bool = False) -> int:
    """Print every check, or every playbook, as text or JSON.

    Raises:
        UserError: another format, or a selection that does not exist.
    """
    if format not in (Format.JSON, Format.TEXT):
        raise UserError(f"--format {format.value}: the list comes as text or json")
    doctor = clinic.summon()
    try:
        checks = doctor.select(select)
        rows = _playbook_rows(doctor, checks, select) if playbooks else _check_rows(checks)
    except (clinic.SelectionError, PlaybookError) as error:
        raise UserError(str(error)) from None
    if format is Format.JSON:
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
        }
        for book in books
        if not select or wanted & set(book.checks) or set(select) & set(book.families)
    ]


def check_page(check: Check) -> str:
    """A check's docstring as a page."""
    summary = check.doc.strip().split("\n", 1)[0]
    lines = [f"{check.id}  {check.title}", "", *_filled(summary)]
    for heading in ("What it does", "Why it matters", "How to fix", "References"):
        lines += ["", heading]
        for paragraph in check.section(heading).splitlines():
            lines += _filled(paragraph, "  ")
    return "\n".join(lines)


def playbook_head(playbook: Playbook) -> str:
    """What stands above a playbook's body: the cause, how it shows in a log, how to be sure, what to type."""
    lines = [f"{playbook.id}  {playbook.title}", "", *_filled(filled(playbook.cause, {}))]
    if playbook.signatures:
        lines += ["", "In a log"]
        lines += [f"    … {words} …" for words in shown_in_logs(playbook)]
    if playbook.verify:
        lines += ["", "To be sure"]
        for step in playbook.verify:
            lines += [*(f"    {line}" for line in step.run.splitlines()), *_filled(step.expect, "      → ", "        ")]
    if playbook.fixes:
        lines += ["", "To mend it"]
        for fix in playbook.fixes:
            marks = [fix.safety, *(["as root"] if fix.needs_root else [])]
            lines += _filled(f"{named(fix.title)} ({', '.join(marks)})", "  - ", "    ")
            lines += [f"      {line}" for line in named(fix.command).splitlines()]
            if fix.destroys:
                lines += _filled(f"would: {fix.destroys}", "      ")
    return "\n".join(lines)


def named(text: str) -> str:
    """TEXT of a fix with the names of the parameters that only a finding or a log can tell: `{{size}}` is `<size>`."""
    return re.sub(r"\{\{(\w+)\}\}", r"<\1>", text)


def shown_in_logs(playbook: Playbook) -> tuple[str, ...]:
    """The fixed words by which `rlcheck diagnose` finds it, each once."""
    return tuple(dict.fromkeys(" ".join(signature.literal.split()) for signature in playbook.signatures))


def playbook_tail(playbook: Playbook) -> str:
    """What stands below a playbook's body: sources, and when it was verified."""
    lines = ["Sources"] if playbook.sources else []
    for source in playbook.sources:
        lines += [f"  {source.url}", *_filled(source.what, "    ")]
    basis = "" if playbook.basis == "sourced" else "; rests on general knowledge, not on a source"
    return "\n".join([*lines, "", f"verified {playbook.verified}{basis}"])


def _filled(text: str, first: str = "", rest: str | None = None) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()),
        _width(),
        initial_indent=first,
        subsequent_indent=first if rest is None else rest,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _width() -> int:
    return max(40, min(shutil.get_terminal_size().columns, 100))


def _nearest(name: str, known: tuple[str, ...]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, 1, 0.5) or difflib.get_close_matches(name.upper(), known, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else "; `rlcheck list` names all checks"
