"""Names and values of the variables: misspelt, out of date, too new, of the wrong kind, never read."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

from rlcheck.check import Verdict, check, fail, info, passed, skip, warn
from rlcheck.checks.collectives.library import nccl_version
from rlcheck.checks.collectives.settings import (
    Setting,
    Variable,
    as_number,
    is_number,
    settings,
    settings_evidence,
    show,
    table,
    uses_rccl,
)
from rlcheck.facts.document import Facts
from rlcheck.text import several

_NONE = "no NCCL setting"
_ALGO_FUNCTION = re.compile(r"(?:(\w+):)?\^?([\w,^]+)")
_LEVEL_NUMBER = re.compile(r"\d+")


def _known(found: dict[str, Setting]) -> list[tuple[Setting, Variable]]:
    variables = table().variables
    return [(setting, variables[name]) for name, setting in sorted(found.items()) if name in variables]


@check("NCL005", "Every NCCL variable is spelt right", needs=("environ",), playbook="nccl-unknown-variable",
       problem="An NCCL variable is misspelt")  # fmt: skip
def spelling(facts: Facts) -> Verdict:
    """Compares the names of NCCL_*, TORCH_NCCL_*, GLOO_* and RCCL_* variables with those that are read by anybody.

    What it does:
        Uses a table of NVIDIA's documentation, AMD's documentation, torch's headers and the names found in sixteen
        releases of the library. A name close to a known one is taken for a misspelling; any other unknown name may
        belong to a plug-in and is only told.

    Why it matters:
        NCCL ignores names that it does not know without a word, so a misspelt setting looks set and does nothing.
    """
    found = settings(facts)
    if not found:
        return passed(_NONE)
    unknown = [setting for name, setting in sorted(found.items()) if not _is_known(name)]
    if not unknown:
        return passed(f"{len(found)} settings, all known")
    near = [(setting, guess) for setting in unknown if (guess := _nearest(setting.name))]
    if near:
        first, guess = near[0]
        return warn(
            "names that NCCL reads",
            "; ".join(f"{setting.name} (did you mean {guess}?)" for setting, guess in near[:8]),
            details=tuple(show(setting) for setting in unknown[:16]),
            evidence=settings_evidence(setting for setting, _ in near[:8]),
            params={"wrong": first.name, "right": guess, "value": first.value},
        )
    names = ", ".join(setting.name for setting in unknown[:8])
    return info(f"not known to NCCL, torch or a plug-in that rlcheck knows: {names}")


def _is_known(name: str) -> bool:
    return name in table().variables or name.startswith(tuple(table().prefixes))


def _nearest(name: str) -> str:
    """The known name that `name` was meant to be: at least 88 % alike, and of the same prefix."""
    from difflib import get_close_matches  # rarely needed, and it costs milliseconds

    family = name[: name.index("_") + 1] if "_" in name else name
    names = [known for known in table().variables if known.startswith(family)]
    return next(iter(get_close_matches(name, names, n=1, cutoff=0.88)), "")


@check("NCL006", "No NCCL variable is out of date", needs=("environ",), playbook="nccl-unknown-variable",
       problem="An NCCL variable is out of date")  # fmt: skip
def out_of_date(facts: Facts) -> Verdict:
    """Finds variables that were renamed, deprecated or removed.

    What it does:
        Names removed from NCCL, names that still work under a newer one, and names whose behaviour became the default.
        The old NCCL_* names of torch's own settings are here too: torch still reads them and warns.

    Why it matters:
        A removed variable does nothing, and the problem that it was set against may be gone or may be back.
    """
    found = settings(facts)
    if not found:
        return passed(_NONE)
    rows = [(setting, variable) for setting, variable in _known(found) if _age(setting, variable)]
    if not rows:
        return passed(f"{len(found)} settings, none out of date")
    removed = [setting for setting, variable in rows if variable.removed]
    lines = "; ".join(f"{setting.name} {_age(setting, variable)}" for setting, variable in rows[:8])
    if not removed:
        return info(lines, evidence=settings_evidence(setting for setting, _ in rows[:8]))
    return warn(
        "variables that NCCL still reads",
        lines,
        evidence=settings_evidence(setting for setting, _ in rows[:8]),
        params={
            "old": removed[0].name,
            "new": table().variables[removed[0].name].replacement or "a current setting",
            "names": several(setting.name for setting in removed),
        },
    )


def _age(setting: Setting, variable: Variable) -> str:
    instead = f", use {variable.replacement}" if variable.replacement else ""
    if variable.removed:
        return f"is not read since NCCL {variable.removed}{instead}"
    if variable.deprecated:
        return f"is deprecated since NCCL {variable.deprecated}{instead}"
    if variable.dead:
        return f"is obsolete: {variable.dead}"
    if variable.reader == "torch" and variable.replacement:
        return f"is torch's old name{instead}"
    return ""


@check("NCL007", "NCCL values are of the right kind", needs=("environ",), playbook="nccl-bad-value",
       problem="An NCCL variable has a value that NCCL cannot use")  # fmt: skip
def values(facts: Facts) -> Verdict:
    """Checks each value against the kind, the words and the bounds that its variable takes.

    What it does:
        Numbers, words of a list, path types (LOC … SYS), algorithm and protocol lists. Surrounding spaces and quotes
        that came from a file are distinguished.

    Why it matters:
        NCCL reads numbers with strtoll: `NCCL_P2P_DISABLE=true` counts as 0 and does nothing, while an unknown
        algorithm stops the run since NCCL 2.24.
    """
    found = settings(facts)
    if not found:
        return passed(_NONE)
    bad = [
        (s, problem, fatal) for s, v in _known(found) if (result := _problem(s.value, v)) for problem, fatal in [result]
    ]
    if not bad:
        return passed(f"{len(found)} settings, all of the right kind")
    verdict = fail if any(fatal for _, _, fatal in bad) and _stops_on_unknown_algorithm(facts) else warn
    return verdict(
        "values that the variables take",
        "; ".join(f"{show(s)}: {p}" for s, p, _ in bad[:8]),
        evidence=settings_evidence(s for s, _, _ in bad[:8]),
        params={
            "wrong": "; ".join(f"{s.name}: {problem}" for s, problem, _ in bad),
            "names": several(s.name for s, _, _ in bad),
        },
    )


def _stops_on_unknown_algorithm(facts: Facts) -> bool:
    try:
        return Version(nccl_version(facts)) >= Version("2.24") and not uses_rccl(facts)
    except InvalidVersion:
        return False


def _problem(value: str, variable: Variable) -> tuple[str, bool] | None:
    """What is wrong with a value, and whether NCCL stops because of it; None for a good or empty one."""
    text = value.strip()
    if not text:
        return None
    if text[0] in "\"'" and text[-1] == text[0]:
        return "the quotes are part of the value", False
    judge = _JUDGES.get(variable.kind)
    return judge(text, variable) if judge else None


def _integer(text: str, variable: Variable) -> tuple[str, bool] | None:
    if not is_number(text):
        return "not a number: NCCL reads it as 0 or drops what follows the digits", False
    number = as_number(text)
    if variable.values and str(number) not in variable.values:
        return f"expected {' or '.join(variable.values)}", False
    low, high = variable.min, variable.max
    if (low is not None and number < low) or (high is not None and number > high):
        return f"expected {'at most' if low is None else f'{low} to' if high is not None else 'at least'} " \
               f"{high if high is not None else low}", False  # fmt: skip
    return None


def _boolean(text: str, variable: Variable) -> tuple[str, bool] | None:
    words = ("0", "1", "y", "n", "yes", "no", "t", "f", "true", "false", "on", "off")
    return None if text.lower() in words else ("expected 0 or 1", False)


def _word(text: str, variable: Variable) -> tuple[str, bool] | None:
    if text.upper() in (word.upper() for word in variable.values):
        return None
    return f"expected one of {', '.join(variable.values)}", False


def _word_list(text: str, variable: Variable) -> tuple[str, bool] | None:
    words = [word.strip().upper() for word in text.lstrip("^").split(",")]
    wrong = [word for word in words if word and variable.values and word.lstrip("^") not in variable.values]
    return (f"unknown: {', '.join(wrong[:4])}", False) if wrong else None


def _level(text: str, variable: Variable) -> tuple[str, bool] | None:
    return None if _LEVEL_NUMBER.fullmatch(text) else _word(text, variable)


def _algorithms(text: str, variable: Variable) -> tuple[str, bool] | None:
    """`ring,tree`, `^nvls`, or since 2.24 `allreduce:tree;broadcast:ring`."""
    for part in text.split(";"):
        match = _ALGO_FUNCTION.fullmatch(part.strip())
        words = [word for word in match[2].lower().replace("^", "").split(",") if word] if match else [part]
        wrong = [word for word in words if word not in variable.values]
        if wrong:
            return f"unknown: {', '.join(wrong[:4])}; expected {', '.join(variable.values)}", True
    return None


_JUDGES = {
    "int": _integer,
    "bool": _boolean,
    "enum": _word,
    "list": _word_list,
    "level": _level,
    "algo": _algorithms,
}


@check("NCL008", "This NCCL reads the variables that are set", needs=("environ", "nccl.torch"),
       playbook="nccl-unknown-variable",
       problem="This NCCL does not read a variable that is set")  # fmt: skip
def too_new(facts: Facts) -> Verdict:
    """Finds variables that appeared in a later NCCL than the one that torch loads.

    What it does:
        Compares the release in which each variable appeared with the version of the library.

    Why it matters:
        A variable from a newer guide does nothing here, so a measurement "with the setting" measured the same as
        before.
    """
    found = settings(facts)
    text = nccl_version(facts)
    try:
        version = Version(text)
    except InvalidVersion:
        return skip("the NCCL version cannot be read")
    if uses_rccl(facts):
        return skip("RCCL follows other release numbers")
    rows = [(s, v.since) for s, v in _known(found) if v.since and Version(v.since).release > version.release[:2]]
    if not rows:
        return passed(f"NCCL {text} knows all {len(found)} settings" if found else _NONE)
    return info(
        f"NCCL {text} does not read " + ", ".join(f"{s.name} (since {since})" for s, since in rows[:8]),
        evidence=settings_evidence(s for s, _ in rows[:8]),
    )


@check("NCL009", "NCCL or torch reads every NCCL setting", needs=("environ",), playbook="nccl-unknown-variable",
       problem="Neither NCCL nor torch reads a setting")  # fmt: skip
def read_by_nobody(facts: Facts) -> Verdict:
    """Finds NCCL_TIMEOUT, which advice on the web names and neither NCCL nor torch reads.

    What it does:
        Looks for names that occur neither in any NCCL library from 2.16 to 2.32 nor in torch.

    Why it matters:
        The time limit of a collective is the `timeout` of init_process_group, ten minutes unless a framework says
        otherwise: NCCL_TIMEOUT changes nothing, unless a script of yours reads it, and the run is killed as before.
    """
    found = settings(facts)
    idle = [setting for setting, variable in _known(found) if variable.reader == "nobody"]
    if not idle:
        return passed("none" if found else _NONE)
    return warn(
        "settings that NCCL or torch reads",
        ", ".join(show(setting) for setting in idle),
        evidence=settings_evidence(idle),
        params={"name": idle[0].name},
    )


@check(
    "NCL010",
    "RCCL variables are set where RCCL runs",
    needs=("environ", "python.torch"),
    playbook="nccl-unknown-variable",
    problem="RCCL variables are set where RCCL does not run",
)
def rccl_names(facts: Facts) -> Verdict:
    """Finds RCCL_* variables in an environment whose torch is not built for ROCm.

    What it does:
        Looks at torch's build: without HIP nothing reads RCCL_*.

    Why it matters:
        A launch script that was copied from another kind of machine is at work, and its other settings may hurt here.
    """
    found = [setting for name, setting in sorted(settings(facts).items()) if name.startswith("RCCL_")]
    if not found:
        return passed("no RCCL_* variable")
    if uses_rccl(facts):
        return passed(f"{len(found)} RCCL_* variables for a torch built with ROCm")
    return info(f"nothing reads {', '.join(s.name for s in found[:8])}: this torch is not built for ROCm")
