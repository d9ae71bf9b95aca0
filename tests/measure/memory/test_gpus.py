"""Names of GPUs as people, drivers and clouds write them, and sizes."""

from __future__ import annotations

import time

import pytest

from rlcheck.measure.machine import local_gpus
from rlcheck.measure.machine.local_gpus import local_gpu
from rlcheck.measure.memory import gpus
from rlcheck.measure.memory.gpus import GpuError, by_name, parse_memory

MIB = 1 << 20


@pytest.mark.parametrize(
    ("text", "name", "mib"),
    [
        ("H200", "H200", 143771),
        ("NVIDIA H200", "H200", 143771),
        ("h100", "H100 80GB", 81559),
        ("NVIDIA H100 80GB HBM3", "H100 80GB", 81559),
        ("NVIDIA H100 NVL", "H100 NVL", 95830),
        ("a100-40gb", "A100 40GB", 40960),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB", 81920),
        ("NVIDIA A100 80GB PCIe", "A100 80GB", 81920),
        ("NVIDIA GeForce RTX 4090", "RTX 4090", 24564),
        ("4090", "RTX 4090", 24564),
        ("AMD Instinct MI300X OAM", "MI300X", 196592),
        ("NVIDIA A10G", "A10", 23028),
        ("Tesla T4", "T4", 15360),
        ("NVIDIA A40", "A40", 46068),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada", 49140),
    ],
)
def test_names(text: str, name: str, mib: int) -> None:
    found = by_name(text)
    assert (found.name, found.total_bytes) == (name, mib * MIB)


@pytest.mark.parametrize("text", ["H300", "B300", "A900"])
def test_another_number_is_another_gpu(text: str) -> None:
    with pytest.raises(GpuError) as caught:
        by_name(text)
    assert "if you mean that" not in str(caught.value)


def test_a_name_of_two_sizes_is_asked_back() -> None:
    with pytest.raises(GpuError, match="a100-80gb or a100-40gb"):
        by_name("A100")


@pytest.mark.parametrize("text", ["h300", "", "banana", "L40"])
def test_an_unknown_name_is_told_the_way_out(text: str) -> None:
    with pytest.raises(GpuError, match="--gpu 80GiB"):
        by_name(text)


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [("80GiB", 80 << 30), ("80G", 80 << 30), ("80GB", 80 * 10**9), ("81559 MiB", 81559 * MIB), ("1.5TiB", 3 << 39)],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_memory(text) == num_bytes


@pytest.mark.parametrize("text", ["80", "GiB", "-80GiB", "85e9", "100MiB", ""])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(GpuError, match="write it like 80GiB"):
        parse_memory(text)


def test_every_row_is_found_by_its_own_name_and_has_a_source() -> None:
    for _, known in gpus._table():
        assert by_name(known.name) == known
        assert known.source.startswith(("https://", "measured", "the table"))


def test_a_driver_that_hangs_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_gpus, "_ask_nvml", lambda found: time.sleep(30))
    started = time.monotonic()
    assert local_gpu(deadline_s=0.1) is None
    assert time.monotonic() - started < 5
