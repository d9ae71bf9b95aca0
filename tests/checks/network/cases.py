"""Facts on which each NET check fires, and facts on which it stays quiet."""

from __future__ import annotations

from typing import Any

from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.nccl import NcclFacts, NcclPlugin
from rlcheck.facts.network import DefaultRoute, Gid, GpuDirect, Interface, NetworkFacts, RdmaDevice, RdmaPort
from rlcheck.facts.platform import PlatformFacts

LO = Interface(name="lo", index=1, up=True, operstate="unknown", kind="loopback", mtu=65536, ipv4="127.0.0.1")
ETH0 = Interface(
    name="eth0", index=3, up=True, operstate="up", kind="ethernet", mtu=1500, ipv4="10.0.0.5", pci="0000:00:05.0",
    driver="virtio_net",
)  # fmt: skip
DOCKER0 = Interface(name="br-5f2", index=2, up=True, operstate="up", kind="bridge", mtu=1500, ipv4="172.18.0.1")
V4_GID = Gid(index=3, gid="0000:0000:0000:0000:0000:ffff:0a00:0005", type="RoCE v2", netdev="eth0")
LOCAL_GID = Gid(index=0, gid="fe80:0000:0000:0000:0000:00ff:fe00:0001", type="IB/RoCE v1", netdev="eth0")
SEVERAL = {"SLURM_NNODES": "4"}


def card(name: str, index: int, **changes: Any) -> Interface:
    values: dict[str, Any] = {
        "name": name, "index": index, "up": True, "operstate": "up", "kind": "ethernet", "mtu": 9000,
        "speed_mbps": 100_000, "ipv4": f"10.0.{index}.5", "pci": f"0000:0{index}:00.0", "driver": "mlx5_core",
    }  # fmt: skip
    return Interface(**{**values, **changes})


def port(**changes: Any) -> RdmaPort:
    values: dict[str, Any] = {
        "number": 1, "state": "ACTIVE", "phys_state": "LinkUp", "link_layer": "InfiniBand", "rate_gbps": 400.0,
        "width": "4X NDR", "lid": 17, "sm_lid": 1, "gids_read_to": 256,
    }  # fmt: skip
    return RdmaPort(**{**values, **changes})


def roce(*gids: Gid, **changes: Any) -> RdmaPort:
    return port(link_layer="Ethernet", lid=0, sm_lid=0, gids=gids, **changes)


def hca(name: str, *ports: RdmaPort, **changes: Any) -> RdmaDevice:
    values: dict[str, Any] = {
        "name": name, "ports": ports or (port(),), "driver": "mlx5_core", "model": "MT4129 MT_0000000838",
        "uverbs": f"uverbs{name[-1]}", "uverbs_usable": True,
    }  # fmt: skip
    return RdmaDevice(**{**values, **changes})


def net(*devices: RdmaDevice, env: dict[str, str] | None = None, **sections: Any) -> Facts:
    """Facts with these RDMA devices and, in `sections`, other fields of the network or whole sections."""
    inside = {key: sections.pop(key) for key in tuple(sections) if key in NetworkFacts.__struct_fields__}
    values: dict[str, Any] = {
        "hostname": "node1",
        "interfaces": known((LO, ETH0)),
        "default_routes": known((DefaultRoute(interface="eth0", gateway="10.0.0.1"),)),
        "gpudirect": absent("no GPU"),
        "rdma": known(devices) if devices else absent("no RDMA device"),
    }
    wrapped = {key: value if key in ("hostname", "hosts_addresses") else known(value) for key, value in inside.items()}
    values.update(wrapped)
    return Facts(network=known(NetworkFacts(**values)), environ=known(env or {}), **sections)


def gpus(**changes: Any) -> GpuDirect:
    return GpuDirect(**{"num_gpus": 8, "module_flavour": "open", "kernel": "6.8.0-40-generic", **changes})


def on(cloud: str, **changes: Any) -> Any:
    return known(PlatformFacts(cloud=cloud, machine="x86_64", **changes))


def plugins(*found: NcclPlugin) -> Any:
    return known(NcclFacts(plugins=found))


OFI = NcclPlugin(kind="net", suffix="", path="/usr/lib64/libnccl-net.so")
EIGHT_IB = tuple(hca(f"mlx5_{number}") for number in range(8))
EFA = hca("rdmap0", port(link_layer="Unspecified", rate_gbps=100.0), driver="efa")
GVE = tuple(card(f"eth{number}", number, driver="gve") for number in range(1, 10))
DOWN = port(state="DOWN", phys_state="Polling", lid=0, sm_lid=0)

CASES: dict[str, tuple[Facts, Facts]] = {
    "NET001": (net(hca("mlx5_0", DOWN)), net(*EIGHT_IB)),
    "NET002": (
        net(hca("mlx5_0", port(state="INIT", lid=0, sm_lid=0)), hca("mlx5_1")),
        net(hca("mlx5_0", DOWN), hca("mlx5_1")),
    ),
    "NET003": (net(hca("mlx5_0", DOWN), hca("mlx5_1")), net(hca("mlx5_0", port(), DOWN))),
    "NET004": (
        net(hca("mlx5_0", port(rate_gbps=100.0, width="1X NDR")), *EIGHT_IB[1:]),
        net(*EIGHT_IB, hca("mlx5_8", port(rate_gbps=100.0), model="MT4123 storage")),
    ),
    "NET005": (
        net(hca("mlx5_0"), hca("mlx5_1", roce(V4_GID))),
        net(*EIGHT_IB),
    ),
    "NET006": (net(hca("mlx5_0", uverbs_usable=False), hca("mlx5_1")), net(*EIGHT_IB)),
    "NET007": (net(hca("mlx5_0", roce(LOCAL_GID))), net(hca("mlx5_0", roce(LOCAL_GID, V4_GID)))),
    "NET008": (
        net(hca("mlx5_0", roce(LOCAL_GID, V4_GID)), env={"NCCL_IB_GID_INDEX": "5"}),
        net(hca("mlx5_0", roce(LOCAL_GID, V4_GID)), env={"NCCL_IB_GID_INDEX": "3"}),
    ),
    "NET009": (
        net(hca("mlx5_0", roce(V4_GID)), interfaces=(LO, ETH0)),
        net(hca("mlx5_0", roce(V4_GID)), interfaces=(LO, card("eth0", 3))),
    ),
    "NET010": (
        net(hca("mlx5_0"), gpudirect=gpus(module_flavour="proprietary")),
        net(hca("mlx5_0"), gpudirect=gpus()),
    ),
    "NET011": (
        net(acs_bridges=("0000:16:01.0",), platform=on(""), deep=True),
        net(acs_bridges=("0000:16:01.0",), platform=on("", virtualization="kvm"), deep=True),
    ),
    "NET012": (net(env={"NCCL_SOCKET_IFNAME": "=ens5"}), net(env={"NCCL_SOCKET_IFNAME": "^lo,docker"})),
    "NET013": (net(env={"GLOO_SOCKET_IFNAME": "^lo"}), net(env={"GLOO_SOCKET_IFNAME": "eth0"})),
    "NET014": (
        net(default_routes=(DefaultRoute(interface="eth0"), DefaultRoute(interface="wlan0"))),
        net(default_routes=(DefaultRoute(interface="eth0"), DefaultRoute(interface="wlan0", metric=600))),
    ),
    "NET015": (net(default_routes=(), env=SEVERAL), net(default_routes=())),
    "NET016": (net(interfaces=(LO, DOCKER0, ETH0), env=SEVERAL), net(interfaces=(LO, ETH0))),
    "NET017": (net(interfaces=(LO,), env=SEVERAL), net()),
    "NET018": (net(hosts_addresses=("127.0.1.1",), env=SEVERAL), net(hosts_addresses=("127.0.1.1",))),
    "NET019": (net(env={"MASTER_ADDR": "127.0.0.1", **SEVERAL}), net(env={"MASTER_ADDR": "127.0.0.1"})),
    "NET020": (
        net(interfaces=(LO, card("eth1", 2), card("eth2", 3), card("eth3", 4, mtu=1500))),
        net(interfaces=(LO, card("eth1", 2), card("eth2", 3, speed_mbps=25_000, mtu=1500))),
    ),
    "NET021": (
        net(interfaces=(LO, card("eth1", 2, operstate="down"))),
        net(interfaces=(LO, card("eth1", 2, operstate="down", ipv4=""), card("eth2", 3))),
    ),
    "NET022": (net(EFA, nccl=plugins()), net(EFA, nccl=plugins(OFI))),
    "NET023": (
        net(*EIGHT_IB, gpudirect=gpus(), platform=on("azure"), nccl=plugins()),
        net(*EIGHT_IB, gpudirect=gpus(), platform=on("azure"), nccl=plugins(),
            env={"NCCL_TOPO_FILE": "/opt/microsoft/ndv5-topo.xml"}),
    ),
    "NET024": (
        net(interfaces=(LO, *GVE), gpudirect=gpus(), platform=on("gcp"), nccl=plugins()),
        net(interfaces=(LO, *GVE), gpudirect=gpus(), platform=on("gcp"), nccl=plugins(OFI)),
    ),
}  # fmt: skip
