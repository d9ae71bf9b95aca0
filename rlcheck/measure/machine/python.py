"""The Python section: the doctor's own interpreter examined in this process, any other by a scanner sent to it.

The scanner (`rlcheck/remote/scan`) needs nothing but the standard library. Another interpreter gets its sources on
standard input, so nothing is installed there, and it works through `docker exec -i`, `ssh` or `srun` as well.
"""

from __future__ import annotations

import os
import re
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing, need, why_missing
from rlcheck.facts.python import PythonFacts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.process import CommandResult
from rlcheck.tables import table

_PACKAGE = Path(__file__).resolve().parents[2]
_SCAN = _PACKAGE / "remote" / "scan"
_SCAN_TIMEOUT_S = 20.0
_MARK = "rlcheck-scan:"
_LEAVES = re.compile(r"\b(?:exit|_exit|quit|abort|raise|SystemExit)\b")
_NAME_THERE = "rlcheck_scan"


def collect(ctx: ProbeContext) -> Fact[PythonFacts]:
    """Examine the interpreter that `ctx.python` names, or the doctor's own."""
    document = _scan_there(ctx) if ctx.python else _scan_here(ctx)
    reason = why_missing(document)
    if reason is not None:
        return missing(reason.kind, reason.reason)
    content = need(document)
    try:
        facts = msgspec.convert(content, PythonFacts)
    except (msgspec.ValidationError, RecursionError) as error:
        return missing(MissingKind.ERROR, f"{_name(ctx)} answered something that makes no sense: {error}")
    own = not ctx.python or (facts.prefix == sys.prefix and facts.executable == sys.executable)
    return known(msgspec.structs.replace(facts, is_doctors_own=own, imports=_imports(ctx, content)))


def stack_table() -> list[dict[str, Any]]:
    """Return the packages that matter to a run, what they install and what of them is examined.

    `without` is what is left out on purpose beside one: nobody need look for who imports it.
    """
    omissions = {row["beside"]: row["missing"] for row in table("compat", dict[str, Any])["omissions"]}
    return [{**row, "without": omissions.get(row["name"], [])} for row in table("stack", list[dict[str, Any]])]


def _scan_here(ctx: ProbeContext) -> Fact[dict[str, Any]]:
    # By name, not by an import statement: nothing that the command line loads at start may pull the scanner in.
    scanner = import_module("rlcheck.remote.scan.main")
    try:
        return known(scanner.scan(stack_table(), ctx.environ, str(ctx.root)))
    except Exception as error:
        return missing(MissingKind.ERROR, f"this Python could not be examined: {type(error).__name__}: {error}")


def _scan_there(ctx: ProbeContext) -> Fact[dict[str, Any]]:
    result = ctx.run([*_command(ctx), "-"], timeout_s=_SCAN_TIMEOUT_S, stdin=_program())
    reason = why_missing(result)
    if reason is not None:
        # Somebody asked for this interpreter: that it is not there must not read as "does not apply".
        kind = MissingKind.ERROR if reason.kind is MissingKind.ABSENT else reason.kind
        return missing(kind, f"--python: {reason.reason}")
    return _answer(ctx, need(result))


def _answer(ctx: ProbeContext, result: CommandResult) -> Fact[dict[str, Any]]:
    """The scanner's document among whatever else was printed (banners of shells and containers)."""
    lines = [line for line in result.stdout.splitlines() if line.startswith(_MARK)]
    try:
        document = msgspec.json.decode(lines[-1][len(_MARK) :]) if lines else None
    except (msgspec.DecodeError, RecursionError):
        document = None
    if not isinstance(document, dict):
        reason = f"{_name(ctx)} did not answer as a Python would: {_complaint(result)}{_leaving(ctx)}"
        return missing(MissingKind.ERROR, reason)
    if "too_old" in document:
        reason = f"{_name(ctx)} is Python {document['too_old']}; rlcheck examines Python 3.8 and later"
        return missing(MissingKind.UNSUPPORTED, reason)
    return known(document)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _complaint(result: CommandResult) -> str:
    """What a command that failed has to say for itself, in one line."""
    last = next((line.strip() for line in reversed(result.stderr.splitlines()) if line.strip()), "")
    status = f"killed by signal {-result.returncode}" if result.returncode < 0 else f"exit status {result.returncode}"
    return f"{status}, {last[:200]}" if last else status


def _leaving(ctx: ProbeContext) -> str:
    """The lines of .pth files that end every Python of the environment before it begins, for the end of a sentence."""
    prefix = Path(_command(ctx)[0]).parent.parent
    found = [
        f"{path}:{number}: {line.strip()[:120]}"
        for path in sorted(prefix.glob("lib/python3*/site-packages/*.pth"))
        for number, line in enumerate((ctx.read_text(str(path)).value or "").splitlines(), 1)
        if line.startswith(("import ", "import\t")) and _LEAVES.search(line)
    ]
    return f"; every start of this Python runs {'; '.join(found[:3])}" if found else ""


def _program() -> str:
    """The scanner as one script for standard input; ASCII only, so that no locale can damage it."""
    import json

    sources = {f"{_NAME_THERE}.{path.stem}": path.read_text(encoding="utf-8") for path in _SCAN.glob("*.py")}
    sources[_NAME_THERE] = sources.pop(f"{_NAME_THERE}.__init__")
    payload = json.dumps({"package": _NAME_THERE, "sources": sources, "stack": stack_table()})
    return f"PAYLOAD = {payload!r}\n" + (_SCAN.parent / "bootstrap.py").read_text(encoding="utf-8")


def _command(ctx: ProbeContext) -> tuple[str, ...]:
    """The command line of the interpreter; an environment's directory means the Python in it."""
    first, *rest = ctx.python
    if os.path.isdir(first):
        first = next((path for path in (f"{first}/bin/python", f"{first}/bin/python3") if os.path.exists(path)), first)
    return (first, *rest)


def _name(ctx: ProbeContext) -> str:
    return " ".join(ctx.python) if ctx.python else "this Python"


def _imports(ctx: ProbeContext, document: dict[str, Any]) -> Fact[Any]:
    if not ctx.deep:
        return absent("import tests are made with --deep only")
    from rlcheck.measure.machine.python_imports import try_imports

    command = _command(ctx) if ctx.python else (sys.executable,)
    modules = [str(module) for module in document.get("modules", ())]
    return try_imports(ctx, command, modules)
