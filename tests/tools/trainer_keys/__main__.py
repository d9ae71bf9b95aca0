"""Write `rlcheck/data/trainers/NAME.json`, or say what has changed since it was written.

    python -m tests.tools.trainer_keys NAME [--check] RELEASE[,BESIDE…]…

A RELEASE is a wheel, or `GITDIR@REVISION`; the newest comes first. What a trainer reads keys of beside its own
(transformers and accelerate of TRL) follows after commas. `--check` writes nothing: it prints the keys that were
added, are gone, or have another type or default than those of the file, and returns 1 where there are any.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from tests.tools.lines import text_of
from tests.tools.trainer_keys.recipes import RECIPES, Groups
from tests.tools.trainer_keys.sources import Source

DATA = Path(__file__).resolve().parents[3] / "rlcheck" / "data" / "trainers"


def content(name: str, releases: list[str]) -> dict[str, Any]:
    """Return what the file holds: each release as the difference to the one before it."""
    recipe = RECIPES[name]
    rows: list[dict[str, Any]] = []
    before: Groups = {}
    kinds_before: Any = None
    for words in releases:
        own, *beside = (Source(place, recipe.repository) for place in words.split(","))
        groups, kinds = recipe.read(own, tuple(beside))
        row: dict[str, Any] = {
            "version": own.version,
            "source": " and ".join(one.name for one in (own, *beside)),
            "date": own.date,
            "groups": {
                group: {key: _short(value) for key, value in changed.items()}
                for group, keys in groups.items()
                if (changed := {key: value for key, value in keys.items() if before.get(group, {}).get(key) != value})
            },
        }
        gone = {group: [key for key in keys if key not in groups.get(group, {})] for group, keys in before.items()}
        row["gone"] = {group: keys for group, keys in gone.items() if keys}
        if kinds != kinds_before:
            row["kinds"] = kinds
        rows.append(row)
        before, kinds_before = groups, kinds
    return {"releases": rows}


def _short(row: dict[str, Any]) -> dict[str, Any]:
    """ROW without what `Key` has anyway."""
    usual: dict[str, Any] = {"default": None}
    if row.get("flag") and row["types"] == ["bool"] and row.get("default") is False:
        usual = {"default": False, "types": ["bool"]}
    return {name: value for name, value in row.items() if name not in usual or value != usual[name]}


def differences(old: dict[str, Any], new: dict[str, Any]) -> list[str]:
    """Return what the newest release of NEW has otherwise than that of OLD, a line each."""
    mine, its = old["releases"][0]["groups"], new["releases"][0]["groups"]
    said: list[str] = []
    for group in sorted({*mine, *its}):
        was, now = mine.get(group, {}), its.get(group, {})
        said += [f"{group}.{key}: new, default {now[key].get('default')!r}" for key in now if key not in was]
        said += [f"{group}.{key}: gone" for key in was if key not in now]
        said += [f"{group}.{key}: {was[key]} is now {now[key]}" for key in now if key in was and was[key] != now[key]]
    return said


def main(words: list[str]) -> int:
    """Run the command and return its exit code."""
    name, *rest = words
    check = "--check" in rest
    found = content(name, [word for word in rest if word != "--check"])
    path = DATA / f"{name}.json"
    if not check:
        path.write_text(text_of(found), encoding="utf-8")
        return 0
    said = differences(json.loads(path.read_text(encoding="utf-8")), found)
    print("\n".join(said) or f"{name}: no key has changed")
    return 1 if said else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
