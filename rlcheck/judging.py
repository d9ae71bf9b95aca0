"""Running checks over facts. Pure: no machine, no clock but the stop-watch."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from rlcheck.check import Check, Verdict
from rlcheck.facts.base import FactMissingError, Missing, MissingKind
from rlcheck.facts.document import Facts, resolve
from rlcheck.finding import PROBLEMS, STATUS_ORDER, Action, Finding, Fix, Waiver
from rlcheck.playbook import Library, PlaybookError, fill

_ACROSS = ("cluster", "collectives", "reach")
"""Sections about several machines: a verdict on them names its own."""


def judge(
    facts: Facts, checks: Iterable[Check], library: Library, waivers: Mapping[str, Waiver] | None = None
) -> tuple[Finding, ...]:
    """Run `checks` over the facts of one node; one finding each, in the order given."""
    waivers = waivers or {}
    return tuple(
        _judge_one(check, facts, library, waivers.get(check.id) or waivers.get(check.family)) for check in checks
    )


def _judge_one(check: Check, facts: Facts, library: Library, waiver: Waiver | None) -> Finding:
    started = time.perf_counter()
    verdict = _verdict(check, facts)
    problem = verdict.status in PROBLEMS or verdict.status == "info"
    action, nodes = ("go", ()) if waiver is not None else _next(check, verdict, library, facts.node)
    return Finding(
        id=check.id,
        title=check.title,
        headline=_headline(check, verdict, library),
        family=check.family,
        status=verdict.status,
        message=verdict.message,
        expected=verdict.expected,
        found=verdict.found,
        details=verdict.details,
        why=(verdict.why or _first_sentence(check.section("Why it matters"))) if problem else "",
        evidence=verdict.evidence,
        node=facts.node,
        playbook=check.playbook,
        fixes=_fixes(check, verdict, library) if verdict.status in ("fail", "warn") else (),
        caused_by=check.caused_by,
        duration_ms=round((time.perf_counter() - started) * 1e3, 3),
        waived=waiver if verdict.status in PROBLEMS else None,
        next=action,
        leave_out=nodes,
    )


def _verdict(check: Check, facts: Facts) -> Verdict:
    """The check's verdict; what it needs and lacks is *skip* or *unknown*, its own failure *error*. Never raises."""
    try:
        for path in check.needs:
            missing = resolve(facts, path)
            if missing is not None:
                return _without(missing)
        # Through its own type: a verdict of a plug-in may hold anything, and the report must still be written.
        return msgspec.convert(msgspec.to_builtins(check.judge(facts)), Verdict)
    except FactMissingError as error:
        return _without(error.missing)
    except Exception as error:
        reason = " ".join(str(error).split())[:300]
        return Verdict(status="error", message=f"the check itself failed: {type(error).__name__}: {reason}")


def _without(missing: Missing) -> Verdict:
    if missing.kind is MissingKind.ABSENT:
        return Verdict(status="skip", message=missing.reason)
    return Verdict(status="unknown", message=f"could not look: {missing.reason}")


def _headline(check: Check, verdict: Verdict, library: Library) -> str:
    """Return the failure in a sentence for what failed or warned, the title of the check otherwise."""
    if verdict.status not in ("fail", "warn"):
        return check.title
    try:
        return verdict.headline or check.problem or library.get(check.playbook).title
    except PlaybookError:
        return verdict.message


def _next(check: Check, verdict: Verdict, library: Library, node: str) -> tuple[Action, tuple[str, ...]]:
    """What to do next, and the nodes to leave out: a check of one machine means that machine."""
    if verdict.status not in ("fail", "warn"):
        return ("fix" if verdict.status in PROBLEMS else "go"), ()
    try:
        action = library.get(check.playbook).next
    except PlaybookError:
        action = "fix"
    if action != "restart-without":
        return action, ()
    across = any(need.partition(".")[0] in _ACROSS for need in check.needs)
    nodes = verdict.nodes or (() if across else (node,))
    return (action, nodes) if nodes else ("fix", ())


def _fixes(check: Check, verdict: Verdict, library: Library) -> tuple[Fix, ...]:
    try:
        recipes = library.get(check.playbook).fixes
    except PlaybookError:
        return ()
    recipes = [recipe for recipe in recipes if check.id in (recipe.checks or (check.id,))]
    # What was written for this check, or is worked out for this very case, stands first; in a playbook that comes last,
    # since a log has no such values.
    recipes.sort(key=lambda recipe: (not recipe.checks, "{{" not in recipe.command + recipe.title))
    fixes = _without_twins(fill(recipe, verdict.params) for recipe in recipes)
    # A fix that this check has no parameters for was written for another one of the same playbook.
    return tuple(fix for fix in fixes if fix.complete) or fixes


def _without_twins(fixes: Iterable[Fix]) -> tuple[Fix, ...]:
    """What was worked out may be what the playbook names anyway: one command is shown once."""
    first: dict[str, Fix] = {}
    for fix in fixes:
        first.setdefault(fix.command.replace("'", "") or fix.title, fix)
    return tuple(first.values())


def _first_sentence(text: str) -> str:
    head = text.split("\n", 1)[0]
    end = head.find(". ")
    return head if end < 0 else head[: end + 1]


def in_order(findings: Sequence[Finding], families: Sequence[str]) -> tuple[Finding, ...]:
    """Return the findings with what to fix first at the top: by severity, but never before what causes them."""

    def rank(finding: Finding) -> tuple[int, int, str, str]:
        family = families.index(finding.family) if finding.family in families else len(families)
        waived = len(STATUS_ORDER) if finding.waived else 0
        return STATUS_ORDER.index(finding.status) + waived, family, finding.id, finding.node

    # What could not be looked at explains nothing, so only what was found wrong goes before its consequences.
    problems = {(f.id, f.node): f for f in findings if f.is_problem}
    causes = {key: f for key, f in problems.items() if f.status in ("fail", "warn")}
    placed: dict[tuple[str, str], Finding] = {}

    def place(finding: Finding, path: tuple[str, ...] = ()) -> None:
        key = (finding.id, finding.node)
        if key in placed:
            return
        if key in problems:
            for cause in finding.caused_by:
                cause_finding = causes.get((cause, finding.node))
                if cause_finding is not None and cause not in path:
                    place(cause_finding, (*path, finding.id))
        placed.setdefault(key, finding)

    for finding in sorted(findings, key=rank):
        place(finding)
    return tuple(placed.values())
