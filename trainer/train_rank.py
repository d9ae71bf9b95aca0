"""One training rank as the run starts it: the FSDP2 worker, and its side of the weight sync."""

from __future__ import annotations

import os
from typing import Any

from trainer.cluster.host import SHM_PREFIX
from trainer.fsdp.worker import TrainWorker
from trainer.sync.broadcast import Address
from trainer.sync.publisher import Publisher
from trainer.sync.transport import Descriptor


class TrainRank(TrainWorker):
    """`TrainWorker` that can publish its weights. One process holds one."""

    _publisher: Publisher | None = None

    def setup(self, total_steps: int) -> dict[str, Any]:
        """As `TrainWorker.setup`; then weights can be published."""
        facts = super().setup(total_steps)
        info = self._info
        self._publisher = Publisher(
            self._config,
            info.rank,
            info.device,
            info.master_addr,
            os.environ[SHM_PREFIX],
            self.weight_manifest(),
            self.full_weights,
        )
        return facts

    def connect_sync(self) -> Address | None:
        """Where engines meet this rank, for transports that broadcast."""
        return self._sending().connect()

    def publish_bucket(self, index: int) -> Descriptor | None:
        """Gather bucket INDEX and offer it (collective)."""
        return self._sending().publish_bucket(index)

    def finish_publish(self) -> dict[str, str]:
        """End a sync: free the buffers, and give the checksums of what was sent, if asked for."""
        return self._sending().finish_publish()

    def _sending(self) -> Publisher:
        assert self._publisher is not None, "setup has not been called"
        return self._publisher
