"""In place of an agent of Ray's that a run does not use: it says that its services are not there, and lives.

Run as a file, with nothing but the standard library: `python -I -S absent_agent.py FILE …`. Ray's node waits for the
agent's ports in FILEs, takes -1 for a service that is not in use (as of Ray's own `--minimal` agent, seen in 2.60), and
ends when an agent has ended.
"""

from __future__ import annotations

import os
import sys
import time

ABSENT = "-1"
LOOK_EVERY_S = 0.5


def main(files: list[str]) -> None:
    """Write FILES, then live as long as the process that has started this one."""
    parent = os.getppid()
    for name in files:
        with open(f"{name}.new", "w", encoding="utf-8") as file:
            file.write(ABSENT)
        os.rename(f"{name}.new", name)
    while os.getppid() == parent:
        time.sleep(LOOK_EVERY_S)


if __name__ == "__main__":
    main(sys.argv[1:])
