"""Made-up environments for the scanner's tests: site-packages, records, and shared objects built with the compiler."""

from __future__ import annotations

import base64
import hashlib
import subprocess
from pathlib import Path

import pytest

from rlcheck.remote.scan import main

STACK = [
    {"name": "torch", "imports": ["torch"], "compiled": ["torch/_C*.so"], "symbols": False, "deep": ["torch"]},
    {"name": "vllm", "imports": ["vllm"], "compiled": ["vllm/*.so"], "numpy": ["vllm/*.so"], "deep": ["vllm:LLM"]},
    {"name": "torchcodec", "imports": ["torchcodec"], "compiled": ["torchcodec/*.so"], "alternatives": True},
    {"name": "verl", "imports": ["verl"]},
    {"name": "protobuf", "imports": ["google.protobuf"]},
    {"name": "pynvml", "imports": ["pynvml"]},
    {"name": "nvidia-ml-py", "imports": ["pynvml"]},
    {"name": "nvidia-*"},
    {"name": "opencv-*", "imports": ["cv2"]},
]


def install(
    site: Path,
    name: str,
    version: str = "1.0",
    requires: tuple[str, ...] = (),
    files: dict[str, str] | None = None,
    **info: str,
) -> Path:
    """Install a made-up distribution: its record, and `files` with their contents. `info` are further record files."""
    record = site / f"{name.replace('-', '_')}-{version}.dist-info"
    record.mkdir(parents=True)
    header = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        *(f"Requires-Dist: {r}" for r in requires),
    ]
    (record / "METADATA").write_text("\n".join(header) + "\n\nName: not-this\n")
    lines = [f"{record.name}/METADATA,sha256=x,1"]
    for path, content in (files or {}).items():
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if content or not target.exists():
            target.write_text(content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content.encode()).digest()).decode().rstrip("=")
        lines.append(f"{path},sha256={digest},{len(content)}")
    (record / "RECORD").write_text("\n".join(sorted(lines)) + "\n")
    for file, content in info.items():
        (record / file.replace("__", ".")).write_text(content)
    return record


def scan(*directories: Path, environ: dict[str, str] | None = None, root: str = "/nowhere") -> dict:
    """The scanner's document about these directories as the whole search path."""
    return main.scan(STACK, environ or {}, root, [str(directory) for directory in directories])


def compile_library(target: Path, source: str, *options: str) -> Path:
    """A shared object made of C source."""
    target.parent.mkdir(parents=True, exist_ok=True)
    command = ["gcc", "-shared", "-fPIC", "-nostdlib", "-o", str(target), "-x", "c", "-", "-x", "none", *options]
    try:
        subprocess.run(command, input=source.encode(), check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return target
