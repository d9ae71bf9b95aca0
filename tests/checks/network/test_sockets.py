"""NCCL_SOCKET_IFNAME and GLOO_SOCKET_IFNAME, each by its own rules (field note F54)."""

from __future__ import annotations

import pytest

from rlcheck.checks.network.sockets import nccl_selection
from tests.checks.network.cases import CASES, DOCKER0, ETH0, LO, SEVERAL, card, net
from tests.checks.network.judging import judge

ALL = (LO, DOCKER0, ETH0, card("eth01", 4), card("ens5", 5))


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("eth", ["eth0", "eth01"]),
        ("=eth0", ["eth0"]),
        ("=eth0,ens5", ["eth0", "ens5"]),
        ("^lo,br-", ["eth0", "eth01", "ens5"]),
        ("^=eth0", ["lo", "br-5f2", "eth01", "ens5"]),
        ("=", []),
        ("nothing", []),
        (",,", []),
    ],
)
def test_nccl_syntax(pattern: str, names: list[str]) -> None:
    assert [interface.name for interface in nccl_selection(pattern, ALL)] == names


@pytest.mark.parametrize(
    ("value", "env", "status"),
    [
        ("eth0", {}, "pass"),
        ("=ens5", {}, "fail"),
        ("lo", {}, "pass"),
        ("lo", SEVERAL, "fail"),
        ("^lo,eth0", {}, "fail"),
        ("", {}, "skip"),
        ("eth0 ", {}, "fail"),
        (" eth0", {}, "fail"),
        ("^lo, docker0", {}, "warn"),
    ],
)
def test_nccl_variable(value: str, env: dict[str, str], status: str) -> None:
    assert judge("NET012", net(env={"NCCL_SOCKET_IFNAME": value, **env})).status == status


def test_interface_that_is_down_does_not_count() -> None:
    finding = judge(
        "NET012", net(interfaces=(LO, card("eth1", 2, operstate="down")), env={"NCCL_SOCKET_IFNAME": "eth"})
    )
    assert finding.status == "fail"
    assert "eth1 (10.0.2.5), not up or without address" in finding.message


@pytest.mark.parametrize(
    ("value", "env", "status", "text"),
    [
        ("eth0", {}, "pass", "10.0.0.5"),
        ("^lo", {}, "fail", "NCCL's syntax"),
        ("=eth0", {}, "fail", "NCCL's syntax"),
        ("eth", {}, "fail", "no interface 'eth'"),
        ("eth0,ens9", {}, "fail", "no interface 'ens9'"),
        ("lo", SEVERAL, "fail", "loopback only"),
        ("eth0 ", {}, "fail", "no interface 'eth0 ' (Gloo takes the space"),
        (" eth0", {}, "fail", "no interface ' eth0'"),
    ],
)
def test_gloo_variable(value: str, env: dict[str, str], status: str, text: str) -> None:
    finding = judge("NET013", net(env={"GLOO_SOCKET_IFNAME": value, **env}))
    assert finding.status == status
    assert text in finding.message


@pytest.mark.parametrize(("id", "name"), [("NET012", "NCCL"), ("NET013", "GLOO")])
def test_a_space_is_shown_and_the_fix_has_none(id: str, name: str) -> None:
    finding = judge(id, net(env={f"{name}_SOCKET_IFNAME": "eth0 "}))
    assert "'eth0 '" in finding.message
    assert f"export {name}_SOCKET_IFNAME=eth0" in [fix.command for fix in finding.fixes]


def test_fix_names_an_interface_that_is_here() -> None:
    commands = [fix.command for fix in judge("NET013", CASES["NET013"][0]).fixes]
    assert "export GLOO_SOCKET_IFNAME=eth0" in commands


def test_gloo_interface_without_address_or_link() -> None:
    bare = net(interfaces=(LO, card("eth1", 2, ipv4="")), env={"GLOO_SOCKET_IFNAME": "eth1"})
    assert judge("NET013", bare).status == "fail"
    down = net(interfaces=(LO, card("eth1", 2, operstate="down")), env={"GLOO_SOCKET_IFNAME": "eth1"})
    assert judge("NET013", down).status == "warn"
