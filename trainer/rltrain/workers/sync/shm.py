"""Shared memory: one segment that the publisher writes and engines of the same host map. Linux: a file in /dev/shm.

The segment is unlinked when the publisher closes it; what a killed publisher left goes with the run, by its prefix.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from torch import Tensor

from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.sync.transport import Descriptor

DIRECTORY = Path("/dev/shm")


class ShmSender:
    """Rank 0's side: owns the segment."""

    def __init__(self, prefix: str) -> None:
        self._path = DIRECTORY / f"{prefix}weights-{os.getpid()}"
        self._buffer: Tensor | None = None

    def staging(self, num_bytes: int) -> Tensor:
        """The segment, as bytes `[num_bytes]`. Free: engines have answered for the last bucket.

        Raises:
            UserError: shared memory is too small.
        """
        if self._buffer is None or self._buffer.numel() < num_bytes:
            self.close()
            _create(self._path, num_bytes)
            self._buffer = _map(self._path, num_bytes)
        return self._buffer

    def send(self, num_bytes: int) -> dict[str, object]:
        """Where the receivers find it: the path and the size of the segment."""
        assert self._buffer is not None
        return {"path": str(self._path), "num_bytes": self._buffer.numel()}

    def close(self) -> None:
        """Unmap and unlink the segment. Engines that still map it keep its memory until they unmap it."""
        self._buffer = None
        self._path.unlink(missing_ok=True)


class ShmReceiver:
    """An engine's side: maps the segment for one sync."""

    def __init__(self) -> None:
        self._path = ""
        self._buffer: Tensor | None = None

    def receive(self, descriptor: Descriptor) -> Tensor:
        """The bytes of the bucket, in place.

        Raises:
            RunFailure: there is no such segment on this host.
        """
        path, num_bytes = str(descriptor.location["path"]), int(str(descriptor.location["num_bytes"]))
        if self._buffer is None or self._path != path:
            if not Path(path).exists():
                raise RunFailure(f"weight sync: {path} is not there; does this engine run on the publisher's host?")
            self._path, self._buffer = path, _map(Path(path), num_bytes)
        return self._buffer

    def close(self) -> None:
        """Unmap."""
        self._buffer = None


def check_room(num_bytes: int) -> None:
    """Make sure, before the first sync, that a segment of NUM_BYTES can be made.

    Raises:
        UserError: shared memory is too small.
    """
    free = os.statvfs(DIRECTORY)
    if num_bytes > free.f_bavail * free.f_frsize:
        raise _too_small(num_bytes)


def _create(path: Path, num_bytes: int) -> None:
    handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    try:
        # Reserved now: a write into a mapping that the file system cannot back would kill the process (SIGBUS).
        os.posix_fallocate(handle, 0, num_bytes)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise _too_small(num_bytes) from error
    finally:
        os.close(handle)


def _too_small(num_bytes: int) -> UserError:
    free = os.statvfs(DIRECTORY)
    return UserError(
        f"weight sync needs {num_bytes / 2**20:.0f} MiB of shared memory, {DIRECTORY} has "
        f"{free.f_bavail * free.f_frsize / 2**20:.0f} MiB: start the container with a larger --shm-size, or lower "
        "actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes (the largest weight is the least)"
    )


def _map(path: Path, num_bytes: int) -> Tensor:
    return torch.from_file(str(path), shared=True, size=num_bytes, dtype=torch.uint8)
