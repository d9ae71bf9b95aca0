"""RUN020: every source of data has something to teach."""

from __future__ import annotations

import re
from statistics import median
from typing import NamedTuple

from rlcheck.check import Verdict, check, fail, info, passed, skip, warn
from rlcheck.checks.run.causes import NUMBERS
from rlcheck.checks.run.common import NEEDS, drawn, proof, run_of
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit

_HEAD, _MEAN, _ZERO = "reward/", "/mean", "/zero_share"
_VALIDATED = re.compile(r"val-core/(.+)/[^/]+/mean@\d+")
_NOTHING = 1e-9


class Source(NamedTuple):
    """The rewards of one source."""

    name: str
    metric: str
    mean: Curve
    zero_share: Curve | None

    @property
    def empty(self) -> bool:
        """No answer to any of its prompts ever earned anything."""
        silent = self.zero_share is not None and bool(self.zero_share.values) and min(self.zero_share.values) >= 1
        return all(abs(value) <= _NOTHING for value in self.mean.values) and (self.zero_share is None or silent)


@check("RUN020", "Every data source can be learnt from", needs=NEEDS, playbook="source-without-signal",
       caused_by=(*NUMBERS, "RUN011"),
       problem="A data source cannot be learnt from")  # fmt: skip
def sources_have_signal(facts: Facts) -> Verdict:
    """No data source earns nothing, or everything, in every step.

    What it does:
        Reads the reward by source, where the run has more than one.

    Why it matters:
        A source whose answers never earn anything is most often scored by the wrong function, or expects another
        format. Its share of every batch is generated for nothing, and the mean over all sources hides it.
    """
    run = run_of(facts)
    sources = _sources(run)
    if len(sources) < 2:
        return skip("one data source" if sources else "the run does not tell rewards by data source")
    steps = min(len(source.mean.values) for source in sources)
    if steps < limit("constant_steps"):
        return skip(f"{steps} {_counted(sources[0])} of a source, too few to judge")
    empty = [source for source in sources if source.empty]
    high = max(max(source.mean.values) for source in sources)
    full = [s for s in sources if median(s.mean.values[:5]) >= limit("saturated_share") * high > 0 and not s.empty]
    shown = ", ".join(f"{s.name} {s.mean.values[0]:.3g} to {s.mean.values[-1]:.3g}" for s in sources[:6])
    if empty and len(empty) < len(sources):
        names = ", ".join(source.name for source in empty[:4])
        judge = fail if _answers(run, empty[0].name) >= limit("source_answers") else warn
        return judge(
            "rewards above zero for every data source",
            f"no answer of {names} earned anything in {steps} {_counted(empty[0])}",
            details=(shown, *drawn(run, *(source.metric for source in sources[:4]))),
            evidence=(proof(empty[0].metric, "0 throughout", run.first_step, run.last_step),),
            params={"source": empty[0].name},
        )
    if full and len(full) < len(sources):
        return info(f"{', '.join(s.name for s in full[:4])}: solved from the start, so nothing is learnt from it",
                    details=(shown,))  # fmt: skip
    return passed(shown)


def _counted(source: Source) -> str:
    """What the points of a source's curve are."""
    return "validations" if _VALIDATED.fullmatch(source.metric) else "steps"


def _answers(run: RunFacts, name: str) -> float:
    """How many answers of a source were scored; 0 where the run does not say."""
    counts = run.curves.get(f"{_HEAD}{name}/count")
    return sum(counts.values) if counts is not None else 0.0


def _sources(run: RunFacts) -> list[Source]:
    names = sorted(n[len(_HEAD) : -len(_ZERO)] for n in run.curves if n.startswith(_HEAD) and n.endswith(_ZERO))
    found = [(name, f"{_HEAD}{name}{_MEAN}", run.curves.get(f"{_HEAD}{name}{_ZERO}")) for name in names]
    if len(found) < 2:  # validation may tell what training does not
        found = [(match[1], name, None) for name in sorted(run.curves) if (match := _VALIDATED.fullmatch(name))]
    return [Source(name, metric, run.curves[metric], zero) for name, metric, zero in found if metric in run.curves
            and run.curves[metric].values]  # fmt: skip
