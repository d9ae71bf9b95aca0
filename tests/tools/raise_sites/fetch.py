"""The Python files of released packages: each is asked for by name with pip, and only its sources are kept."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from packaging.version import Version

_PYTHONS = ("3.12", "3.11", "3.10")
_LEFT = re.compile(
    r"(?:^|/)(?:tests?|testing|third_party|thirdparty|_vendor|vendor|examples?|benchmarks?|docs?|docker|tools|scripts"
    r"|cutlass|_?test_\w+|\w+_test)/|(?:^|/)(?:test_\w+|\w+_test|conftest|setup|versioneer|testing_utils|_lazy_module|bench\w*|benchmark\w*)\.py$"
    r"|^ray/(?:thirdparty_files|_private/runtime_env/agent/thirdparty_files|rllib|tune/examples|serve/tests)/"
    r"|^torch/(?:include|onnx|ao|_inductor|jit|fx|package|distributions|_refs|_prims|_decomp|_numpy|export|_export|masked"
    r"|sparse|special|utils/(?:benchmark|tensorboard|hipify|bottleneck))/"
    r"|^huggingface_hub/cli/skills|^sglang/(?:multimodal_gen|kernels|jit_kernel)/|^vllm/vllm_flash_attn/"
    r"|^transformers/models/(?!(?:auto|llama|mistral|mixtral|qwen\w*|gemma\w*|deepseek\w*|gpt_oss|glm4\w*|phi3|internvl"
    r"|llava|mllama)/)"
)
"""Files that no training run executes, and models that few train."""
_LARGEST = 2 << 20
_TRIES = 3


class Plan(NamedTuple):
    """Which releases of a package are read: `most` of those from `oldest` on, spread evenly, the newest among them.

    `kilobytes` is what its record may take, `top` its directory in site-packages. `aarch64`: its wheels for x86 bring
    CUDA and are ten times as large; `source`: there are no wheels.
    """

    oldest: str
    most: int
    kilobytes: int
    top: str = ""
    aarch64: bool = False
    source: bool = False


PLANS = {
    "vllm": Plan("0.6.4", 16, 500),
    "sglang": Plan("0.4.2", 14, 280),
    "verl": Plan("0.2", 14, 280),
    "trl": Plan("0.12.0", 16, 190),
    "openrlhf": Plan("0.5.0", 8, 40),
    "ray": Plan("2.39.0", 7, 150),
    "transformers": Plan("4.46.1", 12, 330),
    "deepspeed": Plan("0.16.0", 7, 110, source=True),
    "accelerate": Plan("1.1.0", 7, 90),
    "peft": Plan("0.13.2", 7, 80),
    "torch": Plan("2.5.0", 7, 160, top="torch", aarch64=True),
    "megatron-core": Plan("0.9.0", 7, 80, top="megatron"),
    "tensordict": Plan("0.6.0", 6, 30),
    "flash-attn": Plan("2.6.3", 5, 10, top="flash_attn", source=True),
    "xformers": Plan("0.0.28", 5, 10, top="xformers"),
    "bitsandbytes": Plan("0.44.0", 6, 15),
    "datasets": Plan("3.1.0", 7, 50),
    "huggingface-hub": Plan("0.26.0", 7, 40),
    "tokenizers": Plan("0.20.0", 4, 5),
    "safetensors": Plan("0.4.5", 4, 5),
    "flashinfer-python": Plan("0.2.1", 7, 40, top="flashinfer"),
    "liger-kernel": Plan("0.4.0", 6, 10),
    "torchao": Plan("0.6.1", 6, 30, top="torchao"),
}
"""By the package's name on the index."""


def usable(listed: Sequence[str], plan: Plan) -> list[str]:
    """Return the releases of LISTED from the oldest of PLAN on, the oldest first; of post-releases, the last.

    >>> usable(["1.3", "1.2.post1", "1.2", "1.1.0", "1.1", "0.8", "2.0rc1"], Plan("0.9", 3, 1))
    ['1.1', '1.2.post1', '1.3']
    """
    last: dict[tuple[int, ...], str] = {}
    for text in sorted(listed, key=Version):
        version = Version(text)
        if not version.is_prerelease and not version.local and version >= Version(plan.oldest):
            last[version.release + (0,) * (4 - len(version.release))] = text
    return list(last.values())


def spread(found: Sequence[str], most: int) -> list[str]:
    """Return MOST of FOUND, spread evenly, the first and the last one among them.

    >>> spread(["1.0", "1.1", "1.2", "1.3", "1.4"], 3)
    ['1.0', '1.2', '1.4']
    """
    if len(found) <= most:
        return list(found)
    step = (len(found) - 1) / (most - 1)
    return [found[round(number * step)] for number in range(most)]


def top_of(package: str) -> str:
    """Return the directory of site-packages that PACKAGE is in."""
    return PLANS[package].top or package.replace("-", "_")


def archives(package: str, folder: Path) -> list[tuple[str, Path]]:
    """Return the releases of PACKAGE that its plan reads, the oldest first, each with the archive of its Python files.

    They are fetched into FOLDER. Instead of one that pip cannot take here, the one before it is read.

    Raises:
        SystemExit: pip does not know the package.
    """
    plan = PLANS[package]
    done, told = _pip("index", "versions", package)
    listed = re.search(r"Available versions: (.*)", told)
    if not done or not listed:
        raise SystemExit(f"pip knows no {package}")
    every = usable(listed[1].split(", "), plan)
    found: dict[str, Path] = {}
    for wanted_release in spread(every, plan.most):
        for version in every[every.index(wanted_release) :: -1][:_TRIES]:
            path = sources(package, version, plan, folder)
            if path is not None:
                found[version] = path
                break
    return list(found.items())


def sources(package: str, version: str, plan: Plan, folder: Path) -> Path | None:
    """Return the archive in FOLDER with the Python files of this release, fetched if it is not there.

    None where the index has no file of this release that pip can take.
    """
    kept = folder / f"{package}-{version}.zip"
    if kept.exists():
        return kept
    with TemporaryDirectory(dir=folder) as place:
        if not any(_pip("download", "--no-deps", "-d", place, *how, f"{package}=={version}")[0] for how in _ways(plan)):
            return None
        (archive,) = Path(place).iterdir()
        partial = kept.with_suffix(".part")
        with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as out:
            for name, data in members(archive, top_of(package)):
                out.writestr(name, data)
    partial.rename(kept)
    return kept


def _ways(plan: Plan) -> Iterator[list[str]]:
    """What to ask pip for, the best first."""
    wheel = ["--only-binary", ":all:"]
    machine = "aarch64" if plan.aarch64 else "x86_64"
    systems = [
        "manylinux1",
        "manylinux2014",
        *(f"manylinux_2_{minor}" for minor in (17, 24, 26, 27, 28, 31, 34, 35, 39)),
    ]
    platforms = [word for system in systems for word in ("--platform", f"{system}_{machine}")]
    if not plan.source:
        yield from ([*wheel, *platforms, "--python-version", python] for python in _PYTHONS)
    yield ["--no-binary", ":all:", "--no-build-isolation"]


def _pip(*arguments: str) -> tuple[bool, str]:
    """Whether pip could do it, and what it said. Nothing of a source is to be compiled for its name and version."""
    environ = {**os.environ, "FLASH_ATTENTION_SKIP_CUDA_BUILD": "TRUE", "DS_BUILD_OPS": "0"}
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    return done.returncode == 0, done.stdout


def members(archive: Path, top: str) -> Iterator[tuple[str, bytes]]:
    """Yield the Python files of a wheel or an sdist that are read, named from site-packages on."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                name = re.sub(r"^[^/]+\.data/(?:purelib|platlib)/", "", info.filename)
                if info.file_size <= _LARGEST and wanted(name, top):
                    yield name, wheel.read(info)
        return
    with tarfile.open(archive) as source:
        for member in source:
            name = re.sub(r"^[^/]+/(?:python/|src/)?", "", member.name)
            opened = source.extractfile(member) if member.isfile() and member.size <= _LARGEST else None
            if opened is not None and wanted(name, top):
                yield name, opened.read()


def wanted(name: str, top: str) -> bool:
    """Whether the file NAME, from site-packages on, is one that a run of the package executes."""
    return (
        name.endswith(".py")
        and "/" in name
        and not _LEFT.search(name)
        and ".data/" not in name
        and name.split("/", maxsplit=1)[0] == top
    )
