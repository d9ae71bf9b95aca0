"""A virtual environment that is not where it was made: its scripts start another Python, or none."""

from __future__ import annotations

import os
import re
import sys
from collections import Counter

from .files import Listings, read

_SHEBANG = re.compile(rb"#!(?:/bin/sh\n'''exec' )?\"?(/[^\"\n]*?/bin/py[^/\"\s]*)")
_LIMIT = 400


def describe(listings: Listings) -> dict[str, object]:
    """Where the environment was made (`moved_from`, "" where it still is) and the scripts that have no Python."""
    if sys.prefix == sys.base_prefix:
        return {}
    binaries = os.path.join(sys.prefix, "bin")
    starts = {}
    for name in listings.names(binaries)[:_LIMIT]:
        match = _SHEBANG.match((read(f"{binaries}/{name}", 512) or b""))
        if match:
            starts[name] = match.group(1).decode("utf-8", "surrogateescape")
    elsewhere = {name: python for name, python in starts.items() if not _is_same(os.path.dirname(python), binaries)}
    homes = Counter(os.path.dirname(os.path.dirname(python)) for python in elsewhere.values())
    home, count = homes.most_common(1)[0] if homes else ("", 0)
    # A few scripts of another Python were put there by somebody; an environment that was moved has them all.
    if 2 * count <= len(starts):
        return {}
    dead = sorted(name for name, python in elsewhere.items() if not os.path.exists(python))
    return {"moved_from": home, "dead_scripts": dead}


def _is_same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)
