"""A playbook as a page of its own, under the labels of the reports: found, why, verify, fix, source."""

from __future__ import annotations

import re

from rlcheck.cli.explain import shown_in_logs
from rlcheck.diagnose.decode import filled
from rlcheck.families import FAMILIES
from rlcheck.playbook import Library, Playbook, PlaybookError, fill
from rlcheck.report.wording import caution

_INDEX = "[All checks and playbooks](../checks-and-playbooks.md)"


def playbook_page(playbook: Playbook, library: Library) -> str:
    """Return the page. LIBRARY: to link to the playbooks that it follows from."""
    families = ", ".join(f"[{FAMILIES[name].title}](../checks/{name}.md)" for name in playbook.families)
    lines = [f"# {_text(playbook.title)}", "", f"{_INDEX} · {families} · `rlcheck explain {playbook.id}`", ""]
    parts = {
        "Found": [*_in_a_log(playbook, library), playbook.section("What happens")],
        "Why": [_text(filled(playbook.cause, {})), "", playbook.section("Why")],
        "Verify": [*_verify(playbook), playbook.section("How to verify")],
        "Fix": [*_fixes(playbook), playbook.section("How to fix")],
        "Does not help": [playbook.section("What does not help")],
        "Source": _proof(playbook),
    }
    for label, part in parts.items():
        lines += [f"## {label}", "", *part, ""] if any(part) else []
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).rstrip() + "\n"


def in_a_cell(text: str) -> str:
    """TEXT in a cell of a table."""
    return _text(text).replace("|", "\\|")


def _in_a_log(playbook: Playbook, library: Library) -> list[str]:
    if not playbook.signatures:
        return []
    lines = ["`rlcheck diagnose LOG` knows it by lines with these words:", ""]
    lines += [f"- {_code(words)}" for words in shown_in_logs(playbook)]
    follows = [_link(other, library) for other in playbook.relations.consequence_of if other != "*"]
    if follows:
        lines += ["", f"It may only follow from: {', '.join(follows)}."]
    if playbook.relations.wraps:
        lines += ["", "It only says that something else failed: look for the first error before it."]
    elif "*" in playbook.relations.consequence_of:
        lines += ["", "After another failure in the same log, it is usually only a consequence of that."]
    return [*lines, ""]


def _link(playbook_id: str, library: Library) -> str:
    try:
        return f"[{_text(library.get(playbook_id).title)}]({playbook_id}.md)"
    except PlaybookError:
        return _code(playbook_id)


def _verify(playbook: Playbook) -> list[str]:
    lines: list[str] = []
    for step in playbook.verify:
        lines += ["```text", step.run.strip(), "```", "", f"→ {_text(step.expect)}", ""]
    return lines


def _fixes(playbook: Playbook) -> list[str]:
    lines: list[str] = []
    for number, recipe in enumerate(playbook.fixes, 1):
        fix = fill(recipe, {})
        note = f" *({_text(caution(fix))})*" if caution(fix) else ""
        lines += [f"{number}. {_text(fix.title)}{note}", ""]
        if fix.command:
            lines += ["   ```text", *(f"   {line}" for line in fix.command.splitlines()), "   ```", ""]
    return lines


def _proof(playbook: Playbook) -> list[str]:
    lines = [f"- <{source.url}>: {_text(source.what)}" for source in playbook.sources]
    if playbook.basis == "general":
        lines.append("- It rests on general knowledge, not on a source.")
    lines.append("")
    if playbook.versions != "any":
        versions = playbook.versions
        words = versions if isinstance(versions, str) else ", ".join(f"{name} {of}" for name, of in versions.items())
        lines += [f"Versions: {_text(words)}", ""]
    if playbook.checks:
        links = (f"[{check}](../checks/{check[:3]}.md#{check.lower()})" for check in playbook.checks)
        lines += [f"Checks: {', '.join(links)}", ""]
    return [*lines, f"Verified on {playbook.verified}. {_INDEX}", ""]


def _text(text: str) -> str:
    """TEXT on one line, with the signs that Markdown and HTML would act on escaped, but for its code."""
    parts = re.split(r"(`[^`]+`)", " ".join(text.split()))
    return "".join(part if part[:1] == "`" else re.sub(r"([<>*\[\]_|])", r"\\\1", part) for part in parts)


def _code(text: str) -> str:
    fence = "``" if "`" in text else "`"
    return f"{fence} {text} {fence}" if fence == "``" else f"`{text}`"
