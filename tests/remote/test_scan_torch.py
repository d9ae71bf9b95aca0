"""What is read of torch's build, and that nothing of it is imported."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.remote.scan import torch_build
from tests.remote.trees import compile_library, install, scan

VERSION_FILE = """from typing import Optional
__all__ = ['__version__', 'debug', 'cuda', 'git_version', 'hip']
__version__ = '2.11.0+cu130'
debug = False
cuda: Optional[str] = '13.0'
git_version = 'deadbeef'
hip: Optional[str] = None
raise SystemExit("the doctor must not run this")
"""


def test_the_version_file(tmp_path: Path) -> None:
    install(tmp_path, "torch", "2.11.0", files={"torch/__init__.py": "", "torch/version.py": VERSION_FILE})
    install(tmp_path, "nvidia-nccl-cu13", "2.28.9")
    torch = scan(tmp_path)["torch"]["value"]
    assert (torch["version"], torch["cuda"], torch["hip"], torch["git_version"]) == (
        "2.11.0+cu130",
        "13.0",
        "",
        "deadbeef",
    )
    assert torch["version_file"] is True
    assert torch["bundled_nccl"] == "2.28.9"
    assert torch["location"] == str(tmp_path / "torch")


@pytest.mark.parametrize("content", [None, b"", b"\xff\0" * 5000, b"__version__ = version_of_something()\n"])
def test_a_torch_directory_without_a_version(tmp_path: Path, content: bytes | None) -> None:
    (tmp_path / "torch").mkdir()
    if content is not None:
        (tmp_path / "torch/version.py").write_bytes(content)
    torch = scan(tmp_path)["torch"]["value"]
    assert (torch["version"], torch["version_file"]) == ("", False)
    install(tmp_path, "torch", "2.13.0")
    assert scan(tmp_path)["torch"]["value"]["version"] == "2.13.0"


def test_no_torch(tmp_path: Path) -> None:
    assert scan(tmp_path)["torch"] == {
        "missing": {"kind": "absent", "reason": "torch is not installed in this environment"}
    }


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sm_75 sm_80 sm_90a compute_120", ["sm_75", "sm_80", "sm_90a", "compute_120"]),
        ("gfx90a;gfx942", ["gfx90a", "gfx942"]),
        ("sm_%d is not supported", []),
        ("compute_at", []),
    ],
)
def test_the_arch_list(tmp_path: Path, text: str, expected: list[str]) -> None:
    install(tmp_path, "torch", "2.11.0", files={"torch/__init__.py": "", "torch/version.py": VERSION_FILE})
    source = f'const char *f(int i) {{ return i > 2 ? "before" : i > 1 ? "{text}" : "sm_ of"; }}'
    compile_library(tmp_path / "torch/lib/libtorch_python.so", source)
    assert scan(tmp_path)["torch"]["value"]["arch_list"] == expected


def test_library_directories(tmp_path: Path) -> None:
    (tmp_path / "nvidia/cudnn/lib").mkdir(parents=True)
    (tmp_path / "nvidia/empty").mkdir()
    found = torch_build.library_directories("/x/torch", [str(tmp_path), "/nowhere"], "/conda/lib")
    assert found == ("/x/torch/lib", [f"{tmp_path}/nvidia/cudnn/lib", "/conda/lib"])
