"""How weights travel: chosen from the config, described to the engines, never guessed by the receiver."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, Protocol

from torch import Tensor

from rltrain.workers.sync.bucket import Bucket

if TYPE_CHECKING:  # an engine's own interpreter, which reads no config, may lack what the schema needs
    from rltrain.config.schema import RunConfig

Transport = Literal["shm", "cuda_ipc", "nccl", "gloo"]


@dataclass(frozen=True)
class Descriptor:
    """One published bucket, as the engines are told of it. Picklable and small: the bytes travel apart."""

    transport: Transport
    bucket: Bucket
    location: Mapping[str, object]
    """What the transport's receiver needs to find the bytes: a path; IPC handles by GPU; nothing for a broadcast."""
    version: int = -1
    """Of the weights: the last step that changed them. -1: not said."""


class Sender(Protocol):
    """A publisher's half of a transport."""

    def staging(self, num_bytes: int) -> Tensor:
        """A buffer of at least NUM_BYTES uint8, free to be written."""
        ...

    def send(self, num_bytes: int) -> dict[str, object]:
        """Offer the first NUM_BYTES of the buffer; returns `Descriptor.location`."""
        ...

    def close(self) -> None:
        """Free the buffer."""
        ...


class Receiver(Protocol):
    """An engine's half of a transport."""

    def receive(self, descriptor: Descriptor) -> Tensor:
        """The bucket's bytes; valid until the engine has answered for this bucket."""
        ...

    def close(self) -> None:
        """Let go of the publisher's memory, at the end of a sync."""
        ...


def choose(config: RunConfig) -> Transport:
    """The transport of CONFIG (resolved).

    On GPUs: CUDA IPC where engines share the actor's devices, NCCL where they have their own. On CPUs: shared memory
    on one host, gloo between hosts.
    """
    parts = config.actor_rollout_ref
    if config.trainer.device == "cuda":
        return "cuda_ipc" if parts.hybrid_engine else "nccl"
    return "shm" if config.trainer.nnodes == 1 and not parts.rollout.nnodes else "gloo"


def merge(descriptors: Sequence[Descriptor | None]) -> Descriptor:
    """One descriptor for all engines, from what each training rank returned for the same bucket (None: not a sender).

    Raises:
        ValueError: no rank sent, or ranks are at different buckets.
    """
    sent = [one for one in descriptors if one is not None]
    if not sent or any(one.bucket != sent[0].bucket for one in sent):
        raise ValueError(f"training ranks published buckets {[one.bucket.index for one in sent]}, not one and the same")
    return replace(sent[0], location={key: value for one in sent for key, value in one.location.items()})
