"""How training ranks stand to each other: which have rows of their own, and which hold a model together."""

from __future__ import annotations

import datetime

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import _set_pg_timeout  # pyright: ignore[reportPrivateUsage]
from torch.distributed.tensor import DTensor, Replicate

from rltrain.config.schema import FsdpConfig

REPLICA, SHARD = "replica", "shard"


class Mesh:
    """The arrangement of all training ranks, which each of them carries. Made by `rank.connect`."""

    def __init__(self, device_type: str, num_ranks: int, timeout: datetime.timedelta) -> None:
        """TIMEOUT: of collectives."""
        self._device_type = device_type
        self._num_ranks = num_ranks
        self._timeout = timeout
        self._made: dict[int, DeviceMesh] = {}

    @property
    def data(self) -> int:
        """Ranks that have rows of their own: here all, those of replicas too."""
        return self._num_ranks

    def shards(self, fsdp: FsdpConfig) -> int:
        """Ranks that hold one copy of a model together."""
        return fsdp.fsdp_size if 0 < fsdp.fsdp_size < self._num_ranks else self._num_ranks

    def replicas(self, fsdp: FsdpConfig) -> int:
        """Copies of a model."""
        return self._num_ranks // self.shards(fsdp)

    def sharding(self, fsdp: FsdpConfig) -> DeviceMesh:
        """What `fully_shard` takes: one dimension, or (replica, shard). Neighbours hold a copy together.

        Collective where no model has been sharded so yet; models that are sharded alike share the process groups.
        """
        shards = self.shards(fsdp)
        if shards not in self._made:
            alone = shards == self._num_ranks
            sizes = (shards,) if alone else (self._num_ranks // shards, shards)
            names = (SHARD,) if alone else (REPLICA, SHARD)
            self._made[shards] = mesh = init_device_mesh(self._device_type, sizes, mesh_dim_names=names)
            for group in mesh.get_all_groups():  # of new ones it is torch's own, up to half an hour
                _set_pg_timeout(self._timeout, group)
        return self._made[shards]


def copies(tensor: object) -> int:
    """Ranks that hold each number of TENSOR, by its placements: 1 where all is sharded, or where it is no DTensor."""
    if not isinstance(tensor, DTensor):
        return 1
    found = 1
    for place, one in enumerate(tensor.placements):
        found *= tensor.device_mesh.size(place) if isinstance(one, Replicate) else 1
    return found
