"""One pattern for many literals: where any of them stands is found in one pass."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import cast

_Tree = dict[str, "_Tree"]
_END = ""


def any_of(literals: Iterable[str]) -> re.Pattern[str]:
    """A pattern that is found exactly where one of `literals` begins; it shares their beginnings.

    >>> any_of(["out of memory", "out of range"]).pattern
    'out\\\\ of\\\\ (?:memory|range)'
    """
    tree: _Tree = {}
    for literal in literals:
        at = tree
        for letter in literal:
            at = at.setdefault(letter, {})
        at[_END] = {}
    return re.compile(_written(tree))


def _written(tree: _Tree) -> str:
    """The alternatives below this point; one that ends here needs no more."""
    if _END in tree:
        return ""
    branches: list[str] = []
    for letter, below in sorted(tree.items()):
        run, at = re.escape(letter), below
        while len(at) == 1 and _END not in at:
            (letter, at), *_ = cast("dict[str, _Tree]", at).items()
            run += re.escape(letter)
        branches.append(run + _written(at))
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"
