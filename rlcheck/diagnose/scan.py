"""Which of some thousand texts are in a block of a log: exact, and fast enough for gigabytes.

A regular expression of all texts reads 16 MB/s, one search per text 3 MB/s. Here, first, lines of a block that differ
in their digits only are looked at once. Then the rest is read as numbers, eight bytes at a time: wherever a text of at
least fifteen bytes stands, some eight of its bytes are one of these. They all go through one intersection of sets, at
100 MB/s; only texts whose rarest grams are all there are searched for. What is rare is learned from the log itself.
Texts of seven to fourteen bytes need grams of four bytes, shorter ones a second such grid or, while they are few, a
search each.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence, Set
from typing import Literal

from rlcheck.diagnose.clean import strip_escapes
from rlcheck.diagnose.needed import rarity

# How failures begin whatever the software: they keep the lines that no playbook knows.
MARKERS = (
    "Traceback (most recent call last)",
    "During handling of the above exception",
    "was the direct cause of the following",
    "Error: ",
    "Exception:",
    "Failure:",
    "Interrupt",
    "ERROR",
    "CRITICAL",
    "FATAL",
    "Fatal Python error",
    "fatal error:",
    "panicked at",
    "terminate called",
    "Unhandled exception",
    "Exception in thread",
    "Segmentation fault",
    "Bus error",
    "Aborted",
    "core dumped",
    "Aborted (core dumped)",
    "Killed",
    "oom-kill",
    "exit code",
    "exitcode",
    "exit status",
    "exited with",
    "terminated with",
    "received signal",
    "SIGKILL",
    "SIGTERM",
    "SIGSEGV",
    "NCCL WARN",
    "CANCELLED AT",
    "DUE TO TIME LIMIT",
    "command not found",
    "No such file or directory",
    "level=error",
    "level=fatal",
)

# So many short texts are searched for one by one before another pass over the block costs less.
_FEW = 14
# Grams that meet by chance are fewer, and what they suggest is cheaper to look for, the less is looked at together.
_WINDOW = 4 << 10
# A text that is suggested by chance more often than this per window is looked for by shorter grams, of which it has
# more.
_OFTEN = 0.1
_DIGITS = b"0123456789"
# A log of which more than this share is unlike all before, after so many bytes: prompts and answers, mostly. What
# costs most is left out then: texts that are short, or common in it. These markers keep their surroundings still.
_NEW_SHARE = 0.5
_THRIFTY_AFTER = 8 << 20
_ALWAYS = (b"Error: ", b"ERROR", b"FATAL", b"Killed", b"panicked at")


class Finder:
    """Finds texts in blocks of bytes; built once a log, in a tenth of a second for two thousand texts."""

    def __init__(self, texts: Iterable[bytes], sample: bytes = b"") -> None:
        """Prepare for `texts`; `sample` is the beginning of the log, which shows what is common in it."""
        self._originals: dict[bytes, list[bytes]] = {}
        for text in sorted(set(texts)):
            self._originals.setdefault(text.translate(None, _DIGITS), []).append(text)
        sample = _shapes(sample)
        encoded = list(self._originals)
        short = [text for text in encoded if len(text) < 7]
        on_two = [text for text in short if len(text) >= 5] if len(short) > _FEW else []
        self._few = tuple(text for text in short if text not in on_two)
        self._long = long = _Grid("d", 8, [text for text in encoded if len(text) >= 15], sample)
        long.drop(often := {text for text, chance in long.chances.items() if chance > _OFTEN})
        middle = [text for text in encoded if 7 <= len(text) < 15 or text in often]
        # Every second byte begins a gram on one of the last two grids.
        grids = (long, _Grid("I", 4, middle, sample), _Grid("I", 2, on_two, sample))
        self._grids = tuple(grid for grid in grids if grid.keys)
        self._longest = max(map(len, encoded), default=0)
        self._read = self._new = 0
        self.thrifty = False

    def find(self, block: bytes) -> tuple[list[bytes], bytes]:
        """The texts that are in `block`, and the block without escapes if there are any."""
        found, num_new = self.look(block)
        self.count(len(block), num_new)
        return found, strip_escapes(block) if found else b""

    def count(self, num_bytes: int, num_new: int) -> None:
        """So many bytes were looked through, of which NUM_NEW are unlike others of their block."""
        self._read += num_bytes
        self._new += num_new
        if self._read > _THRIFTY_AFTER and self._new > _NEW_SHARE * self._read:
            self.be_thrifty()

    def look(self, block: bytes) -> tuple[list[bytes], int]:
        """The texts that are in `block`, and how many of its bytes are unlike others of it."""
        # Nearly every line is another one there.
        data = strip_escapes(block.translate(None, _DIGITS)) if self.thrifty else _shapes(block)
        found = {text for text in self._few if text in data}
        view = memoryview(data)
        for start in range(0, len(data), _WINDOW):
            end = start + _WINDOW + self._longest
            for grid in self._grids:
                for text in grid.candidates(view[start:end]):
                    if text not in found and data.find(text, start, end) >= 0:
                        found.add(text)
        if not found:
            return [], len(data)
        plain = strip_escapes(block)
        return sorted(text for one in found for text in self._originals[one] if text in plain), len(data)

    def be_thrifty(self) -> None:
        """Leave out what costs most, from now on."""
        if self.thrifty:
            return
        self.thrifty = True
        self._few = tuple(text for text in _ALWAYS if text in self._originals)
        self._long.drop({text for text, chance in self._long.chances.items() if chance > _OFTEN / 10})
        self._grids = (self._long,)


def _shapes(data: bytes) -> bytes:
    """The lines of `data` without digits and escapes, each but once."""
    lines = dict.fromkeys(data.translate(None, _DIGITS).split(b"\n"))
    return strip_escapes(b"\n".join(lines))


class _Grid:
    """Texts by their grams: the numbers at every `step`-th byte of what is searched.

    Floats, where a gram has eight bytes: they are made and hashed faster than integers of that size. No text of UTF-8
    is a NaN or the negative zero.
    """

    def __init__(self, kind: Literal["I", "d"], step: int, texts: Sequence[bytes], sample: bytes) -> None:
        self._kind: Literal["I", "d"] = kind
        self._width = 4 if kind == "I" else 8
        self._step = step
        self._common = self._counted(texts, sample)
        self._windows = max(1.0, len(sample) / _WINDOW)
        self._users: dict[float, list[tuple[frozenset[float], bytes]]] = {}
        self.chances: dict[bytes, float] = dict.fromkeys(texts, 0.0)
        for text in texts:
            for start in range(step):
                grams, chance = self._rarest(text[start:])
                self.chances[text] += chance
                self._users.setdefault(grams[0], []).append((frozenset(grams[1:]), text))
        self.keys: frozenset[float] = frozenset()
        self.drop(frozenset())

    def drop(self, texts: Set[bytes]) -> None:
        """Look for these texts no more."""
        for gram, users in list(self._users.items()):
            self._users[gram] = [user for user in users if user[1] not in texts]
            if not self._users[gram]:
                del self._users[gram]
        self.keys = frozenset(self._users).union(*(others for users in self._users.values() for others, _ in users))

    def candidates(self, data: memoryview) -> set[bytes]:
        """The texts that may be in `data`: their rarest grams do."""
        seen = self._grams(data, 0)
        for start in range(self._step, self._width, self._step):
            seen |= self._grams(data, start)
        found: set[bytes] = set()
        for gram in seen:
            for others, text in self._users.get(gram, ()):
                if others <= seen:
                    found.add(text)
        return found

    def _counted(self, texts: Sequence[bytes], sample: bytes) -> Counter[float]:
        """How often each gram of the texts stands on the grid in `sample`."""
        keys = {self._number(gram) for text in texts for gram in self._split(text, 1)}
        size = len(sample) // self._width * self._width
        return Counter(filter(keys.__contains__, memoryview(sample)[:size].cast(self._kind))) if keys else Counter()

    def _grams(self, data: memoryview, start: int) -> frozenset[float]:
        size = max(0, len(data) - start) // self._width * self._width
        return self.keys.intersection(data[start : start + size].cast(self._kind))

    def _rarest(self, part: bytes) -> tuple[list[float], float]:
        """The rarest grams of a grid on which a text may stand; `part` begins with the first of the grid.

        As many as hardly ever meet by chance in one window; and how often they do.
        """
        grams = {self._number(gram): gram for gram in self._split(part, self._width)}
        chosen: list[float] = []
        chance = 1.0
        for gram in sorted(grams, key=lambda gram: (self._common[gram], -rarity(grams[gram]))):
            chosen.append(gram)
            chance *= min(1.0, self._common[gram] / self._windows)
            if chance < 0.01:
                break
        return chosen, chance

    def _number(self, gram: bytes) -> float:
        [number] = struct.unpack(self._kind, gram)
        return number

    def _split(self, text: bytes, step: int) -> Iterator[bytes]:
        return (text[at : at + self._width] for at in range(0, len(text) - self._width + 1, step))
