"""Makes the recorded machines: `python -m tests.machines.build` builds those that are built and cleans the others.

`python -m tests.machines.build NAME=RECORD.json` takes in a new record of a real machine, as
`rlcheck collect` wrote it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from rlcheck.facts.document import Facts, decode, encode
from tests.machines import hardware, surroundings
from tests.machines.cleaning import clean
from tests.machines.parts import RECORDS, recorded
from tests.machines.registry import MACHINES
from tests.tools.lines import text_of

REAL = ("cpu-vm", "h200-host", "4xh200", "sglang-verl-conflict", "broken-venv")
# Importing them is what fills the list.
CATALOGUES = (hardware, surroundings)
NAMES = (*REAL, *MACHINES)


def build(name: str) -> Facts:
    """The machine as it ought to be recorded."""
    if name in REAL:
        return clean(recorded(name), name)
    facts = MACHINES[name].build(name)
    # Through JSON once, as what is compared with it has been.
    return decode(encode((facts,)))[0]


def main(arguments: list[str]) -> None:
    for argument in arguments:
        name, _, raw = argument.partition("=")
        write(name, clean(decode(Path(raw).read_bytes(), raw)[0], name))
    for name in NAMES:
        write(name, build(name))


def written(facts: Facts) -> bytes:
    """The file of a record."""
    return text_of(json.loads(encode((facts,)))).encode()


def write(name: str, facts: Facts) -> None:
    path = RECORDS / f"{name}.json"
    path.write_bytes(written(facts))
    print(f"{path.name}: {path.stat().st_size // 1024} KiB")


if __name__ == "__main__":
    main(sys.argv[1:])
