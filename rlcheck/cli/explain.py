"""`rlcheck explain`: what is known of a check or a playbook, without looking at any machine."""

from __future__ import annotations

import re
import shutil
import sys
import textwrap

from rlcheck.check import Check
from rlcheck.cli.requests.answers import ExplainRequest
from rlcheck.diagnose.decode import filled
from rlcheck.doctor import clinic
from rlcheck.errors import UserError
from rlcheck.playbook import Playbook, PlaybookError, fill
from rlcheck.report.wording import ascii_wanted, caution, to_ascii


def run(request: ExplainRequest) -> int:
    """Print the page of a check, or a playbook.

    Raises:
        UserError: neither a check nor a playbook has this name.
    """
    name = request.name
    doctor = clinic.summon()
    by_id = {check.id: check for check in doctor.checks}
    try:
        check = by_id.get(name.upper())
        playbook = doctor.library.get(check.playbook if check else name.lower())
    except PlaybookError as error:
        if name.upper() in by_id or name.lower() in doctor.library.ids():
            raise UserError(str(error)) from None
        raise UserError(f"nothing is called {name!r}{_nearest(name, (*by_id, *doctor.library.ids()))}") from None
    text = (check_screen(check, playbook) if check else playbook_screen(playbook)) + "\n"
    sys.stdout.write(to_ascii(text) if request.ascii_only or ascii_wanted(sys.stdout) else text)
    return 0


def check_screen(check: Check, playbook: Playbook) -> str:
    """Return the page of CHECK: what it does and why it matters; how to verify and fix it is the playbook's."""
    summary = check.doc.strip().split("\n", 1)[0]
    headed = [] if summary.endswith(":") else ["", *_filled(summary)]
    lines = [f"{check.id}  {check.title}", *headed, "", "what it does", *_prose(check.section("What it does"))]
    lines += ["", "why", *_prose(check.section("Why it matters"))]
    lines += [*_how(playbook), f"  rlcheck explain {playbook.id}", *_verified(playbook)]
    return "\n".join(lines)


def playbook_screen(playbook: Playbook) -> str:
    """Return the page of PLAYBOOK, each thing once: how it shows, why, how to verify and fix it, where it is proved."""
    lines = [f"{playbook.id}  {playbook.title}", "", "found"]
    lines += [f"    … {words} …" for words in shown_in_logs(playbook)]
    lines += _prose(playbook.section("What happens"))
    lines += ["", "why", *_prose(filled(playbook.cause, {})), *_prose(playbook.section("Why"), gap=True)]
    return "\n".join([*lines, *_how(playbook), *_verified(playbook)])


def _how(playbook: Playbook) -> list[str]:
    """What a check and its playbook share: verify, fix, what does not help, source."""
    verify: list[str] = []
    for step in playbook.verify:
        verify += [*(f"    {line}" for line in step.run.splitlines()), *_filled(step.expect, "      → ", "        ")]
    fixes: list[str] = []
    for recipe in playbook.fixes:
        fix = fill(recipe, {})
        note = caution(fix)
        fixes += _filled(f"{fix.title} ({note})" if note else fix.title, "  - ", "    ")
        fixes += [f"      {line}" for line in fix.command.splitlines()]
    sources: list[str] = []
    for source in playbook.sources:
        sources += [f"  {source.url}", *_filled(source.what, "    ")]
    parts = {
        "verify": [*verify, *_prose(playbook.section("How to verify"))],
        "fix": [*fixes, *_prose(playbook.section("How to fix"), gap=True)],
        "does not help": _prose(playbook.section("What does not help")),
        "source": sources,
    }
    return [line for label, lines in parts.items() if lines for line in ("", label, *lines)]


def _verified(playbook: Playbook) -> list[str]:
    basis = "" if playbook.basis == "sourced" else "; rests on general knowledge, not on a source"
    return ["", f"verified {playbook.verified}{basis}"]


def _prose(text: str, gap: bool = False) -> list[str]:
    """Paragraphs of TEXT below a label, wrapped; lists, tables and code stay as they are. GAP: an empty line before."""
    lines: list[str] = []
    for number, block in enumerate(re.split(r"\n\s*\n", text.strip()) if text.strip() else ()):
        lines += [""] if number or gap else []
        whole = re.match(r"```|[-*|] |\||\d+\. | {2}", block)
        lines += [f"  {line}" for line in block.splitlines() if line[:3] != "```"] if whole else _filled(block, "  ")
    return lines


def shown_in_logs(playbook: Playbook) -> tuple[str, ...]:
    """Return the fixed words by which `rlcheck diagnose` finds it, each once."""
    return tuple(dict.fromkeys(" ".join(signature.literal.split()) for signature in playbook.signatures))


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
