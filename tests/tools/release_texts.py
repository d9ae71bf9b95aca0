"""The texts of released packages: Python files, configs, and what is readable in the libraries that print messages.

Each package is asked for by name with pip, read and deleted; what is kept of it is one text file for each release.
"""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

_NOTHING = re.compile(r"(?!)")
_TORCH = re.compile(r"torch/lib/lib(?:torch_cpu|torch_cuda|torch_python|c10|c10_cuda)\.so$")
_ANY_LIBRARY = re.compile(r"\.so(?:\.\d+)*$")
PACKAGES: dict[str, re.Pattern[str]] = {
    "huggingface-hub": _NOTHING,
    "transformers": _NOTHING,
    "datasets": _NOTHING,
    "accelerate": _NOTHING,
    "peft": _NOTHING,
    "trl": _NOTHING,
    "verl": _NOTHING,
    "openrlhf": _NOTHING,
    "deepspeed": _NOTHING,
    "sglang": _NOTHING,
    "vllm": _NOTHING,
    "ray": re.compile(r"/(?:raylet|gcs_server|_raylet\.so)$"),
    "tensordict": _NOTHING,
    "bitsandbytes": _NOTHING,
    "wandb": re.compile(r"wandb-core$"),
    "xgrammar": _ANY_LIBRARY,
    "math-verify": _NOTHING,
    "tokenizers": _ANY_LIBRARY,
    "safetensors": _ANY_LIBRARY,
    "hydra-core": _NOTHING,
    "omegaconf": _NOTHING,
    "triton": re.compile(r"/libtriton\.so$"),
    "nvidia-nccl-cu13": re.compile(r"/libnccl\.so\.2$"),
    "torch": _TORCH,
}
"""Each package, and which of its libraries are read."""
SOURCE_ONLY = {"deepspeed"}
_NEWEST = 3
_TEXTS = (".py", ".yaml", ".yml", ".cu", ".cuh", ".cpp", ".cc", ".h", ".hpp", ".toml", ".jinja")
_LEFT = re.compile(r"(?:^|/)(?:tests?|testing/_internal|third_party|examples|cutlass|cccl|spdlog|torch/include)/")
_READABLE = re.compile(rb"[\t\x20-\x7e]{6,}")
_PIECES = re.compile(r'(?:[fr]?"(?:[^"\\\n]|\\.){1,400}"\s*\n\s*)+[fr]?"(?:[^"\\\n]|\\.){1,400}"')
_SEAM = re.compile(r'"\s*\n\s*[fr]?"')
_LARGEST = 4 << 20
"""Bytes of a text file; longer ones are data."""


def versions_of(package: str) -> list[str]:
    """The current release of PACKAGE and the two before it, as pip's index has them; post-releases do not count."""
    told = _pip("index", "versions", package)
    listed = re.search(r"Available versions: (.*)", told)
    assert listed, f"pip knows no {package}"
    return [version for version in listed[1].split(", ") if re.fullmatch(r"[\d.]+", version)][:_NEWEST]


def keep_text(package: str, version: str, folder: Path) -> Path:
    """Return the file in FOLDER with the text of this release; fetch the release where there is none."""
    kept = folder / f"{package}-{version}.txt"
    if not kept.exists():
        partial = kept.with_suffix(".part")
        with TemporaryDirectory(dir=folder) as place, partial.open("w", encoding="utf-8") as out:
            kind = "--no-binary" if package in SOURCE_ONLY else "--only-binary"
            _pip("download", "--no-deps", "--no-build-isolation", kind, ":all:", "-d", place, f"{package}=={version}")
            (archive,) = Path(place).iterdir()
            for text in _texts(archive, PACKAGES[package]):
                out.write(text + "\n")
        partial.rename(kept)
    return kept


def _pip(*arguments: str) -> str:
    command = [sys.executable, "-m", "pip", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"pip {' '.join(arguments)}: {done.stderr.strip()[-500:]}")
    return done.stdout


def _texts(archive: Path, libraries: re.Pattern[str]) -> Iterator[str]:
    for name, size, data in _members(archive, libraries):
        if libraries.search(name):
            readable = (text for part in _constants(data) for text in _READABLE.findall(part))
            yield from dict.fromkeys(text.decode() for text in readable)
        elif size <= _LARGEST:
            text = data.decode("utf-8", "replace")
            yield text
            if name.endswith(".py"):
                yield from _joined(text)


def _members(archive: Path, libraries: re.Pattern[str]) -> Iterator[tuple[str, int, bytes]]:
    def wanted(name: str) -> bool:
        return bool(libraries.search(name)) or (name.endswith(_TEXTS) and not _LEFT.search(name))

    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            for info in wheel.infolist():
                if wanted(info.filename):
                    yield info.filename, info.file_size, wheel.read(info)
        return
    with tarfile.open(archive) as source:
        for member in source:
            opened = source.extractfile(member) if member.isfile() and wanted(member.name) else None
            if opened is not None:
                yield member.name, member.size, opened.read()


def _constants(library: bytes) -> Iterator[memoryview]:
    """Yield the sections of an ELF file of 64 bits that hold constants: neither code nor what GPUs run."""
    first, size, count, names = struct.unpack_from("<Q10xHHH", library, 40)
    sections = [struct.unpack_from("<IIQQQQ", library, first + number * size) for number in range(count)]
    for name, kind, flags, _, start, length in sections:
        at = sections[names][4] + name
        called = library[at : library.index(b"\0", at)]
        if kind == 1 and flags & 2 and not flags & 4 and b"fatbin" not in called:
            yield memoryview(library)[start : start + length]


def _joined(text: str) -> Iterator[str]:
    """Strings that are written in pieces, over several lines, as they are printed."""
    for match in _PIECES.finditer(text):
        yield _SEAM.sub("", match[0])
