"""CUDA_VISIBLE_DEVICES in all its forms."""

from __future__ import annotations

import pytest

from tests.checks.gpu.cases import devices, env, h200
from tests.checks.gpu.judging import judge


@pytest.mark.parametrize(
    ("value", "status", "detail"),
    [
        ("0,1,2,3,4,5,6,7", "pass", ""),
        (" 3 , 4 ", "pass", ""),
        ("0,2,-1,99", "pass", ""),
        ("8", "fail", "8: there is no such index (0 to 7)"),
        ("0,0", "fail", "0: listed twice"),
        ("0-3", "fail", "'0-3': neither an index nor a UUID"),
        ("all", "fail", "'all': neither"),
        ("0,,1", "fail", "'': neither"),
        ("GPU-00000003", "pass", ""),
        ("GPU-00000003-aaaa-bbbb-cccc-000000000000", "pass", ""),
        ("GPU-0000000", "pass", ""),
        ("GPU-deadbeef", "fail", "no GPU has this UUID"),
        ("GPU-<redacted>", "pass", ""),
        ("99999999999999999999999", "fail", "there is no such index"),
        ("", "skip", ""),
        ("-1", "skip", ""),
        ("NoDevFiles", "skip", ""),
    ],
)
def test_entries(value: str, status: str, detail: str) -> None:
    finding = judge("GPU011", env({"CUDA_VISIBLE_DEVICES": value}))
    assert finding.status == status, finding.message
    assert detail in " ".join(finding.details)


@pytest.mark.parametrize(("value", "status"), [("", "warn"), ("-1", "warn"), ("-1,0", "warn"), ("NoDevFiles", "warn"),
                                               ("0", "pass")])  # fmt: skip
def test_hidden(value: str, status: str) -> None:
    assert judge("GPU012", env({"CUDA_VISIBLE_DEVICES": value})).status == status


@pytest.mark.parametrize(
    ("entry", "status"), [("MIG-00000001", "pass"), ("MIG-0000000a-1111-2222-3333-444444444444", "fail")]
)
def test_mig_slices(entry: str, status: str) -> None:
    sliced = h200(mig_enabled=True, mig_uuids=("MIG-00000001",))
    assert judge("GPU011", env({"CUDA_VISIBLE_DEVICES": entry}, sliced)).status == status


def test_device_order_of_equal_gpus_does_not_matter() -> None:
    assert judge("GPU013", env({"SLURM_JOB_ID": "1"}, *devices())).status == "pass"


@pytest.mark.parametrize("text", ["0,1,", "0, 1 ,"])
def test_comma_at_the_end_costs_nothing(text: str) -> None:
    assert judge("GPU011", env({"CUDA_VISIBLE_DEVICES": text})).status == "pass"
