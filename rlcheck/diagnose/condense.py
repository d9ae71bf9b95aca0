"""A log of any size, in bounded memory, to the lines that may matter: `CondensedLog`.

What is kept of a long log: its first and last lines, and the surroundings of every line that holds a text that a
signature needs, or a marker of failures; of each text the first twenty places and the last five. The line numbers
stay those of the file.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from rlcheck.diagnose.blocks import Block, Cutter
from rlcheck.diagnose.clean import log_lines, strip_escapes
from rlcheck.diagnose.model import MAX_LINE, CondensedLog, LogLine
from rlcheck.diagnose.scan import MARKERS, Search
from rlcheck.diagnose.signatures import Index, pattern_of
from rlcheck.diagnose.sources import Source, open_sources
from rlcheck.playbook import Signature

WHOLE = 2 << 20
"""A log of at most so many bytes is kept as it is."""
AROUND = 60
"""Lines kept before and after one that may matter."""
HEAD = 100
TAIL = 400
_FIRST_PLACES = 20
_FIRST_OF_MARKER = 10
# Lines that hold a text but do not match its signatures: so many are looked at, of one text and of all.
_MOST_TRIES = 1_000
_MOST_TRIES_OF_ALL = 60_000
_LAST_PLACES = 5
_FIRST_LINES, _FIRST_BYTES = 48_000, 20 << 20
_LAST_LINES, _LAST_BYTES = 2_000, 2 << 20
_TAIL_BYTES = 2 << 20
# Texts of which the last places are kept, and those of which the last one is: a hostile log must not fill the memory.
_WITH_LAST_PLACES = 40
_WITH_LAST = 300
# A line longer than this one keeps only its ends, unless something was found in it.
_LONG_LINE = 3 * MAX_LINE
# All logs together: what comes after so much is kept shorter.
_ALL_WHOLE = 24 << 20
_SHORT_WHOLE = 32 << 10


@dataclass
class _Place:
    """Where a text was seen. `left` is how many more places are kept, `tries` how many more lines are tried."""

    left: int
    tries: int = _MOST_TRIES
    last: int = -AROUND
    recent: deque[_Recent] | None = None


@dataclass
class _Recent:
    """A block that holds a literal already seen often, between its neighbours."""

    before: Block | None
    block: Block
    after: Block | None = None


@dataclass
class _Kept:
    """Lines by number and part; what does not fit any more is left out, and said so."""

    most_lines: int
    most_bytes: int
    lines: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])
    size: int = 0

    def add(self, key: tuple[int, int], text: bytes) -> bool:
        """Keep this line; False when there is no room for it."""
        if key in self.lines:
            return True
        if len(self.lines) >= self.most_lines or self.size + len(text) > self.most_bytes:
            return False
        self.lines[key] = text
        self.size += len(text)
        return True

    def push(self, key: tuple[int, int], text: bytes) -> None:
        """Keep this line, and let go of the oldest ones for it."""
        self.size += len(text) - len(self.lines.pop(key, b""))
        self.lines[key] = text
        while len(self.lines) > self.most_lines or self.size > self.most_bytes:
            self.size -= len(self.lines.pop(next(iter(self.lines))))


class Condenser:
    """Takes a log in pieces and says at any time what of it matters so far."""

    def __init__(self, watched: Mapping[bytes, Sequence[Signature]]) -> None:
        self._watched = watched
        self._search = Search(watched)
        self._tries = _MOST_TRIES_OF_ALL
        self._cutter = Cutter()
        self._places: dict[bytes, _Place] = {}
        self._first = _Kept(_FIRST_LINES, _FIRST_BYTES)
        self._overflow = _Kept(_LAST_LINES, _LAST_BYTES)
        self._tail: deque[Block] = deque()
        self._tail_bytes = 0
        self._open: _Recent | None = None
        self._keep_until = HEAD

    @property
    def total_lines(self) -> int:
        """Lines so far; a last one without line break counts."""
        return self._cutter.lines

    def feed(self, data: bytes) -> None:
        """The next bytes of the log."""
        for block, found in self._search.push([*self._cutter.feed(data)]):
            self._take(block, *found)

    def lines(self) -> tuple[LogLine, ...]:
        """What is kept so far."""
        for block, found in self._search.rest():
            self._take(block, *found)
        kept = _Kept(_FIRST_LINES * 2, _FIRST_BYTES * 2, dict(self._first.lines), self._first.size)
        kept.lines.update(self._overflow.lines)
        for entry, spans in self._last_spans():
            for block in (entry.before, entry.block, entry.after):
                for key, text in _selected(block, spans, spans) if block else ():
                    kept.add(key, text)
        rest = self._cutter.rest()
        start = self.total_lines - TAIL + 1
        spans = [(min(start, rest.first - AROUND) if rest else start, self.total_lines)]
        for block in self._tail:
            for key, text in _selected(block, spans, []):
                kept.lines.setdefault(key, text)
        # Nobody has looked for anything in the rest yet.
        kept.lines.update(_selected(rest, spans, spans) if rest else ())
        keys = sorted(kept.lines)
        return tuple(log_lines([key[0] for key in keys], b"\n".join(kept.lines[key] for key in keys)))

    def _take(self, block: Block, found: Sequence[bytes], text: bytes) -> None:
        if self._open is not None:
            self._open.after, self._open = block, None
        spans: list[tuple[int, int]] = []
        hits: list[tuple[int, int]] = []
        for sought in found:
            for line in self._places_of(sought, text, block):
                spans.append((line - AROUND, line + AROUND))
                hits.append((line, line))
        if spans:
            self._keep_until = max(self._keep_until, *(end for _, end in spans))
            for earlier in self._tail:
                self._keep(earlier, spans, [])
        if block.first <= self._keep_until:
            spans.append((block.first, self._keep_until))
            self._keep(block, spans, hits)
        self._tail.append(block)
        self._tail_bytes += len(block.data)
        while self._tail_bytes > _TAIL_BYTES or block.last - self._tail[0].last >= TAIL:
            self._tail_bytes -= len(self._tail.popleft().data)

    def _places_of(self, sought: bytes, text: bytes, block: Block) -> Iterator[int]:
        """The lines around which this block is to be kept for the text `sought`."""
        signatures = self._watched[sought]
        place = self._places.get(sought)
        if place is None:
            place = self._places[sought] = _Place(_FIRST_PLACES if signatures else _FIRST_OF_MARKER)
        start, line = 0, block.first
        while place.left > 0 and place.tries > 0 and self._tries > 0:
            found = text.find(sought, start)
            if found < 0:
                return
            line += text.count(b"\n", start, found)
            if _matches(signatures, text, found):
                if line > place.last + AROUND or block.part:
                    place.left -= 1
                    place.last = line
                    yield line
            else:
                place.tries -= 1
                self._tries -= 1
            # The rest of its surroundings is kept anyway.
            start, line = _skip_lines(text, found, line, max(line, place.last + AROUND) + 1)
        self._remember(place, block)

    def _remember(self, place: _Place, block: Block) -> None:
        """Another block with a text whose first places are all taken."""
        if place.recent is None:
            others = sum(one.recent is not None for one in self._places.values())
            place.recent = deque(maxlen=_LAST_PLACES if others < _WITH_LAST_PLACES else 1 if others < _WITH_LAST else 0)
        if self._open is None:
            self._open = _Recent(self._tail[-1] if self._tail else None, block)
        if not place.recent or place.recent[-1] is not self._open:
            place.recent.append(self._open)

    def _keep(self, block: Block, spans: Sequence[tuple[int, int]], hits: Sequence[tuple[int, int]]) -> None:
        for key, text in _selected(block, spans, hits):
            if not self._first.add(key, text):
                self._overflow.push(key, text)

    def _last_spans(self) -> Iterator[tuple[_Recent, list[tuple[int, int]]]]:
        """The blocks with the last places of each literal, and the lines around these."""
        spans: dict[int, tuple[_Recent, list[tuple[int, int]]]] = {}
        for sought, place in self._places.items():
            left = _LAST_PLACES
            for entry in reversed(place.recent or ()):
                found = _last_lines(sought, self._watched[sought], entry.block, left)
                left -= len(found)
                spans.setdefault(id(entry), (entry, []))[1].extend((line - AROUND, line + AROUND) for line in found)
                if left <= 0:
                    break
        return iter(spans.values())


def _skip_lines(text: bytes, start: int, line: int, until: int) -> tuple[int, int]:
    """The place in `text` where line `until` begins, or the end; `start` is in line `line`. And its number."""
    while line < until:
        found = text.find(b"\n", start)
        if found < 0:
            return len(text), line
        start, line = found + 1, line + 1
    return start, line


def _last_lines(sought: bytes, signatures: Sequence[Signature], block: Block, most: int) -> list[int]:
    text = strip_escapes(block.data)
    found: list[int] = []
    end = len(text)
    while len(found) < most:
        end = text.rfind(sought, 0, end)
        if end < 0:
            break
        line = block.first + text.count(b"\n", 0, end)
        if (not found or line < found[-1] - AROUND) and _matches(signatures, text, end):
            found.append(line)
    return found


def _matches(signatures: Sequence[Signature], text: bytes, at: int) -> bool:
    """Whether the line at this place may be a hit of one of the signatures. A marker has none and always is."""
    if not signatures:
        return True
    end = text.find(b"\n", at)
    line = text[text.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(text)].decode("utf-8", "replace")
    # What begins with its message or goes on in the next lines is not known before the prefixes are off.
    return any(
        one.lines > 1 or "^" in one.pattern or pattern_of(one.pattern).search(line) is not None for one in signatures
    )


def _selected(
    block: Block, spans: Sequence[tuple[int, int]], hits: Sequence[tuple[int, int]]
) -> Iterator[tuple[tuple[int, int], bytes]]:
    """The lines of a block within `spans`; long ones whole only within `hits`."""
    wanted = _within(block, spans)
    if not wanted:
        return
    lines = block.data.split(b"\n")
    exact = set(_within(block, hits))
    for number in wanted:
        text = lines[number - block.first]
        part = block.part if number == block.first else 0
        if number not in exact:
            if part and not block.ends:
                continue  # the middle of an endless line, in which nothing was found
            if len(text) > _LONG_LINE:
                text = text[:MAX_LINE] + b"\r" + text[-MAX_LINE:]
        yield (number, part), text


def _within(block: Block, spans: Sequence[tuple[int, int]]) -> list[int]:
    numbers: set[int] = set()
    for start, end in spans:
        numbers.update(range(max(start, block.first), min(end, block.last) + 1))
    return sorted(numbers)


class Growing:
    """A log that is read bit by bit: whole while it is short, condensed from then on."""

    def __init__(self, index: Index, whole: int = WHOLE) -> None:
        self._index = index
        self._whole = whole
        self._start: list[bytes] | None = []
        self._condenser: Condenser | None = None
        self.total_bytes = 0

    def feed(self, data: bytes) -> None:
        """The next bytes of the log."""
        self.total_bytes += len(data)
        if self._condenser is not None:
            self._condenser.feed(data)
            return
        assert self._start is not None
        self._start.append(data)
        if self.total_bytes > self._whole:
            start = b"".join(self._start)
            self._condenser = Condenser(_watched(self._index))
            self._condenser.feed(start)
            self._start = None

    def state(self, name: str, problem: str = "") -> CondensedLog:
        """What the log says so far."""
        if self._condenser is not None:
            return CondensedLog(
                name=name,
                lines=self._condenser.lines(),
                total_lines=self._condenser.total_lines,
                total_bytes=self.total_bytes,
                whole=False,
                problem=problem,
            )
        data = b"".join(self._start or ())
        count = data.count(b"\n") + (not data.endswith(b"\n") and bool(data))
        lines = tuple(log_lines(range(1, count + 1), data))
        return CondensedLog(
            name=name, lines=lines, total_lines=count, total_bytes=self.total_bytes, whole=not problem, problem=problem
        )


_known: list[tuple[Index, dict[bytes, list[Signature]]]] = []


def _watched(index: Index) -> dict[bytes, list[Signature]]:
    """What to look for and the signatures that need it; worked out once for an index."""
    if not _known or _known[0][0] is not index:
        watched: dict[bytes, list[Signature]] = {marker.encode(): [] for marker in MARKERS}
        for known in index.playbooks:
            # Not its literal: one that healthy logs hold, too, would have had its places before the failure comes.
            for signature, texts in zip(known.signatures, known.texts(), strict=True):
                for text in texts:
                    if text not in MARKERS:
                        watched.setdefault(text.encode("utf-8", "replace"), []).append(signature)
        _known[:] = [(index, watched)]
    return _known[0][1]


def condense(source: Source, index: Index, *, whole: int = WHOLE) -> CondensedLog:
    """Read a log and keep what may matter. Memory is bounded whatever the log holds.

    Args:
        source: the log; what stops its reading becomes the `problem` of the result.
        index: the signatures whose literals are looked for.
        whole: logs of at most so many bytes are kept whole.
    """
    growing = Growing(index, whole)
    with source.open() as reader:
        for data in reader:
            growing.feed(data)
        return growing.state(source.name, reader.problem)


def read_logs(paths: Iterable[str], index: Index, others: frozenset[str] = frozenset()) -> list[CondensedLog]:
    """All logs that `paths` name, condensed; many together are kept shorter than one alone. OTHERS are no logs.

    Raises:
        UserError: a path cannot be read, or is a directory without logs.
    """
    logs: list[CondensedLog] = []
    kept = 0
    for source in open_sources(list(paths), others):
        log = condense(source, index, whole=WHOLE if kept < _ALL_WHOLE else _SHORT_WHOLE)
        kept += sum(len(line.text) for line in log.lines)
        logs.append(log)
    return logs
