"""The run directory: what is where, and that only one run writes there."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

from rltrain.core.errors import RunFailure, UserError

RECORD = "run.json"
LOCK = "run.lock"


@contextmanager
def on_disk(what: str) -> Generator[None]:
    """In the block, a disk that is full or gone ends the run with WHAT and the reason.

    Raises:
        RunFailure: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        raise RunFailure(f"{what}: {error.strerror or error}") from None


class RunDir:
    """Places below the run directory (`trainer.default_local_dir`)."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.metrics = path / "metrics.jsonl"
        """One JSON object a step."""
        self.clock = path / "clock.jsonl"
        """Where the time of each step went; one JSON object a step."""
        self.record = path / RECORD
        """What ran: config, versions, host, waived checks."""
        self.facts = path / "facts.json"
        """What the preflight found out about the machine."""
        self.samples = path / "samples"
        """Prompts and responses of some steps."""
        self.capsules = path / "capsules"
        """What some steps were made of, for `rlcheck step`."""
        self.logs = path / "logs"
        """What each process printed."""
        self.checkpoints = path / "checkpoints"
        """`global_step_N` directories."""
        self.tensorboard = path / "tensorboard"
        """Event files."""
        self.toy = path / "toy"
        """What the `toy` section made."""

    def create(self) -> None:
        """Make the directories.

        Raises:
            UserError: one cannot be made or written.
        """
        try:
            for place in (self.path, self.logs, self.checkpoints):
                place.mkdir(parents=True, exist_ok=True)
            if not os.access(self.path, os.W_OK):
                raise PermissionError(13, "Permission denied")
        except OSError as error:
            raise self._unusable(error) from None

    @contextmanager
    def claimed(self, *, afresh: bool) -> Generator[Path | None]:
        """Hold the directory for this process; the lock goes with the process, however it ends.

        Args:
            afresh: move what an earlier run left there out of the way; the block is given its new place.

        Raises:
            UserError: another run holds it, or it cannot be written.
        """
        self.create()
        with ExitStack() as held:
            self._lock(held)
            moved = self._set_aside() if afresh else None
            if moved is not None:
                self.create()
                self._lock(held)
            yield moved

    def _lock(self, held: ExitStack) -> None:
        """Lock the directory as it is now until HELD is left."""
        place = self.path / LOCK
        try:
            descriptor = os.open(place, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unusable(error) from None
        held.callback(os.close, descriptor)
        if not _locks(descriptor, place):
            holder = os.read(descriptor, 32).decode(errors="replace").strip() or "unknown"
            raise UserError(
                f"another run (process {holder}) writes to {self.path}: wait for it, "
                "or name another directory with trainer.default_local_dir=DIR"
            )
        # Only for the words above; a full disk must not hinder.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()}\n".encode())

    def _unusable(self, error: OSError) -> UserError:
        return UserError(
            f"the run directory {self.path} cannot be made: {error.strerror}; "
            "name another with trainer.default_local_dir=DIR"
        )

    def _set_aside(self) -> Path | None:
        """Move an earlier run's directory to the first free NAME.1, NAME.2 …; returns the new place.

        Only for who holds the lock: the lock moves with the directory.
        """
        if not (self.record.exists() or self.metrics.exists() or any(self.checkpoints.iterdir())):
            return None
        number = 1
        while (place := self.path.with_name(f"{self.path.name}.{number}")).exists():
            number += 1
        try:
            self.path.rename(place)
        except OSError as error:
            raise UserError(
                f"{self.path} holds an earlier run, and cannot be renamed: {error.strerror}; "
                "name another with trainer.default_local_dir=DIR"
            ) from None
        return place


def _locks(descriptor: int, place: Path) -> bool:
    """Lock DESCRIPTOR, unless another process has; False as well if PLACE is no longer what was opened."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(descriptor), place.stat())
    except (BlockingIOError, FileNotFoundError):
        return False


def read_steps(metrics: Path) -> list[dict[str, Any]]:
    """The records of METRICS in file order; a last line that was cut off by a crash is left out.

    Raises:
        UserError: a line in the middle is not a JSON object.
    """
    if not metrics.exists():
        return []
    lines = metrics.read_text(encoding="utf-8", errors="replace").split("\n")
    records: list[dict[str, Any]] = []
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        record = _object(line)
        if record is not None:
            records.append(record)
        elif number < len(lines):
            raise UserError(f"{metrics}:{number}: not a JSON object; remove the line")
    return records


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except json.JSONDecodeError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def cut_after(metrics: Path, step: int) -> None:
    """Drop the records of steps after STEP, which a resumed run will write again."""
    if not metrics.exists():
        return
    kept = [record for record in read_steps(metrics) if isinstance(n := record.get("step"), int) and n <= step]
    fresh = metrics.with_suffix(".new")
    with fresh.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in kept)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(metrics)
