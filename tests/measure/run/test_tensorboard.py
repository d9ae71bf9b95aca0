"""Event files: those of PyTorch's writer, and others byte by byte, against TensorBoard's own reader."""

from __future__ import annotations

import math
import random
import struct
from itertools import pairwise
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
from tensorboard.util import tensor_util

from rlcheck.facts.run import Curve
from rlcheck.measure.run.series import CurveError, Series
from rlcheck.measure.run.tensorboard import read_events, started
from tests.measure.run import write


def read(*paths: Path) -> tuple[dict[str, Curve], list[str]]:
    series = Series()
    remarks = read_events(list(paths), series)
    return series.curves(), remarks


def points(curve: Curve) -> dict[int, float]:
    return dict(zip(curve.steps, curve.values, strict=True))


def by_tensorboard(path: Path) -> dict[str, dict[int, float]]:
    """What TensorBoard's own reader finds, the last value of each step."""
    found: dict[str, dict[int, float]] = {}
    for event in EventFileLoader(str(path)).Load():
        for value in event.summary.value:
            array = tensor_util.make_ndarray(value.tensor)
            if array.size == 1 and array.dtype.kind == "f":
                found.setdefault(value.tag, {})[event.step] = float(array.reshape(-1)[0])
    return found


def test_files_of_pytorchs_writer(tmp_path: Path) -> None:
    import torch
    from torch.utils.tensorboard import SummaryWriter

    rng = random.Random(0)
    with SummaryWriter(str(tmp_path)) as writer:
        for step in range(300):
            for place in range(rng.randint(1, 9)):
                writer.add_scalar(f"actor/metric_{place}", rng.gauss(0, 1), step)
            if step % 50 == 0:
                writer.add_text("val/generations", "a prompt, an answer " * 30, step)
                writer.add_histogram("weights", torch.arange(9.0), step)
            writer.add_scalar("lost", math.nan if step > 100 else 1.0, step)
    (path,) = tmp_path.iterdir()
    curves, remarks = read(path)
    lost = curves.pop("lost")
    expected = by_tensorboard(path)
    del expected["lost"]
    assert remarks == []
    assert {tag: points(curve) for tag, curve in curves.items()} == expected
    assert lost == Curve(steps=tuple(range(101)), values=(1.0,) * 101, nonfinite=tuple(range(101, 300)))


@pytest.mark.parametrize("kind", ["simple", "content", "floats", "doubles"])
def test_every_way_to_write_a_scalar(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "events.out.tfevents.1"
    body = [
        write.record(write.event(100.0 + step, step, write.scalar(f"m/{place}", step % 1000 + place / 4, kind)))
        for step in (*range(140), 2**40)
        for place in range(3)
    ]
    path.write_bytes(write.start(99.0) + b"".join(body))
    curves, remarks = read(path)
    assert remarks == []
    assert points(curves["m/2"]) == {step: step % 1000 + 0.5 for step in (*range(140), 2**40)}


def test_two_values_in_one_event_and_tags_in_any_order(tmp_path: Path) -> None:
    rng = random.Random(5)
    path = tmp_path / "events.out.tfevents.1"
    parts: list[bytes] = [write.start(1.0)]
    expected: dict[str, dict[int, float]] = {}
    for step in range(1, 200):
        tags = rng.sample([f"t{place}" for place in range(8)], 5)
        for one, other in pairwise(tags):
            first, second = rng.random(), rng.random()
            parts.append(write.record(write.event(1.0, step, write.scalar(one, first) + write.scalar(other, second))))
            for tag, value in ((one, first), (other, second)):
                expected.setdefault(tag, {})[step] = struct.unpack("<f", struct.pack("<f", value))[0]
    path.write_bytes(b"".join(parts))
    curves, _ = read(path)
    assert {tag: points(curve) for tag, curve in curves.items()} == expected


def test_a_record_that_is_cut_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    body = [write.record(write.event(1.0, step, write.scalar("loss", step))) for step in range(1, 30)]
    whole = write.start(1.0) + b"".join(body)
    for cut in (1, 3, 10, 20, len(body[-1]) - 1):
        path.write_bytes(whole[:-cut])
        curves, remarks = read(path)
        assert curves["loss"].steps == tuple(range(1, 29))
        assert remarks == []


def test_damage_is_said_and_what_stands_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    body = [write.record(write.event(1.0, step, write.scalar("loss", step))) for step in range(1, 30)]
    body[20] = b"\xff" * len(body[20])
    path.write_bytes(write.start(1.0) + b"".join(body))
    curves, remarks = read(path)
    assert curves["loss"].steps == tuple(range(1, 21))
    assert "is damaged at byte" in remarks[0]


@pytest.mark.parametrize("content", [b"hello, this is no event file at all\n" * 9, b"\x00" * 64])
def test_what_is_no_event_file_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(content)
    with pytest.raises(CurveError, match="no TensorBoard event file"):
        read(path)
    with pytest.raises(CurveError, match="cannot be read"):
        read(tmp_path / "missing.tfevents")


def test_random_bytes_never_raise_anything_else(tmp_path: Path) -> None:
    rng = random.Random(9)
    path = tmp_path / "events.out.tfevents.1"
    whole = write.start(1.0) + b"".join(
        write.record(write.event(1.0, step, write.scalar(f"m{place}", step))) for step in range(9) for place in range(4)
    )
    refused = 0
    for _ in range(150):
        damaged = bytearray(whole)
        for _ in range(rng.randint(1, 6)):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(damaged)
        try:
            read(path)
        except CurveError:
            refused += 1
    assert refused < 150, "damage in the middle leaves what can be read"


def test_files_of_a_run_that_went_on_are_joined(tmp_path: Path) -> None:
    def file(name: str, time: float, steps: range, value: float, begin: bytes = b"") -> Path:
        path = tmp_path / name
        body = (write.record(write.event(time, step, write.scalar("x", value))) for step in steps)
        path.write_bytes(write.start(time) + begin + b"".join(body))
        return path

    late = file("events.out.tfevents.1", 200.0, range(11, 16), 2.0)
    early = file("events.out.tfevents.2", 100.0, range(1, 21), 1.0)
    assert started(late) == 200.0
    curves, _ = read(late, early)
    assert points(curves["x"]) == {**dict.fromkeys(range(1, 11), 1.0), **dict.fromkeys(range(11, 16), 2.0)}
    purge = write.record(write.event(300.0, 5, write.part(7, b"\x08\x01")))
    empty = file("events.out.tfevents.3", 300.0, range(0), 0.0, purge)
    assert read(late, early, empty)[0]["x"].steps == (1, 2, 3, 4)


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    path = tmp_path / "events.out.tfevents.1"
    path.write_bytes(b"")
    assert read(path) == ({}, [])
