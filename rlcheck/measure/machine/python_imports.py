"""`--deep`: imports the packages of the stack, each in a process of its own, and reports what became of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from threading import Thread

import msgspec

from rlcheck.facts.base import Fact, MissingKind, known, missing, need, why_missing
from rlcheck.facts.python import ImportTest
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.process import CommandResult

_CHILD = Path(__file__).resolve().parent.parent.parent / "remote" / "import_child.py"
_MARK = "rlcheck-import:"
_AT_A_TIME = 2
IMPORT_TIMEOUT_S = 60
_SIGALRM = 14


def try_imports(
    ctx: ProbeContext, command: Sequence[str], modules: Iterable[str], timeout_s: float = IMPORT_TIMEOUT_S
) -> Fact[tuple[ImportTest, ...]]:
    """Import each `module` or `module:attribute` in the interpreter that `command` starts."""
    if not command or not command[0]:
        return missing(MissingKind.ERROR, "the path of the interpreter is not known")
    try:
        source = _CHILD.read_text(encoding="utf-8")
    except OSError as error:
        return missing(MissingKind.ERROR, f"rlcheck is incomplete: {error}")

    def attempt(spec: str) -> ImportTest:
        # The process has its own alarm, a little later than ours: killing `docker exec` does not end what it started.
        argv = [*command, "-", spec, str(int(timeout_s) + 5)]
        return _outcome(spec.partition(":")[0], ctx.run(argv, timeout_s=timeout_s, stdin=source), timeout_s)

    waiting, done = list(modules), dict[str, ImportTest]()
    order = tuple(waiting)

    def work() -> None:
        while waiting:
            spec = waiting.pop(0)
            done[spec] = attempt(spec)

    # Daemon threads: an import that hangs must not keep the doctor alive once its report is out.
    workers = [Thread(target=work, daemon=True) for _ in range(_AT_A_TIME)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return known(tuple(done[spec] for spec in order))


def _outcome(module: str, result: Fact[CommandResult], timeout_s: float) -> ImportTest:
    reason = why_missing(result)
    if reason is not None:
        if reason.kind is MissingKind.TIMEOUT:
            return ImportTest(module=module, seconds=timeout_s, ok=False, timed_out=True)
        return ImportTest(module=module, seconds=0.0, ok=False, last_line=reason.reason)
    ended = need(result)
    for line in reversed(ended.stdout.splitlines()):
        if line.startswith(_MARK):
            try:
                return msgspec.json.decode(line[len(_MARK) :], type=ImportTest)
            except msgspec.DecodeError:
                break
    signal = _signal(ended.returncode)
    timed_out = signal == _SIGALRM
    return ImportTest(
        module=module,
        seconds=timeout_s if timed_out else 0.0,
        ok=False,
        signal=0 if timed_out else signal,
        timed_out=timed_out,
        last_line=_last_words(ended),
    )


def _signal(returncode: int) -> int:
    """The signal that ended a process; a shell or a container reports it as 128 plus its number."""
    if returncode < 0:
        return -returncode
    return returncode - 128 if 128 < returncode < 160 else 0


def _last_words(ended: CommandResult) -> str:
    """What faulthandler said of a crash: the error, and the line of Python that was being executed."""
    lines = [line.strip() for line in ended.stderr.splitlines() if line.strip()]
    for index, line in enumerate(lines):
        if line.startswith("Fatal Python error"):
            frame = next((later for later in lines[index:] if later.startswith('File "')), "")
            return f"{line} ({frame})"[:400] if frame else line[:400]
    return lines[-1][:400] if lines else f"exit status {ended.returncode}"
