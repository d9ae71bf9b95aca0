"""Whether a chat template only ever appends: what was rendered stays as it was when the conversation goes on.

Where it does not, tokens that the model generated are not those that training sees in the next turn.
"""

from __future__ import annotations

from typing import Any, Callable

_QUESTION = {"role": "user", "content": "What is 2 + 3?"}
_NEXT = {"role": "user", "content": "And twice that?"}
_PLAIN = "The answer is 5."
_THINKING = "<think>\n2 + 3 = 5\n</think>\n\nThe answer is 5."


def look(render: Callable[..., str]) -> dict:
    """For a plain and for a thinking answer: "" where the template appends, else what changed."""
    return {name: _break(render, answer) for name, answer in (("plain", _PLAIN), ("thinking", _THINKING))}


def _break(render: Callable[..., str], answer: str) -> str:
    said: dict[str, Any] = {"role": "assistant", "content": answer}
    try:
        asked = render([dict(_QUESTION)], True)
        answered = render([dict(_QUESTION), said], False)
        gone_on = render([dict(_QUESTION), said, dict(_NEXT)], True)
    except Exception as error:  # whatever an expression of the template raises
        return f"the template refuses a conversation of two turns: {type(error).__name__}: {str(error)[:100]}"
    if not answered.startswith(asked + answer):
        return f"the answer is rewritten where it was generated: {_difference(asked + answer, answered)}"
    if not gone_on.startswith(answered.rstrip("\n")):
        return f"the answer changes when the next turn comes: {_difference(answered, gone_on)}"
    return ""


def _difference(before: str, after: str) -> str:
    num_both = min(len(before), len(after))
    at = next((n for n in range(num_both) if before[n] != after[n]), num_both)
    low = max(0, at - 12)
    return f"{before[low : at + 24]!r} becomes {after[low : at + 24]!r}"
