"""What the framework's own rules say to the config, beyond what the other checks say of the same keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from rlcheck.check import Verdict, check, evidence, fail, passed
from rlcheck.checks.config import batches, estimators, parallel, placement, schedule
from rlcheck.checks.config.say import Case, config_of, name_of
from rlcheck.facts.base import FactMissingError
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import at, who

_MAX_EVIDENCE = 20
# Rules that rltrain has as well, in its own words: one finding for one mistake.
_ALSO_HERE: tuple[Callable[[ConfigFacts], Iterator[Case]], ...] = (
    batches.mini_cases, batches.token_cases, estimators.estimator_cases, estimators.warmup_cases, schedule.rows_cases,
    parallel.sequence_cases, parallel.engine_cases, placement.pool_cases,
)  # fmt: skip


def _said(rule: Callable[[ConfigFacts], Iterator[Case]], run: ConfigFacts) -> list[Case]:
    """What RULE says of RUN; nothing where the config does not say what it needs."""
    try:
        return list(rule(run))
    except FactMissingError:
        return []


@check("CFG008", "The framework accepts the config", needs=("config",), playbook="config-refused")
def own_rules(facts: Facts) -> Verdict:
    """Reports what the framework itself refuses, in its own words.

    What it does:
        Asks rltrain's loader and rules, where rltrain is installed beside rlcheck; verl's own static rules are checks
        of their own here (CFG010 to CFG029). Of other trainers, applies what their code asserts at start. What another
        check says of the same key is not said twice.

    Why it matters:
        Each of these lines ends a launch, and most frameworks stop at the first.
    """
    run = config_of(facts)
    told = {name_of(run, case.field) for rule in _ALSO_HERE for case in _said(rule, run) if case.status == "fail"}
    told |= {problem.key for problem in run.problems if problem.kind != "refused"}
    found = [problem for problem in run.problems if problem.kind == "refused" and problem.key not in told]
    if not found:
        return passed(f"{who(run)} has nothing against it")
    lines = tuple(f"{at(p.place)}: {p.key}: {p.message}" if p.key else f"{at(p.place)}: {p.message}" for p in found)
    proof = tuple(
        evidence(f"config.problems.{p.key}", p.value or p.message, at(p.place)) for p in found[:_MAX_EVIDENCE]
    )
    many = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    first = f"{found[0].key}: {found[0].message}" if found[0].key else found[0].message
    return fail(f"a config that {who(run)} takes", f"{first}{many}", details=lines, evidence=proof,
                params={"key": found[0].key})  # fmt: skip
