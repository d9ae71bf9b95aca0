"""Several training ranks on this machine, each a process, which play scenes together."""

from __future__ import annotations

import multiprocessing
import shutil
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.workers.fsdp import scenes

TIMEOUT_S = 600
"""Of all scenes, beside other tests."""
FAILED = "failed"
"""In a rank's results: which scene could not be played, and why."""
Scene = Callable[[Path, int, int], Any]
"""(where the models lie, rank, a port) -> what the tests look at."""


def agreed_port(file: Path, rank: int) -> int:
    """A port that rank 0 finds free and the others read of."""
    if rank == 0:
        part = file.with_suffix(".part")
        part.write_text(str(scenes.free_port()))
        part.replace(file)
    deadline = time.monotonic() + 30
    while not file.exists():
        assert time.monotonic() < deadline, "rank 0 named no port"
        time.sleep(0.01)
    return int(file.read_text())


def _play(played: Mapping[str, Scene], where: Path, rank: int, ports: list[int], answer: Path) -> None:
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    for (name, scene), port in zip(played.items(), ports, strict=True):
        try:
            results[name] = scene(where, rank, port)
        except Exception:
            results[FAILED] = f"{name}: {traceback.format_exc()}"
            break
    torch.save(results, answer)


def play_all(played: Mapping[str, Scene], where: Path, num_ranks: int) -> list[dict[str, Any]]:
    """The results of all scenes PLAYED, by rank. WHERE holds the models; what a failed play adds to it is removed."""
    there = set(where.iterdir())
    try:
        return _play_once(played, where, num_ranks)
    except BaseException:
        for left in set(where.iterdir()) - there:
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        raise


def _play_once(played: Mapping[str, Scene], where: Path, num_ranks: int) -> list[dict[str, Any]]:
    ports = [scenes.free_port() for _ in played]
    answers = [where / f"rank{rank}of{num_ranks}.pt" for rank in range(num_ranks)]
    context = multiprocessing.get_context("spawn")
    ranks = [
        context.Process(target=_play, args=(played, where, rank, ports, answer)) for rank, answer in enumerate(answers)
    ]
    with pytest.MonkeyPatch.context() as environment:
        # The system gets large tensors back when they are freed, not a heap full of holes: `memory` looks at it.
        environment.setenv("MALLOC_MMAP_THRESHOLD_", "65536")
        for process in ranks:
            process.start()
    try:
        for process in ranks:
            process.join(TIMEOUT_S)
    finally:
        for process in ranks:
            process.kill()
            process.join()
    assert [process.exitcode for process in ranks] == [0] * num_ranks
    results: list[dict[str, Any]] = [torch.load(answer, weights_only=False) for answer in answers]
    failed = [f"rank {rank}, {found[FAILED]}" for rank, found in enumerate(results) if FAILED in found]
    assert not failed, "\n".join(failed)
    return results
