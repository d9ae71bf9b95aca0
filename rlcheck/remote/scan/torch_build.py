"""What torch's files say of its build. torch is never imported: it may be the thing that crashes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from typing import Any

from . import files
from .elf import Elf, ElfError

_ASSIGNMENT = r"^{}\s*(?::[^=\n]+)?=\s*(?:'([^'\n]*)'|\"([^\"\n]*)\")"
_RODATA_LIMIT_BYTES = 16 << 20
# What `torch.cuda.get_arch_list()` splits: a string of its own in libtorch_python.so (seen in 2.11.0+cu130).
_ARCH = rb"(?:(?:sm|compute)_\d{2,3}[a-z]?|gfx[0-9a-f]{3,5})"
_ARCH_LIST = re.compile(rb"(?<![^\0])(" + _ARCH + rb"(?:[ ;]" + _ARCH + rb")*)\0")
_NEW_STRING = b"NSt7__cxx1112basic_string"
# Functions of libc10 that every extension calls to raise an error; the last argument is a std::string.
_ABI_WITNESS = re.compile(rb"_ZN3c10(?:5ErrorC[12]|6detail14torchCheckFail|7WarningC[12])[^\0]*")


def describe(directory: str, recorded_version: str, nccl_version: str) -> dict[str, Any]:
    """The torch section of the facts document.

    Args:
        directory: the package directory that `import torch` takes.
        recorded_version: what the distribution's record says, for a torch without a version file.
        nccl_version: version of the nvidia-nccl distribution, or "".
    """
    text = files.text(f"{directory}/version.py", 1 << 16)
    version = _assigned(text, "__version__")
    cuda, hip = _assigned(text, "cuda"), _assigned(text, "hip")
    return {
        "version": version or recorded_version,
        "location": directory,
        "version_file": bool(version),
        "cuda": cuda,
        "hip": hip,
        "git_version": _assigned(text, "git_version"),
        "cxx11_abi": abi_of(_strings(f"{directory}/lib/libc10.so")),
        "arch_list": arch_list(f"{directory}/lib/libtorch_python.so") if cuda or hip else (),
        "bundled_nccl": nccl_version,
    }


def abi_of(strings: bytes) -> str:
    """ "new" or "old" std::string, from the mangled names in a string table; "" when none of them shows it."""
    witnesses = _ABI_WITNESS.findall(strings)
    if any(_NEW_STRING in witness for witness in witnesses):
        return "new"
    return "old" if any(witness.endswith(b"Ss") for witness in witnesses) else ""


def arch_list(library: str) -> tuple[str, ...]:
    """The GPU architectures that torch was compiled for, as `torch.cuda.get_arch_list()` prints them."""
    try:
        with Elf(library) as elf:
            match = _ARCH_LIST.search(elf.section(b".rodata", _RODATA_LIMIT_BYTES))
    except (OSError, ElfError):
        return ()
    return tuple(re.split("[ ;]", match.group(1).decode())) if match else ()


def _strings(library: str) -> bytes:
    try:
        with Elf(library) as elf:
            return elf.dynamic_strings()
    except (OSError, ElfError):
        return b""


def _assigned(text: str, name: str) -> str:
    """The string assigned to `name` in Python source, or ""."""
    match = re.search(_ASSIGNMENT.format(re.escape(name)), text, re.M)
    return (match.group(1) or match.group(2) or "") if match else ""


def library_directories(torch_directory: str, directories: Iterable[str], prefix_lib: str) -> tuple[str, list[str]]:
    """torch's library directory, and the others whose libraries a process with torch has loaded."""
    extra: list[str] = []
    for directory in directories:
        try:
            parts = sorted(os.listdir(f"{directory}/nvidia"))
        except OSError:
            continue
        extra += [f"{directory}/nvidia/{part}/lib" for part in parts if os.path.isdir(f"{directory}/nvidia/{part}/lib")]
    extra += [prefix_lib] if prefix_lib else []
    return (f"{torch_directory}/lib" if torch_directory else ""), extra
