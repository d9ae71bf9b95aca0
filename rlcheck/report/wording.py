"""Words and characters that the renderers share."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TextIO, TypeVar

import msgspec

from rlcheck.finding import Finding, Fix, Report

T = TypeVar("T")

# Control characters, line separators, direction marks and what XML forbids: a facts file must not be able to drive a
# terminal or break a parser.
_UNPRINTABLE = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ufffe\uffff\ud800-\udfff]"
)

_STEPS = re.compile(r"steps? (\d+)")

SYMBOLS = {"pass": "✓", "info": "·", "warn": "!", "fail": "✗", "skip": "–", "unknown": "?", "error": "✗"}
ASCII_SYMBOLS = {"pass": "v", "info": "i", "warn": "!", "fail": "x", "skip": "-", "unknown": "?", "error": "x"}


def clean(text: str) -> str:
    """`text` without anything that a terminal or a parser would act on."""
    return _UNPRINTABLE.sub("�", text)


def escaped(json_text: str) -> str:
    """Encoded JSON with the same characters as escapes: nothing is lost, and it can be looked at in a terminal."""
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match.group()):04x}", json_text)


def cleaned(report: T) -> T:
    """The report with every string in it clean, so that no renderer can forget one."""
    return msgspec.convert(_cleaned(msgspec.to_builtins(report)), type(report))


def _cleaned(tree: Any) -> Any:
    if isinstance(tree, str):
        return clean(tree)
    if isinstance(tree, dict):
        return {key: _cleaned(value) for key, value in tree.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(tree, list | tuple):
        return [_cleaned(item) for item in tree]  # pyright: ignore[reportUnknownVariableType]
    return tree


def ascii_wanted(out: TextIO) -> bool:
    """Whether `out` takes ASCII only: its encoding is none of Unicode's."""
    return not (out.encoding or "ascii").lower().startswith("utf")


def to_ascii(text: str) -> str:
    """`text` in ASCII: the signs that reports use are spelled out, the rest becomes `?`."""
    for sign, plain in (("→", "->"), ("×", "x"), ("≥", ">="), ("≤", "<="), ("–", "-"), ("—", "-"), ("…", "..."),
                        ("·", "-"), ("“", '"'), ("”", '"'), ("’", "'"), ("↔", "<->"), ("±", "+-"), ("µ", "u"),
                        ("✓", "v"), ("✗", "x"), ("▁", "_"), ("▂", "."), ("▃", ":"), ("▄", "-"), ("▅", "="), ("▆", "+"),
                        ("▇", "*"), ("█", "#"), ("▓", "%"), ("▒", "="), ("░", ":"), ("▚", "x"), ("▞", "/"),
                        ("▪", "o"), ("▦", "K"), ("▥", "g"), ("▤", "E"), ("▨", "c"), ("▫", "~"), ("□", "f"),
                        ("◆", "&")):  # fmt: skip
        text = text.replace(sign, plain)
    return text.encode("ascii", "replace").decode()


def caution(fix: Fix) -> str:
    """What to know before typing a fix: needs root, what it would destroy."""
    words = ["needs root"] if fix.needs_root else []
    if fix.safety == "unsafe" or fix.caution:
        unsafe = "; ".join(filter(None, (f"unsafe: {fix.destroys}", fix.caution)))
        words.append(unsafe if fix.safety == "unsafe" else f"safe, but {fix.caution}")
    return "; ".join(words)


def called(nodes: Sequence[str]) -> str:
    """What the nodes of a report are: two runs side by side are named `run A` and `run B`."""
    return "runs" if nodes and all(node.startswith("run ") for node in nodes) else "nodes"


def counts(report: Report) -> str:
    """The tally, e.g. `1 failed, 2 warned, 70 passed, 12 do not apply`."""
    s = report.summary
    parts = (
        (s.fail, "failed"),
        (s.warn, "warned"),
        (s.error, "broke"),
        (s.unknown, "could not run"),
        (s.info, "to know"),
        (s.passed, "passed"),
        (s.skip, "do not apply"),
        (s.waived, "waived"),
    )
    over = f", over {len(report.nodes)} {called(report.nodes)}" if len(report.nodes) > 1 else ""
    return (", ".join(f"{number} {word}" for number, word in parts if number) or "nothing was checked") + over


def verdict(report: Report) -> str:
    """What the exit code means, in a sentence."""
    s = report.summary
    if report.exit_code and s.fail:
        first = next((f.id for f in report.checks if f.is_problem), "the first one")
        failed = [f for f in report.checks if f.is_problem and f.status == "fail"]
        number = s.fail if len(report.nodes) < 2 else len({f.id for f in failed})
        on = (
            f" on {len({f.node for f in failed})} of {len(report.nodes)} {called(report.nodes)}"
            if len(report.nodes) > 1
            else ""
        )
        return f"exit code 1: {number} check{'s' if number > 1 else ''} failed{on}; fix {first} first"
    if report.exit_code and report.command == "run" and report.notes:
        return f"exit code 1: {report.notes[-1]}"
    if report.exit_code and not report.strict:
        return "exit code 1: the environment that was asked for could not be examined"
    if report.exit_code:
        return "exit code 1: --strict counts warnings and checks that could not run"
    if s.unknown + s.error:
        left = s.unknown + s.error
        words = "1 check is" if left == 1 else f"{left} checks are"
        return f"exit code 0: nothing that could be looked at stops a run; {words} open (see --strict)"
    if s.warn:
        return "exit code 0: nothing here stops a run (--strict would count the warnings)"
    return "exit code 0: healthy"


def first_words(report: Report) -> str:
    """Return what to fix first in a run, and since which step; "" for other commands and healthy runs."""
    if report.command not in ("run", "drift"):
        return ""
    found = next((f for f in report.checks if f.is_problem and f.status in ("fail", "warn")), None)
    if found is None:
        return ""
    return f"first: {in_a_line(found)}" + (f" ({found.node})" if len(report.nodes) > 1 else "")


def in_a_line(finding: Finding) -> str:
    """Return a finding about a run in a line: the failure, what was found, and since which step it holds."""
    what = "; ".join(dict.fromkeys((finding.headline, finding.found or finding.message)))
    step = since(finding)
    tail = f", since step {step}" if step is not None and not re.search(r"\bsteps? \d", what) else ""
    return f"{finding.id}: {what}{tail}"


def failure(finding: Finding) -> str:
    """Return the failure of a finding and what was found, in one sentence."""
    what = finding.found or finding.message
    return finding.headline if what == finding.headline else f"{finding.headline}: {what}"


def said(finding: Finding) -> str:
    """Return all that a finding says in one sentence: the failure, if there is one, what was expected and found."""
    return finding.message if finding.headline == finding.title else f"{finding.headline}: {finding.message}"


def since(finding: Finding) -> int | None:
    """The step from which on a finding about a run holds, as its evidence says; None for the whole run."""
    found = (match for item in finding.evidence if (match := _STEPS.match(item.source)))
    return next((step for match in found if (step := int(match.group(1))) > 1), None)


def waiver_text(finding: Finding) -> str:
    """Why and until when a finding is waived."""
    waiver = finding.waived
    if waiver is None:
        return ""
    until = f", until {waiver.expires}" if waiver.expires else ""
    return f"waived: {waiver.reason or 'no reason given'}{until}"
