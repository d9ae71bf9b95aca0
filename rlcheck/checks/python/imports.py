"""What happened when the modules were really imported (`--deep`)."""

from __future__ import annotations

from signal import Signals

from rlcheck.check import Verdict, check, evidence, fail, info, passed
from rlcheck.checks.python.common import environment, pip_params, shortened
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.python import ImportTest

_SLOW_S = 15.0


@check(
    "ENV046",
    "The stack's modules can be imported",
    needs=("python.imports",),
    playbook="import-fails",
    caused_by=("ENV001", "ENV005", "ENV006", "ENV007", "ENV010", "ENV011", "ENV013", "ENV019", "ENV020", "ENV021",
               "ENV022", "ENV031", "ENV034", "ENV048", "RAY001"),
)  # fmt: skip
def imports(facts: Facts) -> Verdict:
    """Imports the stack's modules, each in a process of its own, and reports which of them fail.

    What it does:
        With `--deep`, starts the examined Python for each module with a deadline and records whether the import worked,
        the signal that killed it, and the last line of its traceback.

    Why it matters:
        A module that cannot be imported stops every run that needs it; a crash by a signal leaves no traceback in the
        log of the run at all, only a worker that has died.
    """
    tests = need(environment(facts).imports)
    failed = [test for test in tests if not test.ok]
    if not failed:
        return passed(f"{len(tests)} modules were imported")
    lines = [_what_happened(test) for test in failed]
    return fail(
        f"all {len(tests)} modules to be imported",
        f"{len(failed)} that cannot: {lines[0]}",
        details=shortened(lines),
        evidence=(evidence("python.imports", lines[0], "python -c 'import …'"),),
        params=pip_params(facts, module=failed[0].module.partition(":")[0]),
    )


def _what_happened(test: ImportTest) -> str:
    if test.timed_out:
        return f"{test.module} was not done after {test.seconds:.0f} s"
    said = f": {test.last_line}" if test.last_line else ""
    return f"{test.module} was killed by {_signal(test.signal)}{said}" if test.signal else f"{test.module}{said}"


def _signal(number: int) -> str:
    try:
        return Signals(number).name
    except ValueError:
        return f"signal {number}"


@check("ENV047", "Modules are imported quickly", needs=("python.imports",), playbook="import-slow")
def slow_imports(facts: Facts) -> Verdict:
    """Looks for modules whose import takes many seconds.

    What it does:
        With `--deep`, compares the time of each import with fifteen seconds.

    Why it matters:
        Every worker of a run imports the stack by itself, on all nodes at once. From a slow network file system that
        takes minutes and is easily taken for a hang.
    """
    tests = [test for test in need(environment(facts).imports) if test.ok]
    slow = sorted((test for test in tests if test.seconds > _SLOW_S), key=lambda test: -test.seconds)
    if not slow:
        longest = max((test.seconds for test in tests), default=0.0)
        return passed(f"the slowest import took {longest:.1f} s")
    lines = [f"{test.module} took {test.seconds:.0f} s" for test in slow]
    return info(
        f"{len(slow)} import(s) took longer than {_SLOW_S:.0f} s: {lines[0]}",
        details=shortened(lines),
        params=pip_params(facts, module=slow[0].module.partition(":")[0]),
    )
