"""Capsules are written beside the run, by one thread, one after the other: the next step does not wait for the disk."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec
from transformers import PreTrainedTokenizerBase

from rlcheck.facts.capsule import Capsule, EngineRecord
from rltrain.records import capsule as files

SaveTokenizer = Callable[[Path], object]


@dataclass
class Unwritten:
    """A capsule that could not be written: of which step, and why."""

    step: int
    error: Exception


class CapsuleWriter:
    """Writes what it is given; `settled` waits for it, and tells what failed."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._saved: tempfile.TemporaryDirectory[str] | None = None
        self._thread = ThreadPoolExecutor(1, "capsules")
        self._under_way: list[tuple[int, Future[Capsule]]] = []

    def save_tokenizer(self) -> None:
        """Write the tokenizer's files once: each capsule gets a copy. Not while others use the tokenizer."""
        if self._saved is None:
            self._saved = tempfile.TemporaryDirectory(prefix="rltrain-tokenizer-")
            self._tokenizer.save_pretrained(self._saved.name)  # pyright: ignore[reportUnknownMemberType]

    def write(self, place: Path, step: int, write: Callable[[SaveTokenizer], Capsule]) -> None:
        """Have the capsule of STEP made at PLACE by WRITE, which is given what puts the tokenizer into a directory."""
        self.save_tokenizer()
        assert self._saved is not None
        saved = self._saved.name
        self._submit(step, lambda: write(lambda directory: shutil.copytree(saved, directory)))

    def add_engines(self, place: Path, engines: Sequence[EngineRecord]) -> None:
        """Add to the capsule at PLACE, the last one, what ENGINES held after the step."""
        step, made = self._under_way[-1]

        def add() -> Capsule:
            head = made.result()  # one thread: it is done
            head = msgspec.structs.replace(head, engines=(*head.engines, *engines))
            files.write_head(place, head)
            return head

        self._submit(step, add)

    def settled(self) -> list[Unwritten]:
        """Wait until everything is written; what could not be, each step once."""
        failed: dict[int, Unwritten] = {}
        for step, made in self._under_way:
            error = made.exception()
            if isinstance(error, Exception):
                failed.setdefault(step, Unwritten(step, error))
        self._under_way.clear()
        return list(failed.values())

    def close(self) -> list[Unwritten]:
        """As `settled`, for the last time."""
        failed = self.settled()
        self._thread.shutdown()
        if self._saved is not None:
            self._saved.cleanup()
        return failed

    def _submit(self, step: int, job: Callable[[], Capsule]) -> None:
        self._under_way.append((step, self._thread.submit(job)))
