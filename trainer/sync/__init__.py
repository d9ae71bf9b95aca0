"""Weights travel from the training ranks into live rollout engines: no disk, no restart.

Three parties. Each training rank has a `Publisher`; each engine process has a `Receivers`; the controller drives both
through calls that carry descriptions, never weights (`controller.WeightSync` is exactly this):

    addresses = trainers.all("connect_sync")                 # Publisher.connect; None unless weights are broadcast
    engines.all("connect_sync", address)                     # only where there is an address; again after a restart

    for each sync, with the engines' weights awake:
        for k in 0 ... until descriptor.bucket.is_last:
            descriptors = trainers.all("publish_bucket", k)  # Publisher.publish_bucket: collective gather, then offer
            descriptor = merge(descriptors)
            engines.all("load_bucket", descriptor, version)  # returns when the bytes are no longer needed
        checksums = trainers.all("finish_publish")           # Publisher.finish_publish; frees the buffers
        verify(checksums[0], engines.all("checksums", names)[i])   # with trainer.verify_weight_sync

`load_bucket` is the acknowledgement: a rank fills its buffer anew only when it is called for the next bucket. The order
is sequential for all transports: where both sides must act at once (broadcasts) the publisher acts on a thread and
returns. A model that fits in one bucket costs three round trips. With the last bucket an engine finishes the load
(packs weights, checks that none is missing), resets its prefix cache and takes over the version.

Transports (`transport.choose`): shared memory `shm` (CPU, one host), `gloo` (CPU, several hosts), `cuda_ipc` (GPUs
shared with the actor: every rank offers its own GPU's buffer), `nccl` (engines on GPUs of their own: rank 0 sends).
"""

from trainer.sync.bucket import plan
from trainer.sync.checksum import checksum, verify
from trainer.sync.controller import WeightSync
from trainer.sync.publisher import Publisher
from trainer.sync.transport import Descriptor, Transport, choose, merge

__all__ = ["Descriptor", "Publisher", "Transport", "WeightSync", "checksum", "choose", "merge", "plan", "verify"]
