"""The workers of a run, made to serve many runs one after the other: processes take seconds to start."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, ClassVar, Literal

from torch import Tensor

from rltrain.config.schema import RunConfig
from rltrain.workers.fsdp.worker import TrainWorker
from rltrain.workers.rollout.worker import EngineWorker
from rltrain.workers.sync.bucket import unpack
from rltrain.workers.sync.shm import ShmReceiver
from rltrain.workers.sync.transport import Descriptor

Fault = Literal["", "stale", "scaled"]
SCALED = "model.layers.1.mlp.down_proj.weight"


class ManyRuns(TrainWorker):
    """A training rank that can leave its run for another one, and whose publisher can be broken on purpose."""

    _stale: str = ""
    _kept: ClassVar[dict[str, Tensor]] = {}

    def become(self, config: RunConfig, port: int, total_steps: int) -> dict[str, Any]:
        """Forget everything, and set up for CONFIG; the ranks meet at PORT (collective). Facts as of `setup`."""
        self.shutdown()
        TrainWorker.__init__(self, config, replace(self._info, master_port=port))
        return self.setup(total_steps)

    def break_publisher(self, stale: str) -> None:
        """From now on, send the tensor STALE as it is at the next sync, every time. Empty: all is well again."""
        self._stale = stale
        self._kept.clear()

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """The weights, as well as the fault allows."""
        for name, tensor in super().full_weights():
            yield name, self._kept.setdefault(name, tensor.clone()) if name == self._stale else tensor


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
