"""Loggers: known to the framework, and with what they need to log in."""

from __future__ import annotations

from difflib import get_close_matches

from rlcheck.check import Verdict, check, passed, skip, unknown
from rlcheck.checks.config.limits import run_limits
from rlcheck.checks.config.say import Case, conclude, config_of
from rlcheck.facts.document import Facts

_WITH_LOGIN = ("wandb", "swanlab", "vemlp_wandb", "clearml")


@check("CFG068", "Loggers can log in", needs=("config",), playbook="run-loggers",
       problem="A logger cannot log in")  # fmt: skip
def credentials(facts: Facts) -> Verdict:
    """Looks for the credentials of each logger on this machine.

    What it does:
        Looks for an API key in the environment or in the file that the logger's login command writes, and for an
        offline mode, which needs none. Warns, since the run may start elsewhere with other credentials.

    Why it matters:
        The logger is made when the trainer starts fitting, after models and engines have been loaded: without a
        terminal to ask for a key, that is where the run ends.
    """
    run = config_of(facts)
    unseen = [name for name in run.spec.loggers if name in _WITH_LOGIN and name not in run.credentials]
    if unseen:
        return unknown(f"not looked for: credentials of {', '.join(unseen)}")
    lacking = {name: why for name, why in run.credentials.items() if why and name in run.spec.loggers}
    if not lacking:
        return passed(f"{', '.join(run.spec.loggers) or 'no logger'}: nothing is missing")
    rest = [name for name in run.spec.loggers if name not in lacking] or ["console"]
    cases = [Case("warn", "loggers", f"credentials for {name}", why, to=rest) for name, why in lacking.items()]
    return conclude(run, cases, "")


@check("CFG069", "Loggers are known", needs=("config",), playbook="run-loggers",
       problem="A logger is unknown")  # fmt: skip
def known_loggers(facts: Facts) -> Verdict:
    """Compares trainer.logger with the loggers that the framework has.

    What it does:
        Looks each name up; the list holds those of all verl releases that this doctor knows.

    Why it matters:
        An unknown name is an assertion when the trainer starts fitting, after models and engines have been loaded.
    """
    run = config_of(facts)
    known = run_limits().loggers.get(run.framework)
    if known is None:
        return skip("which loggers there are is not known")
    strange = [name for name in run.spec.loggers if name not in known]
    rest = [name for name in run.spec.loggers if name in known]
    cases = list[Case]()
    for name in strange:
        near = get_close_matches(name, known, n=1)
        cases += [Case("fail", "loggers", f"one of {', '.join(known)}", f"{name}, which {run.framework} refuses",
                       to=[*rest, *near] or ["console"])]  # fmt: skip
    return conclude(run, cases, "all of them")
