"""Automatic choices: default route, interface order, host name, MASTER_ADDR (field notes F21, F54)."""

from __future__ import annotations

import pytest

from rlcheck.checks.network.routes import automatic_choice
from rlcheck.facts.base import known
from rlcheck.facts.interfaces import several_nodes
from rlcheck.facts.nccl import NcclFacts
from rlcheck.facts.network import DefaultRoute, Interface
from tests.checks.collectives.cases import conf
from tests.checks.network.cases import CASES, DOCKER0, EIGHT_IB, ETH0, LO, SEVERAL, card, net
from tests.checks.network.judging import judge

TUNNEL = Interface(name="tun0", index=2, up=True, operstate="unknown", kind="tun", mtu=1420, ipv4="10.8.0.2")
IB0 = card("ib0", 9, kind="infiniband")


@pytest.mark.parametrize(
    ("check_id", "status", "text"),
    [
        ("NET014", "warn", "2 with metric 0: eth0, wlan0"),
        ("NET015", "warn", "expected a default route (SLURM_NNODES=4), found none"),
        ("NET016", "warn", "NCCL takes br-5f2 (172.18.0.1), a bridge interface; better: eth0 (10.0.0.5)"),
        ("NET017", "fail", "SLURM_NNODES=4"),
        ("NET018", "warn", "found 127.0.1.1 in /etc/hosts"),
        ("NET019", "fail", "MASTER_ADDR=127.0.0.1"),
    ],
)
def test_fires_and_quiet(check_id: str, status: str, text: str) -> None:
    fires, quiet = CASES[check_id]
    assert judge(check_id, fires).status == status
    assert text in judge(check_id, fires).message
    assert judge(check_id, quiet).status in ("pass", "skip")


@pytest.mark.parametrize(
    ("env", "sign"),
    [
        ({}, ""),
        ({"SLURM_NNODES": "1"}, ""),
        ({"SLURM_NNODES": "2"}, "SLURM_NNODES=2"),
        ({"PET_NNODES": "1:4"}, "PET_NNODES=1:4"),
        ({"PET_NNODES": "::"}, ""),
        ({"WORLD_SIZE": "16", "LOCAL_WORLD_SIZE": "8"}, "WORLD_SIZE=16 with LOCAL_WORLD_SIZE=8"),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "8"}, ""),
        ({"WORLD_SIZE": "8"}, ""),
        ({"SLURM_NNODES": "9" * 4000}, ""),
        ({"SLURM_NNODES": "²"}, ""),
    ],
)
def test_signs_of_several_nodes(env: dict[str, str], sign: str) -> None:
    assert several_nodes(net(env=env)) == sign


def test_order_of_the_automatic_choice() -> None:
    def chosen(*interfaces: Interface) -> str:
        found = automatic_choice(interfaces)
        return found.name if found else ""

    docker = Interface(name="docker0", index=1, up=True, operstate="up", kind="bridge", ipv4="172.17.0.1")
    assert chosen(LO, docker, ETH0, IB0) == "ib0"
    assert chosen(LO, docker, ETH0) == "eth0"
    assert chosen(LO, docker) == "docker0"
    assert chosen(LO) == "lo"
    assert chosen(LO, card("eth1", 2, operstate="down")) == "lo"
    assert chosen() == ""


def test_virtual_interface_is_only_told_on_one_node() -> None:
    assert judge("NET016", net(interfaces=(LO, DOCKER0, ETH0))).status == "info"
    assert judge("NET016", net(*EIGHT_IB, interfaces=(LO, DOCKER0, ETH0))).status == "warn"
    named = net(interfaces=(LO, DOCKER0, ETH0), env={"NCCL_SOCKET_IFNAME": "eth0", **SEVERAL})
    assert judge("NET016", named).status == "pass"


def test_default_route_over_a_vpn() -> None:
    facts = net(interfaces=(LO, ETH0, TUNNEL), default_routes=(DefaultRoute(interface="tun0"),), env=SEVERAL)
    finding = judge("NET016", facts)
    assert finding.status == "warn"
    assert "the default route leads over tun0" in finding.message


def test_the_veth_of_a_container_is_its_network() -> None:
    veth = Interface(name="eth0", index=2, up=True, operstate="up", kind="veth", ipv4="172.17.0.2")
    assert judge("NET016", net(interfaces=(LO, veth), env=SEVERAL)).status == "pass"
    assert judge("NET016", net(interfaces=(LO, veth, card("net1", 3)), env=SEVERAL)).status == "pass"


def test_a_bridge_with_the_default_route_is_the_machines_network() -> None:
    bridge = Interface(name="br0", index=2, up=True, operstate="up", kind="bridge", ipv4="10.0.0.5")
    routes = (DefaultRoute(interface="br0"),)
    facts = net(*EIGHT_IB, interfaces=(LO, bridge, card("eth1", 3)), default_routes=routes, env=SEVERAL)
    assert judge("NET016", facts).status == "pass"


def test_interface_names_in_nccl_conf_count() -> None:
    section = known(NcclFacts(conf_files=(conf(("NCCL_SOCKET_IFNAME", "=eth0")),)))
    assert judge("NET016", net(interfaces=(LO, DOCKER0, ETH0), env=SEVERAL, nccl=section)).status == "pass"
    assert judge("NET012", net(interfaces=(LO, DOCKER0), nccl=section)).status == "fail"


def test_loopback_only_machine_alone_is_information() -> None:
    assert judge("NET017", net(interfaces=(LO,))).status == "info"


def test_host_name_with_gloo_interface_named() -> None:
    env = {"GLOO_SOCKET_IFNAME": "eth0", **SEVERAL}
    assert judge("NET018", net(hosts_addresses=("127.0.1.1",), env=env)).status == "pass"
    assert judge("NET018", net(hosts_addresses=("10.0.0.5",), env=SEVERAL)).status == "pass"
    assert judge("NET018", net(hosts_addresses=("10.0.0.5", "127.0.1.1"), env=SEVERAL)).status == "warn"


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("10.0.0.1", "pass"),
        ("node0", "pass"),
        ("localhost", "fail"),
        ("::1", "fail"),
        ("172.17.0.2", "warn"),
        ("", "skip"),
    ],
)
def test_master_address(address: str, status: str) -> None:
    assert judge("NET019", net(env={"MASTER_ADDR": address, **SEVERAL})).status == status
