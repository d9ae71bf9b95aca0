"""Applying safe fixes: show, ask, do, look again.

Environment fixes go into a file to be sourced, since no program can change the shell that started it; the second look
is taken with them set.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from string import Template

import msgspec

from rlcheck.errors import UserError
from rlcheck.finding import Finding, Fix, Report
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.process import run_command

ENV_FILE = "rlcheck.env.sh"
_ENV_HEAD = "# Written by `rlcheck env --fix`; source it in the shell or job script that starts the run.\n"
_FIX_TIMEOUT_S = 60.0
_WORD = r"""([^\s'"]+|'[^']*'|"[^"]*")"""
_TAKEN_BACK = (
    (re.compile(f"mv {_WORD} {_WORD}"), r"mv \2 \1"),
    (re.compile(f"mkdir (?:-p )?{_WORD}"), r"rmdir \1"),
    (re.compile(f"git config --global --add {_WORD} {_WORD}"), r"git config --global --unset-all \1 \2"),
)


class FixError(UserError):
    """A fix that cannot be applied. The message is one line for the user."""


class Step(msgspec.Struct, frozen=True):
    """One safe fix of one finding."""

    finding: Finding
    fix: Fix


def plan(report: Report) -> tuple[Step, ...]:
    """The first fix of every problem where it is safe and complete; what fixes several is listed once.

    A later one is not taken in its place: it may be for another case, or hide what the first would have fixed.
    """
    steps: dict[str, Step] = {}
    for finding in report.checks:
        if finding.is_problem:
            for fix in finding.fixes[:1]:
                if _can_apply(fix):
                    steps.setdefault(fix.command, Step(finding, fix))
    return tuple(steps.values())


def _can_apply(fix: Fix) -> bool:
    """Whether it harms nothing, and one line is known that takes it back."""
    if fix.safety != "safe" or not fix.complete or fix.needs_root or fix.by_hand:
        return False
    return fix.kind == "env" or (fix.kind == "shell" and bool(taken_back_by(fix.command)))


def taken_back_by(command: str) -> str:
    """The line that takes a shell fix back, "" where none is known.

    >>> taken_back_by("mv ~/.cache/torch_extensions ~/.cache/torch_extensions.old")
    'mv ~/.cache/torch_extensions.old ~/.cache/torch_extensions'
    """
    for done, line in _TAKEN_BACK:
        if found := done.fullmatch(command.strip()):
            return found.expand(line)
    return ""


def carry_out(steps: tuple[Step, ...], *, dry_run: bool, yes: bool) -> tuple[str, ...]:
    """Show the steps, ask, apply them; return what was done, one line each (nothing: nothing was done).

    Raises:
        FixError: nobody is there to be asked, or the environment file cannot be written.
    """
    if not steps:
        sys.stderr.write("rlcheck: no safe fix applies; the report names the others\n")
        return ()
    for step in steps:
        sys.stderr.write(
            f"{step.finding.id}  {step.fix.title}\n    {step.fix.command.replace(chr(10), chr(10) + '    ')}\n"
        )
    if dry_run:
        sys.stderr.write("rlcheck: dry run, nothing was changed\n")
        return ()
    if not yes and not _confirmed(len(steps)):
        sys.stderr.write("rlcheck: nothing was changed\n")
        return ()
    return (*(_run(step) for step in steps if step.fix.kind == "shell"), *_write_environment(steps))


def applied(
    report: Report, context: ProbeContext, again: Callable[[ProbeContext], Report], *, dry_run: bool, yes: bool
) -> Report:
    """Apply the safe fixes of REPORT after a question; return the report that AGAIN makes of the machine as it is then.

    Raises:
        FixError: as for `carry_out`.
    """
    steps = plan(report)
    done = carry_out(steps, dry_run=dry_run, yes=yes)
    return with_changes(report, again(context_after(steps, context)), done) if done else report


def context_after(steps: tuple[Step, ...], context: ProbeContext) -> ProbeContext:
    """The machine as it is for a shell that sourced the environment file."""
    environ = dict(context.environ)
    for step in steps:
        if step.fix.kind == "env":
            for name, value in _assignments(step.fix.command):
                if value is None:
                    environ.pop(name, None)
                else:
                    environ[name] = Template(value).safe_substitute(environ)
    return ProbeContext(context.root, environ, context.python, context.deep)


def with_changes(before: Report, after: Report, done: tuple[str, ...]) -> Report:
    """The second report, with notes on what was done and which findings changed."""
    old = {(f.id, f.node): f.status for f in before.checks}
    changes = tuple(
        f"{f.id}: {old[f.id, f.node]} → {f.status}"
        for f in after.checks
        if old.get((f.id, f.node), f.status) != f.status
    )
    return msgspec.structs.replace(after, notes=(*after.notes, *done, *(changes or ("no finding changed",))))


def _confirmed(count: int) -> bool:
    if not sys.stdin.isatty():
        raise FixError("--fix asks before it changes anything, and there is no terminal here; add --yes or --dry-run")
    sys.stderr.write(f"Apply {'this fix' if count == 1 else f'these {count} fixes'}? [y/N] ")
    sys.stderr.flush()
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _run(step: Step) -> str:
    """Run one shell fix. One that fails is reported like one that worked: others may have been applied already."""
    outcome = run_command(["bash", "-c", step.fix.command], os.environ, _FIX_TIMEOUT_S)
    if outcome.value is None:
        why = outcome.missing.reason if outcome.missing else "no answer"
        return f"{step.finding.id}: {step.fix.command!r} did not run: {why}"
    if outcome.value.returncode:
        return f"{step.finding.id}: {step.fix.command!r} failed: {' '.join(outcome.value.stderr.split())[:300]}"
    return f"{step.finding.id}: ran {step.fix.command}; {taken_back_by(step.fix.command)} takes it back"


def _write_environment(steps: tuple[Step, ...]) -> tuple[str, ...]:
    commands = [step.fix.command for step in steps if step.fix.kind == "env"]
    if not commands:
        return ()
    path = Path(ENV_FILE)
    try:
        # What --fix wrote before is kept, and what somebody added: whoever sourced it no longer sees its findings.
        ours = not path.is_symlink() and (path.is_file() or not path.exists())
        old = path.read_bytes().decode("utf-8", "surrogateescape") if ours and path.exists() else _ENV_HEAD
        if not ours or not old.startswith(_ENV_HEAD):
            raise FixError(f"{os.path.abspath(path)}: there is another file of this name; move it away first")
        new = "\n".join(commands).splitlines()
        kept = [line for line in old[len(_ENV_HEAD) :].rstrip("\n").split("\n") if line and line not in new]
        path.write_bytes((_ENV_HEAD + "\n".join((*kept, *new)) + "\n").encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise FixError(f"{os.path.abspath(path)}: cannot be written: {error.strerror}") from None
    return (
        f"wrote {ENV_FILE}; `source ./{ENV_FILE}` sets it for a shell (the second look was taken with it); "
        f"`rm {ENV_FILE}` and a new shell take it back",
    )


def _assignments(command: str) -> list[tuple[str, str | None]]:
    """The variables that lines like `export A=1` and `unset B` set (None: unset)."""
    result: list[tuple[str, str | None]] = []
    for line in command.splitlines():
        words = shlex.split(line, comments=True)
        if words[:1] == ["export"]:
            result.extend((name, value) for name, _, value in (word.partition("=") for word in words[1:]))
        elif words[:1] == ["unset"]:
            result.extend((name, None) for name in words[1:])
    return result
