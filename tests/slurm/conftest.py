"""Slurm over two machines, once for all tests; skipped where it is not installed."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.multinode.debs import require, why_no_namespaces
from tests.multinode.netns import network
from tests.slurm.cluster import Slurm, slurm


@pytest.fixture(scope="package")
def cluster() -> Iterator[Slurm]:
    """Two machines with as many CPUs as this one."""
    require("slurmctld", "slurmd", "srun", "sinfo", "munged")
    if why_no_namespaces():
        pytest.skip(why_no_namespaces())
    with tempfile.TemporaryDirectory(prefix="slurm") as root, network(2) as nodes, slurm(nodes, Path(root)) as made:
        yield made
