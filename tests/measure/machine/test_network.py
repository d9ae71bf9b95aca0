"""The network probe on made-up machines: interfaces, routes, names, RDMA devices, and hostile trees."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.base import MissingKind, known, missing
from rlcheck.facts.network import NetworkFacts
from rlcheck.measure.machine import network, network_rdma
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.network import parse_acs

ROUTES = """Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\tMTU\tWindow\tIRTT
eth0\t00000000\t0100000A\t0003\t0\t0\t100\t00000000\t0\t0\t0
eth0\t0000000A\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
wlan0\t00000000\t0100A8C0\t0003\t0\t0\t600\t00000000\t0\t0\t0
broken line
lo\t00000000\t00000000\t0201\t0\t0\t0\t00000000\t0\t0\t0
"""


def put(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def interface(root: Path, name: str, place: str, **files: str) -> None:
    """An interface whose directory is a link into /sys/devices, as the kernel makes it."""
    real = root / "sys/devices" / place / "net" / name
    put(real, {"mtu": "1500\n", "flags": "0x1003\n", "operstate": "up\n", "type": "1\n", "ifindex": "2\n", **files})
    link = root / "sys/class/net" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(Path("../../devices") / place / "net" / name)


def port(root: Path, device: str, number: int, gids: dict[int, tuple[str, str]] | None = None, **files: str) -> None:
    base = root / f"sys/class/infiniband/{device}/ports/{number}"
    put(base, {
        "state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n", "rate": "400 Gb/sec (4X NDR)\n",
        "link_layer": "InfiniBand\n", "lid": "0x11\n", "sm_lid": "0x1\n", **files,
    })  # fmt: skip
    for index in range(32):
        gid, type_ = (gids or {}).get(index, ("0000:0000:0000:0000:0000:0000:0000:0000", ""))
        put(base, {f"gids/{index}": gid + "\n", f"gid_attrs/types/{index}": type_ + "\n"})


def collect(root: Path, **options: Any) -> NetworkFacts:
    return network.collect(ProbeContext(root, environ={"PATH": "/nonexistent"}, **options))


def test_interfaces(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", "pci0000:00/0000:00:01.0/0000:01:00.0", ifindex="3\n", speed="100000\n", mtu="9000\n",
              **{"device/numa_node": "1\n"})  # fmt: skip
    interface(tmp_path, "lo", "virtual", type="772\n", ifindex="1\n", flags="0x49\n", operstate="unknown\n")
    interface(tmp_path, "br-1", "virtual", uevent="DEVTYPE=bridge\nINTERFACE=br-1\n")
    interface(tmp_path, "tun0", "virtual", type="65534\n", tun_flags="0x1001\n", flags="0x1002\n")
    interface(tmp_path, "veth12", "virtual", ifindex="9\n")
    put(tmp_path, {"proc/net/if_inet6": "fd000000000000000000000000000002 04 40 00 82     eth0\ngarbage\n"})
    found = {item.name: item for item in collect(tmp_path).interfaces.value or ()}
    assert found["eth0"].kind == "ethernet"
    assert (found["eth0"].pci, found["eth0"].numa_node) == ("0000:01:00.0", 1)
    assert (found["eth0"].speed_mbps, found["eth0"].mtu, found["eth0"].up) == (100_000, 9000, True)
    assert found["eth0"].ipv6 == ("fd00::2",)
    assert found["lo"].kind == "loopback"
    assert found["br-1"].kind == "bridge"
    assert (found["tun0"].kind, found["tun0"].up) == ("tun", False)
    assert found["veth12"].kind == "veth"
    assert found["br-1"].pci == ""


def test_routes(tmp_path: Path) -> None:
    put(tmp_path, {"proc/net/route": ROUTES, "proc/net/ipv6_route": "zz\n" + "0" * 32 + " 00 " + "0" * 32 + " 00 "
                   "fd000000000000000000000000000001 00000400 00000000 00000000 00000003     eth0\n"})  # fmt: skip
    routes = collect(tmp_path).default_routes.value or ()
    assert [(r.interface, r.gateway, r.metric, r.family) for r in routes] == [
        ("eth0", "10.0.0.1", 100, 4),
        ("wlan0", "192.168.0.1", 600, 4),
        ("eth0", "fd00::1", 1024, 6),
    ]


def test_hosts_file_without_asking_a_name_server(tmp_path: Path) -> None:
    """F54: Debian's 127.0.1.1."""
    put(
        tmp_path,
        {"proc/sys/kernel/hostname": "Node1\n", "etc/hosts": "127.0.0.1 localhost # node1\n127.0.1.1 node1.x node1\n"},
    )
    facts = collect(tmp_path)
    assert facts.hostname == "Node1"
    assert facts.hosts_addresses == ("127.0.1.1",)


def test_rdma_port(tmp_path: Path) -> None:
    port(tmp_path, "mlx5_0", 1, {0: ("fe80:0000:0000:0000:0000:0000:0000:0001", "IB/RoCE v1")})
    put(tmp_path, {"sys/class/infiniband/mlx5_0/hca_type": "MT4129\n", "sys/class/infiniband/mlx5_0/board_id": "MT_1\n",
                   "sys/class/infiniband_verbs/uverbs3/ibdev": "mlx5_0\n", "dev/infiniband/uverbs3": ""})  # fmt: skip
    device = (collect(tmp_path).rdma.value or ())[0]
    assert (device.name, device.model, device.uverbs, device.uverbs_usable) == (
        "mlx5_0",
        "MT4129 MT_1",
        "uverbs3",
        True,
    )
    first = device.ports[0]
    assert (first.state, first.phys_state, first.rate_gbps, first.width) == ("ACTIVE", "LinkUp", 400.0, "4X NDR")
    assert (first.lid, first.sm_lid, first.link_layer) == (17, 1, "InfiniBand")
    assert [(gid.index, gid.type) for gid in first.gids] == [(0, "IB/RoCE v1")]
    assert first.gids_read_to >= 17


@pytest.mark.row("F56")
def test_device_node_missing_in_a_container(tmp_path: Path) -> None:
    """F56: /sys shows the host's cards; the container was not given their device files."""
    port(tmp_path, "mlx5_0", 1)
    put(tmp_path, {"sys/class/infiniband_verbs/uverbs0/ibdev": "mlx5_0\n"})
    device = (collect(tmp_path).rdma.value or ())[0]
    assert (device.uverbs, device.uverbs_usable) == ("uverbs0", False)


def test_no_more_gids_are_read_than_needed(tmp_path: Path) -> None:
    full = {index: (f"fd00:0000:0000:0000:0000:0000:0000:{index:04x}", "RoCE v2") for index in range(32)}
    port(tmp_path, "mlx5_0", 1, full)
    found = (collect(tmp_path).rdma.value or ())[0].ports[0]
    assert len(found.gids) == network_rdma.GID_LIMIT
    assert found.gids_read_to == network_rdma.GID_LIMIT


def test_first_refusal_ends_the_reading_of_a_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some sysfs files answer EINVAL and make the driver write to the kernel log each time."""
    port(tmp_path, "mlx5_0", 1)
    asked: list[str] = []
    original = ProbeContext.read_text

    def read(self: ProbeContext, path: str, limit: int = 4096) -> Any:
        asked.append(path)
        if path.endswith("/phys_state"):
            return missing(MissingKind.ERROR, f"{path}: Invalid argument")
        return original(self, path, limit)

    monkeypatch.setattr(ProbeContext, "read_text", read)
    found = (collect(tmp_path).rdma.value or ())[0].ports[0]
    assert found.unreadable == ("phys_state",)
    assert found.gids == ()
    assert not [path for path in asked if path.endswith("/rate") or "/gids/" in path]


def test_gpudirect(tmp_path: Path) -> None:
    put(tmp_path, {
        "proc/driver/nvidia/gpus/0000:06:00.0/information": "", "proc/sys/kernel/osrelease": "6.8.0-40-generic\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04\n",
        "proc/modules": "nvidia_uvm 1 0 - Live 0x0\nnvidia 14299136 1 nvidia_uvm, Live 0x0\n",
    })  # fmt: skip
    state = collect(tmp_path).gpudirect.value
    assert state is not None
    assert (state.num_gpus, state.module_flavour, state.peermem, state.kernel) == (1, "open", False, "6.8.0-40-generic")
    put(tmp_path, {"proc/modules": "nvidia_peermem 16384 0 - Live 0x0\n"})
    state = collect(tmp_path).gpudirect.value
    assert state is not None
    assert state.peermem


def test_empty_machine(tmp_path: Path) -> None:
    facts = collect(tmp_path)
    assert facts.interfaces.missing is not None
    assert facts.interfaces.missing.kind is MissingKind.ERROR
    assert facts.default_routes.missing is not None
    assert facts.rdma.missing is not None
    assert facts.rdma.missing.kind is MissingKind.ABSENT
    assert facts.gpudirect.missing is not None
    assert facts.gpudirect.missing.kind is MissingKind.ABSENT


def test_garbage(tmp_path: Path) -> None:
    interface(tmp_path, "eth0", "pci0000:00/zz", mtu="x" * 100, flags="", ifindex="9" * 60, type="\x00", speed="-1\n")
    port(tmp_path, "mlx5_0", 1, rate="fast", state="", lid="0xzz", sm_lid="9" * 99, phys_state=":::")
    put(
        tmp_path,
        {"proc/net/route": "\x00\xff" * 50, "proc/net/if_inet6": "zz " * 6, "etc/hosts": "\x00", "proc/modules": ""},
    )
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/abc").mkdir()
    (tmp_path / "sys/class/infiniband/mlx5_0/ports/99999").mkdir()
    facts = collect(tmp_path)
    assert (facts.interfaces.value or ())[0].mtu == 0
    first = (facts.rdma.value or ())[0].ports[0]
    assert (first.rate_gbps, first.lid, first.sm_lid) == (0.0, 0, 0)
    assert facts.default_routes == known(())


def test_thousands_of_interfaces_and_devices_are_cut(tmp_path: Path) -> None:
    for number in range(400):
        (tmp_path / f"sys/class/net/veth{number}").mkdir(parents=True)
        (tmp_path / f"sys/class/infiniband/rxe{number}").mkdir(parents=True)
    facts = collect(tmp_path)
    assert len(facts.interfaces.value or ()) == 256
    assert len(facts.rdma.value or ()) == 64


def test_acs_of_bridges() -> None:
    listing = "16:01.0 PCI bridge: x\n\tACSCap:\tSrcValid+\n\tACSCtl:\tSrcValid+ TransBlk-\n\n"
    listing += "17:00.0 y\n\tACSCtl:\tSrcValid-\n"
    assert parse_acs(listing) == ("16:01.0",)
    assert parse_acs("\tACSCtl: SrcValid+") == ()


def test_acs_is_looked_at_with_deep_only_and_a_hung_lspci_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert collect(tmp_path).acs_bridges.missing is not None
    tool = tmp_path / "lspci"
    tool.write_text("#!/bin/sh\necho 1\nexec /bin/sleep 60\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    original = ProbeContext.run
    monkeypatch.setattr(
        ProbeContext, "run", lambda self, argv, timeout_s=5.0, stdin=None: original(self, argv, 0.3, stdin)
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    facts = network.collect(ProbeContext(tmp_path, environ={"PATH": str(tmp_path)}, deep=True))
    assert facts.acs_bridges.missing is not None
    assert facts.acs_bridges.missing.kind is MissingKind.TIMEOUT


def test_lspci_that_fails_or_says_nothing_is_not_a_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    tool = tmp_path / "lspci"
    for script in ("echo ACSCtl; exit 1", "echo 16:01.0 bridge"):
        tool.write_text(f"#!/bin/sh\n{script}\n")
        tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
        facts = network.collect(ProbeContext(tmp_path, environ={"PATH": str(tmp_path)}, deep=True))
        assert facts.acs_bridges.missing is not None
        assert facts.acs_bridges.missing.kind is MissingKind.ERROR


def test_this_machine_in_a_blink() -> None:
    facts = network.collect(ProbeContext())
    assert any(item.kind == "loopback" and item.ipv4 == "127.0.0.1" for item in facts.interfaces.value or ())
