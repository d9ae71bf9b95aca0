"""CUDA IPC: engines on the training ranks' GPUs read the ranks' staging buffers in place.

Each rank offers a buffer on its own GPU; a handle is found by the UUID of the GPU, because the two processes may
number the devices differently. A buffer is filled again only after the engines have answered (the controller calls
`publish_bucket` again only then). Handles open once per sync, and buffers are freed after it.

Source: CUDA C++ Programming Guide, "Interprocess Communication"; torch.multiprocessing.reductions.
"""

# The functions of torch that share CUDA memory are not typed, and the allocator's switch is not public.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportPrivateUsage=false
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import rebuild_cuda_tensor, reduce_tensor

from rltrain.core.errors import RunFailure
from rltrain.core.tensors import empty_cache
from rltrain.workers.sync.transport import Descriptor

_DEVICE_ARGUMENT = 6
"""Position of the device index among the arguments of `rebuild_cuda_tensor`."""


class CudaIpcSender:
    """One training rank's side: a staging buffer on its GPU."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffer: Tensor | None = None
        self._pool: torch.cuda.MemPool | None = None
        self._handle: dict[str, object] = {}

    def staging(self, num_bytes: int) -> Tensor:
        """The buffer, as bytes `[num_bytes]` on the GPU. Free: engines have answered for the last bucket."""
        if self._buffer is None or self._buffer.numel() < num_bytes:
            self.close()
            self._buffer, self._pool = _allocate(num_bytes, self._device)
            _, arguments = reduce_tensor(self._buffer)
            self._handle = {device_uuid(self._device): arguments}
        return self._buffer

    def send(self, num_bytes: int) -> dict[str, object]:
        """The handle under the GPU's UUID, once all copies into the buffer are done."""
        torch.cuda.synchronize(self._device)
        return dict(self._handle)

    def close(self) -> None:
        """Free the buffer, down to the device; receivers have closed it before."""
        if self._buffer is None:
            return
        self._buffer, self._handle, self._pool = None, {}, None
        torch.cuda.ipc_collect()
        empty_cache()


class CudaIpcReceiver:
    """One engine process's side."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._arguments: tuple[Any, ...] | None = None
        self._buffer: Tensor | None = None

    def receive(self, descriptor: Descriptor) -> Tensor:
        """The publisher's buffer, in place on this GPU.

        Raises:
            RunFailure: no training rank published on this GPU.
        """
        uuid = device_uuid(self._device)
        if uuid not in descriptor.location:
            raise RunFailure(
                f"weight sync: this engine's GPU {uuid} has no training rank; ranks published on "
                f"{sorted(descriptor.location)}"
            )
        arguments: Any = descriptor.location[uuid]
        if self._buffer is None or arguments != self._arguments:
            self.close()
            here = list(arguments)
            here[_DEVICE_ARGUMENT] = self._device.index
            self._arguments, self._buffer = arguments, rebuild_cuda_tensor(*here)
        return self._buffer

    def close(self) -> None:
        """Close the handle, so that the publisher can free the memory."""
        self._arguments, self._buffer = None, None
        torch.cuda.ipc_collect()


def device_uuid(device: torch.device) -> str:
    """UUID of DEVICE, the same in every process on the host."""
    properties: Any = torch.cuda.get_device_properties(device)
    return str(properties.uuid)


def _allocate(num_bytes: int, device: torch.device) -> tuple[Tensor, torch.cuda.MemPool | None]:
    """A buffer that can be shared, and the pool that it must not outlive.

    Expandable segments are shared by file descriptors, which containers often forbid: where they are in use, the
    buffer is made without them, in a pool of its own, so that it is no piece of an older segment.
    """
    # Where both are set, torch 2.11 goes by the older name.
    settings = os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or os.environ.get("PYTORCH_ALLOC_CONF") or ""
    if "expandable_segments:True" not in settings:
        return torch.empty(num_bytes, dtype=torch.uint8, device=device), None
    pool = torch.cuda.MemPool()
    # Other settings go with every call: what is left out falls back to its default.
    torch._C._accelerator_setAllocatorSettings(
        settings.replace("expandable_segments:True", "expandable_segments:False")
    )
    try:
        with torch.cuda.device(device), torch.cuda.use_mem_pool(pool):
            return torch.empty(num_bytes, dtype=torch.uint8, device=device), pool
    finally:
        torch._C._accelerator_setAllocatorSettings(settings)
