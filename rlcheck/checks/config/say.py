"""From single cases to the verdict of a check: places, overrides, and which case heads the message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from rlcheck.check import Status, Verdict, evidence, info, passed
from rlcheck.facts.asking import asked
from rlcheck.facts.base import FactMissingError, Missing, MissingKind, need
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_other, who
from rlcheck.measure.config.fields import can_set, key_of, override, place_of

_RANK: tuple[Status, ...] = ("fail", "warn", "info")


class Case(NamedTuple):
    """One thing that one key says, beside what was expected.

    `field` is a field of the spec (`actor.optim.lr`) or, where the spec has none, the framework's own key. `to` is the
    value to set in its place (None: there is no one value), `also` a field that is to be set instead of `field`.
    """

    status: Status
    field: str
    expected: str
    found: str
    to: Any = None
    also: str = ""


def config_of(facts: Facts) -> ConfigFacts:
    """The run that was read.

    Raises:
        FactMissingError: none was; and later, where a check reads a field that the config does not say.
    """
    return asked(need(facts.config))


def for_verl_alone(run: ConfigFacts) -> None:
    """Skip a check whose rules are verl's alone, where another trainer runs the config.

    Raises:
        FactMissingError: it does.
    """
    if is_other(run):
        reason = f"a rule of verl's; of {who(run)} none like it is known"
        raise FactMissingError(Missing(kind=MissingKind.ABSENT, reason=reason))


def name_of(run: ConfigFacts, field: str) -> str:
    """The framework's key of a field, or the field itself where it has none."""
    return key_of(run, field) or field


def given(run: ConfigFacts, field: str) -> bool:
    """Whether the user wrote this key."""
    return name_of(run, field) in run.given


def conclude(run: ConfigFacts, cases: Sequence[Case], otherwise: str, params: dict[str, str] | None = None) -> Verdict:
    """The verdict of all `cases`: the gravest status, its first case as the message, the others as details."""
    if not cases:
        return passed(otherwise)
    head = min(cases, key=lambda case: _RANK.index(case.status))
    status: Status = head.status
    fixes = [_override(run, case) for case in (head, *cases) if _has_override(run, case)]
    filled = {**({"override": fixes[0]} if fixes else {}), **(params or {})}
    proof = tuple(evidence(f"config.spec.{case.field}", case.found, place_of(run, case.field)) for case in cases)
    details = tuple(_line(run, case, alone=len(cases) == 1) for case in cases)
    if status == "info":
        return info(f"{head.found}; usual is {head.expected}", details=details, evidence=proof, params=filled)
    return Verdict(
        status=status,
        message=f"expected {head.expected}, found {head.found}",
        expected=head.expected,
        found=head.found,
        details=details,
        evidence=proof,
        params=filled,
    )


def _override(run: ConfigFacts, case: Case) -> str:
    return override(run, case.also or case.field, case.to)


def _line(run: ConfigFacts, case: Case, *, alone: bool) -> str:
    """Place, key, what is wrong (which the message says already, where there is no other case) and the override."""
    text = f"{place_of(run, case.field)}: {name_of(run, case.field)}"
    text += "" if alone else f": expected {case.expected}, found {case.found}"
    return f"{text}; type {_override(run, case)}" if _has_override(run, case) else text


def _has_override(run: ConfigFacts, case: Case) -> bool:
    return case.to is not None and can_set(run, case.also or case.field)


def unclear(missing: Missing | None) -> Verdict | None:
    """*unknown* for what could not be looked at, None for what was looked at and is not there."""
    if missing is None or missing.kind is MissingKind.ABSENT:
        return None
    return Verdict(status="unknown", message=f"could not look: {missing.reason}")
