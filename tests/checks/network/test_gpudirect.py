"""GPUDirect RDMA and ACS."""

from __future__ import annotations

import pytest

from rlcheck.facts.base import MissingKind, known, missing
from rlcheck.facts.gpu import NvidiaDevice, NvidiaFacts
from tests.checks.network.cases import CASES, EIGHT_IB, gpus, hca, net, on
from tests.checks.network.judging import judge


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"peermem": True, "module_flavour": "proprietary"}, "pass"),
        ({"module_flavour": "open", "kernel": "5.12.0"}, "pass"),
        ({"module_flavour": "open", "kernel": "5.11.9"}, "warn"),
        ({"module_flavour": "open", "kernel": "10.0-rc1"}, "pass"),
        ({"module_flavour": "proprietary"}, "warn"),
        ({"module_flavour": ""}, "info"),
        ({"kernel": "custom"}, "info"),
    ],
)
def test_either_way_is_enough(changes: dict[str, object], status: str) -> None:
    finding = judge("NET010", net(*EIGHT_IB, gpudirect=gpus(**changes)))
    assert finding.status == status


def test_no_gpu_or_no_rdma_is_no_question() -> None:
    assert judge("NET010", net(*EIGHT_IB)).status == "skip"
    assert judge("NET010", net(gpudirect=gpus())).status == "skip"


def test_acs_is_judged_on_bare_metal_and_deep_only() -> None:
    fires, quiet = CASES["NET011"]
    assert judge("NET011", fires).status == "warn"
    assert "SrcValid+ on 1: 0000:16:01.0" in judge("NET011", fires).message
    assert judge("NET011", quiet).status == "skip"
    assert judge("NET011", net(acs_bridges=("0000:16:01.0",), platform=on(""))).status == "skip"
    assert judge("NET011", net(acs_bridges=(), platform=on(""), deep=True)).status == "pass"


def test_acs_that_could_not_be_read_is_unknown() -> None:
    import msgspec

    facts = CASES["NET011"][0]
    assert facts.network.value is not None
    hidden = msgspec.structs.replace(facts.network.value, acs_bridges=missing(MissingKind.PERMISSION, "root only"))
    facts = msgspec.structs.replace(facts, network=msgspec.structs.replace(facts.network, value=hidden))
    assert judge("NET011", facts).status == "unknown"


def test_geforce_cards_have_no_gpudirect() -> None:
    section = known(NvidiaFacts(devices=known((NvidiaDevice(index=0, name=known("NVIDIA GeForce RTX 4090")),))))
    facts = net(hca("mlx5_0"), gpudirect=gpus(module_flavour="proprietary"), nvidia=section)
    assert judge("NET010", facts).status == "skip"
