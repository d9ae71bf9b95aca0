"""An answer from a source in words: what raises, where, which settings decide it, and what to change."""

from __future__ import annotations

import re

from rlcheck.diagnose.model import Setting, Site
from rlcheck.finding import Fix

_ORIGINS = {"": "", "log": " in the log", "config": " in the config", "source": ""}


def identity(package: str, function: str) -> str:
    """The ID of an answer that the source of a function gave."""
    return f"source-{re.sub(r'[^a-z0-9]+', '-', f'{package}-{function}'.lower()).strip('-')}"


def cause(site: Site, does: str) -> str:
    """What SITE DOES and where, and its settings, in sentences."""
    words = [f"{site.function} {does}"]
    if site.conditions:
        inner, outer = site.conditions[-1], site.conditions[:-1]
        words = [
            f"{words[0]} where `{inner}`",
            *(["inside of: " + "; ".join(f"`{one}`" for one in outer)] if outer else []),
        ]
    return " ".join((", ".join(words) + ".", *map(_told, site.settings)))


def _told(one: Setting) -> str:
    owner = f" of {one.owner}" if one.owner and one.owner != one.name else ""
    about = f' ("{one.about.rstrip(".")}")' if one.about else ""
    what = f"{'an' if one.kind[0] in 'ae' else 'a'} {one.kind}{owner}"
    if one.value:
        return f"`{one.name}`, {what}, is {one.value}{_ORIGINS[one.origin]}{about}."
    return f"`{one.name}` is {what}{about}."


def fixes(site: Site, goal: str) -> tuple[Fix, ...]:
    """What to change so that GOAL, which keeps a run from SITE; nothing where no setting decides it."""
    names = [f"`{one.name}`" + (f" (now {one.value})" if one.value else "")
             for one in site.settings if one.decides and one.kind != "limit"]  # fmt: skip
    if not names or not goal:
        return ()
    which = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
    return (Fix(title=f"Change {which} so that {goal}", kind="advice", safety="safe"),)
