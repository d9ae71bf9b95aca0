"""What is sent to other interpreters: sources, and the one line that starts them.

Nothing is installed there: the program arrives on standard input (see `rlcheck/remote/agent/boot.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from rlcheck.tables import table

_PACKAGE = Path(__file__).resolve().parents[2]
_AGENT = "rlcheck_agent"

# No single quote, no newline, no exclamation mark: it must pass through any shell at the other end of ssh. Standard
# input is read through its one buffer, so that what follows the first line is not lost.
ONE_LINER = (
    "import sys;v=sys.version_info;"
    'v<(3,8)and sys.exit("rlcheck needs Python 3.8 or later, this one is %d.%d"%v[:2]);'
    "sys.path[:1]=[p for p in sys.path[:1]if p];import json;"
    'P=json.loads(sys.stdin.buffer.readline()or"{}");P or sys.exit();exec(P["boot"]);run(P)'
)


def sources_of(directory: Path, package: str) -> dict[str, str]:
    """The modules of a directory of `rlcheck/remote`, by the names that they get where they are sent."""
    sources = {f"{package}.{path.stem}": path.read_text(encoding="utf-8") for path in sorted(directory.glob("*.py"))}
    sources[package] = sources.pop(f"{package}.__init__")
    return sources


@cache
def boot() -> str:
    """The text that the one line runs."""
    return (_PACKAGE / "remote" / "agent" / "boot.py").read_text(encoding="utf-8")


def remote_sources(*names: str) -> dict[str, str]:
    """Single modules of `rlcheck/remote`, by their own names."""
    return {name: (_PACKAGE / "remote" / f"{name}.py").read_text(encoding="utf-8") for name in names}


def agent_line(
    python: Sequence[str] = (), reached_by: str = "", lifetime_s: float = 3600.0, options: Mapping[str, Any] = {}
) -> bytes:
    """The first line for an agent.

    Args:
        python: the interpreter, as a command, that ranks and `collect` run in; empty means the agent's own.
        reached_by: ssh or srun, when the agent should tell the address that its machine was reached at.
        lifetime_s: the agent ends after this time, should nothing else tell it that the doctor is gone.
        options: more options, for the agent's `main`.
    """
    rules = table("environ", dict[str, Any])
    own = {"python": list(python), "reached_by": reached_by, "lifetime_s": lifetime_s, "environ_rules": rules}
    own |= {"one_liner": ONE_LINER, "boot": boot()}
    sources = sources_of(_PACKAGE / "remote" / "agent", _AGENT)
    return first_line(sources, f"{_AGENT}.main:main", {**own, **options})


def first_line(sources: Mapping[str, str], entry: str, options: Mapping[str, Any]) -> bytes:
    """The first line for any program: `entry` (`module:function`) is called as `function(options, wire)`."""
    line = {"boot": boot(), "sources": dict(sources), "entry": entry, "options": dict(options)}
    return json.dumps(line).encode() + b"\n"
