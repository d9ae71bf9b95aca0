"""What the dynamic linker would do with an extension in a process that has imported torch: a link test on paper."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator

from . import files
from .elf import MACHINES, Elf, ElfError, gnu_hash

_CACHE_MAGIC = b"glibc-ld.so.cache1.1"
_CACHE_FLAGS = {"x86_64": 0x0300, "aarch64": 0x0A00}
_CACHE_LIMIT_BYTES = 16 << 20
# Parts of the C library: the interpreter itself runs on them, whatever the linker's cache says.
_C_LIBRARY = re.compile(r"(lib(c|m|dl|pthread|rt|util|resolv)\.so(\.\d+)?|ld-(linux|musl).*|libc\.musl.*)$")
# The order in which a torch symbol is most likely found.
_TORCH_LIBRARIES = ("libc10.so", "libtorch_cpu.so", "libtorch_python.so", "libtorch.so", "libc10_cuda.so",
                    "libtorch_cuda.so", "libc10_hip.so", "libtorch_hip.so", "libtorch_cuda_linalg.so")  # fmt: skip


class Linker:
    """Finds libraries and symbols.

    Args:
        torch_lib: directory of torch's libraries, or "" without torch.
        extra: further directories whose libraries a process with torch has: the nvidia packages', conda's `lib`.
        library_path: value of `LD_LIBRARY_PATH`.
        root: prefix of the system's directories (tests give a fake one).
    """

    def __init__(self, torch_lib: str, extra: list[str], library_path: str, root: str) -> None:
        self._root = root
        self._machine = os.uname().machine
        self._listings = files.Listings()
        self._library_path = [entry for entry in library_path.replace(";", ":").split(":") if entry]
        self._fallback = [directory for directory in [torch_lib, *extra] if directory]
        self._torch_lib = torch_lib
        self._cache: dict[str, str] | None = None
        self._torch_libraries: list[Elf] | None = None
        self._in_torch: dict[bytes, bool] = {}

    def find(self, name: str, requester: Elf) -> str | None:
        """The path that NEEDED entry `name` of `requester` is loaded from, or None."""
        if "/" in name:
            return name if os.path.exists(name) else None
        for directory in self._directories(requester):
            if self._listings.has(directory, name) and os.path.exists(f"{directory}/{name}"):
                return f"{directory}/{name}"
        return self._from_cache(name)

    def unresolved_libraries(self, requester: Elf) -> list[str]:
        """The NEEDED entries of `requester` that are found nowhere."""
        return [name for name in requester.needed if not _C_LIBRARY.match(name) and self.find(name, requester) is None]

    def unresolved_symbols(self, requester: Elf, symbols: list[bytes]) -> list[bytes]:
        """Those of `symbols` that neither torch's libraries nor the other ones that `requester` needs define."""
        if not self._torch():
            return []
        left = [symbol for symbol in symbols if not self._defined_by_torch(symbol)]
        if left:
            others = list(self._own_libraries(requester))
            left = [symbol for symbol in left if not any(_defines(other, symbol) for other in others)]
        return left

    def close(self) -> None:
        """Close the files that were kept open."""
        for library in self._torch_libraries or ():
            library.close()
        self._torch_libraries = None

    def _directories(self, requester: Elf) -> Iterator[str]:
        origin = os.path.dirname(requester.path)
        if not requester.runpath:
            yield from _expand(requester.rpath, origin)
        yield from self._library_path
        yield from _expand(requester.runpath, origin)
        yield from self._fallback

    def _from_cache(self, name: str) -> str | None:
        if self._cache is None:
            self._cache = read_cache(f"{self._root}/etc/ld.so.cache", self._machine)
        cached = self._cache.get(name)
        if cached and os.path.exists(self._root + cached):
            return cached
        multiarch = f"{self._machine}-linux-gnu"
        for base in ("/lib64", "/usr/lib64", "/lib", "/usr/lib", f"/lib/{multiarch}", f"/usr/lib/{multiarch}"):
            if self._listings.has(self._root + base, name):
                return f"{base}/{name}"
        return None

    def _torch(self) -> list[Elf]:
        if self._torch_libraries is None:
            opened = []
            for name in _TORCH_LIBRARIES:
                for directory in self._fallback:
                    library = _open(f"{directory}/{name}") if self._listings.has(directory, name) else None
                    if library is not None:
                        opened.append(library)
                        break
            # Without the libraries themselves (a namespace left over, another layout) nothing can be concluded.
            names = {os.path.basename(library.path) for library in opened}
            self._torch_libraries = opened if {"libc10.so", "libtorch_cpu.so"} <= names else []
        return self._torch_libraries

    def _defined_by_torch(self, symbol: bytes) -> bool:
        if symbol not in self._in_torch:
            hash_ = gnu_hash(symbol)
            self._in_torch[symbol] = any(library.defines(symbol, hash_) for library in self._torch())
        return self._in_torch[symbol]

    def _own_libraries(self, requester: Elf) -> Iterator[Elf]:
        """The libraries that `requester` needs beside torch's and the system's."""
        for name in requester.needed:
            if name not in _TORCH_LIBRARIES and not _C_LIBRARY.match(name) and not name.startswith("libstdc++"):
                path = self.find(name, requester)
                library = _open(path) if path else None
                if library is not None:
                    yield library


def _open(path: str) -> Elf | None:
    try:
        return Elf(path)
    except (OSError, ElfError):
        return None


def _defines(library: Elf, symbol: bytes) -> bool:
    try:
        return library.defines(symbol, gnu_hash(symbol))
    except (OSError, ElfError, struct.error):
        return False


def _expand(entries: list[str], origin: str) -> Iterator[str]:
    for entry in entries:
        for directory in entry.split(":"):
            if directory:
                yield os.path.normpath(directory.replace("$ORIGIN", origin).replace("${ORIGIN}", origin))


def read_cache(path: str, machine: str) -> dict[str, str]:
    """The libraries of this machine's kind in `ld.so.cache`; nothing when there is no such file or it is damaged."""
    data = files.read(path, _CACHE_LIMIT_BYTES) or b""
    start = data.find(_CACHE_MAGIC)
    wanted = _CACHE_FLAGS.get(machine)
    if start < 0 or wanted is None or len(data) < start + 48:
        return {}
    data = data[start:]
    (count,) = struct.unpack_from("<I", data, len(_CACHE_MAGIC))
    table = data[48 : 48 + 24 * count]
    found: dict[str, str] = {}
    for flags, key, value, _, _ in struct.iter_unpack("<iIIIQ", table[: len(table) // 24 * 24]):
        if flags & 0xFF00 == wanted:
            name = data[key : data.find(b"\0", key)].decode("utf-8", "replace")
            found.setdefault(name, data[value : data.find(b"\0", value)].decode("utf-8", "replace"))
    return found


def is_of_this_machine(library: Elf) -> bool:
    """Whether the file is for the processor that we run on."""
    return MACHINES.get(library.machine, "") == os.uname().machine
