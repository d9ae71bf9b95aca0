"""RoCE addresses, fixed index and MTU (field note F54)."""

from __future__ import annotations

import pytest

from rlcheck.facts.network import Gid
from tests.checks.network.cases import CASES, EIGHT_IB, ETH0, LO, LOCAL_GID, V4_GID, card, hca, net, on, port, roce
from tests.checks.network.judging import judge

V1_GID = Gid(index=2, gid=V4_GID.gid, type="IB/RoCE v1", netdev="eth0")
V6_GID = Gid(index=4, gid="fd00:0000:0000:0000:0000:0000:0000:0002", type="RoCE v2", netdev="eth0")
BOTH = hca("mlx5_0", roce(LOCAL_GID, V1_GID, V4_GID))


@pytest.mark.parametrize(
    ("check_id", "status", "text"),
    [
        ("NET007", "warn", "a RoCE v2 IPv4 GID on each of 1 active RoCE ports, found none on mlx5_0:1"),
        ("NET008", "fail", "at index 5, or NCCL_IB_GID_INDEX unset, found mlx5_0:1: the entry is empty"),
        ("NET009", "warn", "found 1500 on eth0 (mlx5_0)"),
    ],
)
def test_fires_and_quiet(check_id: str, status: str, text: str) -> None:
    fires, quiet = CASES[check_id]
    assert judge(check_id, fires).status == status
    assert text in judge(check_id, fires).message
    assert judge(check_id, quiet).status == "pass"


@pytest.mark.parametrize(
    ("index", "status"), [("0", "warn"), ("2", "warn"), ("3", "pass"), ("9", "fail"), ("-1", "skip"), ("x", "skip")]
)
def test_what_a_fixed_index_points_at(index: str, status: str) -> None:
    assert judge("NET008", net(BOTH, env={"NCCL_IB_GID_INDEX": index})).status == status


def test_index_beyond_what_was_read_is_not_called_empty() -> None:
    device = hca("mlx5_0", roce(V4_GID, gids_read_to=17))
    assert judge("NET008", net(device, env={"NCCL_IB_GID_INDEX": "40"})).status == "pass"


def test_index_is_ignored_on_infiniband() -> None:
    finding = judge("NET008", net(*EIGHT_IB, env={"NCCL_IB_GID_INDEX": "3"}))
    assert finding.status == "info"
    assert "no effect" in finding.message


def test_address_family_decides_which_entry_counts() -> None:
    v6_only = hca("mlx5_0", roce(LOCAL_GID, V6_GID))
    assert judge("NET007", net(v6_only)).status == "warn"
    assert judge("NET007", net(v6_only, env={"NCCL_IB_ADDR_FAMILY": "AF_INET6"})).status == "pass"


def test_port_with_refused_attributes_is_left_alone() -> None:
    assert judge("NET007", net(hca("mlx5_0", roce(unreadable=("lid",))))).status == "skip"


def test_a_cloud_may_fix_the_mtu() -> None:
    small = net(hca("mlx5_0", roce(V4_GID)), interfaces=(LO, ETH0), platform=on("gcp"))
    assert judge("NET009", small).status == "info"


def test_gid_of_another_namespace_is_no_mtu_question() -> None:
    away = Gid(index=3, gid=V4_GID.gid, type="RoCE v2", netdev="eth9")
    assert judge("NET009", net(hca("mlx5_0", roce(away)), interfaces=(LO, card("eth0", 3)))).status == "skip"
    assert judge("NET009", net(hca("mlx5_0", port()))).status == "skip"


def test_fast_path_of_a_clouds_network_card_is_only_told() -> None:
    port_without_address = hca("mlx5_0", roce(LOCAL_GID))
    assert judge("NET007", net(port_without_address, platform=on("azure"))).status == "info"
    several = {"SLURM_NNODES": "2"}
    assert judge("NET007", net(port_without_address, platform=on("azure"), env=several)).status == "warn"
