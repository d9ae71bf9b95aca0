"""RDMA links, subnet manager, rates, link layers, device nodes (field notes F54, F56)."""

from __future__ import annotations

import pytest

from rlcheck.facts.base import MissingKind, missing
from rlcheck.facts.document import Facts
from tests.checks.network.cases import CASES, DOWN, EIGHT_IB, V4_GID, hca, net, on, port, roce
from tests.checks.network.judging import judge

FIRES = [
    ("NET001", "warn", "none of 1"),
    ("NET002", "warn", "1 of 2 in state INIT with subnet-manager LID 0"),
    ("NET003", "warn", "mlx5_0:1 Polling"),
    ("NET004", "warn", "expected 400 Gb/s as on the other cards of this make, found mlx5_0:1 at 100 Gb/s (1X NDR)"),
    ("NET005", "warn", "InfiniBand (mlx5_0) and Ethernet (mlx5_1)"),
    ("NET006", "warn", "expected 2 active RDMA devices that can be opened, found 1; not mlx5_0"),
]


@pytest.mark.parametrize(("check_id", "status", "text"), FIRES)
def test_fires(check_id: str, status: str, text: str) -> None:
    finding = judge(check_id, CASES[check_id][0])
    assert finding.status == status
    assert text in finding.message


@pytest.mark.parametrize("check_id", [row[0] for row in FIRES])
def test_quiet(check_id: str) -> None:
    assert judge(check_id, CASES[check_id][1]).status in ("pass", "skip")


@pytest.mark.parametrize("check_id", [row[0] for row in FIRES])
def test_no_rdma_is_skipped_and_unreadable_is_unknown(check_id: str) -> None:
    assert judge(check_id, net()).status == "skip"
    unreadable = net()
    network = unreadable.network.value
    assert network is not None
    import msgspec

    hidden = msgspec.structs.replace(network, rdma=missing(MissingKind.PERMISSION, "no access"))
    facts = Facts(network=msgspec.structs.replace(unreadable.network, value=hidden))
    assert judge(check_id, facts).status == "unknown"


def test_nccl_net_ib_turns_a_dead_fabric_into_a_failure() -> None:
    dead = (hca("mlx5_0", DOWN),)
    assert judge("NET001", net(*dead)).status == "warn"
    assert judge("NET001", net(*dead, env={"NCCL_NET": "IB"})).status == "fail"


def test_second_port_without_cable_is_no_fault() -> None:
    assert (
        judge("NET003", net(hca("mlx5_0", port(), port(number=2, phys_state="Disabled", state="DOWN")))).status
        == "pass"
    )


def test_no_link_anywhere_is_nothing_to_compare() -> None:
    assert judge("NET003", net(hca("mlx5_0", DOWN), hca("mlx5_1", DOWN))).status == "skip"


def test_efa_is_not_judged_as_infiniband() -> None:
    efa = hca("rdmap0", port(link_layer="Unspecified", state="DOWN"), driver="efa")
    assert judge("NET001", net(efa)).status == "skip"
    assert judge("NET006", net(efa)).status == "skip"


def test_chosen_cards_end_the_question_of_mixed_links() -> None:
    mixed = (hca("mlx5_0"), hca("mlx5_1", roce(V4_GID)))
    assert judge("NET005", net(*mixed, env={"NCCL_IB_HCA": "=mlx5_0"})).status == "info"
    fix = judge("NET005", net(*mixed)).fixes[0]
    assert fix.command == "export NCCL_IB_HCA='=mlx5_0'" or fix.command == "export NCCL_IB_HCA==mlx5_0"


def test_hostile_names_and_numbers_do_not_break_it() -> None:
    odd = hca("x" * 500, port(rate_gbps=1e300, state="\x1b[31m", phys_state="?"), model="\n")
    for check_id, *_ in FIRES:
        assert judge(check_id, net(odd, *EIGHT_IB)).status != "error"


def test_second_port_of_a_card_that_is_a_device_of_its_own() -> None:
    pair = (hca("mlx5_0", pci="0000:5e:00.0"), hca("mlx5_1", DOWN, pci="0000:5e:00.1"))
    assert judge("NET003", net(*pair)).status == "pass"
    assert judge("NET003", net(pair[0], hca("mlx5_1", DOWN, pci="0000:86:00.0"))).status == "warn"


def test_fast_path_of_a_clouds_network_card_needs_no_device_node() -> None:
    card = hca("mlx5_0", roce(), uverbs_usable=False)
    assert judge("NET006", net(card, platform=on("azure"))).status == "skip"
    assert judge("NET006", net(card, platform=on("azure"), env={"SLURM_NNODES": "2"})).status == "warn"
    assert judge("NET006", net(card)).status == "warn"
