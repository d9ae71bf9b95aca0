"""Where the signatures of playbooks are found in a log."""

from __future__ import annotations

import operator
import re
from collections.abc import Iterator, Sequence

from rlcheck.diagnose.lines import Message
from rlcheck.diagnose.signatures import LONG_LITERAL, Index, Known, pattern_of
from rlcheck.facts.base import Struct
from rlcheck.playbook import Signature

AROUND = 60
"""Lines before and after a hit in which `near` and `unless` are looked for."""
_MOST_HITS = 200
"""Of one literal: a log that repeats a line ten thousand times says no more than one that does so often."""
_MOST_TRIES = 5000
_BROKEN = 250
"""Characters after a literal, to the end of its line, within which a pattern may be cut in two."""
_LARGE = 1 << 18
"""Characters from which on the lines with a long literal are picked out first: looking for each would take seconds."""
_BOUND = re.compile(r"(>=|<=|>|<|==|!=) *(-?[\d.]+)")
_OPERATORS = {
    ">": operator.gt,
    "<": operator.lt,
    ">=": operator.ge,
    "<=": operator.le,
    "==": operator.eq,
    "!=": operator.ne,
}
_NUMBER = re.compile(r"-?(?:\d{1,3}(?:,\d{3})+|\d+)?(?:\.\d+)?(?:[eE][+-]?\d+)?")


class Hit(Struct, frozen=True):
    """A signature that was found: the line, how many lines it spans, and what its named groups hold."""

    known: Known
    signature: Signature
    message: Message
    groups: dict[str, str]
    span: int = 1

    @property
    def id(self) -> str:
        """The playbook's."""
        return self.known.id


def hits(messages: Sequence[Message], index: Index) -> list[Hit]:
    """All hits in one log, in the order of its lines."""
    everything = "\n".join(message.whole for message in messages)
    lines: dict[bool, Sequence[Message]] = {False: messages, True: messages}
    texts = {False: everything, True: everything}
    if len(everything) > _LARGE:
        lines[True] = [message for message in messages if index.long_literal.search(message.whole)]
        texts[True] = "\n".join(message.whole for message in lines[True])
    found: list[Hit] = []
    for literal, users in index.by_literal.items():
        is_long = len(literal) >= LONG_LITERAL
        if literal in texts[is_long]:
            found += _hits_of(literal, users, lines[is_long], messages)
    return sorted(found, key=lambda hit: (hit.message.at, -hit.signature.specificity, hit.id))


def _hits_of(
    literal: str, users: Sequence[tuple[Known, int]], candidates: Sequence[Message], messages: Sequence[Message]
) -> list[Hit]:
    found: list[Hit] = []
    tried = 0
    for message in candidates:
        if literal in message.whole:
            found += _hits_at(message, messages, users)
            tried += 1
            if len(found) >= _MOST_HITS or tried >= _MOST_TRIES:
                break
    return found


def _hits_at(message: Message, messages: Sequence[Message], users: Sequence[tuple[Known, int]]) -> Iterator[Hit]:
    for known, number in users:
        signature = known.signatures[number]
        match, span = _match(signature, message, messages)
        if match is None or not _bounds_hold(signature, match) or not _surroundings_agree(signature, message, messages):
            continue
        groups = {name: value.strip() for name, value in match.groupdict().items() if value is not None}
        yield Hit(known=known, signature=signature, message=message, groups=groups, span=span)


def _match(signature: Signature, message: Message, messages: Sequence[Message]) -> tuple[re.Match[str] | None, int]:
    """The match and the number of lines it was looked for in.

    A line that a terminal or a pager has broken is tried together with its next one.
    """
    pattern = pattern_of(signature.pattern)
    if signature.lines > 1:
        following = messages[message.at : message.at + signature.lines]
        return pattern.search("\n".join(line.text for line in following)), len(following)
    match = pattern.search(message.text)
    if match is None and message.whole != message.text:
        match = pattern.search(message.whole)
    if match is None and message.at + 1 < len(messages) and _may_be_broken(message.whole, signature.literal):
        after = messages[message.at + 1].text
        match = pattern.search(f"{message.text} {after}") or pattern.search(message.text + after)
        return match, 2
    return match, 1


def _may_be_broken(line: str, literal: str) -> bool:
    """Whether what follows the literal may be in the next line."""
    return len(line) - line.rfind(literal) < _BROKEN


def _bounds_hold(signature: Signature, match: re.Match[str]) -> bool:
    for group, bound in signature.where.items():
        parsed = _BOUND.fullmatch(bound.strip())
        value = number_in(match[group] or "")
        if parsed is None or value is None or not _OPERATORS[parsed[1]](value, float(parsed[2])):
            return False
    return True


def number_in(text: str) -> float | None:
    """The number that `text` begins with, thousands commas allowed; None if there is none.

    >>> number_in("1,568,987.96")
    1568987.96
    """
    match = _NUMBER.match(text.strip())
    try:
        return float(match[0].replace(",", "")) if match else None
    except ValueError:
        return None


def _surroundings_agree(signature: Signature, message: Message, messages: Sequence[Message]) -> bool:
    if not signature.near and not signature.unless:
        return True
    around = "\n".join(m.whole for m in messages[max(0, message.at - AROUND) : message.at + AROUND + 1])
    if signature.near and not pattern_of(signature.near).search(around):
        return False
    return not (signature.unless and pattern_of(signature.unless).search(around))
