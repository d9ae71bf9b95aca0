"""What is found in some thousand rows, as it is reported to the doctor: counts, first places, digests, verdicts."""

from __future__ import annotations

import base64
import sys
from array import array
from typing import Any

from rlcheck_dataset import lines
from rlcheck_dataset.judge import REASON_CODES, Judge
from rlcheck_dataset.shapes import Shapes

_BOM = b"\xef\xbb\xbf"
_NAME_LIMIT, _SOURCES_LIMIT = 80, 1000


def shown(value: Any) -> str:
    """VALUE as a short excerpt that every terminal and file can take."""
    text = value if isinstance(value, str) else repr(value)
    return text[:60].encode("utf-8", "backslashreplace").decode()


class Part:
    """Rows that follow each other in one file; lines are counted from 0 in the part."""

    def __init__(self, judge: Judge, start: int) -> None:
        self.judge, self.start = judge, start
        self.num_lines = self.num_rows = self.num_blank = self.num_crlf = self.num_bytes = 0
        self.tally: dict = {}
        self.sources: dict = {}
        self.counts: dict = {}
        self.shapes = Shapes()
        self.prompts, self.alikes, self.truths = array("Q"), array("Q"), array("I")
        self.verdicts = bytearray()
        self.lengths: list = []
        self.longest = 0

    def note(self, kind: str, field: str = "", text: Any = "") -> None:
        """Something that is wrong with the row that is being read."""
        entry = self.tally.setdefault(kind, [0, []])
        entry[0] += 1
        if len(entry[1]) < self.judge.first:
            entry[1].append([self.num_lines, field[:_NAME_LIMIT], shown(text)])
        code = REASON_CODES.get(kind)
        if code and not self._verdict:
            self._verdict = code

    def count(self, kind: str) -> None:
        """Something worth counting that is not wrong."""
        self.counts[kind] = self.counts.get(kind, 0) + 1

    def source(self, name: str) -> None:
        """The row's source."""
        name = shown(name)
        if name in self.sources or len(self.sources) < _SOURCES_LIMIT:
            self.sources[name] = self.sources.get(name, 0) + 1

    def length(self, num_tokens: int) -> None:
        """A row of the sample has so many tokens."""
        self.lengths.append(num_tokens)

    def line(self, line: bytes, is_first: bool) -> None:
        """The next line of a file of JSON objects."""
        self._verdict = 0
        self.prompt = self.alike = self.truth = 0
        self.num_bytes += len(line)
        if is_first and line.startswith(_BOM):
            self.note("bom")
            line = line[3:]
        if line.endswith(b"\r\n"):
            self.num_crlf += 1
        line = line.rstrip(b"\r\n")
        if line.strip():
            self._parse(line)
        else:
            self.num_blank += 1
        self._end()

    def wide(self, encoding: str) -> None:
        """A file whose first bytes say that it is in ENCODING: its lines cannot be distinguished."""
        self._verdict = 0
        self.prompt = self.alike = self.truth = 0
        self.note("wide", "", encoding)
        self._end()

    def _parse(self, line: bytes) -> None:
        try:
            text = lines.text_of(line)
            values = lines.value_of(text)
        except lines.NotUsable as error:
            said = "lines end in CR alone: make them LF" if error.kind == "json" and b"}\r{" in line else error.text
            self.note(error.kind, f"column {error.column}" if error.column else "", said)
            return
        self.num_rows += 1
        if column := lines.raw_control(text):
            self.note("control_raw", f"column {column}")
        self.judge.row(self, values, text)

    def row(self, values: Any) -> None:
        """The next row of a table."""
        self._verdict = 0
        self.prompt = self.alike = self.truth = 0
        if isinstance(values, dict):
            self.num_rows += 1
            self.judge.row(self, values, None)
        else:
            self.note("no_object", "", f"{type(values).__name__} in place of an object")
        self._end()

    def _end(self) -> None:
        self.prompts.append(self.prompt)
        self.alikes.append(self.alike)
        self.truths.append(self.truth)
        self.verdicts.append(self._verdict)
        self.num_lines += 1

    def told(self) -> dict:
        """For the wire."""
        return {
            "num_lines": self.num_lines,
            "num_rows": self.num_rows,
            "num_blank": self.num_blank,
            "num_crlf": self.num_crlf,
            "num_bytes": self.num_bytes,
            "tally": self.tally,
            "sources": self.sources,
            "counts": self.counts,
            "columns": self.shapes.told(),
            "keys": [[line, list(names)] for names, line in self.shapes.keys.items()],
            "prompts": _packed(self.prompts),
            "alikes": _packed(self.alikes),
            "truths": _packed(self.truths),
            "verdicts": base64.b64encode(bytes(self.verdicts)).decode(),
            "lengths": self.lengths,
            "longest": self.longest,
        }


def _packed(numbers: array) -> str:
    """Little-endian, whatever the machine."""
    if sys.byteorder == "big":
        numbers.byteswap()
    return base64.b64encode(numbers.tobytes()).decode()
