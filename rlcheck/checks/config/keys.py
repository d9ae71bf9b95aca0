"""Keys: which there are, where they went, what they may hold, and what the framework says to them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.config.say import config_of
from rlcheck.facts.config import ConfigFacts, KeyProblem
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import at, is_other, is_verl, who
from rlcheck.measure.config.effects import num_keys

Severity = Literal["fail", "warn", "info"]
_ORDER: tuple[Severity, ...] = ("fail", "warn", "info")
_MAX_EVIDENCE = 20


def _of(run: ConfigFacts, *kinds: str) -> tuple[KeyProblem, ...]:
    return tuple(problem for problem in run.problems if problem.kind in kinds)


def _line(problem: KeyProblem) -> str:
    new = [name for name in problem.instead if name not in problem.message]
    instead = f"; use {' or '.join(new)}" if new else ""
    return f"{at(problem.place)}: {problem.key}: {problem.message}{instead}"


def _by_key(run: ConfigFacts, found: list[tuple[Severity, KeyProblem]], expected: str, well: str) -> Verdict:
    """The same for what rests on the table of keys: a warning at most where the framework may have others."""
    if not run.unsure_keys:
        return _verdict(found, expected, well)
    unsure: list[tuple[Severity, KeyProblem]] = [("warn" if how == "fail" else how, one) for how, one in found]
    return _verdict(unsure, f"{expected} ({run.unsure_keys})", well)


def _verdict(found: list[tuple[Severity, KeyProblem]], expected: str, well: str) -> Verdict:
    """As bad as the worst; each key with its place."""
    if not found:
        return passed(well)
    found = sorted(found, key=lambda pair: _ORDER.index(pair[0]))
    severity, first = found[0]
    many = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    told = f"{first.key}: {first.message}{many}"
    more = {
        "details": tuple(_line(problem) for _, problem in found),
        "evidence": tuple(evidence(f"config.problems.{problem.key}", problem.value or problem.message,
                                   at(problem.place))
                          for _, problem in found[:_MAX_EVIDENCE]),
        "params": {"key": first.key, **({"instead": first.instead[0]} if first.instead else {})},
    }  # fmt: skip
    if severity == "info":
        return info(told, **more)
    return (fail if severity == "fail" else warn)(expected, told, **more)


def _unknown(run: ConfigFacts) -> Iterator[tuple[Severity, KeyProblem]]:
    for problem in _of(run, "unknown", "unread"):
        typed = problem.place.text
        if problem.kind == "unread":
            # Hydra takes it; whether anybody reads it is known to verl's code alone.
            yield "warn" if problem.instead else "info", problem
        elif not is_verl(run) or (typed and not typed.startswith("+")):
            yield "fail", problem
        else:
            # In a file or behind a + it is merged; it stops the run where a class of verl's takes the section.
            section = problem.key.rpartition(".")[0]
            yield "fail" if f"{section}._target_" in run.values else "warn", problem


@check("CFG001", "Every key is one that the framework has", needs=("config",), playbook="config-unknown-key",
       problem="The framework does not have a key of the config")  # fmt: skip
def unknown_keys(facts: Facts) -> Verdict:
    """Looks up every key of the config among those of the framework, and names the nearest one.

    What it does:
        Compares with the keys of the chosen release of verl or of another trainer, with rltrain's schema, or with the
        fields of RunSpec. A verl
        key that is added with a leading + is only doubted when it resembles another one. Of a release that is not
        known, and of a recipe with keys of its own, an unknown key is a warning.

    Why it matters:
        A misspelt override stops the launch ("Could not override … Key … is not in struct"); a misspelt key in a file
        of verl is merged without a word, and the run trains with the default.
    """
    run = config_of(facts)
    return _by_key(run, list(_unknown(run)), f"keys of {who(run)}", "every key is known")


@check("CFG002", "No key has moved to another place", needs=("config",), playbook="config-unknown-key",
       problem="A key has moved to another place")  # fmt: skip
def moved_keys(facts: Facts) -> Verdict:
    """Looks for keys that another release of the framework has, and says where they are in this one.

    What it does:
        Compares with the keys of the releases 0.7.1 to 0.9.1 of verl, with rltrain's table of moved keys, and with the
        tables of releases of other trainers.

    Why it matters:
        Scripts live longer than releases. An override of a key that has moved stops the launch; in a file no code reads
        it, so that for example the reward is not the one that was asked for.
    """
    run = config_of(facts)
    found: list[tuple[Severity, KeyProblem]] = [
        ("fail" if is_other(run) or (is_verl(run) and problem.place.text and not problem.place.text.startswith("+"))
         else "warn", problem)
        for problem in _of(run, "moved")
    ]  # fmt: skip
    return _by_key(run, found, f"keys where {who(run)} has them", "no key has moved")


@check("CFG003", "No key is deprecated", needs=("config",), playbook="config-unknown-key",
       problem="A key is deprecated")  # fmt: skip
def deprecated_keys(facts: Facts) -> Verdict:
    """Looks for keys that still work and are announced to go.

    What it does:
        Reports those that the config sets to something else than the default.

    Why it matters:
        The next release refuses them, usually on the day on which the container is updated.
    """
    run = config_of(facts)
    found: list[tuple[Severity, KeyProblem]] = [("warn", problem) for problem in _of(run, "deprecated")]
    return _verdict(found, "keys that stay", "no key is deprecated")


@check("CFG004", "No key belongs to another framework", needs=("config",), playbook="config-unknown-key",
       problem="A key belongs to another framework")  # fmt: skip
def foreign_keys(facts: Facts) -> Verdict:
    """Looks for keys that only another framework has.

    What it does:
        Reports keys that are verl's alone in a config for rltrain, or rltrain's alone in one for verl. A key of verl's
        whose value says what rltrain does anyway is only mentioned.

    Why it matters:
        rltrain shares verl's names, so configs travel. What the other framework does not have is either refused or has
        no effect there.
    """
    run = config_of(facts)
    severity: Severity = "fail" if run.framework == "rltrain" else "warn"
    found: list[tuple[Severity, KeyProblem]] = [(severity, problem) for problem in _of(run, "foreign")]
    found.extend(("info", problem) for problem in _of(run, "idle"))
    return _verdict(found, f"keys of {who(run)}", "every key is the framework's own")


@check("CFG005", "Every value has the type of its key", needs=("config",), playbook="config-value",
       problem="A value has the wrong type")  # fmt: skip
def types(facts: Facts) -> Verdict:
    """Compares each value with what the key takes.

    What it does:
        Reports texts where numbers belong, fractions where whole numbers belong, a null that the key does not take,
        and words that are not among those allowed.

    Why it matters:
        verl finds out at different times: some values stop the launch, others a worker minutes later, with a traceback
        that does not name the key.
    """
    run = config_of(facts)
    found: list[tuple[Severity, KeyProblem]] = [("fail", problem) for problem in _of(run, "type")]
    return _verdict(found, "values of the type of their key", "every value has its type")


@check("CFG006", "Every mandatory key has a value", needs=("config",), playbook="config-value",
       problem="A mandatory key has no value")  # fmt: skip
def missing_values(facts: Facts) -> Verdict:
    """Looks for mandatory keys without a value.

    What it does:
        Reports keys whose value is still ???, such as actor_rollout_ref.rollout.name of verl, and those without which
        rltrain does not start.

    Why it matters:
        A run stops where such a key is first read: rltrain at its start, verl with MissingMandatoryValue in a worker,
        after Ray and the models have started.
    """
    run = config_of(facts)
    found: list[tuple[Severity, KeyProblem]] = [("fail", problem) for problem in _of(run, "missing")]
    return _verdict(found, "a value for every mandatory key", "nothing mandatory is missing")


@check("CFG007", "Every interpolation has a value", needs=("config",), playbook="config-interpolation",
       problem="An interpolation has no value")  # fmt: skip
def interpolations(facts: Facts) -> Verdict:
    """Looks for ${…} that could not be resolved.

    What it does:
        Reports interpolations of keys that are not there, of environment variables that are not set here and have no
        default, and of resolvers that only the framework's own process knows.

    Why it matters:
        OmegaConf raises only when the value is read. What another machine's environment provides is no fault, so this
        is a warning.
    """
    run = config_of(facts)
    found: list[tuple[Severity, KeyProblem]] = [("warn", problem) for problem in _of(run, "unresolved")]
    return _verdict(found, "interpolations with a value", "every interpolation has a value")


@check("CFG009", "The config file means what it seems to say", needs=("config",), playbook="config-syntax")
def syntax(facts: Facts) -> Verdict:
    """Looks for things in the file that YAML or the override grammar read differently from a person.

    What it does:
        Reports a key that occurs twice in one section, keys that are no text, and overrides without a meaning.

    Why it matters:
        Of a key that occurs twice the first value is dropped without a word, and the run trains with the other one.
        OmegaConf refuses such a file.
    """
    run = config_of(facts)
    found: list[tuple[Severity, KeyProblem]] = [("fail", problem) for problem in _of(run, "syntax")]
    return _verdict(found, "each key once, and words that are options or overrides", "the file reads as it looks")


@check("CFG075", "Every key that is set has an effect", needs=("config",), playbook="config-unknown-key",
       problem="A key that is set has no effect")  # fmt: skip
def keys_in_effect(facts: Facts) -> Verdict:
    """Looks for keys that are set while another key switches off what reads them.

    What it does:
        Goes through a table, read in the framework's source, of keys and of the values of others with which they
        change nothing: kl_loss_coef without use_kl_loss, vllm_* with use_vllm=false, critic.* without a critic. A
        warning where the key that switches it off is at its default, which you did not write; else it is only
        mentioned. Keys at their default, at 0, false or null, and keys that the table does not have are not judged.

    Why it matters:
        The run trains without what you believe to be on: no KL, no evaluation, no LoRA, no checkpoint.
    """
    run = config_of(facts)
    known = num_keys(run.framework)
    if not known:
        return skip(f"which keys of {who(run)} switch others off is not known")
    found: list[tuple[Severity, KeyProblem]] = [("warn", problem) for problem in _of(run, "off")]
    found.extend(("info", problem) for problem in _of(run, "moot"))
    return _verdict(found, "keys that change something", f"none of the {known} keys that others can switch off")
