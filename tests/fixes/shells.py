"""Faults of a shell and its machine: limits, mounts, files and their modes."""

from __future__ import annotations

import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fixes.scene import Case, Scene, root_only


def limit(line: str) -> Callable[[Scene], None]:
    """A limit of the shell that starts the doctor."""

    def plant(scene: Scene) -> None:
        scene.lines.append(line)

    return plant


def core_files(scene: Scene) -> None:
    """Core files that are written as files."""
    pattern = Path("/proc/sys/kernel/core_pattern").read_text()
    if pattern.startswith(("|", "/dev/null")) or resource.getrlimit(resource.RLIMIT_CORE)[1] != resource.RLIM_INFINITY:
        pytest.skip(f"core files go to {pattern.strip()!r} here, or are limited")
    scene.lines.append("ulimit -c unlimited")


def mounted(line: str, **variables: str) -> Callable[[Scene], None]:
    """A shell with mounts of its own, in which this line mounts something; @ is the scene's directory."""

    def plant(scene: Scene) -> None:
        root_only()
        scene.shell = ("unshare", "-m", "bash")
        (scene.here / "disk").mkdir()
        # The mounts are made before each look: the fix acts on what this line has made.
        scene.lines.append(line.replace("@", str(scene.here)))
        scene.environ |= {name: value.replace("@", str(scene.here)) for name, value in variables.items()}

    return plant


def abandoned_downloads(scene: Scene) -> None:
    """Six sparse gigabytes of a download that was killed yesterday."""
    blobs = scene.here / "hub" / "models--acme--tiny" / "blobs"
    blobs.mkdir(parents=True)
    scene.environ["HF_HUB_CACHE"] = str(scene.here / "hub")
    scene.lines.append(f"test -e {blobs}/done || {{ truncate -s 60G {blobs}/x.incomplete; "
                       f"touch -d yesterday {blobs}/x.incomplete {blobs}/done; }}")  # fmt: skip


def open_token(scene: Scene) -> None:
    """A token that everybody may read."""
    token = Path(tempfile.mkdtemp(prefix="token-")) / "token"  # not below pytest's directory, which is closed
    token.parent.chmod(0o755)
    scene.closing.append(lambda: shutil.rmtree(token.parent))
    token.write_text("hf_0000")
    token.chmod(0o644)
    scene.environ["HF_TOKEN_PATH"] = str(token)


_TMPFS = "mount -t tmpfs -o {} none @/disk"

SHELLS = (
    Case(
        "limits of a shell",
        "SYS003",
        "open-files-limit",
        "ulimit -n",
        limit("ulimit -Hn 20000; ulimit -Sn 1024"),
        ("pass", "info"),
    ),
    Case("limits of a shell", "SYS007", "stack-limit", "ulimit -s", limit("ulimit -Ss 1024")),
    Case("limits of a shell", "SYS008", "stack-limit", "ulimit -v", limit("ulimit -Sv 60000000")),
    Case("limits of a shell", "SYS006", "core-dumps-fill-disk", "ulimit -c", core_files),
    Case(
        "compile caches",
        "SYS028",
        "temp-dir-unusable",
        "TRITON_CACHE_DIR",
        mounted(_TMPFS.format("noexec"), TRITON_CACHE_DIR="@/disk/triton", TORCHINDUCTOR_CACHE_DIR="@/disk/inductor"),
    ),
    Case(
        "compile caches",
        "SYS029",
        "compile-cache-broken",
        "TRITON_CACHE_DIR",
        mounted(_TMPFS.format("size=64m"), TRITON_CACHE_DIR="@/disk/triton", TORCHINDUCTOR_CACHE_DIR="@/disk/inductor"),
    ),
    Case("home", "SYS031", "home-unusable", "HOME=", mounted(_TMPFS.format("ro"), HOME="@/disk")),
    Case("hub cache", "HFC001", "hf-cache-not-writable", "HF_HOME=", mounted(_TMPFS.format("ro"), HF_HOME="@/disk/hf")),
    Case(
        "hub cache",
        "HFC014",
        "hf-cache-not-writable",
        "HF_DATASETS",
        mounted(_TMPFS.format("ro"), HF_DATASETS_CACHE="@/disk/ds"),
        ("pass", "skip"),
    ),
    Case(
        "temporary directory", "SYS028", "temp-dir-unusable", "TMPDIR=", mounted(_TMPFS.format("ro"), TMPDIR="@/disk")
    ),
    Case(
        "shared memory",
        "SYS001",
        "shm-too-small",
        "mount -o remount",
        mounted("mount -t tmpfs -o size=64m none /dev/shm"),
    ),
    Case("hub cache", "HFC008", "hf-cache-full", "-delete", abandoned_downloads),
    Case("hub token", "HFC016", "hf-token-exposed", "chmod", open_token),
)
