"""What Triton needs when it builds its launcher: a C compiler, Python's headers, the driver's library."""

from __future__ import annotations

import posixpath
import re
import sys

from rlcheck.facts.base import Fact, MissingKind, absent, known, missing
from rlcheck.facts.system import ToolchainFacts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.places import Mounts

_COMPILERS = ("gcc", "g++", "clang", "cc")
_USUAL_LIBRARY_DIRS = (
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib64",
    "/usr/lib/wsl/lib",
    "/usr/local/nvidia/lib64",
)
_MOST_DIRS = 64


def collect_toolchain(context: ProbeContext, mounts: Mounts) -> ToolchainFacts:
    """Which parts of the tool chain are there."""
    cc = context.environ.get("CC", "")
    program = cc.split()[0] if cc.split() else ""
    compilers = {name: path for name in _COMPILERS if (path := context.find_command(name))}
    include_dirs = _include_dirs(context, mounts)
    header = next((path for path in include_dirs if context.exists(f"{path}/Python.h")), "")
    searched = [path for path in _library_path(context) if not mounts.at(mounts.resolve(path)).network]
    return ToolchainFacts(
        cc=cc,
        cc_found=bool(program) and (context.exists(program) if "/" in program else bool(context.find_command(program))),
        compilers=compilers,
        python_h=_header(include_dirs, header),
        include_dirs=include_dirs,
        libcuda=_libcuda(context, searched),
        libcuda_stubs=_stubs(context, searched),
        ldconfig=context.exists("/sbin/ldconfig") or context.exists("/usr/sbin/ldconfig"),
    )


def _header(include_dirs: tuple[str, ...], found_in: str) -> Fact[str]:
    if found_in:
        return known(f"{found_in}/Python.h")
    if include_dirs:
        return absent("no Python.h in " + ", ".join(include_dirs))
    return missing(MissingKind.UNSUPPORTED, "the examined interpreter is not a file of this machine")


def _include_dirs(context: ProbeContext, mounts: Mounts) -> tuple[str, ...]:
    """Where the headers of the examined interpreter would be."""
    if not context.python:
        # Builds without the global lock and debug builds have headers of their own, marked by their ABI's letters.
        version = f"{sys.version_info.major}.{sys.version_info.minor}{sys.abiflags}"
        return (f"{sys.base_prefix}/include/python{version}",)
    executable = context.python[0]
    if len(context.python) > 1 or not executable.startswith("/"):
        return ()
    prefix = posixpath.dirname(posixpath.dirname(executable))
    settings = context.read_text(f"{prefix}/pyvenv.cfg", 65536).value or ""
    if not settings:  # outside of a virtual environment a link leads to the installation, and to its version
        executable = mounts.resolve(executable)
        prefix = posixpath.dirname(posixpath.dirname(executable))
    home = re.search(r"^home\s*=\s*(\S.*?)\s*$", settings, re.M)
    version = re.search(r"^version(?:_info)?\s*=\s*(\d+\.\d+)", settings, re.M)
    named = re.search(r"python(\d+\.\d+)$", executable)
    prefix = posixpath.dirname(home[1]) if home else prefix
    found = version or named
    pattern = rf"python{re.escape(found[1])}[a-z]*" if found else r"python3\.\d+[a-z]*"
    names = context.list_dir(f"{prefix}/include").value or ()
    dirs = tuple(f"{prefix}/include/{name}" for name in names if re.fullmatch(pattern, name))
    return dirs or ((f"{prefix}/include/python{found[1]}",) if found else ())


def _library_path(context: ProbeContext) -> list[str]:
    value = f"{context.environ.get('TRITON_LIBCUDA_PATH', '')}:{context.environ.get('LD_LIBRARY_PATH', '')}"
    return [path for path in value.split(":") if path.startswith("/")][:_MOST_DIRS]


def _libcuda(context: ProbeContext, library_path: list[str]) -> tuple[str, ...]:
    """Real libcuda.so.1: what the loader's cache lists, else what is in the usual places; then the variables."""
    cache = context.read_text("/etc/ld.so.cache").value or ""
    known_paths = re.findall(r"/[^\0\n]{0,512}?/libcuda\.so\.1(?=\0)", cache)
    places = [posixpath.dirname(path) for path in known_paths] or list(_USUAL_LIBRARY_DIRS)
    candidates = [f"{place}/libcuda.so.1" for place in [*places, *library_path] if "/stubs" not in place]
    return tuple(dict.fromkeys(path for path in candidates if context.exists(path)))


def _stubs(context: ProbeContext, library_path: list[str]) -> tuple[str, ...]:
    machine_dirs = ("/usr/local/cuda/lib64/stubs", "/usr/local/cuda/targets/x86_64-linux/lib/stubs")
    places = [*machine_dirs, *(path for path in library_path if "/stubs" in path)]
    return tuple(dict.fromkeys(f"{place}/libcuda.so" for place in places if context.exists(f"{place}/libcuda.so")))
