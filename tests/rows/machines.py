"""`rlcheck env` on a recorded machine, as it is or with one thing changed."""

from __future__ import annotations

import json
import re
from typing import Any

from tests.conftest import ROOT, Done, rlcheck

RECORDS = ROOT / "tests" / "fixtures" / "machines"


def examined(machine: str, changes: dict[str, Any] | None = None) -> Done:
    """Run the command on MACHINE; a change is a path of facts and its new value, `…+` appends to a list."""
    document = json.loads((RECORDS / f"{machine}.json").read_text())
    for path, value in (changes or {}).items():
        here = document["nodes"][0]
        *parents, last = path.split(".")
        for name in parents:
            here = here[name]
            here = here.get("value", here) if isinstance(here, dict) else here
        if last == "+":
            here.append(value)
        else:
            here[last] = value
    return rlcheck("env", "--facts", "-", stdin=json.dumps(document).encode())


def says(done: Done, *words: str, code: int | None = None) -> None:
    """The report holds all WORDS, wherever its lines break: the check, what was found, what to type."""
    report = " ".join(done.out.split())
    missing = [word for word in words if " ".join(word.split()) not in report]
    assert not missing, f"{missing} not in:\n{done.out}{done.err}"
    assert code is None or done.code == code, done.out


def says_of(done: Done, check: str, *words: str, code: int | None = None) -> None:
    """The finding of CHECK (`SYS001`, or `✗ SYS001` for a failed one) alone holds all WORDS."""
    block = " ".join(finding(done, check).split())
    missing = [word for word in words if " ".join(word.split()) not in block]
    assert not missing, f"{missing} not in {check}:\n{finding(done, check)}\nof:\n{done.out}{done.err}"
    assert code is None or done.code == code, done.out


def finding(done: Done, check: str) -> str:
    """The lines of one finding in a report: from its ID to the next line that is indented as little as it is."""
    lines, sign = done.out.splitlines(), "" if " " in check else r"\S "
    starts = [number for number, line in enumerate(lines) if re.match(rf"    {sign}{check}\b", line)]
    assert starts, f"{check} is not in:\n{done.out}{done.err}"
    ends = (number for number in range(starts[0] + 1, len(lines)) if re.match(r" {0,4}\S", lines[number]))
    return "\n".join(lines[starts[0] : next(ends, len(lines))])
