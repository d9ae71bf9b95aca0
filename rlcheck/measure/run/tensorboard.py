"""Scalars of TensorBoard event files, read without its libraries.

A file is a row of records: length (8 bytes), its checksum (4), an `Event` message of protocol buffers, its checksum
(4). A training writes the same scalars at each step, so that the records of a step take the same places in the file as
those of the step before, and only times, steps, values and checksums differ. What one step looks like is learnt from
its messages (`Block`); steps that look alike are then compared and unpacked as wholes.

Source of the formats: tensorboard/compat/proto/{event,summary,tensor}.proto and
tensorflow/core/lib/io/record_writer.h.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from rlcheck import protobuf
from rlcheck.measure.run.series import CurveError, Piece, Series
from rlcheck.protobuf import Field, WireError, fields, signed

_HEADER, _FOOTER = 12, 4
_SIZES = {"f": 4, "d": 8}
_FLOAT, _DOUBLE = 1, 2
_CONTENT, _TENSORS = 4, (5, 6)
_VALUE = (1, protobuf.BYTES)
_VALUE_TAG = _SUMMARY_VALUE = 10
# Time; step, which may be missing; a Summary of one Value of a tag and a float, all shorter than 128 bytes.
_PLAIN = re.compile(
    rb"\x09[\0-\xff]{8}(?:\x10([\x80-\xff]{0,8}[\0-\x7f]))?\x2a([\0-\x7f]\x0a[\0-\x7f]\x0a[\0-\x7f])"
    rb"([\0-\xff]+)\x15[\0-\xff]{4}"
)
_RUN_STARTED = 1
_BLOCKS_KEPT = 12
_MOST_RECORDS = 5000
"""Of one block: more scalars than any trainer has, so that what is learnt stays small."""


class Scalar(NamedTuple):
    """A value within a message: its name, and its place and format (`f` or `d`, little endian)."""

    tag: str
    offset: int
    format: str


class Event(NamedTuple):
    """A message: when it was written (place of the double, -1: nowhere), at which step, what it holds.

    `step_at`: place and end of the step's bytes, (0, 0): it has none and is step 0. `purge`: a run went on from this
    step, so that what was written for it and for later ones counts no more.
    """

    time_at: int
    step: int
    step_at: tuple[int, int]
    scalars: tuple[Scalar, ...]
    purge: bool


@dataclass
class Block:
    """What the records of one step look like: `length` bytes; `mask` covers the step and those that are `fixed`.

    The step's bytes, of which there are `step_length`, are at each place that is 1 in `step_places` (0 in `fixed`),
    first at `step_at`.
    """

    length: int
    tags: tuple[str, ...]
    unpack: struct.Struct
    mask: int
    fixed: int
    step_at: int
    step_length: int
    step_places: int
    steps: list[int] = field(default_factory=list[int])
    orders: list[int] = field(default_factory=list[int])
    rows: list[tuple[float, ...]] = field(default_factory=list[tuple[float, ...]])

    def take(self, data: bytes, start: int, order: int) -> bool:
        """Read the block at START of DATA, if it is one."""
        part = data[start : start + self.length]
        raw = part[self.step_at : self.step_at + self.step_length]
        wanted = self.fixed + int.from_bytes(raw, "little") * self.step_places
        if int.from_bytes(part, "little") & self.mask != wanted or len(part) < self.length:
            return False
        self.steps.append(signed(raw))
        self.orders.append(order)
        self.rows.append(self.unpack.unpack(part))
        return True

    def file(self, series: Series) -> None:
        """Hand what was read to SERIES."""
        for tag, values in zip(self.tags, zip(*self.rows, strict=True), strict=True):
            series.add(tag, Piece(self.steps, self.orders, values))


class EventFile:
    """Reads one event file.

    `started`: when its first record was written, seconds; 0: it has none. `damaged`: the byte from which on it could
    not be read, -1: none.
    """

    def __init__(self, data: bytes, series: Series) -> None:
        self.started = 0.0
        self.damaged = -1
        self._data = data
        self._series = series
        self._blocks: list[Block] = []
        self._seen: set[tuple[int, tuple[str, ...]]] = set()
        self._single: dict[str, tuple[list[int], list[int], list[float]]] = {}

    def read(self) -> None:
        """File all scalars; a last record that is not complete is left out."""
        start = 0
        while start < len(self._data):
            order = self._series.places(1).start
            block = self._known(start, order)
            if block is not None:
                start += block.length
                continue
            try:
                end = self._learn(start, order)
            except WireError:
                self.damaged = start
                break
            if end == start:
                self.damaged = -1 if self._sound(start) else start
                break
            start = end
        for block in self._blocks:
            block.file(self._series)
        for tag, (steps, orders, values) in self._single.items():
            self._series.add(tag, Piece(steps, orders, values))

    def _known(self, start: int, order: int) -> Block | None:
        """The block that begins at START, now read, if it is of a form that was seen lately."""
        for place, block in enumerate(self._blocks):
            if block.take(self._data, start, order):
                if place:
                    self._blocks.insert(0, self._blocks.pop(place))
                return block
        return None

    def _learn(self, start: int, order: int) -> int:
        """Read the records at START that belong to one step, and their form; returns their end, START if cut off."""
        first, end = self._record(start)
        if first is None:
            return start
        if not self._sound(start):
            raise WireError("a record whose length does not fit its checksum")
        self._note(first, order)
        if not first.scalars:
            return end
        records, tags = [(start, first)], {scalar.tag for scalar in first.scalars}
        while len(records) < _MOST_RECORDS:
            try:
                event, stop = self._record(end)
            except WireError:
                break  # found again, and noted, when it is the first
            names = {scalar.tag for scalar in event.scalars} if event else set[str]()
            if event is None or not _same_step(event, first) or not names or names & tags:
                break
            records.append((end, event))
            tags |= names
            end = stop
        self._keep(start, end, records, order)
        return end

    def _keep(self, start: int, end: int, records: list[tuple[int, Event]], order: int) -> None:
        """Take the values of RECORDS; from the second time that such ones come, their form is looked for."""
        form = (end - start, tuple(scalar.tag for _, event in records for scalar in event.scalars))
        if form not in self._seen:
            self._seen.add(form)
            for _, event in records:
                for scalar in event.scalars:
                    steps, orders, values = self._single.setdefault(scalar.tag, ([], [], []))
                    steps.append(event.step)
                    orders.append(order)
                    values.append(struct.unpack_from(f"<{scalar.format}", self._data, scalar.offset)[0])
            return
        block = _block(self._data, start, end, records)
        block.take(self._data, start, order)
        self._blocks.insert(0, block)
        if len(self._blocks) > _BLOCKS_KEPT:
            self._blocks.pop().file(self._series)

    def _record(self, start: int) -> tuple[Event | None, int]:
        """The event of the record at START, None if it is not complete, and the record's end."""
        data = start + _HEADER
        length = int.from_bytes(self._data[start : start + 8], "little")
        end = data + length + _FOOTER
        if data > len(self._data) or end > len(self._data):
            return None, start
        return _event(self._data, data, data + length), end

    def _sound(self, start: int) -> bool:
        """Whether a record begins at START, as far as its head is there."""
        head = self._data[start : start + _HEADER]
        return len(head) < _HEADER or int.from_bytes(head[8:], "little") == _masked_crc(head[:8])

    def _note(self, event: Event, order: int) -> None:
        """What an event says of the file."""
        if not self.started and event.time_at >= 0:
            self.started = struct.unpack_from("<d", self._data, event.time_at)[0]
        if event.purge:
            self._series.restart(event.step, order)


def read_events(paths: list[Path], series: Series) -> list[str]:
    """File the scalars of the event files of one run in SERIES, in the order in which they were begun.

    Returns:
        Remarks: files that are damaged.

    Raises:
        CurveError: one cannot be read, or none is an event file.
    """
    begun = sorted((started(path), path) for path in paths)
    remarks: list[str] = []
    for _, path in begun:
        file = EventFile(_bytes(path, -1), series)
        file.read()
        if file.damaged == 0 and len(paths) == 1:
            raise CurveError(f"{path} is no TensorBoard event file: give the directory of a run, or its event file")
        if file.damaged >= 0:
            remarks.append(f"{path.name} is damaged at byte {file.damaged}; what follows there was not read")
    return remarks


def started(path: Path) -> float:
    """When the event file at PATH was begun, seconds since 1970; 0 where it does not say."""
    file = EventFile(_bytes(path, 4096), Series())
    file.read()
    return file.started


def _bytes(path: Path, count: int) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(count)
    except OSError as error:
        raise CurveError(f"{path} cannot be read: {error.strerror or error}") from None


def _same_step(one: Event, other: Event) -> bool:
    """Whether both are of one step, written with as many bytes."""
    lengths = {event.step_at[1] - event.step_at[0] for event in (one, other)}
    return one.step == other.step and len(lengths) == 1


def _block(data: bytes, start: int, end: int, records: list[tuple[int, Event]]) -> Block:
    """The form of RECORDS, each with its place in DATA, which are all of one step and reach from START to END."""
    length = end - start
    mask, steps = bytearray(b"\xff" * length), bytearray(length)
    fixed = bytearray(data[start:end])
    stops = [place for place, _ in records[1:]] + [end]
    scalars: list[Scalar] = []
    for (place, event), stop in zip(records, stops, strict=True):
        free = [(place + 8, place + _HEADER), (stop - _FOOTER, stop)]
        free += [(event.time_at, event.time_at + 8)] if event.time_at >= 0 else []
        free += [(scalar.offset, scalar.offset + _SIZES[scalar.format]) for scalar in event.scalars]
        for low, high in free:
            mask[low - start : high - start] = fixed[low - start : high - start] = bytes(high - low)
        low, high = event.step_at
        if high:
            fixed[low - start : high - start] = bytes(high - low)
            steps[low - start] = 1
        scalars += event.scalars
    low, high = records[0][1].step_at
    return Block(
        length=length,
        tags=tuple(scalar.tag for scalar in scalars),
        unpack=_unpacker([scalar._replace(offset=scalar.offset - start) for scalar in scalars], length),
        mask=int.from_bytes(mask, "little"),
        fixed=int.from_bytes(fixed, "little"),
        step_at=max(0, low - start),
        step_length=high - low,
        step_places=int.from_bytes(steps, "little"),
    )


def _unpacker(scalars: list[Scalar], length: int) -> struct.Struct:
    """What reads SCALARS, in the order of their places, out of LENGTH bytes."""
    words, at = ["<"], 0
    for scalar in scalars:
        words.append(f"{scalar.offset - at}x{scalar.format}")
        at = scalar.offset + _SIZES[scalar.format]
    return struct.Struct("".join([*words, f"{length - at}x"]))


def _event(data: bytes, start: int, end: int) -> Event:
    """The Event message in DATA from START to END."""
    return _plain(data, start, end) or _general(data, start, end)


def _plain(data: bytes, start: int, end: int) -> Event | None:
    """The event, if it is of the form in which nearly all scalars are written; to be quick."""
    match = _PLAIN.fullmatch(data, start, end)
    if match is None:
        return None
    tag = match[3]
    if tuple(match[2]) != (len(tag) + 9, _SUMMARY_VALUE, len(tag) + 7, _VALUE_TAG, len(tag)):
        return None
    name = tag.decode("utf-8", errors="replace")
    step_at = match.span(1) if match[1] else (0, 0)
    scalar = Scalar(name, match.end(3) + 1, "f")
    return Event(start + 1, signed(match[1] or b""), step_at, (scalar,), purge=False)


def _general(data: bytes, start: int, end: int) -> Event:
    """The event, field by field."""
    time_at, step_at, purge = -1, (0, 0), False
    scalars: list[Scalar] = []
    for part in fields(data, start, end):
        match part.number, part.wire:
            case 1, protobuf.FIXED64:
                time_at = part.start
            case 2, protobuf.VARINT:
                step_at = part.start, part.end
            case 5, protobuf.BYTES:
                scalars += _summary(data, part)
            case 7, protobuf.BYTES:
                purge = _run_started(data, part)
            case _:
                pass
    return Event(time_at, signed(data[slice(*step_at)]), step_at, tuple(scalars), purge)


def _run_started(data: bytes, log: Field) -> bool:
    """Whether the SessionLog message LOG has the status START."""
    found = [part for part in fields(data, log.start, log.end) if (part.number, part.wire) == (1, protobuf.VARINT)]
    return bool(found) and signed(data[found[-1].start : found[-1].end]) == _RUN_STARTED


def _summary(data: bytes, summary: Field) -> list[Scalar]:
    """The scalars of a Summary message."""
    values = (part for part in fields(data, summary.start, summary.end) if (part.number, part.wire) == _VALUE)
    return [scalar for value in values if (scalar := _scalar(data, value)) is not None]


def _scalar(data: bytes, value: Field) -> Scalar | None:
    """A Summary.Value message as a scalar: a simple value, or a tensor of one number."""
    tag, found = "", None
    for part in fields(data, value.start, value.end):
        match part.number, part.wire:
            case 1, protobuf.BYTES:
                tag = data[part.start : part.end].decode("utf-8", errors="replace")
            case 2, protobuf.FIXED32:
                found = part.start, "f"
            case 8, protobuf.BYTES:
                found = _number(data, part)
            case _:
                pass
    return Scalar(tag, *found) if found is not None else None


def _number(data: bytes, tensor: Field) -> tuple[int, str] | None:
    """Place and format of the one number of a TensorProto message; None for more numbers, or other than floats."""
    kind, places = 0, list[Field]()
    for part in fields(data, tensor.start, tensor.end):
        if part.number == 1 and part.wire == protobuf.VARINT:
            kind = signed(data[part.start : part.end])
        elif part.number in (_CONTENT, *_TENSORS):
            places.append(part)
    format = {_FLOAT: "f", _DOUBLE: "d"}.get(kind, "")
    own = {_CONTENT, 5 if kind == _FLOAT else 6}
    found = [part for part in places if part.number in own and format and part.end - part.start == _SIZES[format]]
    return (found[0].start, format) if len(found) == len(places) == 1 else None


def _masked_crc(data: bytes) -> int:
    """The checksum of DATA as records have it: CRC-32C, turned and shifted."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return (crc >> 15 | crc << 17) + 0xA282EAD8 & 0xFFFFFFFF
