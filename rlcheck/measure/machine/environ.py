"""The environment variables that matter, without their secrets.

An allow list decides what is recorded at all. A name that looks like a secret is recorded as `<set>`, so that a check
can know that it is there. One piece of code does it, here and on other machines.
"""

from __future__ import annotations

from typing import Any

from rlcheck.measure.machine.context import ProbeContext
from rlcheck.remote.agent.environ import recorded
from rlcheck.tables import table


def collect(ctx: ProbeContext) -> dict[str, str]:
    """Return the recorded variables, by name, in order of name."""
    return recorded(ctx.environ, table("environ", dict[str, Any]))
