"""Weights travel from the training ranks into live rollout engines: no disk, no restart.

Three parties. Each training rank has a `Publisher`; each engine process has a `Receivers`; the controller drives both
through calls that carry descriptions, never weights, in the order of `controller.WeightSync`.

`load_bucket` is the acknowledgement: a rank fills its buffer again only when it is called for the next bucket. The
order is sequential for all transports: where both sides must act at once (broadcasts) the publisher acts on a thread
and returns. A model that fits in one bucket costs three round trips. With the last bucket an engine finishes the load
(packs weights, checks that none is missing), and resets its prefix cache.

Transports (`transport.choose`): shared memory `shm` (CPU, one host), `gloo` (CPU, several hosts), `cuda_ipc` (GPUs
shared with the actor: every rank offers its own GPU's buffer), `nccl` (engines on GPUs of their own: rank 0 sends).
"""

from rltrain.workers.sync.bucket import plan
from rltrain.workers.sync.checksum import checksum, verify
from rltrain.workers.sync.controller import WeightSync
from rltrain.workers.sync.publisher import Publisher
from rltrain.workers.sync.transport import Descriptor, Transport, choose, merge

__all__ = ["Descriptor", "Publisher", "Transport", "WeightSync", "checksum", "choose", "merge", "plan", "verify"]
