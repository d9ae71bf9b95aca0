"""Hold the table of keys that others switch off against the source that each row cites.

    python -m tests.tools.effects NAME FOLDER...

FOLDER: a checkout at the commit of the table, or an unpacked release; several where rows cite several packages. Prints
each row whose line is not there, or does not name one of its keys (by the last part) within two lines; the exit code is
1 then.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path

from rlcheck.measure.config.effects import Row, effects_of

_AROUND = 2


def wrong(row: Row, folders: Sequence[Path]) -> str:
    """What is wrong with the source of ROW; "" where its line is there and names one of the row's keys."""
    file, _, number = row.source.rpartition(":")
    path = next((folder / file.split()[-1] for folder in folders if (folder / file.split()[-1]).is_file()), None)
    if path is None:
        return "no such file"
    lines = path.read_text(encoding="utf-8").splitlines()
    near = "\n".join(lines[max(0, int(number) - 1 - _AROUND) : int(number) + _AROUND])
    if not row.off:  # that a key is read nowhere, no line says
        return ""
    return "" if any(re.search(rf"(?:\b|_){name}", near) for name in names(row)) else f"none of its keys in:\n{near}"


def names(row: Row) -> list[str]:
    """The words by which source may name the keys of ROW."""
    parts = [key.removeprefix("vllm_").rstrip(".").split(".") for key in (*row.keys, *row.off)]
    return [re.escape(word.replace("-", "_")) for part in parts for word in (part[-1], *part[-2:-1])]


def main(words: Sequence[str]) -> int:
    """Run the command and return its exit code."""
    effects = effects_of(words[0])
    if effects is None or not words[1:]:
        print(__doc__)
        return 2
    found = [(row, said) for row in effects.rows if (said := wrong(row, [Path(word) for word in words[1:]]))]
    for row, said in found:
        print(f"{row.source}: {', '.join(row.keys)}: {said}")
    print(f"{len(effects.rows) - len(found)} of {len(effects.rows)} rows hold ({effects.source})")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
