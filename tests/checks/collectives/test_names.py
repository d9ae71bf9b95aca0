"""Names and values of variables."""

from __future__ import annotations

import pytest

from rlcheck.checks.collectives.settings import as_number, is_number, settings, table
from rlcheck.facts.base import known
from tests.checks.collectives.cases import CASES, conf, linkage, ncl, python, with_python
from tests.checks.network.judging import judge


@pytest.mark.parametrize(
    ("check_id", "status", "text"),
    [
        ("NCL005", "warn", "NCCL_SOCKET_IFNAMES (did you mean NCCL_SOCKET_IFNAME?)"),
        ("NCL006", "warn", "NCCL_IB_CUDA_SUPPORT is not read since NCCL 2.4, use NCCL_NET_GDR_LEVEL"),
        ("NCL007", "fail", "NCCL_ALGO=Rings (environment): unknown: rings"),
        ("NCL008", "info", "NCCL 2.28.9 does not read NCCL_CHECK_MODE (since 2.29)"),
        ("NCL009", "warn", "NCCL_TIMEOUT=3600"),
        ("NCL010", "info", "RCCL_MSCCL_ENABLE"),
    ],
)
def test_fires_and_quiet(check_id: str, status: str, text: str) -> None:
    fires, quiet = CASES[check_id]
    assert judge(check_id, fires).status == status
    assert text in judge(check_id, fires).message
    assert judge(check_id, quiet).status in ("pass", "skip")


def test_every_wrong_value_and_every_pair_is_named_in_the_fix() -> None:
    titles = [fix.title for fix in judge("NCL007", ncl({"NCCL_ALGO": "Rings", "NCCL_P2P_DISABLE": "x y"})).fixes]
    assert titles[0].startswith("Correct what is set: NCCL_ALGO: unknown: rings")
    assert "; NCCL_P2P_DISABLE: not a number" in titles[0]
    one, two = {"NCCL_SOCKET_NTHREADS": "128"}, {"NCCL_IB_DISABLE": "1", "NCCL_NET": "IB"}
    assert [fix.command for fix in judge("NCL026", ncl(one)).fixes] == ["unset NCCL_SOCKET_NTHREADS"]
    assert "one of the two" not in judge("NCL026", ncl(one)).fixes[0].title
    assert [fix.command for fix in judge("NCL026", ncl(one | two)).fixes] == [
        "unset NCCL_IB_DISABLE NCCL_SOCKET_NTHREADS"
    ]


@pytest.mark.parametrize("check_id", ["NCL005", "NCL006", "NCL007", "NCL009"])
def test_a_machine_without_settings_passes(check_id: str) -> None:
    assert judge(check_id, ncl()).status == "pass"


@pytest.mark.parametrize(
    ("name", "status"),
    [
        ("NCCL_SOCKT_IFNAME", "warn"),
        ("NCCL_P2P_DISABLED", "warn"),
        ("TORCH_NCCL_ASYNC_ERROR_HANDLNG", "warn"),
        ("GLOO_SOCKET_IFACE", "warn"),
        ("NCCL_MY_COMPANY_PLUGIN_MODE", "info"),
        ("NCCL_FASTRAK_IFNAME", "pass"),
        ("NCCL_VERSION", "pass"),
        ("NCCL_HOME", "pass"),
        ("NCCL_", "info"),
    ],
)
def test_spelling(name: str, status: str) -> None:
    assert judge("NCL005", ncl({name: "1"})).status == status


@pytest.mark.parametrize(
    ("name", "value", "status"),
    [
        ("NCCL_P2P_DISABLE", "true", "warn"),
        ("NCCL_P2P_DISABLE", "1", "pass"),
        ("NCCL_P2P_DISABLE", "2", "warn"),
        ("NCCL_IB_TIMEOUT", "22", "pass"),
        ("NCCL_IB_TIMEOUT", "32", "warn"),
        ("NCCL_IB_TIMEOUT", "22s", "warn"),
        ("NCCL_IB_TIMEOUT", "0x16", "pass"),
        ("NCCL_IB_GID_INDEX", "-1", "pass"),
        ("NCCL_BUFFSIZE", "0", "warn"),
        ("NCCL_DEBUG", "verbose", "warn"),
        ("NCCL_DEBUG", "info", "pass"),
        ("NCCL_DEBUG_SUBSYS", "INIT,NET", "pass"),
        ("NCCL_DEBUG_SUBSYS", "^ALL,NETS", "warn"),
        ("NCCL_P2P_LEVEL", "NVL", "pass"),
        ("NCCL_P2P_LEVEL", "5", "pass"),
        ("NCCL_P2P_LEVEL", "nvlink", "warn"),
        ("NCCL_ALGO", "^nvls,nvlstree", "pass"),
        ("NCCL_ALGO", "allreduce:tree;broadcast:ring", "pass"),
        ("NCCL_PROTO", "simple,LL", "pass"),
        ("NCCL_PROTO", "LL256", "fail"),
        ("NCCL_NET", '"IB"', "warn"),
        ("NCCL_SOCKET_FAMILY", "AF_INET", "pass"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", "pass"),
        ("TORCH_NCCL_ENABLE_TIMING", "yes", "pass"),
        ("TORCH_NCCL_ENABLE_TIMING", "maybe", "warn"),
        ("NCCL_CUMEM_ENABLE", "", "pass"),
        ("NCCL_IB_TC", "9" * 5000, "warn"),
        ("NCCL_IB_TC", "\x00\x1b", "warn"),
    ],
)
def test_values(name: str, value: str, status: str) -> None:
    assert judge("NCL007", ncl({name: value})).status == status


def test_unknown_algorithm_stops_only_newer_nccl() -> None:
    old = ncl({"NCCL_ALGO": "rings"}, torch=known(linkage(loaded_version="2.21.5")))
    assert judge("NCL007", old).status == "warn"


@pytest.mark.parametrize(
    ("text", "number", "whole"),
    [("12", 12, True), ("0x1F", 31, True), ("-1", -1, True), ("true", 0, False), ("3abc", 3, False), ("", 0, False),
     ("0x", 0, False), ("  7 ", 7, True), ("²", 0, False)],
)  # fmt: skip
def test_numbers_as_strtoll_reads_them(text: str, number: int, whole: bool) -> None:
    assert as_number(text) == number
    assert is_number(text) is whole


def test_torchs_old_names_are_told_not_called_dead() -> None:
    """Torch 2.13 still reads them: what guides say of their removal is wrong."""
    finding = judge("NCL006", ncl({"NCCL_BLOCKING_WAIT": "1", "NCCL_ASYNC_ERROR_HANDLING": "1"}))
    assert finding.status == "info"
    assert "torch's old name, use TORCH_NCCL_BLOCKING_WAIT" in finding.message


def test_environment_wins_over_files_and_the_first_file_over_the_second() -> None:
    files = (
        conf(("NCCL_DEBUG", "INFO"), ("NCCL_NET", "IB"), origin="home", path="/home/a/.nccl.conf"),
        conf(("NCCL_NET", "Socket"), ("NCCL_ALGO", "ring")),
    )
    found = settings(ncl({"NCCL_DEBUG": "WARN"}, conf_files=files))
    assert {name: setting.value for name, setting in found.items()} == {
        "NCCL_DEBUG": "WARN", "NCCL_NET": "IB", "NCCL_ALGO": "ring",
    }  # fmt: skip
    assert found["NCCL_ALGO"].where == "/etc/nccl.conf:2"


def test_table_is_sound() -> None:
    known_sources = {"nccl-env", "nccl-binary", "rccl-env", "torch-pg", "torch-binary", "nvidia-image", "general"}
    variables = table().variables
    assert len(variables) > 350
    for name, variable in variables.items():
        assert variable.source in known_sources, name
        assert variable.kind in ("", "int", "bool", "enum", "list", "level", "algo", "path", "str"), name
        assert variable.kind not in ("enum", "level", "algo") or variable.values, name
        assert not variable.replacement.startswith("NCCL_") or variable.replacement in variables, name
        for release in (variable.since, variable.deprecated, variable.removed):
            assert release == "" or release.split(".")[0] == "2", name


def test_rccl_reads_its_own_files_only() -> None:
    file = conf(("NCCL_DEBUG", "INFO"))
    import msgspec

    facts = ncl(conf_files=(file,))
    assert "NCCL_DEBUG" in settings(facts)
    assert "NCCL_DEBUG" not in settings(msgspec.structs.replace(facts, python=python("torch", hip="7.2")))
    assert judge("NCL010", with_python(python("torch"))).status == "pass"


def test_replacement_belongs_to_the_removed_name() -> None:
    finding = judge("NCL006", ncl({"NCCL_ASYNC_ERROR_HANDLING": "1", "NCCL_TREE_THRESHOLD": "0"}))
    assert finding.fixes[0].title == "Use NCCL_ALGO in place of NCCL_TREE_THRESHOLD, if it is still wanted"
