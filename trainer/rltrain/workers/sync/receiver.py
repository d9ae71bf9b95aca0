"""The engine's side of a sync: the receiver that belongs to a descriptor."""

from __future__ import annotations

import torch
from torch import Tensor

from rltrain.core.errors import RunFailure
from rltrain.workers.sync.broadcast import Address, BroadcastReceiver
from rltrain.workers.sync.bucket import unpack
from rltrain.workers.sync.cuda_ipc import CudaIpcReceiver
from rltrain.workers.sync.shm import ShmReceiver
from rltrain.workers.sync.transport import Descriptor, Receiver


class Receivers:
    """Takes buckets on one device of one engine process, whatever they travel by."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: dict[str, Receiver] = {}

    def connect(self, address: Address, rank: int) -> None:
        """Join a broadcast group as member RANK (from 1)."""
        self._open["nccl"] = self._open["gloo"] = BroadcastReceiver(self._device, address, rank)

    def tensors(self, descriptor: Descriptor, *, keep: bool) -> list[tuple[str, Tensor]]:
        """The named tensors of a bucket, as views of the transport's buffer, on its device.

        Args:
            descriptor: of the bucket.
            keep: the tensors must outlive this bucket: a copy of it is made.
        """
        buffer = self._receiver(descriptor).receive(descriptor)
        return unpack(descriptor.bucket, buffer[: descriptor.bucket.num_bytes].clone() if keep else buffer)

    def close(self) -> None:
        """Let go of the publisher's memory, at the end of a sync."""
        for receiver in self._open.values():
            receiver.close()

    def _receiver(self, descriptor: Descriptor) -> Receiver:
        transport = descriptor.transport
        if transport not in self._open:
            if transport == "shm":
                self._open[transport] = ShmReceiver()
            elif transport == "cuda_ipc":
                self._open[transport] = CudaIpcReceiver(self._device)
            else:
                raise RunFailure(f"weight sync over {transport}: this engine was not told where to meet the publisher")
        return self._open[transport]
