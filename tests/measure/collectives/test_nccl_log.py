"""NCCL's own words, in the formats of its source from 2.18 to 2.32; the lines are made up."""

from __future__ import annotations

from rlcheck.measure.collectives.nccl_log import parse

HEAD = "node1:4242:4300 [{}] NCCL INFO "


def log(*lines: str, device: int = 0) -> str:
    return "\n".join(HEAD.format(device) + line for line in lines) + "\n"


RAIL = log(
    "Bootstrap: Using eth0:10.0.0.1<0>",
    "NCCL version 2.28.9+cuda13.0",
    "NET/Plugin: Could not find: libnccl-net.so",
    "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>",
    "Using network IB",
    "NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)",
    "Channel 00/16 : 0 1 2 3",
    "Trees [0] 1/-1/-1->0->2 [1] 1/-1/-1->0->2",
    "Channel 00/0 : 3[1] -> 0[0] [receive] via NET/IB/0/GDRDMA",
    "Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read",
    "Channel 01/0 : 0[0] -> 2[0] [send] via NET/IB/1(1)/GDRDMA/Shared",
    "Connected all rings, use ring PXN 0 GDR 1",
    "16 coll channels, 16 collnet channels, 16 nvls channels, 16 p2p channels, 2 p2p channels per peer",
)


def test_an_infiniband_rank() -> None:
    found = parse({0: RAIL})
    assert found.library == "NCCL 2.28.9+cuda13.0"
    assert found.network == "IB"
    assert found.interface == "eth0"
    assert found.links == {"NET/IB/GDRDMA": 1, "P2P/CUMEM": 2}
    assert found.nics == ("mlx5_0", "mlx5_1")
    assert found.rank_nics == {"0": ("mlx5_0", "mlx5_1")}
    assert (found.rings, found.trees, found.nvls, found.gdr) == (16, 2, True, True)
    assert found.warnings == ()


def test_only_devices_that_channels_use_count() -> None:
    text = RAIL.replace("NET/IB/1(1)", "NET/IB/0")
    assert parse({0: text}).nics == ("mlx5_0",)
    no_channels = "\n".join(line for line in RAIL.splitlines() if " via " not in line)
    assert parse({0: no_channels}).nics == ("mlx5_0", "mlx5_1")


def test_sockets_and_shared_memory_of_an_old_release() -> None:
    text = log(
        "Bootstrap : Using docker0:172.17.0.1<0>",
        "NET/IB : No device found.",
        "NET/Socket : Using [0]docker0:172.17.0.1<0> [1]eth0:10.0.0.1<0>",
        "Using network Socket",
        "Channel 00 : 0[1000] -> 1[2000] via SHM/direct/direct",
        "Channel 00/0 : 1[2000] -> 2[1000] [send] via NET/Socket/1",
        "2 coll channels, 0 nvls channels, 2 p2p channels, 2 p2p channels per peer",
    )
    found = parse({0: text, 1: text})
    assert found.network == "Socket"
    assert found.links == {"NET/Socket": 2, "SHM": 2}
    assert found.nics == ("eth0",)
    assert found.interface == "docker0"
    assert found.rank_interfaces == {"0": "docker0", "1": "docker0"}
    assert (found.nvls, found.gdr, found.rings) == (False, False, 2)


def test_other_ways_of_peer_access() -> None:
    text = log(
        "Channel 00/0 : 0[0] -> 1[1] via P2P/direct pointer/read",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/IPC",
        "Channel 00/0 : 0[0] -> 1[1] via P2P/MNNVL",
    )
    assert parse({0: text}).links == {"P2P/IPC": 1, "P2P/MNNVL": 1, "P2P/direct": 1}


def test_efa_through_its_plugin() -> None:
    text = log(
        "NET/Plugin: Loaded net plugin AWS Libfabric (v8)",
        "NET/OFI Selected provider is efa, fabric is efa (found 32 nics)",
        "Using network AWS Libfabric",
        "Channel 00/0 : 0[0] -> 8[0] [send] via NET/AWS Libfabric/3/GDRDMA",
    )
    found = parse({0: text})
    assert (found.network, found.plugin, found.gdr) == ("AWS Libfabric", "AWS Libfabric", True)
    assert found.links == {"NET/AWS Libfabric/GDRDMA": 1}
    assert found.rank_nics == {"0": ("AWS Libfabric/3",)}


def test_rccl_and_bonded_devices() -> None:
    text = log(
        "RCCL version : 2.22.3-HEAD:9f2e0a1",
        "NET/IB : Using [0]={mlx5_0:1/RoCE+mlx5_1:1/RoCE} [RO]; OOB ens1:10.0.0.1<0>",
        "Using network IB",
        "Channel 00/0 : 0[f3000] -> 1[d3000] via P2P/IPC comm 0x55d0 nRanks 08",
    )
    found = parse({0: text})
    assert found.library == "RCCL 2.22.3-HEAD:9f2e0a1"
    assert found.nics == ("mlx5_0+mlx5_1",)
    assert found.links == {"P2P/IPC": 1}


def test_warnings_are_kept_once_with_their_rank() -> None:
    line = "node1:4242:4310 [0] net_ib.cc:1295 NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with error 12"
    diagnosis = "node1:4242 NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification"
    found = parse({3: f"{line}\n{line}\n{diagnosis}\n"})
    assert found.warnings == (
        "rank 3: NET/IB : Got completion from peer 10.0.0.2<4> with error 12",
        "rank 3: p2p: only 52/56 GPU-to-GPU peer accesses passed verification",
    )


def test_time_stamps_and_garbage_are_no_trouble() -> None:
    text = (
        "[2026-05-05 06:16:47] "
        + RAIL.splitlines()[1]
        + "\n\x00\xff binary\nChannel via nowhere\nUsing\n"
        + "x" * 10000
    )
    assert parse({0: text}).library == "NCCL 2.28.9+cuda13.0"
    assert parse({}).network == ""
    many = "\n".join(f"a:1:2 [0] NCCL WARN number {i} " + "y" * 500 for i in range(100))
    found = parse({0: many})
    assert len(found.warnings) == 20
    assert all(len(text) <= 200 for text in found.warnings)
