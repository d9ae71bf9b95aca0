"""A diagnosis held against facts: the playbook's own checks say whether this machine has what the log complains of."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from rlcheck import judging
from rlcheck.check import Check
from rlcheck.diagnose.model import Answer, Confirmation, Diagnosis
from rlcheck.diagnose.recipes import params_of
from rlcheck.facts.document import Facts
from rlcheck.finding import Finding, Fix
from rlcheck.playbook import Library

_ADDRESS = re.compile(r"[\d.]+|[0-9a-fA-F:]*:[0-9a-fA-F:]*")
_SETTLED: dict[str, Literal["confirmed", "ruled out"]] = {"fail": "confirmed", "warn": "confirmed", "pass": "ruled out"}


def checks_of(answer: Answer, checks: Iterable[Check]) -> tuple[Check, ...]:
    """Those of `checks` that can confirm something in `answer`."""
    ids = {found.id for found in answer.diagnoses}
    return tuple(check for check in checks if check.playbook in ids)


def confirm(answer: Answer, facts: Sequence[Facts], checks: Iterable[Check], library: Library) -> Answer:
    """`answer` with what the checks of its playbooks say of `facts`.

    A check that fails or warns confirms the diagnosis. When those that apply all pass, it is ruled out: it is less sure
    then, and ranks after another error of its incident.
    """
    known = checks_of(answer, checks)
    judged = [_judged(found, facts, [check for check in known if check.playbook == found.id], library)
              for found in answer.diagnoses]  # fmt: skip
    return msgspec.structs.replace(answer, diagnoses=_reordered(judged))


def is_ruled_out(found: Diagnosis) -> bool:
    """Whether the facts speak against it, and nothing for it."""
    verdicts = {confirmation.verdict for confirmation in found.confirmations}
    return verdicts == {"ruled out"}


def _judged(found: Diagnosis, facts: Sequence[Facts], checks: Sequence[Check], library: Library) -> Diagnosis:
    findings = [finding for node in facts for finding in judging.judge(node, checks, library)]
    # What does not apply to a machine says nothing, as long as something else does.
    telling = [finding for finding in findings if finding.status != "skip"] or findings
    several = len(facts) > 1
    confirmations = tuple(_confirmation(found, finding, several) for finding in telling)
    order = ("confirmed", "ruled out", "open")
    confirmations = tuple(sorted(confirmations, key=lambda one: order.index(one.verdict)))
    fixes = _completed(found.fixes, findings, library, found.id)
    found = msgspec.structs.replace(found, confirmations=confirmations, fixes=fixes)
    if any(one.verdict == "confirmed" for one in confirmations):
        return msgspec.structs.replace(found, confidence="high")
    return msgspec.structs.replace(found, confidence="low") if is_ruled_out(found) else found


def _completed(
    fixes: tuple[Fix, ...], findings: Sequence[Finding], library: Library, playbook_id: str
) -> tuple[Fix, ...]:
    """`fixes` with what the log could not tell taken from the findings: how large /dev/shm should be here."""
    measured = [fix for finding in findings for fix in finding.fixes if fix.complete]
    if not measured or all(fix.complete for fix in fixes):
        return fixes
    recipes = library.get(playbook_id).fixes

    def rank(fix: Fix) -> int:
        return next((rank for rank, recipe in enumerate(recipes) if params_of(recipe, fix) is not None), len(recipes))

    known = {rank(fix): fix for fix in measured}
    better = [fix if fix.complete else known.get(rank(fix), fix) for fix in fixes]
    return tuple(sorted(better, key=lambda fix: (not fix.complete, rank(fix))))


def _confirmation(found: Diagnosis, finding: Finding, several: bool) -> Confirmation:
    verdict: Literal["confirmed", "ruled out", "open"] = _SETTLED.get(finding.status, "open")
    message = finding.message
    if verdict == "ruled out" and (elsewhere := _other_machine(found, finding.node)):
        verdict, message = "open", f"passes on {finding.node}, but the log is of {elsewhere}"
    node = finding.node if several else ""
    return Confirmation(check=finding.id, verdict=verdict, message=message, node=node)


def _other_machine(found: Diagnosis, node: str) -> str:
    """The machine of the log, if that is surely not `node`; addresses tell nothing, as a machine has several."""
    names = {quote.node for quote in found.evidence if quote.node and not _ADDRESS.fullmatch(quote.node)}
    if not names or not node or node.split(".", maxsplit=1)[0] in {name.split(".", maxsplit=1)[0] for name in names}:
        return ""
    return min(names)


def _reordered(diagnoses: Sequence[Diagnosis]) -> tuple[Diagnosis, ...]:
    """In each incident, errors that are ruled out come after the others; everything else stays where it is."""
    result = list(diagnoses)
    for incident in dict.fromkeys(found.incident for found in diagnoses):
        places = [at for at, found in enumerate(diagnoses)
                  if found.incident == incident and found.status == "fail" and not found.echo]  # fmt: skip
        ordered = sorted((diagnoses[at] for at in places), key=is_ruled_out)
        # What followed belongs to whichever stands first.
        followed = tuple(title for found in ordered for title in found.consequences)
        for rank, (at, found) in enumerate(zip(places, ordered, strict=True)):
            result[at] = msgspec.structs.replace(found, consequences=followed if rank == 0 else ())
    return tuple(result)
