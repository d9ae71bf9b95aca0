"""A made-up report with everything in it, and ways to spoil it."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import msgspec

from rlcheck.check import Evidence
from rlcheck.finding import FamilyLine, Finding, Fix, Report, Waiver, exit_code, summarize
from rlcheck.report.render import render

FORMATS = ("text", "json", "markdown", "junit", "sarif", "prometheus", "nagios")

SHM = Finding(
    id="SYS001",
    title="/dev/shm is large enough",
    headline="/dev/shm is too small",
    family="SYS",
    status="fail",
    message="expected at least 8 GiB in /dev/shm, found 64 MiB",
    expected="at least 8 GiB in /dev/shm",
    found="64 MiB",
    details=tuple(f"rank {n} puts 1.5 GiB of sample buffers there" for n in range(8)),
    why="NCCL, data loaders and Ray's object store put their buffers into /dev/shm, and stop when it is full.",
    evidence=(Evidence(fact="system.shm.total_bytes", value="67108864", source="statvfs /dev/shm"),),
    node="gpu-01",
    playbook="shm-too-small",
    fixes=(
        Fix(title="Start the container with more shared memory", kind="shell", safety="unsafe",
            command="docker run --shm-size=8g --gpus all --ipc=private registry.example.org/a/very/long/image:26.11",
            destroys="the running container"),
        Fix(title="Make it larger in place", kind="shell", safety="unsafe", needs_root=True,
            destroys="changes what is mounted", caution="uses memory", command="mount -o remount,size=8g /dev/shm"),
        Fix(title="Ask the administrator", kind="advice", safety="safe"),
    ),
)  # fmt: skip
ENV_FIX = Fix(
    title="Use `HF_HOME`", kind="env", safety="safe", command="export HF_HOME=/data/hf\nunset TRANSFORMERS_CACHE"
)
PINS = Finding(
    id="ENV002",
    title="Declared requirements are met",
    headline="A declared requirement is not met",
    family="ENV",
    status="warn",
    message="2 packages disagree about transformers",
    expected="transformers==5.9.0 (verl 0.9.1)",
    found="transformers 5.6.0",
    why="A package runs against versions that its authors never tried.",
    node="gpu-01",
    playbook="declared-pins",
    fixes=(ENV_FIX,),
    caused_by=("ENV001",),
)  # fmt: skip


def finding(id: str, status: Any, message: str, **more: Any) -> Finding:
    headline = f"failure of {id}" if status in ("fail", "warn") else f"title of {id}"
    more = {"title": f"title of {id}", "headline": headline, "family": id[:3], "node": "gpu-01", **more}
    return Finding(id=id, status=status, message=message, **more)


FINDINGS = (
    SHM,
    finding("ENV001", "error", "the check itself failed: KeyError: 'torch'"),
    PINS,
    finding("GPU003", "unknown", "could not look: nvidia-smi did not answer within 3 s"),
    finding("SYS009", "fail", "expected swap off, found 8 GiB", waived=Waiver("wanted here", "2027-01-31")),
    finding("NCL004", "info", "NCCL_DEBUG=INFO is set"),
    finding("SYS002", "pass", "memlock unlimited", duration_ms=3.21),
    finding("GPU001", "skip", "no NVIDIA GPU"),
)  # fmt: skip


def line(family: str, title: str, status: Any, headline: str) -> FamilyLine:
    return FamilyLine(family=family, title=title, status=status, headline=headline, node="gpu-01")


def report(*findings: Finding, **more: Any) -> Report:
    """A report of these findings, its counts and exit code right."""
    summary = summarize(findings)
    nodes = tuple(dict.fromkeys(finding.node for finding in findings)) or ("gpu-01",)
    return Report(version="0.1.0", command="env", nodes=nodes, summary=summary, exit_code=exit_code(summary, False),
                  checks=findings, **more)  # fmt: skip


REPORT = report(
    *FINDINGS,
    collected_at="2026-11-21T01:02:03+00:00",
    duration_ms=312.4,
    families=(
        line(
            "SYS",
            "System",
            "fail",
            "Ubuntu 24.04, Linux 6.8.0, docker, x86_64, 4 of 112 CPUs, 2003 GiB memory, /dev/shm 64 MiB",
        ),
        line(
            "ENV", "Python and packages", "error", "Python 3.12.3 (venv), torch 2.11.0+cu130, vLLM 0.26.0, Ray 2.60.0"
        ),
        line("GPU", "GPUs and driver", "unknown", "8 × NVIDIA H200, driver 580.65.06, CUDA 13.0"),
        line("NCL", "NCCL settings", "info", "NCCL 2.28.9 (bundled), 1 variable set"),
    ),
    notes=("the ignore of SYS003 expired on 2026-01-01 and is not applied",),
)
HEALTHY = report(
    finding("SYS002", "pass", "memlock unlimited"), families=(line("SYS", "System", "pass", "Ubuntu 24.04"),)
)
EMPTY = report()


def on_two_nodes() -> Report:
    there = tuple(msgspec.structs.replace(finding, node="gpu-02") for finding in FINDINGS[2:])
    lines = tuple(msgspec.structs.replace(line, node="gpu-02") for line in REPORT.families)
    return msgspec.structs.replace(report(*FINDINGS, *there), families=(*REPORT.families, *lines))


def shown(report: Report, format: str, **options: Any) -> str:
    """What a renderer writes into a file."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    render(report, format, out, **options)
    out.seek(0)
    return out.read()


# Fields that hold one of a few words, which no machine can put anything else into.
_FIXED = {"status", "kind", "safety", "action", "next"}


def spoiled(report: Report, spoil: Callable[[str], str]) -> Report:
    """The report with every free string in it changed."""

    def walk(tree: Any, key: str = "") -> Any:
        if isinstance(tree, str):
            return tree if key in _FIXED else spoil(tree)
        if isinstance(tree, dict):
            return {name: walk(value, name) for name, value in tree.items()}
        return [walk(item, key) for item in tree] if isinstance(tree, list | tuple) else tree

    return msgspec.convert(walk(msgspec.to_builtins(report)), Report)
