"""Sent to the examined interpreter on its standard input, with `module[:attribute] seconds` as arguments.

Imports the module and prints one JSON line about it. The process may die of it; then its exit status tells.
"""

import sys

sys.path[:1] = [entry for entry in sys.path[:1] if entry]


def describe(error: BaseException) -> str:
    """What was raised, in one line, with the first of the errors that it was raised `from`.

    Packages wrap the linker's message ("libcudart.so.12: cannot open …") into one that only says that they failed.
    """
    root = error
    for _ in range(20):
        root = root.__cause__ or root
    return in_one_line(error) if root is error else f"{in_one_line(error)} (cause: {in_one_line(root)})"


def in_one_line(error: BaseException) -> str:
    """The last line of a traceback, line breaks of the message removed."""
    import traceback

    return " ".join("".join(traceback.format_exception_only(type(error), error)).split())[:300]


def main(spec: str, seconds: int) -> None:
    """Import `spec`, say how it went, and end without running what modules leave to do at exit."""
    import faulthandler
    import importlib
    import json
    import os
    import signal
    import time

    answer_to = os.dup(1)
    os.dup2(2, 1)  # what the module prints must not be taken for our answer
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)  # in a container nobody else ends us when the caller gives up
    faulthandler.enable()
    module, _, attribute = spec.partition(":")
    ok, last_line = True, ""
    started = time.perf_counter()
    try:
        imported = importlib.import_module(module)
        if attribute:
            getattr(imported, attribute)
    except BaseException as error:
        ok, last_line = False, describe(error)
    elapsed = time.perf_counter() - started
    line = json.dumps({"module": module, "seconds": round(elapsed, 3), "ok": ok, "last_line": last_line})
    os.write(answer_to, ("\nrlcheck-import:" + line + "\n").encode())
    os._exit(0)  # what goes wrong at exit is no longer a matter of the import


main(sys.argv[1], int(sys.argv[2]))
