"""The report as Markdown that pastes well into an issue on GitHub."""

from __future__ import annotations

from rlcheck.report.model import Finding, Report
from rlcheck.report.wording import SYMBOLS, caution, clean, counts, verdict, waiver_text


def render_markdown(report: Report, verbose: bool = False) -> str:
    """A table of families, a section for each problem, the rest folded away."""
    lines = [f"### rlcheck {_inline(report.version)} {_code(report.command)}", ""]
    lines += [_inline(f"{verdict(report)} ({counts(report)})"), ""]
    several = len(report.nodes) > 1
    lines += ["| | family | " + ("node | " if several else "") + "|", "|---|---|---|" + ("---|" if several else "")]
    for line in report.families:
        node = f"{_cell(line.node)} | " if several else ""
        lines.append(f"| {SYMBOLS[line.status]} | {_cell(line.title)} | {node}{_cell(line.headline)} |")
    lines.append("")
    for finding in report.checks:
        if finding.is_problem and finding.status in ("fail", "warn"):
            lines += _problem(finding, several)
    lines += [f"> {_cell(note)}" for note in report.notes]
    rest = [f for f in report.checks if not (f.is_problem and f.status in ("fail", "warn"))]
    shown = rest if verbose else [f for f in rest if f.status not in ("pass", "skip")]
    if shown:
        lines += ["<details><summary>Everything else</summary>", "", "| | check | |", "|---|---|---|"]
        for f in shown:
            lines.append(f"| {SYMBOLS[f.status]} | {_cell(f.id)} | {_cell(f.message)} {_cell(waiver_text(f))} |")
        lines += ["", "</details>"]
    return "\n".join(lines).rstrip() + "\n"


def _problem(finding: Finding, several: bool) -> list[str]:
    where = f" on {_inline(finding.node)}" if several else ""
    lines = [f"#### {SYMBOLS[finding.status]} {_inline(finding.id)}: {_inline(finding.title)}{where}", ""]
    if finding.expected:
        lines += [f"- expected: {_inline(finding.expected)}", f"- found: {_inline(finding.found)}"]
    else:
        lines += [f"- {_inline(finding.message)}"]
    lines += [f"  - {_inline(detail)}" for detail in finding.details]
    if finding.why:
        lines += [f"- why it matters: {_inline(finding.why)}"]
    for fix in finding.fixes:
        note = caution(fix)
        lines += ["", f"{_inline(fix.title)}" + (f" ({_inline(note)})" if note else "")]
        if fix.command:
            fence = "`" * max(3, _longest_run(fix.command) + 1)
            lines += [f"{fence}bash", clean(fix.command), fence]
    return [*lines, "", _code(f"rlcheck explain {finding.playbook or finding.id}"), ""]


def _code(text: str) -> str:
    return f"`{' '.join(clean(text).split()).replace('`', '')}`"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def _inline(text: str) -> str:
    """Text that Markdown and HTML leave alone, on one line."""
    text = " ".join(clean(text).split())
    for character in "\\`*_[]<>|#~$&":
        text = text.replace(character, "\\" + character)
    # A zero-width space keeps a name from notifying whoever owns it on GitHub.
    return text.replace("@", "@\u200b")


def _cell(text: str) -> str:
    return _inline(text)
