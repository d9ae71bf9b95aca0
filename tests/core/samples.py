"""Checks of our own, so that the engine's tests depend on no family."""

from __future__ import annotations

from collections.abc import Callable

from rlcheck.check import Check, Verdict, check, fail, passed
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.platform import PlatformFacts

FACTS = Facts(node="n1", platform=known(PlatformFacts(kernel="6.1")), plugins={"acme": known({"mode": "slow"})})


def sample(
    id: str,
    verdict: Verdict | Callable[[Facts], object] | None = None,
    needs: tuple[str, ...] = (),
    caused_by: tuple[str, ...] = (),
    playbook: str = "none",
) -> Check:
    """A check that answers `verdict`, or whatever a function makes of the facts."""

    def judge(facts: Facts) -> Verdict:
        """Says what it was told.

        What it does:
            Nothing.

        Why it matters:
            It is 3.5 times as slow. And more.

            A second paragraph.
        """
        return verdict(facts) if callable(verdict) else verdict  # type: ignore[return-value]

    if verdict is None:
        verdict = passed("fine")
    return check(id, f"title of {id}", needs=needs, playbook=playbook, caused_by=caused_by)(judge)


def failing(id: str, *caused_by: str) -> Check:
    return sample(id, fail("a", "b"), caused_by=caused_by)
