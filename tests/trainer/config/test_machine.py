"""How many GPUs CUDA shows to a process."""

from __future__ import annotations

import pytest

from rltrain.config.machine import count_visible

GPUS = ("GPU-11aa-0", "GPU-11bb-1", "GPU-22cc-2")


@pytest.mark.parametrize(
    ("visible", "count"),
    [
        ("0,1,2", 3),
        ("2", 1),
        (" 1 , 0 ", 2),
        ("0,1,", 2),
        ("", 0),
        ("-1", 0),
        ("0,-1,1", 1),
        ("NoDevFiles", 0),
        ("0,7,1", 1),
        ("0-2", 0),
        ("1,1", 0),
        ("GPU-22,GPU-11aa", 2),
        ("GPU-33,GPU-11aa", 0),
        ("MIG-5", 1),
    ],
)
def test_entries_count_up_to_the_first_that_names_no_gpu(visible: str, count: int) -> None:
    assert count_visible(visible, GPUS) == count


def test_without_a_gpu_nothing_counts() -> None:
    assert count_visible("0,1", ()) == 0
    assert count_visible("MIG-5", ()) == 0
