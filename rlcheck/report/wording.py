"""Words and characters that the renderers share."""

from __future__ import annotations

import re

from rlcheck.report.model import Finding, Fix, Report

# Control characters, line separators and direction overrides: a facts file must not be able to drive a terminal.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\ud800-\udfff]")

SYMBOLS = {"pass": "✓", "info": "·", "warn": "!", "fail": "✗", "skip": "–", "unknown": "?", "error": "✗"}
ASCII_SYMBOLS = {"pass": "v", "info": "i", "warn": "!", "fail": "x", "skip": "-", "unknown": "?", "error": "x"}


def clean(text: str) -> str:
    """`text` without anything that a terminal or a parser would act on."""
    return _UNPRINTABLE.sub("�", text)


def to_ascii(text: str) -> str:
    """`text` in ASCII: the signs that reports use are spelled out, the rest becomes `?`."""
    for sign, plain in (("→", "->"), ("×", "x"), ("≥", ">="), ("≤", "<="), ("–", "-"), ("—", "-"), ("…", "..."),
                        ("·", "-"), ("“", '"'), ("”", '"'), ("’", "'"), ("↔", "<->"), ("±", "+-")):  # fmt: skip
        text = text.replace(sign, plain)
    return text.encode("ascii", "replace").decode()


def caution(fix: Fix) -> str:
    """What to know before typing a fix: needs root, what it would destroy."""
    words = ["as root"] if fix.needs_root else []
    if fix.safety == "unsafe" and fix.kind != "advice":
        words.append(f"unsafe: {fix.destroys}" if fix.destroys else "unsafe")
    return ", ".join(words)


def counts(report: Report) -> str:
    """The tally, e.g. `1 failed, 2 warned, 70 passed, 12 do not apply`."""
    s = report.summary
    parts = (
        (s.fail, "failed"),
        (s.warn, "warned"),
        (s.error, "broke"),
        (s.unknown, "could not be made"),
        (s.info, "to know"),
        (s.passed, "passed"),
        (s.skip, "do not apply"),
        (s.waived, "waived"),
    )
    return ", ".join(f"{number} {word}" for number, word in parts if number) or "nothing was checked"


def verdict(report: Report) -> str:
    """What the exit code means, in a sentence."""
    s = report.summary
    if report.exit_code and s.fail:
        return f"exit code 1: {s.fail} check{'s' if s.fail > 1 else ''} failed; mend the first one first"
    if report.exit_code:
        return "exit code 1: --strict counts warnings and checks that could not be made"
    if s.warn + s.unknown + s.error:
        return "exit code 0: nothing here stops a run (--strict would count the warnings)"
    return "exit code 0: healthy"


def waiver_text(finding: Finding) -> str:
    """Why and until when a finding is waived."""
    waiver = finding.waived
    if waiver is None:
        return ""
    until = f", until {waiver.expires}" if waiver.expires else ""
    return f"waived: {waiver.reason or 'no reason given'}{until}"
