"""The compiled files of the stack: what each needs, and whether the installed torch gives it."""

from __future__ import annotations

import os
import re
import struct
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

from .elf import Elf, ElfError
from .linker import Linker, is_of_this_machine
from .owners import Contents
from .torch_build import abi_of

_FILES_LIMIT = 120
_SYMBOL_TESTS_LIMIT = 40
_UNRESOLVED_LIMIT = 20
_RODATA_LIMIT_BYTES = 4 << 20
_WALK_LIMIT = 2000
_MANGLED_HEADS = (b"_ZN", b"_ZNK", b"_ZTVN", b"_ZTIN", b"_ZTSN", b"_ZTTN")
_TORCH_SYMBOLS = (
    b"aoti_torch_",
    *(head + space for space in (b"3c10", b"2at", b"5torch") for head in _MANGLED_HEADS),
)
# The libraries whose file name carries the major version of CUDA; auditwheel puts a hash into the name.
_CUDA_LIBRARY = re.compile(r"lib(?:cudart|cublas|cublasLt|nvrtc)(?:[-.][0-9a-f]{8})?\.so\.(\d+)")
_NUMPY_1_NAMES = (b"numpy.core.multiarray", b"numpy.core._multiarray_umath")


def examine(contents: list[Contents], patterns_of: dict[str, dict[str, Any]], linker: Linker) -> list[dict[str, Any]]:
    """Every compiled file of the distributions that are to be examined.

    Args:
        contents: what each distribution installs.
        patterns_of: of each such distribution its row of the stack table.
        linker: resolves libraries and symbols.
    """
    rows: list[dict[str, Any]] = []
    seen: set[str] = set()
    tests_left = _SYMBOL_TESTS_LIMIT
    for item in contents:
        entry = patterns_of.get(item.record.name)
        if entry is None:
            continue
        own: list[dict[str, Any]] = []
        for path in _paths(item, entry["compiled"]):
            if path in seen:  # two distributions that claim the same files
                continue
            seen.add(path)
            row = _examine_file(item.record.name, path, linker, tests_left > 0 and entry["symbols"])
            if "error" not in row and any(fnmatchcase(path, f"*/{pattern}") for pattern in entry["numpy"]):
                row["uses_numpy_1"] = _uses_numpy_1(path)
            tests_left -= "libc10.so" in row.get("needed", ())
            own.append(row)
        rows += _best(own) if entry["alternatives"] else own
    return rows[:_FILES_LIMIT]


def _best(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Of several builds of which the package loads the one that fits, the one that fits best."""
    return sorted(rows, key=lambda row: (bool(row.get("error")), _faults(row)))[:1]


def _faults(row: dict[str, Any]) -> int:
    return len(row.get("unresolved_libs", ())) + len(row.get("unresolved_symbols", ()))


def _paths(item: Contents, patterns: list[str]) -> list[str]:
    editable = item.record.details.get("editable")
    location = editable or item.record.location
    names = item.extension_files() if item.has_record and not editable else _walk(item, location)
    chosen = [name for name in names if _is_ours(name) and any(fnmatchcase(name, each) for each in patterns)]
    return [f"{location}/{name}" for name in chosen[:_FILES_LIMIT]]


def _is_ours(name: str) -> bool:
    """Whether this Python would load the file: not a bundled library, not for another version of Python."""
    is_tagged = ".cpython-" in name and sys.implementation.name == "cpython"
    return ".libs/" not in name and (not is_tagged or f".{sys.implementation.cache_tag}" in name)


def _walk(item: Contents, location: str) -> Iterator[str]:
    """The compiled files of a distribution without a RECORD, or of an editable one, not looking everywhere."""
    seen = 0
    for top in item.tops or (item.record.name.replace("-", "_"),):
        for directory, _, names in os.walk(os.path.join(location, top)):
            seen += 1 + len(names)
            if seen > _WALK_LIMIT:
                return
            yield from (os.path.relpath(f"{directory}/{name}", location) for name in names if name.endswith(".so"))


def _examine_file(distribution: str, path: str, linker: Linker, with_symbols: bool) -> dict[str, Any]:
    row: dict[str, Any] = {"distribution": distribution, "path": path}
    try:
        with Elf(path) as elf:
            if not is_of_this_machine(elf):
                return {**row, "error": "built for another processor"}
            row["needed"] = elf.needed
            row["unresolved_libs"] = linker.unresolved_libraries(elf)
            row["cuda_major"] = max((_cuda_major(name) for name in elf.needed), default=0)
            if with_symbols and any(name.startswith(("libc10", "libtorch")) for name in elf.needed):
                _test_symbols(row, elf, linker)
    except OSError as error:
        row["error"] = error.strerror or type(error).__name__
    except (ElfError, struct.error) as error:
        row["error"] = str(error)
    return row


def _test_symbols(row: dict[str, Any], elf: Elf, linker: Linker) -> None:
    symbols = elf.undefined(_TORCH_SYMBOLS)
    unresolved = linker.unresolved_symbols(elf, symbols)
    row["cxx11_abi"] = abi_of(b"\0".join(symbols))
    row["num_unresolved_symbols"] = len(unresolved)
    row["unresolved_symbols"] = [symbol.decode("ascii", "replace") for symbol in unresolved[:_UNRESOLVED_LIMIT]]


def _cuda_major(name: str) -> int:
    match = _CUDA_LIBRARY.match(name)
    return int(match.group(1)) if match and len(match.group(1)) < 4 else 0


def _uses_numpy_1(path: str) -> bool:
    """Compiled with NumPy 1.x's headers: it knows the old place of the C API and not the new one."""
    with Elf(path) as elf:
        strings = elf.section(b".rodata", _RODATA_LIMIT_BYTES)
    return b"numpy._core" not in strings and any(name in strings for name in _NUMPY_1_NAMES)
