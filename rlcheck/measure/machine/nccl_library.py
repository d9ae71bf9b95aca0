"""Finds the libnccl files that a process could load, and the one that the dynamic linker gives to torch."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Sequence

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing, value_or
from rlcheck.facts.nccl import NcclLibrary, TorchLinkage
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.remote.scan.elf import Elf, ElfError

_LIBRARY = re.compile(r"lib[nr]ccl\.so(?:\.([\d.]+))?")
_SONAMES = ("libnccl.so.2", "librccl.so.1")
_FULL_VERSION = re.compile(r"\d+\.\d+\.\d+")
_TORCH_LIBRARIES = ("libtorch_cuda.so", "libtorch_hip.so")
_DEFAULT_DIRECTORIES = ("/lib64", "/usr/lib64", "/lib", "/usr/lib")
_DIRECTORY_LIMIT = 64
_VERSION_MARKS = (b"NCCL version 2.", b"NCCL version 3.", b"RCCL version 2.")
_NOT_VERSION = re.compile(rb"[^0-9.]")
_CHUNK, _OVERLAP = 1 << 22, 64


def site_directories(ctx: ProbeContext) -> tuple[str, ...]:
    """Where the examined Python keeps packages: our own `sys.path`, or what is beside the given interpreter."""
    if not ctx.python:
        return tuple(path for path in dict.fromkeys(sys.path) if os.path.isabs(path))
    prefix = os.path.dirname(os.path.dirname(ctx.python[0]))
    found: list[str] = []
    for lib in (f"{prefix}/lib", f"{prefix}/lib64", f"{prefix}/local/lib"):
        for name in value_or(ctx.list_dir(lib), []):
            if name.startswith("python3"):
                found += [f"{lib}/{name}/site-packages", f"{lib}/{name}/dist-packages"]
    return tuple(found)


def ld_library_path(ctx: ProbeContext) -> tuple[str, ...]:
    """The absolute directories of LD_LIBRARY_PATH, in order."""
    parts = re.split("[:;]", ctx.environ.get("LD_LIBRARY_PATH", ""))
    return tuple(dict.fromkeys(part.rstrip("/") for part in parts if part.startswith("/")))[:_DIRECTORY_LIMIT]


def system_directories(ctx: ProbeContext) -> tuple[str, ...]:
    """The directories of ld.so.conf and its parts, then the linker's own."""
    texts = [value_or(ctx.read_text("/etc/ld.so.conf", 1 << 16), "")]
    for name in value_or(ctx.list_dir("/etc/ld.so.conf.d"), [])[:_DIRECTORY_LIMIT]:
        if name.endswith(".conf"):
            texts.append(value_or(ctx.read_text(f"/etc/ld.so.conf.d/{name}", 1 << 16), ""))
    lines = (line.partition("#")[0].strip() for text in texts for line in text.splitlines())
    listed = dict.fromkeys(line.rstrip("/") for line in lines if line.startswith("/"))
    return tuple(dict.fromkeys((*listed, *_DEFAULT_DIRECTORIES)))[:_DIRECTORY_LIMIT]


def libraries(ctx: ProbeContext, sites: Iterable[str]) -> tuple[NcclLibrary, ...]:
    """Every copy, in the order: LD_PRELOAD, bundled, LD_LIBRARY_PATH, system. One entry a real file."""
    preload = [path for path in re.split(r"[:\s]", ctx.environ.get("LD_PRELOAD", "")) if "/" in path]
    candidates = [(path, "LD_PRELOAD") for path in preload if _LIBRARY.fullmatch(os.path.basename(path))]
    bundled = (f"{site}/nvidia/nccl/lib" for site in sites)
    for origin, directories in (
        ("bundled", bundled),
        ("LD_LIBRARY_PATH", ld_library_path(ctx)),
        ("system", system_directories(ctx)),
    ):
        candidates += [(path, origin) for directory in directories for path in _copies(ctx, directory)]
    found: dict[str, NcclLibrary] = {}
    for path, origin in candidates:
        if "\0" in path:
            continue
        real = os.path.realpath(ctx.path(path))
        if real not in found and os.path.isfile(real):
            found[real] = NcclLibrary(path=path, origin=origin, version=_version(real))
    return tuple(found.values())


def _copies(ctx: ProbeContext, directory: str) -> list[str]:
    return [f"{directory}/{name}" for name in _SONAMES if ctx.exists(f"{directory}/{name}")]


def _version(real: str) -> str:
    match = _LIBRARY.fullmatch(os.path.basename(real))
    if match and match[1] and _FULL_VERSION.fullmatch(match[1]) and "libnccl" in match[0]:
        return match[1]
    return version_in_file(real)


def version_in_file(path: str, budget_s: float = 0.1) -> str:
    """Return the version that a libnccl or librccl file carries as text, or "" when the time is up before it is found.

    The read-only data is in the first megabytes, before the GPU code that makes up the bulk.
    """
    deadline = time.monotonic() + budget_s
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return ""
    try:
        place = 0
        while chunk := os.pread(file, _CHUNK + _OVERLAP, place):
            places = ((chunk.find(mark), mark) for mark in _VERSION_MARKS)
            found = next((chunk[at + len(mark) - 2 :][:26] for at, mark in places if at >= 0), b"")
            if found or time.monotonic() > deadline:
                return _NOT_VERSION.split(found, maxsplit=1)[0].decode().strip(".")
            place += _CHUNK
    except OSError:
        return ""
    finally:
        os.close(file)
    return ""


def torch_linkage(ctx: ProbeContext, sites: Sequence[str], found: Sequence[NcclLibrary]) -> Fact[TorchLinkage]:
    """Which NCCL the dynamic linker gives to torch, by its own rules (ld.so(8)); no process is started."""
    path = next(
        (
            file
            for site in sites
            for file in (f"{site}/torch/lib/{name}" for name in _TORCH_LIBRARIES)
            if ctx.exists(file)
        ),
        None,
    )
    if path is None:
        return absent("no torch built with CUDA or ROCm in this environment")
    try:
        with Elf(ctx.path(path)) as file:
            needed, rpath, runpath = file.needed, _directories(file.rpath), _directories(file.runpath)
    except (OSError, ElfError) as error:
        reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
        return missing(MissingKind.ERROR, f"{path}: {reason}")
    soname = next((name for name in needed if _LIBRARY.fullmatch(name)), "")
    if not soname:
        return known(TorchLinkage(path=path, needs_nccl=False))
    loaded, reason = _resolve(ctx, path, soname, () if runpath else rpath, runpath, found)
    by_real = {os.path.realpath(ctx.path(library.path)): library.version for library in found}
    real = os.path.realpath(ctx.path(loaded)) if loaded else ""
    version = by_real[real] if real in by_real else _version(real) if real else ""
    search = "runpath" if runpath else "rpath" if rpath else ""
    return known(TorchLinkage(path=path, search=search, loaded=loaded, loaded_by=reason, loaded_version=version))


def _directories(written: Sequence[str]) -> tuple[str, ...]:
    return tuple(part for text in written for part in text.split(":") if part)


def _resolve(
    ctx: ProbeContext,
    path: str,
    soname: str,
    rpath: Sequence[str],
    runpath: Sequence[str],
    found: Sequence[NcclLibrary],
) -> tuple[str, str]:
    """Return the library that is loaded and what led to it; `rpath` is empty where a `runpath` overrules it."""
    preloaded = next((library.path for library in found if library.origin == "LD_PRELOAD"), "")
    if preloaded:
        return preloaded, "LD_PRELOAD"
    origin = os.path.dirname(path)
    steps = (
        ("rpath", rpath),
        ("LD_LIBRARY_PATH", ld_library_path(ctx)),
        ("runpath", runpath),
        ("system", system_directories(ctx)),
    )
    for reason, directories in steps:
        for directory in directories:
            place = os.path.normpath(directory.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))
            if ctx.exists(f"{place}/{soname}"):
                return f"{place}/{soname}", reason
    return "", ""
