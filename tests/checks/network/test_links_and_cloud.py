"""Ordinary network cards, and the plug-ins and files of the clouds."""

from __future__ import annotations

import pytest

from tests.checks.network.cases import CASES, EFA, EIGHT_IB, LO, card, gpus, net, on, plugins
from tests.checks.network.judging import judge


@pytest.mark.parametrize(
    ("check_id", "text"),
    [
        ("NET020", "expected MTU 9000 as on the other cards of this kind, found 1500 on eth3"),
        ("NET021", "none on eth1 (10.0.2.5)"),
        ("NET022", "1 EFA devices and no plug-in"),
        ("NET023", "expected NCCL_TOPO_FILE"),
        ("NET024", "9 gVNIC cards and no libnccl-net library"),
    ],
)
def test_fires_and_quiet(check_id: str, text: str) -> None:
    fires, quiet = CASES[check_id]
    assert judge(check_id, fires).status == "warn"
    assert text in judge(check_id, fires).message
    assert judge(check_id, quiet).status in ("pass", "skip")


def test_cards_without_speed_are_not_compared() -> None:
    assert (
        judge("NET020", net(interfaces=(LO, card("a", 1, speed_mbps=0), card("b", 2, speed_mbps=0, mtu=1500)))).status
        == "skip"
    )


def test_two_cards_that_differ_may_serve_two_networks() -> None:
    finding = judge("NET020", net(interfaces=(LO, card("eth1", 1), card("eth2", 2, mtu=1500))))
    assert finding.status == "info"
    assert "1500 on eth2" in finding.message


def test_the_card_of_the_default_route_may_have_its_own_mtu() -> None:
    cards = (card("eth0", 1, mtu=1460), card("eth1", 2, mtu=8244), card("eth2", 3, mtu=8244))
    assert judge("NET020", net(interfaces=(LO, *cards))).status == "pass"


def test_the_mtu_fix_sets_what_the_finding_says() -> None:
    fast = (card("eth1", 1, mtu=1500), card("eth2", 2, mtu=1500), card("eth3", 3))
    finding = judge("NET020", net(interfaces=(LO, *fast)))
    assert [fix.command for fix in finding.fixes] == ["ip link set dev eth3 mtu 1500"]


def test_efa_plugin_outside_the_search_path_is_told() -> None:
    from rlcheck.facts.nccl import NcclPlugin

    there = NcclPlugin(kind="net", suffix="ofi", path="/opt/amazon/ofi-nccl/lib64/libnccl-net-ofi.so")
    assert judge("NET022", net(EFA, nccl=plugins(there))).status == "info"
    listed = {"LD_LIBRARY_PATH": "/x:/opt/amazon/ofi-nccl/lib64/"}
    assert judge("NET022", net(EFA, nccl=plugins(there), env=listed)).status == "pass"


def test_smaller_azure_machines_need_no_topology_file() -> None:
    few = net(*EIGHT_IB, gpudirect=gpus(num_gpus=4), platform=on("azure"), nccl=plugins())
    assert judge("NET023", few).status == "skip"
    assert judge("NET023", net(*EIGHT_IB, gpudirect=gpus(), platform=on("aws"), nccl=plugins())).status == "skip"
