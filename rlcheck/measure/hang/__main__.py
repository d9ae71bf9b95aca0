"""`python -m rlcheck.measure.hang SECONDS [RUN_DIR]`: prints what `rlcheck hang` sees on this machine, as JSON.

For the agents on other nodes. Where no job runs that is `{"none": why}`.
"""

from __future__ import annotations

import sys

import msgspec

from rlcheck.errors import UserError
from rlcheck.measure.hang.jobs import find
from rlcheck.measure.hang.look import watch


def main() -> None:
    """Look, and print."""
    directory = sys.argv[2] if len(sys.argv) > 2 else ""
    try:
        found: object = watch(find(None, directory), float(sys.argv[1]), lambda _: None)
    except UserError as error:
        found = {"none": str(error)}
    sys.stdout.buffer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
