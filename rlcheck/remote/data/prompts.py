"""The prompt of a row: a string or chat messages, and whether they are what a chat template expects."""

from __future__ import annotations

import re
from typing import Any

ROLES = ("system", "user", "assistant", "tool")
_NEWER_ROLES = ("developer",)
"""That templates of other frameworks' models know: https://cookbook.openai.com/articles/openai-harmony"""
_GSM8K = re.compile(r"####\s*\$?(-?[0-9.,]*[0-9])")
_GSM8K_REQUEST = 'Let\'s think step by step and output the final answer after "####".'
_USUAL = ("role", "content")
_FOREIGN = (("from", "value"), ("speaker", "text"))
"""Names that other tools give to role and content."""


class Prompt:
    """A usable prompt. `turns`: role and text of each message; `messages`: as the template gets them."""

    __slots__ = ("has_parts", "is_plain", "messages", "others", "source", "truth", "turns")

    def __init__(self, messages: list, turns: list, is_plain: bool = False) -> None:
        self.messages, self.turns, self.is_plain = messages, turns, is_plain
        self.has_parts = False
        self.others = ""
        """Fields of messages besides role and content, such as tool calls, as text."""
        self.source = ""
        self.truth: Any = None


def read_prompt(values: dict, judge: Any, part: Any) -> Prompt | None:
    """The prompt, or None after saying what is wrong."""
    key = judge.prompt_key
    if key not in values:
        found = _gsm8k(values, judge)
        if found is None and key:
            part.note("prompt_missing", key, "the row has " + ", ".join(list(values)[:6]))
        return found
    prompt = values[key]
    if prompt is None:
        part.note("prompt_null", key)
    elif isinstance(prompt, str):
        if prompt.strip():
            part.count("plain")
            return Prompt([{"role": "user", "content": prompt}], [("user", prompt)], is_plain=True)
        part.note("prompt_empty", key, repr(prompt))
    elif not isinstance(prompt, list):
        part.note("prompt_type", key, f"{type(prompt).__name__} {prompt!r}")
    elif not prompt:
        part.note("prompt_empty", key, "[]")
    else:
        return _messages(prompt, key, judge, part)
    return None


def _gsm8k(values: dict, judge: Any) -> Prompt | None:
    """GSM8K's own form, which rltrain takes where the prompt column is missing."""
    question, answer = values.get("question"), values.get("answer")
    if judge.framework != "rltrain" or not isinstance(question, str) or not isinstance(answer, str):
        return None
    numbers = _GSM8K.findall(answer)
    text = f"{question} {_GSM8K_REQUEST}"
    prompt = Prompt([{"role": "user", "content": text}], [("user", text)])
    prompt.source = "openai/gsm8k"
    prompt.truth = numbers[-1].replace(",", "") if numbers else ""
    return prompt


def _messages(prompt: list, key: str, judge: Any, part: Any) -> Prompt | None:
    messages, turns = [], []
    parts = False
    for number, message in enumerate(prompt):
        read = _message(message, f"{key}[{number}]", judge, part)
        if read is None:
            return None
        role, text, has_parts, present = read
        parts = parts or has_parts
        messages.append(present)
        turns.append((role, text))
    if not any(text.strip() for role, text in turns if role != "system") and not parts:
        part.note("prompt_empty", key, "no message has text")
        return None
    roles = [role for role, _ in turns]
    if roles[-1] == "assistant":
        part.note("last_assistant", f"{key}[{len(roles) - 1}].role")
    else:
        _order(roles, key, part)
    if "assistant" in roles[:-1]:
        part.count("multi_turn")
    found = Prompt(messages, turns)
    found.has_parts = parts
    others = [(name, value) for message in messages for name, value in message.items() if name not in _USUAL]
    found.others = repr(others) if others else ""
    return found


def _order(roles: list, key: str, part: Any) -> None:
    """System first and once, then user and assistant by turns; tools answer an assistant."""
    before = ""
    for number, role in enumerate(roles):
        wrong = (
            (role == "system" and number > 0)
            or (role == "assistant" and before in ("", "system", "assistant"))
            or (role == "user" and before == "user")
            or (role == "tool" and before not in ("assistant", "tool"))
        )
        if wrong:
            part.note("role_order", f"{key}[{number}].role", f"{role} after {before or 'nothing'}")
            return
        before = role


def _message(message: Any, where: str, judge: Any, part: Any) -> tuple | None:
    if not isinstance(message, dict):
        part.note("message_form", where, f"{type(message).__name__} in place of an object with role and content")
        return None
    # A Parquet file gives every message all keys of the column, null where it has none.
    present = {name: value for name, value in message.items() if value is not None}
    role, content = present.get("role"), present.get("content")
    if not isinstance(role, str):
        other = next((f"{one} and {two}" for one, two in _FOREIGN if one in present), "")
        part.note("message_form", f"{where}.role", f"found {other}" if other else f"found {', '.join(present)}")
        return None
    if content is None and present.get("tool_calls") and judge.framework != "rltrain":
        content = ""
        present["content"] = ""
    has_parts = isinstance(content, list) and judge.framework != "rltrain"
    if has_parts:
        content = " ".join(one.get("text") or "" for one in content if isinstance(one, dict))
    if not isinstance(content, str):
        part.note("message_form", f"{where}.content", f"{type(content).__name__} in place of text")
        return None
    is_strict = judge.framework == "rltrain"
    if role not in ROLES and (is_strict or role not in _NEWER_ROLES):
        part.note("message_role", f"{where}.role", role)
        return None
    other = next((name for name, value in present.items() if not isinstance(value, str)), "") if is_strict else ""
    if other:
        part.note("message_form", f"{where}.{other}", f"{type(present[other]).__name__} in place of text")
        return None
    if not content.strip() and (role == "user" or (is_strict and role != "system")) and not has_parts:
        part.note("message_empty", f"{where}.content", repr(content))
        return None
    return role, content, has_parts, present
