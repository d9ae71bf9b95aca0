"""Settings in files, contradictions, and settings that name plug-ins, files and devices."""

from __future__ import annotations

import pytest

from rlcheck.facts.base import MissingKind, known, missing
from rlcheck.facts.nccl import ConfFile, NamedFile
from tests.checks.collectives.cases import CASES, IB, ROCE, conf, ncl
from tests.checks.network.cases import hca, net
from tests.checks.network.judging import judge


@pytest.mark.parametrize(
    ("check_id", "status", "text"),
    [
        ("NCL023", "info", "1 settings in /etc/nccl.conf: NCCL_TOPO_FILE=/opt/topo.xml"),
        ("NCL024", "warn", "NCCL_IB_HCA==mlx5_0 (environment) but NCCL_IB_HCA=mlx5 (/etc/nccl.conf:1)"),
        ("NCL025", "warn", "/etc/nccl.conf:1 sets 'export NCCL_DEBUG', which nobody reads"),
        ("NCL026", "warn", "NCCL_IB_DISABLE=1 and NCCL_NET=IB: NCCL finds no network and stops"),
        ("NCL027", "info", "1 from NVIDIA's debugging section: NCCL_NTHREADS"),
        ("NCL028", "fail", "NCCL_NET=AWS Libfabric (environment); found here: none"),
        ("NCL029", "warn", "NCCL_TOPO_FILE=/opt/microsoft/ndv5-topo.xml"),
        ("NCL030", "warn", "not here: mlx5_99"),
        ("NCL031", "info", "NCCL_IB_TC=106 (environment) is DSCP 26, ECN bits 2"),
        ("NCL032", "fail", "none, with NCCL_NET=gIB"),
    ],
)
def test_fires_and_quiet(check_id: str, status: str, text: str) -> None:
    fires, quiet = CASES[check_id]
    assert judge(check_id, fires).status == status
    assert text in judge(check_id, fires).message
    assert judge(check_id, quiet).status in ("pass", "skip")


def test_file_that_is_named_but_not_there() -> None:
    gone = ConfFile(path="~/my.conf", origin="NCCL_CONF_FILE", settings=missing(MissingKind.ABSENT, "no such file"))
    finding = judge("NCL025", ncl(conf_files=(gone,)))
    assert finding.status == "warn"
    assert "`~` is not expanded" in finding.message


def test_quotes_and_lines_without_equals() -> None:
    file = ConfFile(path="/etc/nccl.conf", origin="system", settings=conf(("NCCL_NET", '"IB"')).settings, skipped=(7,))
    finding = judge("NCL025", ncl(conf_files=(file,)))
    assert "/etc/nccl.conf:7 has no `=`" in finding.message
    assert "/etc/nccl.conf:1 keeps its quotes" in finding.message


def test_two_files_that_disagree() -> None:
    files = (conf(("NCCL_NET", "IB"), origin="home", path="/root/.nccl.conf"), conf(("NCCL_NET", "Socket")))
    assert judge("NCL024", ncl(conf_files=files)).status == "warn"


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_CUMEM_ENABLE": "0", "NCCL_MNNVL_ENABLE": "1"},
        {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "nvls,ring"},
        {"NCCL_SOCKET_NTHREADS": "16", "NCCL_NSOCKS_PERTHREAD": "8"},
        {"NCCL_MAX_NCHANNELS": "8", "NCCL_MAX_CTAS": "16"},
        {"NCCL_IB_PKEY": "1", "NCCL_IB_PKEY_VALUE": "0x8111"},
        {"NCCL_IB_GID_INDEX": "3", "NCCL_IB_ADDR_RANGE": "10.0.0.0/8"},
        {"NCCL_MULTI_RANK_GPU_ENABLE": "1", "NCCL_NVLS_ENABLE": "1"},
    ],
)
def test_contradictions(env: dict[str, str]) -> None:
    assert judge("NCL026", ncl(env)).status == "warn"


@pytest.mark.parametrize(
    "env",
    [
        {"NCCL_NVLS_ENABLE": "0", "NCCL_ALGO": "^nvls"},
        {"NCCL_SOCKET_NTHREADS": "4", "NCCL_NSOCKS_PERTHREAD": "8"},
        {"NCCL_MAX_NCHANNELS": "8", "NCCL_MAX_CTAS": "8"},
        {"NCCL_IB_GID_INDEX": "-1", "NCCL_IB_ADDR_RANGE": "10.0.0.0/8"},
        {"NCCL_IB_DISABLE": "0", "NCCL_NET": "IB"},
    ],
)
def test_pairs_that_go_together(env: dict[str, str]) -> None:
    assert judge("NCL026", ncl(env)).status == "pass"


@pytest.mark.parametrize(
    ("env", "status"),
    [
        ({"NCCL_NET_PLUGIN": "none"}, "pass"),
        ({"NCCL_NET_PLUGIN": ""}, "pass"),
        ({"NCCL_NET_PLUGIN": "foo"}, "warn"),
        ({"NCCL_TUNER_PLUGIN": "/opt/lib/tuner.so"}, "pass"),
        ({"NCCL_NET": "Socket"}, "pass"),
    ],
)
def test_plugins(env: dict[str, str], status: str) -> None:
    assert judge("NCL028", ncl(env)).status == status


def test_missing_engine_library_stops_the_engine() -> None:
    gone = NamedFile(variable="VLLM_NCCL_SO_PATH", path="/x/libnccl.so", exists=known(False))
    assert judge("NCL029", ncl(named_files=(gone,))).status == "fail"
    late = NamedFile(variable="NCCL_TOPO_FILE", path="/nfs/x", exists=missing(MissingKind.TIMEOUT, "late"))
    assert judge("NCL029", ncl(named_files=(late,))).status == "info"
    fine = NamedFile(variable="NCCL_TOPO_FILE", path="/x", exists=known(True), readable=True)
    assert judge("NCL029", ncl(named_files=(fine,))).status == "pass"


@pytest.mark.parametrize(
    ("value", "status"),
    [
        ("mlx5", "pass"),
        ("=mlx5_0:1,mlx5_1::0:1", "pass"),
        ("^=mlx5_7", "pass"),
        ("^mlx5", "warn"),
        ("bnxt", "warn"),
        ("=", "warn"),
        ("", "skip"),
    ],
)
def test_hca_lists(value: str, status: str) -> None:
    assert judge("NCL030", ncl({"NCCL_IB_HCA": value}, IB)).status == status


def test_prefix_that_takes_more_than_it_seems() -> None:
    from tests.checks.network.cases import hca, net

    many = net(*(hca(f"mlx5_{number}") for number in range(12)))
    finding = judge("NCL030", ncl({"NCCL_IB_HCA": "mlx5_1"}, many))
    assert finding.status == "warn"
    assert "also selects longer names" in finding.message
    assert judge("NCL030", ncl({"NCCL_IB_HCA": "=mlx5_1"}, many)).status == "pass"


def test_hca_list_without_rdma_is_told() -> None:
    assert judge("NCL030", ncl({"NCCL_IB_HCA": "=mlx5_0"})).status == "info"


def test_traffic_class_is_a_question_of_roce() -> None:
    assert judge("NCL031", ncl({"NCCL_IB_TC": "106"}, IB)).status == "skip"
    assert judge("NCL031", ncl({"NCCL_IB_TC": "-1"}, ROCE)).status == "pass"


def test_network_from_a_file_counts_too() -> None:
    """Images of cluster machines carry NCCL_NET=gIB in /etc/nccl.conf to single machines."""
    finding = judge("NCL032", ncl(conf_files=(conf(("NCCL_NET", "gIB")),)))
    assert finding.status == "fail"
    assert "/etc/nccl.conf:1" in finding.message


def test_idle_tuning_is_only_told() -> None:
    assert judge("NCL026", ncl({"NCCL_NET": "Socket", "NCCL_IB_HCA": "mlx5"})).status == "info"


def test_a_full_list_of_prefixes_takes_nothing_unexpected() -> None:
    cards = net(*(hca(f"mlx5_{i}") for i in (0, 1, 10, 11)))
    assert judge("NCL030", ncl({"NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_10,mlx5_11"}, cards)).status == "pass"
    assert judge("NCL030", ncl({"NCCL_IB_HCA": "mlx5_0,mlx5_1,mlx5_10"}, cards)).status == "warn"
