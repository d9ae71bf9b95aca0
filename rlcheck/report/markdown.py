"""The report as Markdown that pastes well into an issue on GitHub."""

from __future__ import annotations

from rlcheck.finding import Exhibit, Finding, Fix, Report
from rlcheck.report.fold import fold, fold_findings, where
from rlcheck.report.wording import SYMBOLS, caution, clean, counts, said, verdict, waiver_text


def render_markdown(report: Report, verbose: bool = False) -> str:
    """A table of families, a section for each problem, the rest folded away."""
    lines = [f"### rlcheck {inline(report.version)} {code(report.command)}", ""]
    lines += [inline(f"{verdict(report)} ({counts(report)})"), ""]
    several = len(report.nodes) > 1
    lines += _folded_families(report) if several else _families(report)
    found = fold_findings(report.checks, several)
    for folded in found:
        if folded.finding.is_problem and folded.finding.status in ("fail", "warn"):
            lines += _problem(folded.finding, folded.where(report.nodes) if several else "")
    for exhibit in report.exhibits:
        lines += _exhibit(exhibit)
    lines += [f"> {inline(note)}" for note in report.notes]
    lines += ["", f"next: {inline(report.next.words)}", ""]
    rest = [one for one in found if not (one.finding.is_problem and one.finding.status in ("fail", "warn"))]
    shown = rest if verbose else [one for one in rest if one.finding.status not in ("pass", "skip")]
    if shown:
        lines += ["<details><summary>Everything else</summary>", "", "| | check | |", "|---|---|---|"]
        for one in shown:
            f, there = one.finding, inline(one.where(report.nodes)) if several else ""
            on = f" ({there})" if there else ""
            lines.append(f"| {SYMBOLS[f.status]} | {inline(f.id)} | {inline(said(f))} {inline(waiver_text(f))}{on} |")
        lines += ["", "</details>"]
    return "\n".join(lines).rstrip() + "\n"


def _families(report: Report) -> list[str]:
    lines = [f"| {SYMBOLS[line.status]} | {inline(line.title)} | {inline(line.headline)} |" for line in report.families]
    return ["| | family | |", "|---|---|---|", *lines, ""]


def _folded_families(report: Report) -> list[str]:
    lines = ["| | family | nodes | |", "|---|---|---|---|"]
    for family in fold(report):
        for number, (headline, nodes) in enumerate(family.headlines):
            mark, title = (SYMBOLS[family.status], inline(family.title)) if number == 0 else ("", "")
            lines.append(f"| {mark} | {title} | {inline(where(nodes, report.nodes))} | {inline(headline)} |")
        if family.more:
            lines.append(f"| | | | and {family.more} more kinds of node |")
    return [*lines, ""]


def _exhibit(exhibit: Exhibit) -> list[str]:
    lines = [f"#### {inline(exhibit.title)}", ""]
    if exhibit.rows:
        titles = exhibit.columns or ("",) * len(exhibit.rows[0])
        lines += [_line(titles), "|" + "---|" * len(titles), *(_line(row) for row in exhibit.rows), ""]
    return [*lines, *(f"- {inline(note)}" for note in exhibit.notes), ""]


def _line(cells: tuple[str, ...]) -> str:
    return "| " + " | ".join(inline(cell) for cell in cells) + " |"


def _problem(finding: Finding, where: str) -> list[str]:
    where = f" {inline(where)}" if where else ""
    lines = [f"#### {SYMBOLS[finding.status]} {inline(finding.id)}: {inline(finding.headline)}{where}", ""]
    if finding.expected:
        lines += [f"- expected: {inline(finding.expected)}", f"- found: {inline(finding.found)}"]
    else:
        lines += [f"- {inline(finding.message)}"]
    lines += [f"  - {inline(detail)}" for detail in finding.details]
    if finding.why:
        lines += [f"- why: {inline(finding.why)}"]
    for fix in finding.fixes:
        lines += ["", f"fix: {inline(fix.title)}{noted(fix)}", *(fenced(fix.command, "bash") if fix.command else [])]
    return [*lines, "", f"source: {code(f'rlcheck explain {finding.playbook or finding.id}')}", ""]


def noted(fix: Fix) -> str:
    """What to know before typing FIX, in parentheses; "" where there is nothing."""
    note = caution(fix)
    return f" ({inline(note)})" if note else ""


def fenced(text: str, language: str = "") -> list[str]:
    """TEXT as a code block that nothing in it can end."""
    fence = "`" * max(3, _longest_run(text) + 1)
    return [f"{fence}{language}", clean(text), fence]


def code(text: str) -> str:
    """TEXT as code within a line."""
    return f"`{' '.join(clean(text).split()).replace('`', '')}`"


def _longest_run(text: str) -> int:
    longest = run = 0
    for character in text:
        run = run + 1 if character == "`" else 0
        longest = max(longest, run)
    return longest


def inline(text: str) -> str:
    """TEXT so that Markdown and HTML leave it alone, on one line."""
    text = " ".join(clean(text).split())
    for character in "\\`*_[]<>|#~$&":
        text = text.replace(character, "\\" + character)
    # A zero-width space keeps a name from notifying whoever owns it on GitHub.
    return text.replace("@", "@\u200b")
