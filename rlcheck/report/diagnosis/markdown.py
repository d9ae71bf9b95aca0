"""A diagnosis as Markdown that pastes well into an issue on GitHub."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rlcheck.diagnose.hang.graph import ranks_words
from rlcheck.diagnose.model import Diagnosis, Quote, Unknown
from rlcheck.facts.hang import Hang
from rlcheck.playbook import Source
from rlcheck.report.diagnosis.report import (
    DiagnosisReport,
    culprit_words,
    more_of,
    notes_of,
    place,
    raised_words,
    sureness,
    verdict,
    was_read,
)
from rlcheck.report.markdown import code, fenced, inline, noted
from rlcheck.report.wording import SYMBOLS

_SAFE_URL = re.compile(r"https?://[\w./#?=&%:~+,@!-]+", re.A)


def render_markdown(report: DiagnosisReport) -> str:
    """A section for each diagnosis, its quotes and commands in code blocks."""
    lines = [f"### rlcheck {inline(report.version)} {code(report.command)}", ""]
    lines += [f"{inline(was_read(report))}; {inline(verdict(report))}", ""]
    if report.hang is not None:
        lines += _hang(report.hang)
    if report.unknown is not None:
        lines += _unknown(report.unknown)
    for found in report.diagnoses:
        lines += _diagnosis(found)
    lines += [f"- no error, though it may look like one: {inline(remark)}" for remark in report.remarks]
    lines += [f"- note: {inline(note)}" for note in notes_of(report)]
    lines += ["", f"next: {inline(report.next.words)}"]
    return "\n".join(lines).rstrip() + "\n"


def _hang(hang: Hang) -> list[str]:
    lines = [f"#### {SYMBOLS['fail']} The job stands still: {inline(hang.said)}", "", "**found**", ""]
    lines += [f"- {inline(culprit_words(one))}" for one in hang.culprits]
    for wait in hang.waits[:16]:
        target = f"waits for {ranks_words(wait.waits_for)}" if wait.waits_for else "is"
        lines.append(f"- rank {wait.rank} {target} in {inline(wait.call)}")
    return [*lines, "", "**fix**", "", *(f"- {inline(step)}" for step in hang.steps), ""]


def _diagnosis(found: Diagnosis) -> list[str]:
    after = " (follows from another)" if found.echo else ""
    lines = [f"#### {SYMBOLS[found.status]} {inline(found.title)}{after}", "", f"**why** {inline(found.cause)}", ""]
    lines += [inline(sureness(found)), ""]
    for one in found.confirmations:
        on = f" on {one.node}" if one.node else ""
        lines.append(f"- {inline(f'{one.verdict}: {one.check}{on}: {one.message}')}")
    lines += ["", "**found**"] if found.evidence else []
    lines += _quotes(found.evidence, found.seen)
    if found.consequences:
        lines += [f"then: {inline('; '.join(found.consequences))}", ""]
    if found.verify:
        lines += ["**verify**", ""]
    for step in found.verify:
        lines += [*fenced(step.run.strip(), "bash"), inline(step.expect), ""]
    if found.fixes:
        lines += ["**fix**", ""]
    for number, fix in enumerate(found.fixes, 1):
        lines += [f"{number}\\. {inline(fix.title)}{noted(fix)}", ""]
        lines += [*fenced(fix.command, "bash"), ""] if fix.command else []
    sources = [f"source: {_link(source)}" for source in found.sources]
    more = [f"source: {code(more)}"] if (more := more_of(found)) else []
    return [*lines, *sources, *more, ""]


def _link(source: Source) -> str:
    return f"<{source.url}>" if _SAFE_URL.fullmatch(source.url) else inline(source.url)


def _quotes(quotes: Sequence[Quote], seen: str) -> list[str]:
    lines = [""] if quotes else []
    for number, quote in enumerate(quotes):
        times = f" ({inline(seen)})" if "times" in seen and number == 0 else ""
        lines += [f"{inline(place(quote))}{times}", *fenced("\n".join(quote.text), "text"), ""]
    return lines


def _unknown(unknown: Unknown) -> list[str]:
    lines = [f"#### {SYMBOLS['unknown']} An error that no playbook knows", ""]
    lines += ["This is the first failure in what was read. It does not say what caused it.", ""]
    lines += _quotes(unknown.evidence, "")
    lines += [f"- raised: {inline(raised_words(unknown.raised))}"] if unknown.raised is not None else []
    return [*lines, *(f"- to collect: {inline(hint)}" for hint in unknown.hints), ""]
