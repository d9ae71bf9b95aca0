"""The training rank's side of a sync: gathers the weights bucket by bucket and offers them to the engines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rltrain.workers.sync.broadcast import Address, BroadcastSender
from rltrain.workers.sync.bucket import Manifest, largest_bytes, plan, store, take
from rltrain.workers.sync.cuda_ipc import CudaIpcSender
from rltrain.workers.sync.shm import ShmSender, check_room
from rltrain.workers.sync.transport import Descriptor, Sender, Transport, choose

if TYPE_CHECKING:  # an engine's own interpreter, which reads no config, may lack what the schema needs
    from rltrain.config.schema import RunConfig


class Publisher:
    """One per training rank. All ranks are called alike, because gathering is collective; some only take part in it.

    Args:
        config: resolved.
        rank: of this training rank.
        device: where `weights` yields its tensors: "cpu" or "cuda:N".
        host: address of this process, at which engines on other hosts reach rank 0.
        shm_prefix: of shared-memory segments of this run.
        manifest: name, shape and dtype of what `weights` yields, in order.
        weights: makes a fresh iterator of (name, whole tensor); collective over the training ranks.

    Raises:
        UserError: shared memory has no room for the largest bucket.
    """

    def __init__(
        self,
        config: RunConfig,
        rank: int,
        device: str,
        host: str,
        shm_prefix: str,
        manifest: Manifest,
        weights: Callable[[], Iterator[tuple[str, Tensor]]],
    ) -> None:
        rollout = config.actor_rollout_ref.rollout
        self._transport: Transport = choose(config)
        self._buckets = plan(manifest, rollout.checkpoint_engine.update_weights_bucket_megabytes * 2**20)
        self._weights = weights
        self._stream: Iterator[tuple[str, Tensor]] = iter(())
        self._broadcast: BroadcastSender | None = None
        self._sender: Sender | None = None
        if self._transport == "cuda_ipc":
            self._sender = CudaIpcSender(torch.device(device))
        elif rank == 0 and self._transport == "shm":
            check_room(largest_bytes(self._buckets))
            self._sender = ShmSender(shm_prefix)
        elif rank == 0:
            assert rollout.num_replicas is not None
            members = 1 + rollout.num_replicas * rollout.tensor_model_parallel_size
            timeout_s = config.actor_rollout_ref.nccl_timeout
            self._sender = self._broadcast = BroadcastSender(torch.device(device), host, members, timeout_s)

    def connect(self) -> Address | None:
        """Where engines meet rank 0 for broadcasts; None where no meeting is needed. Call again after a restart."""
        return self._broadcast.meet() if self._broadcast else None

    def publish_bucket(self, index: int) -> Descriptor | None:
        """Gather bucket INDEX on all ranks (collective; 0 begins a sync) and offer it; None: this rank does not send.

        The engines must have answered for the bucket before.
        """
        if index == 0:
            self._stream = iter(self._weights())
        bucket = self._buckets[index]
        buffer = self._sender.staging(largest_bytes(self._buckets)) if self._sender else None
        for entry, tensor in take(bucket, self._stream):
            if buffer is not None:
                store(entry, tensor, buffer)
        if self._sender is None:
            return None
        return Descriptor(self._transport, bucket, self._sender.send(bucket.num_bytes))

    def finish_publish(self) -> None:
        """End a sync: free the buffer.

        Raises:
            ValueError: the model has more weights than the plan.
        """
        extra: Any = next(self._stream, None)
        if extra is not None:
            raise ValueError(f"weight '{extra[0]}' is not in the plan")
        self.close()

    def close(self) -> None:
        """Free the buffer, and unlink shared memory."""
        if self._sender is not None:
            self._sender.close()
