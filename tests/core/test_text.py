"""Sizes, counts and lists in words; tables of the package are read once and are what they say."""

from __future__ import annotations

import json

import pytest

from rlcheck import text
from rlcheck.tables import DATA, Threshold, table


@pytest.mark.parametrize(
    ("num_bytes", "words"),
    [(0, "0 bytes"), (8, "8 bytes"), (1000, "1000 bytes"), (1 << 16, "64 KiB"), (1023 << 10, "1023 KiB"),
     (3 * text.GIB // 2, "1.5 GiB"), (1000 * text.GIB, "1000 GiB"), (text.GIB << 12, "4 TiB"), (-text.MIB, "-1 MiB")],
)  # fmt: skip
def test_sizes(num_bytes: int, words: str) -> None:
    assert text.size_text(num_bytes) == words
    assert text.size_label(num_bytes) == words.replace("bytes", "B")


def test_sizes_of_memory() -> None:
    assert (text.gib(text.GIB << 7), text.rough_gib(text.GIB << 7)) == ("128.0 GiB", "128 GiB")
    assert (text.gib(text.GIB), text.rough_gib(text.GIB)) == ("1.0 GiB", "1.0 GiB")


def test_lists_and_counts() -> None:
    assert text.listed(["a", "b"]) == "a, b"
    assert text.listed(range(5), 2) == "0, 1 and 3 more"
    assert text.listed([]) == ""
    assert [text.counted(number, "GPU") for number in (0, 1, 2)] == ["0 GPUs", "1 GPU", "2 GPUs"]
    assert text.spaced(1234567) == "1 234 567"


def test_a_table_is_read_once_and_typed() -> None:
    numbers = table("health", dict[str, dict[str, Threshold]])
    assert table("health", dict[str, dict[str, Threshold]]) is numbers
    first = next(iter(numbers["numbers"].values()))
    assert (first.source != "", first.why != "") == (True, True)
    assert set(numbers["numbers"]) == set(json.loads((DATA / "health.json").read_text())["numbers"])
