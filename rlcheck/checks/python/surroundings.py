"""Whether the examined Python is the one that is meant, and where pip would put what it installs."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.python.common import environment, is_truthy, pip_params, shortened
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts

_ELSEWHERE = {
    "target": "packages go to another directory than this environment's",
    "prefix": "packages go below another prefix than this environment's",
    "root": "packages go below another root directory",
}
_SWITCHES = {
    "user": "packages go to the user's directory, for every environment of this Python",
    "pre": "release candidates and nightly builds are taken for releases",
    "no-deps": "requirements of what is installed are left out without a word",
    "ignore-requires-python": "packages are installed for Pythons that they exclude",
}


@check("ENV033", "pip installs into this environment as usual", needs=("python",), playbook="pip-configuration")
def pip_settings(facts: Facts) -> Verdict:
    """Looks for pip settings that send packages elsewhere or leave out what they need.

    What it does:
        Reads pip's configuration files and PIP_* variables for target, prefix, root, user, pre, no-deps,
        ignore-requires-python and no-binary.

    Why it matters:
        Such a setting, made once for another purpose, acts on every later installation: the package just installed is
        not found, or a requirement is missing, and the command line shows nothing of it.
    """
    hits = [(line, why) for line in environment(facts).pip_config if (why := _why_bad(line))]
    if not hits:
        return passed("no pip setting changes where or how packages are installed")
    lines = [f"{line}: {why}" for line, why in hits]
    return warn(
        "pip without settings that redirect installations",
        lines[0],
        details=shortened(lines),
        evidence=(evidence("python.pip_config", hits[0][0]),),
        params=pip_params(facts, key=_key_and_value(hits[0][0])[0]),
    )


def _key_and_value(line: str) -> tuple[str, str]:
    """`("install.user", "true")` of `~/.config/pip/pip.conf: install.user = true`."""
    setting, _, value = line.partition(" = ")
    return setting.rpartition(": ")[2].strip(), value.strip()


def _why_bad(line: str) -> str:
    key, value = _key_and_value(line)
    name = key.rpartition(".")[2].lower().replace("_", "-").removeprefix("pip-")
    if value and name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name in _SWITCHES and is_truthy(value):
        return _SWITCHES[name]
    return "everything is compiled from source" if name == "no-binary" and value == ":all:" else ""


@check(
    "ENV037", "The examined Python is that of the active environment", needs=("python", "environ"),
    playbook="other-environment",
)  # fmt: skip
def active_environment(facts: Facts) -> Verdict:
    """Compares the Python that was examined with the virtual or conda environment that is active in the shell.

    What it does:
        Compares VIRTUAL_ENV, or CONDA_PREFIX where there is none, with the prefix of the examined interpreter. Nothing
        is said when an interpreter was named with `--python`.

    Why it matters:
        A doctor that is installed on its own judges its own packages, not those of the run: everything that this family
        says then holds for the wrong environment.
    """
    python, environ = environment(facts), need(facts.environ)
    active = environ.get("VIRTUAL_ENV") or environ.get("CONDA_PREFIX", "")
    if not python.is_doctors_own or not active or not python.prefix:
        return skip("no environment is active, or the interpreter was named")
    if active.rstrip("/") == python.prefix.rstrip("/"):
        return passed(f"{python.prefix} was examined, the active environment")
    return info(
        f"{python.prefix} was examined, but the active environment is {active}",
        evidence=(evidence("python.prefix", python.prefix), evidence("environ", active)),
        params={"active_python": f"{active.rstrip('/')}/bin/python"},
    )
