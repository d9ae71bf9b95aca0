"""The workers of a run, made to serve many runs one after the other: processes take seconds to start."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

from rltrain.config.schema import RunConfig
from rltrain.workers.fsdp.worker import TrainWorker
from rltrain.workers.rollout.worker import EngineWorker
from rltrain.workers.sync.bucket import unpack
from rltrain.workers.sync.shm import ShmReceiver
from rltrain.workers.sync.transport import Descriptor

Fault = Literal["", "stale", "scaled"]
SCALED = "model.layers.1.mlp.down_proj.weight"


class ManyRuns(TrainWorker):
    """A training rank that can leave its run for another one."""

    def become(self, config: RunConfig, port: int, total_steps: int) -> None:
        """Forget everything, and set up for CONFIG; the ranks meet at PORT (collective)."""
        self.shutdown()
        TrainWorker.__init__(self, config, replace(self._info, master_port=port))
        self.setup(total_steps)


class FragileEngine(EngineWorker):
    """An engine whose weight sync can be broken on purpose."""

    _fault: Fault = ""

    def break_sync(self, fault: Fault) -> None:
        """From now on: `stale` drops what is received; `scaled` halves one tensor of it. Empty: all is well again."""
        self._fault = fault

    def load_bucket(self, descriptor: Descriptor) -> None:
        """Load a bucket, as well as the fault allows."""
        if self._fault == "stale":
            self.has_weights = True
            return
        if self._fault == "scaled":
            for name, tensor in unpack(descriptor.bucket, ShmReceiver().receive(descriptor)):
                if name == SCALED:
                    tensor.mul_(0.5)
        super().load_bucket(descriptor)
