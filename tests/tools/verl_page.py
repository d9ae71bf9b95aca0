"""The tables of docs/trainer/from-verl.md: where a shared key does otherwise, and other defaults."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from rltrain.config.messages import shown
from rltrain.config.verl_differences import DIFFERENCES, other_defaults

PAGE = "docs/trainer/from-verl.md"
_KEYS = "| key | in verl 0.9 | in rltrain | why | you see |\n|---|---|---|---|---|\n"
_DEFAULTS = "| key | verl 0.9 | rltrain |\n|---|---|---|\n"


def page(root: Path) -> str:
    """Return the page with its tables as they are now."""
    text = (root / PAGE).read_text(encoding="utf-8")
    keys = (
        (f"`{one.key}`", one.verls, one.own, one.why, "a note" if one.applies is not None else "it is refused")
        for one in sorted(DIFFERENCES, key=lambda one: one.key)
    )
    defaults = ((f"`{key}`", _code(verls), _code(own)) for key, (verls, own) in sorted(other_defaults().items()))
    return _filled(_filled(text, _KEYS, keys), _DEFAULTS, defaults)


def _filled(text: str, head: str, rows: Iterable[tuple[str, ...]]) -> str:
    before, _, after = text.partition(head)
    return before + head + "".join(f"| {' | '.join(row)} |\n" for row in rows) + after[after.index("\n\n") + 1 :]


def _code(value: Any) -> str:
    # What another key decides is shown as it is where that key is not set; a value is never cut.
    selected = re.fullmatch(r"\$\{oc\.select:[\w.]+,(.*)\}", value) if isinstance(value, str) else None
    if selected:
        return f"`{selected.group(1)}`"
    return f"`'{value}'`" if isinstance(value, str) else f"`{shown(value)}`"
