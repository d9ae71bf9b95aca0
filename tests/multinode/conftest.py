"""Four machines; Ray on the first three; the fourth is whatever a test makes of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.multinode.debs import require_firewall, why_no_namespaces
from tests.multinode.netns import Node, network
from tests.multinode.raycluster import RayCluster, ray_cluster


@pytest.fixture(scope="package", autouse=True)
def namespaces() -> None:
    """Nothing here runs where namespaces cannot be made."""
    if why_no_namespaces():
        pytest.skip(why_no_namespaces())


@pytest.fixture
def firewall() -> None:
    """For tests that block packets."""
    require_firewall()


@pytest.fixture(scope="package")
def machines(namespaces: None) -> Iterator[tuple[Node, ...]]:
    """node1 … node4."""
    with network(4) as nodes:
        yield nodes


@pytest.fixture(scope="package")
def cluster(machines: tuple[Node, ...]) -> Iterator[RayCluster]:
    """A healthy Ray on node1 (its head), node2 and node3: a test that spoils it must mend it."""
    pytest.importorskip("ray", reason="needs Ray (pip install 'rlcheck[train]')")
    with ray_cluster(machines[:3]) as made:
        yield made


@pytest.fixture
def spare(machines: tuple[Node, ...]) -> Iterator[Node]:
    """node4, on which nothing runs; afterwards nothing does again."""
    node = machines[3]
    yield node
    node.environ.clear()
    node.clear()
    node.run(["sh", "-c", "rm -rf /tmp/ray/*"])


@pytest.fixture(scope="package")
def trio() -> Iterator[tuple[Node, ...]]:
    """Three machines without Ray, for what is reached by ssh."""
    with network(3, prefix="host") as nodes:
        yield nodes
