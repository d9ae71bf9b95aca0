"""Which NCCL torch loads (field note F54: different libraries on nodes)."""

from __future__ import annotations

import pytest

from rlcheck.facts.base import absent, known
from tests.checks.collectives.cases import BUNDLED, CASES, FOREIGN, SYSTEM, linkage, ncl, python, with_python
from tests.checks.network.judging import judge


@pytest.mark.parametrize(
    ("check_id", "status", "text"),
    [
        ("NCL001", "warn", "expected NCCL 2.28.9, which torch was installed with, found 2.21.5 from /opt/nccl/lib"),
        ("NCL002", "warn", "2.21.5 in /opt/nccl/lib/libnccl.so.2"),
        ("NCL003", "warn", "nvidia-nccl-cu12 2.28.9, nvidia-nccl-cu13 2.28.9"),
        ("NCL004", "warn", "2.29.2, which hangs"),
    ],
)
def test_fires_and_quiet(check_id: str, status: str, text: str) -> None:
    fires, quiet = CASES[check_id]
    assert judge(check_id, fires).status == status
    assert text in judge(check_id, fires).message
    assert judge(check_id, quiet).status in ("pass", "skip")


def test_a_preloaded_copy_of_the_same_version_is_fine() -> None:
    same = linkage(loaded="/opt/nccl/lib/libnccl.so.2", loaded_by="LD_PRELOAD", loaded_version="2.28.9")
    assert judge("NCL001", ncl(torch=known(same))).status == "pass"


def test_conda_torch_without_a_copy_of_its_own_is_told() -> None:
    foreign = linkage(search="runpath", loaded=FOREIGN.path, loaded_by="LD_LIBRARY_PATH", loaded_version="2.21.5")
    assert judge("NCL001", ncl(libraries=(FOREIGN,), torch=known(foreign))).status == "info"


def test_nothing_to_load_and_static_linkage() -> None:
    assert judge("NCL001", ncl(torch=known(linkage(loaded="", loaded_by="", loaded_version="")))).status == "warn"
    assert judge("NCL001", ncl(torch=known(linkage(needs_nccl=False)))).status == "pass"
    assert judge("NCL001", ncl(torch=absent("no torch"))).status == "skip"


def test_older_copy_in_the_system_is_usual_in_images() -> None:
    """The CUDA images carry libnccl2 2.28.3 beside torch's 2.28.9."""
    finding = judge("NCL002", ncl(libraries=(BUNDLED, SYSTEM)))
    assert finding.status == "pass"
    assert "2.28.3 (system)" in finding.message
    assert "agree" not in finding.title, "several versions are installed"


@pytest.mark.parametrize(
    ("version", "status"),
    [
        ("2.20.5", "warn"),
        ("2.21.5", "info"),
        ("2.26.2", "pass"),
        ("2.28.3", "pass"),
        ("2.29.2", "warn"),
        ("2.29.7", "pass"),
        ("2.32.3", "pass"),
    ],
)
def test_known_bad_versions(version: str, status: str) -> None:
    assert judge("NCL004", ncl(torch=known(linkage(loaded_version=version)))).status == status


def test_static_defect_counts_only_when_static() -> None:
    assert judge("NCL004", ncl(torch=known(linkage(loaded_version="2.28.3", needs_nccl=False)))).status == "info"


def test_unreadable_version_is_skipped() -> None:
    assert judge("NCL004", with_python(python("torch"))).status == "unknown"
    facts = ncl(torch=known(linkage(loaded_version="")))
    assert judge("NCL004", facts).status == "pass"  # the version that the wheel's name tells


def test_repair_of_two_packages_can_be_typed() -> None:
    finding = judge("NCL003", with_python(python("nvidia-nccl-cu12", "nvidia-nccl-cu13")))
    assert finding.fixes[0].command == (
        "python -m pip uninstall -y nvidia-nccl-cu12 nvidia-nccl-cu13"
        " && python -m pip install --no-deps nvidia-nccl-cu13==2.28.9"
    )
