"""Broadcast from training rank 0 to engines on other devices: NCCL between GPUs, gloo between hosts without.

The group is beside the processes' default groups: engines and training ranks each have one already. Its members
are rank 0 of training (0) and every engine process (1 ...). A broadcast runs on a thread of the publisher, so that
`publish_bucket` returns and the controller can tell the engines to receive; the buffer is filled again only when it is
done.
"""

# The bindings of torch's process groups are typed in part and exported from a private module.
# pyright: reportUnknownMemberType=false, reportPrivateImportUsage=false, reportPrivateUsage=false

from __future__ import annotations

import threading
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch._C._distributed_c10d import BroadcastOptions
from torch.distributed import PrefixStore, TCPStore

from rltrain.core.errors import RunFailure
from rltrain.workers.sync.transport import Descriptor


@dataclass(frozen=True)
class Address:
    """Where the members of a broadcast group meet."""

    host: str
    port: int
    world_size: int
    timeout_s: float


class _Link:
    """One member's end of a group, from one meeting to the next; the group forms with the first broadcast."""

    def __init__(self, store: TCPStore, rank: int, address: Address, device: torch.device) -> None:
        self._store, self._rank, self._address, self._device = store, rank, address, device
        self._group: Any = None
        self.error = ""
        """Of `try_broadcast`."""

    def broadcast(self, data: Tensor) -> None:
        """Send DATA, or receive it: member 0 sends."""
        if self._group is None:
            address = self._address
            self._group = _join(self._store, self._rank, address.world_size, self._device, address.timeout_s)
        _broadcast(self._group, data)

    def try_broadcast(self, data: Tensor) -> None:
        """As `broadcast`, on a thread: what goes wrong is kept, to be raised on the caller's."""
        try:
            self.broadcast(data)
        except Exception as error:  # whatever it is, `_wait` raises it
            self.error = f"{type(error).__name__}: {error}"


class BroadcastSender:
    """Rank 0's side: member 0 of the group."""

    def __init__(self, device: torch.device, host: str, world_size: int, timeout_s: float) -> None:
        self._device = device
        self._address = Address(host, 0, world_size, timeout_s)
        self._link: _Link | None = None
        self._buffer: Tensor | None = None
        self._thread: threading.Thread | None = None

    def meet(self) -> Address:
        """Open a fresh meeting place and return at once; the group forms when the first bucket is sent.

        A broadcast that still waits for an engine of the last meeting is left to itself: that engine is gone, and the
        thread ends at its time limit.
        """
        self._thread, self._buffer = None, None
        address = self._address
        timeout = timedelta(seconds=address.timeout_s)
        store = TCPStore(address.host, 0, address.world_size, True, timeout, wait_for_workers=False)
        self._link = _Link(store, 0, address, self._device)
        return Address(address.host, store.port, address.world_size, address.timeout_s)

    def staging(self, num_bytes: int) -> Tensor:
        """The buffer, as bytes `[num_bytes]`, once the last broadcast is done.

        Raises:
            RunFailure: that broadcast failed or did not end in time.
        """
        self._wait()
        if self._buffer is None or self._buffer.numel() < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        return self._buffer

    def send(self, num_bytes: int) -> dict[str, object]:
        """Begin to broadcast the first NUM_BYTES of the buffer."""
        assert self._buffer is not None
        assert self._link is not None, "engines have not been told where to meet"
        _synchronize(self._device)
        self._thread = threading.Thread(
            target=self._link.try_broadcast, args=(self._buffer[:num_bytes],), name="weight-broadcast", daemon=True
        )
        self._thread.start()
        return {}

    def close(self) -> None:
        """Wait for the last broadcast, and free the buffer. The group stays for the next sync."""
        self._wait()
        self._buffer = None

    def _wait(self) -> None:
        if self._thread is None:
            return
        self._thread.join(self._address.timeout_s)
        if self._thread.is_alive():
            raise RunFailure(f"weight sync: engines took no weights for {self._address.timeout_s:g} s")
        self._thread = None
        if self._link is not None and self._link.error:
            raise RunFailure(f"weight sync: broadcast to the engines failed: {self._link.error}")


class BroadcastReceiver:
    """One engine process's side: member RANK (from 1) of the group."""

    def __init__(self, device: torch.device, address: Address, rank: int) -> None:
        self._device = device
        timeout = timedelta(seconds=address.timeout_s)
        store = TCPStore(address.host, address.port, address.world_size, False, timeout, wait_for_workers=False)
        self._link = _Link(store, rank, address, device)
        self._buffer: Tensor | None = None

    def receive(self, descriptor: Descriptor) -> Tensor:
        """The bytes of the bucket, in a buffer of this process."""
        num_bytes = descriptor.bucket.num_bytes
        if self._buffer is None or self._buffer.numel() < num_bytes:
            self._buffer = torch.empty(num_bytes, dtype=torch.uint8, device=self._device)
        self._link.broadcast(self._buffer[:num_bytes])
        return self._buffer

    def close(self) -> None:
        """Free the buffer. The group stays for the next sync."""
        self._buffer = None


def _join(store: TCPStore, rank: int, world_size: int, device: torch.device, timeout_s: float) -> Any:
    timeout = timedelta(seconds=timeout_s)
    prefixed = PrefixStore("weights/", store)
    if device.type == "cpu":
        from torch.distributed import ProcessGroupGloo

        return ProcessGroupGloo(prefixed, rank, world_size, timeout)
    # Absent from builds of torch without CUDA.
    from torch.distributed import ProcessGroupNCCL

    options = ProcessGroupNCCL.Options()
    options._timeout = timeout
    return ProcessGroupNCCL(prefixed, rank, world_size, options)


def _broadcast(group: Any, data: Tensor) -> None:
    options = BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    with torch.cuda.device(data.device) if data.is_cuda else nullcontext():
        group.broadcast([data], options).wait()
        _synchronize(data.device)


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
