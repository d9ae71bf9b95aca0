"""Settings that are slow or dangerous when they stay (field note F54; the H200 host keeps NVLS off on purpose)."""

from __future__ import annotations

import msgspec
import pytest

from rlcheck.facts.base import known
from rlcheck.facts.gpu import NvidiaDevice, NvidiaFacts, NvLinks
from tests.checks.collectives.cases import CASES, IB, ncl, python
from tests.checks.network.cases import LOCAL_GID, hca, net, roce
from tests.checks.network.judging import judge


@pytest.mark.parametrize(
    ("check_id", "status", "text"),
    [
        ("NCL011", "warn", "NCCL_P2P_DISABLE=1"),
        ("NCL012", "warn", "mlx5_7 active), found NCCL_IB_DISABLE=1"),
        ("NCL013", "warn", "NCCL_CUMEM_ENABLE=0"),
        ("NCL014", "info", "NCCL_NVLS_ENABLE=0"),
        ("NCL015", "warn", "NCCL_PROTO=LL128"),
        ("NCL016", "warn", "NCCL_MAX_NCHANNELS=1"),
        ("NCL017", "warn", "NCCL_COMM_ID=10.0.0.1:12345"),
        ("NCL018", "info", "8 RDMA devices"),
    ],
)
def test_fires_and_quiet(check_id: str, status: str, text: str) -> None:
    fires, quiet = CASES[check_id]
    assert judge(check_id, fires).status == status
    assert text in judge(check_id, fires).message
    assert judge(check_id, quiet).status in ("pass", "skip")


def test_the_h200_host_as_it_is() -> None:
    env = {"NCCL_NVLS_ENABLE": "0", "NCCL_VERSION": "2.28.3-1", "LD_LIBRARY_PATH": "/usr/local/nvidia/lib64"}
    found = {f"NCL{number:03}": judge(f"NCL{number:03}", ncl(env)).status for number in range(1, 33)}
    assert {check_id for check_id, status in found.items() if status not in ("pass", "skip")} == {"NCL014"}
    assert found["NCL014"] == "info"


@pytest.mark.parametrize("env", [{"NCCL_SHM_DISABLE": "1"}, {"NCCL_P2P_LEVEL": "LOC"}, {"NCCL_P2P_LEVEL": "0"}])
def test_other_ways_to_switch_direct_paths_off(env: dict[str, str]) -> None:
    assert judge("NCL011", ncl(env)).status == "warn"


def test_a_word_does_not_switch_anything_off() -> None:
    """strtoll reads `true` as 0; the value itself is NCL007's matter."""
    assert judge("NCL011", ncl({"NCCL_P2P_DISABLE": "true"})).status == "pass"


def test_rdma_off_without_rdma_is_told() -> None:
    assert judge("NCL012", ncl({"NCCL_IB_DISABLE": "1"})).status == "info"
    assert judge("NCL012", ncl({"NCCL_NET": "Socket"}, IB)).status == "warn"


@pytest.mark.parametrize(
    ("env", "imex", "status"),
    [
        ({"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "1"}, False, "warn"),
        ({"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "0"}, True, "pass"),
        ({"NCCL_CUMEM_ENABLE": "1"}, True, "pass"),
        ({}, True, "pass"),
    ],
)
def test_cumem(env: dict[str, str], imex: bool, status: str) -> None:
    assert judge("NCL013", ncl(env, imex_channel=imex)).status == status


@pytest.mark.parametrize(
    ("env", "status"),
    [({"NCCL_ALGO": "ring"}, "info"), ({"NCCL_PROTO": "^LL128"}, "info"), ({"NCCL_PROTO": "Simple"}, "info")],
)
def test_pinned_choices_that_are_safe_are_told(env: dict[str, str], status: str) -> None:
    assert judge("NCL015", ncl(env)).status == status


@pytest.mark.parametrize(
    ("env", "text"),
    [
        ({"NCCL_BUFFSIZE": "1024"}, "the default is 4194304"),
        ({"NCCL_BUFFSIZE": "1073741824"}, "the default is 4194304"),
        ({"NCCL_MIN_CTAS": "128"}, "NCCL has 64 at most"),
        ({"NCCL_MIN_NCHANNELS": "32", "NCCL_MAX_CTAS": "16"}, "more than NCCL_MAX_CTAS=16"),
    ],
)
def test_extremes(env: dict[str, str], text: str) -> None:
    finding = judge("NCL016", ncl(env))
    assert finding.status == "warn"
    assert text in finding.message


def test_other_leftovers_are_told() -> None:
    assert judge("NCL017", ncl({"NCCL_LAUNCH_MODE": "GROUP"})).status == "info"


def test_rdma_that_nccl_could_not_use_is_no_loss() -> None:
    cloud = net(hca("mlx5_0", roce(LOCAL_GID)))
    assert judge("NCL012", ncl({"NCCL_IB_DISABLE": "1"}, cloud)).status == "info"


@pytest.mark.parametrize(("name", "links", "status"), [
    ("NVIDIA GeForce RTX 4090", 0, "info"), ("NVIDIA GeForce RTX 3090", 4, "warn"), ("NVIDIA L40S", 0, "warn"),
])  # fmt: skip
def test_peer_access_off_on_cards_that_have_none(name: str, links: int, status: str) -> None:
    gpu = NvidiaDevice(index=0, name=known(name), nvlinks=known(NvLinks(num_active=links)))
    section = known(NvidiaFacts(devices=known((gpu, gpu))))
    facts = msgspec.structs.replace(ncl({"NCCL_P2P_DISABLE": "1"}), nvidia=section)
    assert judge("NCL011", facts).status == status
    both = msgspec.structs.replace(ncl({"NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}), nvidia=section)
    assert judge("NCL011", both).status == "warn"


def test_a_clouds_own_protocol_list_is_only_told() -> None:
    assert judge("NCL015", ncl({"NCCL_PROTO": "Simple,LL128"})).status == "warn"
    google = {"NCCL_PROTO": "Simple,LL128", "NCCL_FASTRAK_NUM_FLOWS": "2"}
    assert judge("NCL015", ncl(google)).status == "info"


def test_rccl_has_more_channels() -> None:
    env = {"NCCL_MIN_NCHANNELS": "112"}
    assert judge("NCL016", ncl(env)).status == "warn"
    rocm = msgspec.structs.replace(ncl(env), python=python("torch", hip="6.3.1"))
    assert judge("NCL016", rocm).status == "pass"


def test_the_fix_removes_what_the_finding_names() -> None:
    assert next(f.command for f in judge("NCL016", ncl({"NCCL_BUFFSIZE": "1024"})).fixes) == "unset NCCL_BUFFSIZE"
    assert next(f.command for f in judge("NCL017", ncl({"NCCL_COMM_ID": "10.0.0.1:5"})).fixes) == "unset NCCL_COMM_ID"
