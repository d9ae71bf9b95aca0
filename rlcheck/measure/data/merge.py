"""Parts from the workers, put together in the order of files and lines."""

from __future__ import annotations

import base64
import sys
from array import array
from dataclasses import dataclass, field
from typing import Any

from rlcheck.facts.data import Column, DataFile, Spot, Trouble
from rlcheck.measure.data.plan import Source
from rlcheck.measure.data.twins import Digests

_MAX_SOURCES = 1000
_MAX_LENGTHS = 100_000
LINE_FORMATS = ("lines", "gz")


@dataclass
class FileState:
    """What is known of one file so far."""

    source: Source
    digests: Digests
    num_lines: int = 0
    num_rows: int = 0
    num_blank: int = 0
    num_crlf: int = 0
    num_bytes: int = 0
    problem: str = ""
    lacking: str = ""
    same_as: str = ""
    columns: dict[str, dict[str, list[int]]] = field(default_factory=dict[str, dict[str, list[int]]])

    keys: dict[tuple[str, ...], int] = field(default_factory=dict[tuple[str, ...], int])
    """Names of the columns of a row, together, to the first line with these."""

    def spot(self, line: int, name: str = "", text: str = "") -> Spot:
        """The place of LINE, counted from 0 in the file."""
        if self.source.format in LINE_FORMATS:
            return Spot(file=self.source.path, line=line + 1, field=name, text=text)
        return Spot(file=self.source.path, row=line, field=name, text=text)

    def facts(self) -> DataFile:
        """For the document."""
        return DataFile(
            path=self.source.path,
            split=self.source.split,
            format=self.source.format,
            num_bytes=self.num_bytes,
            num_lines=self.num_lines,
            num_rows=self.num_rows,
            num_blank=self.num_blank,
            num_crlf=self.num_crlf,
            problem=self.problem,
            same_as=self.same_as,
            lacking=self.lacking,
            columns=tuple(self._column(name, kinds) for name, kinds in self.columns.items()),
        )

    def _column(self, name: str, kinds: dict[str, list[int]]) -> Column:
        counts = {kind: count for kind, (count, _) in kinds.items()}
        most = max(counts, key=lambda kind: counts[kind] if kind != "null" else 0)
        is_top = "." not in name and "[]" not in name
        odd = {kind: self.spot(line) for kind, (_, line) in kinds.items() if kind != most}
        missing = self.num_rows - sum(counts.values()) if is_top else 0
        without = [line for names, line in self.keys.items() if name not in names]
        if missing and without:
            odd["missing"] = self.spot(min(without))
        return Column(name=name, kinds=counts, missing=missing, odd=odd)


@dataclass
class Sum:
    """All files."""

    first: int
    files: list[FileState]
    tally: dict[str, tuple[int, list[Spot]]] = field(default_factory=dict[str, tuple[int, list[Spot]]])
    counts: dict[str, int] = field(default_factory=dict[str, int])
    sources: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    lengths: list[int] = field(default_factory=list[int])
    longest: int = 0

    def add(self, number: int, part: dict[str, Any]) -> None:
        """The next part of file NUMBER."""
        file = self.files[number]
        base = file.num_lines
        for kind, (count, spots) in part["tally"].items():
            self.note(kind, count, [file.spot(base + line, name, text) for line, name, text in spots])
        for name, kinds in part["columns"].items():
            mine = file.columns.setdefault(name, {})
            for kind, (count, line) in kinds.items():
                entry = mine.setdefault(kind, [0, base + line])
                entry[0] += count
        for line, names in part["keys"]:
            file.keys.setdefault(tuple(names), base + line)
        split = self.sources.setdefault(file.source.split, {})
        for name, count in part["sources"].items():
            if name in split or len(split) < _MAX_SOURCES:
                split[name] = split.get(name, 0) + count
        for name, count in part["counts"].items():
            self.counts[name] = self.counts.get(name, 0) + count
        self.lengths += part["lengths"][: _MAX_LENGTHS - len(self.lengths)]
        self.longest = max(self.longest, part["longest"])
        file.num_lines += part["num_lines"]
        file.num_rows += part["num_rows"]
        file.num_blank += part["num_blank"]
        file.num_crlf += part["num_crlf"]
        _unpack(file.digests.prompts, part["prompts"])
        _unpack(file.digests.alikes, part["alikes"])
        _unpack(file.digests.truths, part["truths"])
        file.digests.verdicts += base64.b64decode(part["verdicts"])

    def note(self, kind: str, count: int, spots: list[Spot]) -> None:
        """COUNT more of KIND, the first of them at SPOTS."""
        total, kept = self.tally.setdefault(kind, (0, []))
        if len(kept) < self.first:
            kept += spots[: self.first - len(kept)]
        self.tally[kind] = (total + count, kept)

    def troubles(self) -> tuple[Trouble, ...]:
        """For the document."""
        return tuple(Trouble(kind=kind, count=count, spots=tuple(spots)) for kind, (count, spots) in self.tally.items())


def _unpack(numbers: array[int], text: str) -> None:
    """Append what came little-endian."""
    new: array[int] = array(numbers.typecode)
    new.frombytes(base64.b64decode(text))
    if sys.byteorder == "big":
        new.byteswap()
    numbers.extend(new)
