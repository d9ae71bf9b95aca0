"""One row held against what the trainer will do with it."""

from __future__ import annotations

import re
import zlib
from hashlib import blake2b
from typing import Any

from rlcheck_dataset import truths
from rlcheck_dataset.lengths import Lengths
from rlcheck_dataset.prompts import Prompt, read_prompt

REASONS = (
    "",
    "json",
    "no_object",
    "double_key",
    "line_long",
    "utf8",
    "wide",
    "nul",
    "half_pair",
    "prompt_missing",
    "prompt_null",
    "prompt_type",
    "prompt_empty",
    "message_form",
    "message_role",
    "message_empty",
    "last_assistant",
    "source_missing",
    "source_form",
    "source_unscored",
    "truth_missing",
    "truth_form",
    "truth_unusable",
    "not_finite_used",
    "extra_form",
    "template",
    "too_long",
    "media_count",
)
"""Kinds for which `--fix` puts a row aside; a verdict is the index of the first that a row has, 0 for none."""
REASON_CODES = {kind: code for code, kind in enumerate(REASONS) if kind}

# In the text of a JSON line, raw or escaped: what makes a look at every string of the row worth while.
_MAYBE_ODD = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd]|\\\\u(?:00[01]|007[fF]|[fF]{3}[dD]|[dD][89a-fA-F])|\\\\[bf]"
)
_ODD = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffd\ud800-\udfff]")
_MEDIA = ("images", "videos", "audios", "image", "video", "audio")
_MARKS = {"images": "<image>", "videos": "<video>", "audios": "<audio>"}
_SAMPLE_SPACE = 1 << 32


class Judge:
    """The same for every file of a run; holds the tokenizer."""

    def __init__(self, options: dict) -> None:
        self.first: int = options["first"]
        self.framework: str = options["framework"]
        self.prompt_key = self.source_key = ""
        self.has_config: bool = options["has_config"]
        self.truths = truths.Truths(options)
        self.lengths = Lengths(options)
        self.sample_below = 0
        self.seed: int = options["seed"]

    def take_keys(self, task: dict) -> None:
        """The columns that a task is about, and the share of rows in the sample of lengths."""
        self.prompt_key, self.source_key = task["prompt_key"], task["source_key"]
        self.truths.take_keys(task["source_key"], task["truth_key"])
        self.sample_below = int(_SAMPLE_SPACE * min(1.0, task["sample_share"]))

    def row(self, part: Any, values: dict, text: str | None) -> None:
        """Judge one row; TEXT is its line in a JSON file."""
        infinite = part.shapes.add(values, part.num_lines)
        if text is None or _MAYBE_ODD.search(text):
            self._characters(part, values)
        if infinite:
            self._infinite(part, values)
        prompt = read_prompt(values, self, part)
        truth = self.truths.of(values, prompt, part)
        self._source(part, values, prompt)
        self._extra(part, values)
        media = self._media(part, values, prompt)
        if prompt is not None:
            self._digests(part, prompt, truth, media)
            self._length(part, prompt)

    def _characters(self, part: Any, values: dict) -> None:
        for field, string in strings(values, ""):
            found = _ODD.search(string)
            if found is None:
                continue
            marks = set(_ODD.findall(string))
            near = string[max(0, found.start() - 10) : found.start() + 20]
            if "\0" in marks:
                part.note("nul", field, repr(near))
            if any("\ud800" <= mark <= "\udfff" for mark in marks):
                part.note("half_pair", field, repr(near))
            if "\ufffd" in marks:
                part.note("replaced", field, near)
            if any((mark < " " and mark != "\0") or mark == "\x7f" for mark in marks):
                part.note("control", field, repr(near))

    def _infinite(self, part: Any, values: dict) -> None:
        for field, number in infinite_numbers(values, ""):
            used = field.partition(".")[0] in ("extra_info", "reward_model", "ground_truth")
            part.note("not_finite_used" if used else "not_finite", field, number)

    def _source(self, part: Any, values: dict, prompt: Prompt | None) -> None:
        key = self.source_key
        if prompt is not None and prompt.source:
            name: Any = prompt.source
        elif not key or key not in values:
            if self.has_config and key:
                part.note("source_missing", key)
            return
        else:
            name = values[key]
        if not isinstance(name, str) or not name.strip():
            if self.has_config:
                part.note("source_form", key, name)
            return
        part.source(name)
        if not self.truths.covers(name):
            part.note("source_unscored", key, name)

    def _extra(self, part: Any, values: dict) -> None:
        extra = values.get("extra_info")
        if extra is not None and not isinstance(extra, dict) and self.has_config:
            part.note("extra_form", "extra_info", extra)

    def _media(self, part: Any, values: dict, prompt: Prompt | None) -> list:
        found = [(name, values[name]) for name in _MEDIA if values.get(name)]
        for name, things in found:
            part.count(f"media:{name}")
            mark = _MARKS.get(name)
            if mark is None or prompt is None or prompt.has_parts or not isinstance(things, list):
                continue
            num_marks = sum(content.count(mark) for _, content in prompt.turns)
            if num_marks != len(things) and self.framework == "verl":
                part.note("media_count", name, f"{num_marks} times {mark} for {len(things)} {name}")
        return found

    def _digests(self, part: Any, prompt: Prompt, truth: Any, media: list) -> None:
        whole = "\x1e".join([f"{role}\x1f{content}" for role, content in prompt.turns]) + prompt.others
        if prompt.has_parts:
            whole += repr(prompt.messages)
        if media:
            whole += repr(media)
        part.prompt = digest(whole)
        spoken = " ".join([content for role, content in prompt.turns if role != "system"])
        alike = " ".join(spoken.casefold().split()) + prompt.others
        if prompt.has_parts:
            alike += repr(prompt.messages)
        part.alike = digest(alike + repr(media) if media else alike)
        part.truth = zlib.crc32(repr(truth).encode("utf-8", "backslashreplace"))

    def _length(self, part: Any, prompt: Prompt) -> None:
        mark = zlib.crc32(b"%d %d %d" % (self.seed, part.prompt, part.num_lines))
        self.lengths.measure(part, prompt, in_sample=mark < self.sample_below)


def digest(text: str) -> int:
    """64 bits of TEXT, never 0."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


def strings(value: Any, path: str) -> Any:
    """Every string in VALUE, keys too, with its path."""
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, part in value.items():
            here = f"{path}.{name}" if path else name
            if _ODD.search(name):
                yield repr(here), name
            yield from strings(part, here)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from strings(part, f"{path}[{number}]")


def infinite_numbers(value: Any, path: str) -> Any:
    """Every number in VALUE that is NaN or infinite, with its path."""
    if isinstance(value, float):
        if value != value or value in (float("inf"), float("-inf")):
            yield path, value
    elif isinstance(value, dict):
        for name, part in value.items():
            yield from infinite_numbers(part, f"{path}.{name}" if path else name)
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from infinite_numbers(part, f"{path}[{number}]")
