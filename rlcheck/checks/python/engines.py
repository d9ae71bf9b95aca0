"""Inference engines that share one environment."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.python.common import installed, is_at, named, pip_params
from rlcheck.checks.python.compat import compat
from rlcheck.checks.python.conflicts import analysis
from rlcheck.facts.document import Facts


@check("ENV004", "Inference engines do not share an environment", needs=("python",), playbook="dependency-deadlock",
       problem="Two inference engines share an environment")  # fmt: skip
def engine_pair(facts: Facts) -> Verdict:
    """Looks for vLLM and SGLang in one environment.

    What it does:
        When both engines are installed, compares their versions with the pairs of releases whose exact pins do not
        contradict each other, and counts the declared requirements that they break for each other.

    Why it matters:
        Both engines pin torch, transformers and kernel libraries exactly and almost never to the same versions, so
        whichever was installed last has broken the other. The other conflicts below usually follow from this one.
    """
    have, rule = installed(facts), compat().engine_pairs
    one, other = (have.get(name) for name in rule.engines)
    if one is None or other is None:
        return skip("there are not two inference engines here")
    pair = f"{named(one)} and {named(other)}"
    if any(all(is_at(have[name], f"=={wanted}") for name, wanted in good.items()) for good in rule.known_good):
        return passed(f"{pair} have pins that do not contradict each other")
    hurt = [c for c in analysis(facts).conflicts if {d.owner for d in c.violated} & set(rule.engines)]
    if not hurt:
        return info(
            f"{pair} share this environment; their declared requirements hold, an upgrade of either may change it"
        )
    return warn(
        "one inference engine an environment",
        f"{pair}, with {len(hurt)} package(s) that they want in different versions",
        details=tuple(f"{c.package} {c.version}: {c.violated[0].says}" for c in hurt[:8]),
        evidence=(evidence("python.distributions", pair),),
        params=pip_params(facts, one=named(one).replace(" ", "=="), other=named(other).replace(" ", "==")),
    )
