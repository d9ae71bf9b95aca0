"""What the checks of this family share: counts and places of one kind of trouble."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlcheck.check import Evidence, Verdict, evidence, fail, warn
from rlcheck.facts.base import need
from rlcheck.facts.data import DataFacts, Trouble
from rlcheck.facts.document import Facts

WORDS = {
    "json": "not JSON",
    "no_object": "not an object",
    "double_key": "a key twice",
    "line_long": "too long a line",
    "utf8": "not UTF-8",
    "wide": "in an encoding of wide characters",
    "bom": "a byte order mark",
    "nul": "a NUL character",
    "half_pair": "half a surrogate pair",
    "replaced": "U+FFFD, left by a wrong decoding",
    "control": "a control character",
    "control_raw": "a control character that is not escaped",
    "not_finite_used": "not finite, and the reward gets it",
    "not_finite": "not a finite number",
    "prompt_missing": "missing",
    "prompt_null": "null",
    "prompt_type": "neither text nor messages",
    "prompt_empty": "empty",
    "message_form": "not a message",
    "message_role": "unknown role",
    "message_empty": "empty",
    "last_assistant": "the last message is the assistant's",
    "role_order": "out of order",
    "source_missing": "missing",
    "source_form": "no name",
    "source_unscored": "nothing scores it",
    "truth_missing": "missing",
    "truth_form": "no object",
    "truth_unusable": "the reward cannot use it",
    "truth_never": "no response can match it",
    "extra_form": "no object",
    "too_long": "too long",
    "template": "the chat template refuses it",
    "repeated": "the same prompt and answer as",
    "contradicts": "the same prompt with another answer as",
    "repeated_val": "a validation row with the same prompt and answer as",
    "contradicts_val": "the same validation prompt with another answer as",
    "alike": "but for case and white space the same as",
    "leak": "the same prompt as",
    "leak_alike": "but for case and white space the same as",
    "media_count": "marks and things differ in number",
}

PUT_ASIDE = frozenset(
    ("json", "no_object", "double_key", "line_long", "utf8", "nul", "half_pair", "prompt_missing", "prompt_null",
     "prompt_type", "prompt_empty", "message_form", "message_role", "message_empty", "last_assistant", "source_missing",
     "source_form", "source_unscored", "truth_missing", "truth_form", "truth_unusable", "not_finite_used", "extra_form",
     "template", "too_long", "media_count", "repeated", "leak", "leak_alike")
)  # fmt: skip
"""Kinds for which `--fix` puts a row aside, as in rlcheck/remote/data/judge.py."""
_ONLY_WITH_CONFIG = ("last_assistant", "truth_missing")


def data(facts: Facts) -> DataFacts:
    """The section."""
    return need(facts.data)


def found(section: DataFacts, *kinds: str) -> tuple[Trouble, ...]:
    """Those of KINDS that there are."""
    return tuple(trouble for kind in kinds if (trouble := section.trouble(kind)).count)


def total(troubles: tuple[Trouble, ...]) -> int:
    """How often in all."""
    return sum(trouble.count for trouble in troubles)


def rows(count: int) -> str:
    """A number of rows for a reader."""
    return f"{count:,} row{'' if count == 1 else 's'}".replace(",", " ")


def listed(troubles: tuple[Trouble, ...]) -> str:
    """How often each kind, in words."""
    return ", ".join(f"{rows(trouble.count)}: {_in_general(trouble.kind)}" for trouble in troubles)


def _in_general(kind: str) -> str:
    words = WORDS.get(kind, kind)
    other = "a validation row" if kind.startswith("leak") else "an earlier row"
    return f"{words} {other}" if words.endswith(" as") else words


def places(troubles: tuple[Trouble, ...]) -> tuple[str, ...]:
    """A line for each place that is known, and one for those that are not shown."""
    lines: list[str] = []
    for trouble in troubles:
        words = WORDS.get(trouble.kind, trouble.kind)
        joint = " " if words.endswith(" as") else ": "
        lines += [f"{spot.place}: {words}{joint + spot.text if spot.text else ''}" for spot in trouble.spots]
        rest = trouble.count - len(trouble.spots)
        if rest > 0:
            lines.append(f"and {rest:,} more".replace(",", " "))
    return tuple(lines)


def rest(section: DataFacts, troubles: tuple[Trouble, ...]) -> dict[str, str]:
    """For the fix by `--fix`: how many rows it leaves. Nothing where it leaves none, or does not go by these."""
    kinds = {trouble.kind for trouble in troubles}
    unfit = kinds.isdisjoint(PUT_ASIDE) or (not section.asked.framework and kinds <= set(_ONLY_WITH_CONFIG))
    mine = {spot.file for trouble in troubles for spot in trouble.spots}
    left = sum(file.num_rows for file in section.files if file.path in mine) - total(troubles)
    lines = {"json", "no_object", "double_key", "line_long", "utf8"}
    left += sum(trouble.count for trouble in troubles if trouble.kind in lines)  # these were never rows
    return {} if unfit or left <= 0 else {"rest": f"{left:,}".replace(",", " ")}


def proof(troubles: tuple[Trouble, ...]) -> tuple[Evidence, ...]:
    """The first place of each kind."""
    return tuple(
        evidence("data.troubles", f"{one.kind}: {one.count}", one.spots[0].place if one.spots else "")
        for one in troubles
    )


def first_file(section: DataFacts, troubles: tuple[Trouble, ...] = ()) -> str:
    """The file of the first place; without one, the first file."""
    spots = [spot.file for trouble in troubles for spot in trouble.spots]
    return (spots or [file.path for file in section.files] or ["FILE"])[0]


def key(section: DataFacts, name: str) -> str:
    """What to type to set NAME in the framework of the run."""
    return section.asked.keys.get(name, f"data.{name}")


def stops(section: DataFacts) -> Callable[..., Verdict]:
    """`fail` where a config says what the file is for; `warn` for a file alone."""
    return fail if section.asked.framework else warn


def verdict(
    make: Callable[..., Verdict], section: DataFacts, troubles: tuple[Trouble, ...], expected: str, **more: Any
) -> Verdict:
    """A problem with the places of TROUBLES."""
    params = {"file": first_file(section, troubles), **rest(section, troubles), **more.pop("params", {})}
    return make(expected, more.pop("found", listed(troubles)), details=places(troubles), evidence=proof(troubles),
                params=params, **more)  # fmt: skip
