"""The Python itself: its version, its build, and whose it is."""

from __future__ import annotations

import re

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.python.common import (
    by_importance,
    environment,
    in_stack,
    installed,
    is_at,
    named,
    pip_params,
    shortened,
)
from rlcheck.checks.python.compat import PythonFloor, compat
from rlcheck.facts.document import Facts
from rlcheck.facts.python import Distribution, PythonFacts
from rlcheck.requirements import admits, version

_LOWEST = ">=3.10"
_FREE_THREADED = re.compile(r"python3\.\d+t(\b|/)")
_DEBUG = re.compile(r"python3\.\d+t?-?d(bg)?(\b|/)")


@check("ENV001", "The Python version suits every installed package", needs=("python",), playbook="python-version")
def python_version(facts: Facts) -> Verdict:
    """Compares the Python version with the Requires-Python of every installed package and with what the stack needs.

    What it does:
        Reads Requires-Python from the METADATA of the stack and of all that it reaches, and compares it with the
        interpreter. A Python below 3.10 is too old for every current release of the stack; the newest torch, vLLM and
        SGLang want 3.11.

    Why it matters:
        A package that runs on a Python it was not made for fails at import or, worse, somewhere in a run. Installers
        refuse such a package, so it got here by a copied environment, by --target or by a switched interpreter.
    """
    python = environment(facts)
    if not python.version:
        return skip("the version of this Python is not known")
    ours = _release(python)
    refusing = {d.name: d for d in python.distributions if not admits(d.requires_python, ours)}
    too_old = not admits(_LOWEST, ours)
    if not refusing and not too_old:
        return _floors(facts, python)
    important = [name for name in refusing if in_stack(name)]
    wants = [
        f"{named(refusing[name])} requires Python {refusing[name].requires_python}" for name in by_importance(refusing)
    ]
    details = ([f"the training stack requires Python {_LOWEST}"] if too_old else []) + wants
    problem = fail if important or too_old else warn
    return problem(
        "a Python that every installed package allows",
        f"Python {python.version}, which {len(refusing)} package(s) exclude: {details[0]}",
        details=shortened(details),
        evidence=(evidence("python.version", python.version, python.executable),),
        params=pip_params(facts, wanted=_wanted(list(refusing.values()))),
    )


def _release(python: PythonFacts) -> str:
    """The version without pre-release marks, as installers compare it."""
    parsed = version(python.version)
    return parsed.base_version if parsed is not None else python.version


def _floors(facts: Facts, python: PythonFacts) -> Verdict:
    """All is well today; say which newest releases this Python shuts out."""
    have = installed(facts)
    shut_out = [
        row for row in compat().python_floors if row.package in have and _is_ahead(row, have[row.package], python)
    ]
    if not shut_out:
        return passed(f"Python {python.version} suits all {len(python.distributions)} packages")
    newest = [f"{row.package} {row.release} and newer require Python {row.python}" for row in shut_out]
    return info(
        f"Python {python.version} suits what is installed, but the newest releases want {shut_out[0].python}",
        details=tuple(newest),
        evidence=(evidence("python.version", python.version, python.executable),),
        params=pip_params(facts, wanted=shut_out[0].python.lstrip(">=")),
    )


def _is_ahead(row: PythonFloor, have: Distribution, python: PythonFacts) -> bool:
    return not admits(row.python, _release(python)) and is_at(have, f"<{row.release}")


def _wanted(refusing: list[Distribution]) -> str:
    """The newest of the usual Pythons that all of them allow."""
    for candidate in ("3.12", "3.13", "3.11", "3.10"):
        if all(admits(d.requires_python, f"{candidate}.9") for d in refusing):
            return candidate
    return "3.12"


@check("ENV002", "The interpreter is an ordinary CPython build", needs=("python",), playbook="python-build")
def python_build(facts: Facts) -> Verdict:
    """Looks for an interpreter other than the ordinary CPython: PyPy, debug or free-threaded builds.

    What it does:
        Reads the implementation, and the names of the executable and of its library directories (a free-threaded build
        is called python3.13t, a debug build python3.12d).

    Why it matters:
        Wheels of the ordinary CPython do not load into PyPy or a free-threaded build: where a package has none for
        these, pip builds from source or takes an older release. A free-threaded build also switches the lock back on
        as soon as one extension does not support it. A debug build loads the wheels, and runs Python code slowly.
    """
    python = environment(facts)
    if python.implementation and python.implementation.lower() != "cpython":
        return warn("CPython", f"{python.implementation} {python.version}", params=pip_params(facts, wanted="3.12"))
    places = (python.executable, *python.sys_path)
    for pattern, build in ((_FREE_THREADED, "free-threaded"), (_DEBUG, "debug")):
        seen = next((place for place in places if pattern.search(place + "/")), "")
        if seen:
            return warn(
                "an ordinary build of CPython",
                f"a {build} build of {python.version}",
                evidence=(evidence("python.sys_path", seen),),
                params=pip_params(facts, wanted=".".join(python.version.split(".")[:2])),
            )
    return passed(f"CPython {python.version}")


@check("ENV003", "The stack has an environment of its own", needs=("python",), playbook="system-python",
       problem="The stack is installed in the system's Python")  # fmt: skip
def own_environment(facts: Facts) -> Verdict:
    """Reports whether the examined Python is the operating system's own instead of a virtual or conda environment.

    What it does:
        Looks at the kind of the environment, and for the marker with which a distribution says that its Python is
        managed by the system (PEP 668).

    Why it matters:
        In the system's Python an upgrade of the operating system can change packages under a running project, and
        pip refuses to install or breaks tools of the system. In a container image made for one job it is usual.
    """
    python = environment(facts)
    if python.kind != "system":
        return passed(f"this is a {python.kind or 'separate'} environment")
    if facts.platform.value is not None and facts.platform.value.container:
        return passed(f"the system's Python, inside a {facts.platform.value.container} container")
    managed = ", and the system manages it (pip installs are refused)" if python.externally_managed else ""
    return info(
        f"the packages live in the system's own Python {python.version}{managed}",
        evidence=(evidence("python.prefix", python.prefix),),
        params=pip_params(facts),
    )
