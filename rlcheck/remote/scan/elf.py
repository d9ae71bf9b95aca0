"""Reading ELF files: what a shared object asks of the dynamic linker, and whether it defines a symbol.

Reads the few ranges that are needed with `pread`. A mapped file would kill the process when it is truncated below our
feet or when a network file system gives up; a failed read is only an `OSError`. The doctor's own process reads NCCL's
and torch's libraries with it, too.
"""

from __future__ import annotations

import os
import stat
import struct

_NEEDED, _HASH, _STRTAB, _SYMTAB, _STRSZ, _SONAME, _RPATH, _RUNPATH = 1, 4, 5, 6, 10, 14, 15, 29
_GNU_HASH = 0x6FFFFEF5
_PT_LOAD, _PT_DYNAMIC = 1, 2
_SHT_DYNSYM = 11
_SYMBOL = struct.Struct("<IBBHQQ")
_STB_GLOBAL = 1
_TABLE_LIMIT_BYTES = 48 << 20
_CHAIN_LIMIT = 10_000
MACHINES = {62: "x86_64", 183: "aarch64"}


class ElfError(Exception):
    """Not an ELF file that we can read; the message is one line."""


class Elf:
    """One 64-bit little-endian shared object. `needed`, `rpath` and `runpath` are as written in the file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._fd = -1
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(self._fd)
            if not stat.S_ISREG(status.st_mode):
                raise ElfError("not a regular file")
            self._size = status.st_size
            self._loads, dynamic = self._read_headers()
            self._tags = self._read_dynamic(dynamic)
            self._strtab = b""
            self._gnu: GnuHash | None = None
            self.needed = [self._string(offset) for offset in self._values(_NEEDED)]
            self.rpath = [self._string(offset) for offset in self._values(_RPATH)]
            self.runpath = [self._string(offset) for offset in self._values(_RUNPATH)]
        except struct.error as error:
            self.close()
            raise ElfError(f"truncated ELF file ({error})") from None
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the file; a second time does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Elf:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def undefined(self, prefixes: tuple[bytes, ...]) -> list[bytes]:
        """The undefined, not weak, dynamic symbols whose mangled name begins with one of `prefixes`."""
        count = self._unhashed_count()
        table = self._read(self._offset(_SYMTAB), count * _SYMBOL.size)
        names = self._whole_strtab()
        found = []
        for name, info, _, section, _, _ in _SYMBOL.iter_unpack(table[: len(table) // 24 * 24]):
            if section == 0 and info >> 4 == _STB_GLOBAL and names.startswith(prefixes, name):
                found.append(names[name : names.find(b"\0", name)])
        return found

    def defines(self, symbol: bytes, hash_: int) -> bool:
        """Whether the dynamic linker would find `symbol` in here; `hash_` is its `gnu_hash`."""
        if self._gnu is None:
            self._gnu = GnuHash(self._read_gnu_hash())
        return any(self._is_definition(index, symbol) for index in self._gnu.candidates(hash_))

    def dynamic_strings(self) -> bytes:
        """The string table of the dynamic symbols, one string after the other with a NUL between."""
        return self._whole_strtab()

    def section(self, name: bytes, limit: int) -> bytes:
        """The first `limit` bytes of section `name`, or nothing when the file has no such section."""
        for offset, size, kind, label in self._sections():
            if label == name and kind == 1:
                return self._read(offset, min(size, limit))
        return b""

    def _read(self, offset: int, size: int) -> bytes:
        if offset < 0 or size < 0 or offset > self._size or size > _TABLE_LIMIT_BYTES:
            raise ElfError("a table of the ELF file is outside the file")
        return os.pread(self._fd, min(size, self._size - offset), offset)

    def _read_headers(self) -> tuple[list[tuple[int, int, int]], tuple[int, int]]:
        """The (address, offset, size) of each loaded segment, and the (offset, size) of the dynamic section."""
        header = self._read(0, 64)
        if header[:4] != b"\x7fELF":
            raise ElfError("not an ELF file" if header else "empty file")
        if header[4:6] != b"\x02\x01":
            raise ElfError("not a 64-bit little-endian ELF file")
        kind, self.machine = struct.unpack_from("<HH", header, 16)
        (table,) = struct.unpack_from("<Q", header, 32)
        (self._section_table,) = struct.unpack_from("<Q", header, 40)
        entry_size, count, _, self._num_sections, self._names_index = struct.unpack_from("<HHHHH", header, 54)
        if kind != 3 or entry_size != 56:
            raise ElfError("not a shared object")
        loads, dynamic = [], None
        for type_, _, offset, address, _, size, _, _ in struct.iter_unpack(
            "<IIQQQQQQ", _whole(self._read(table, count * 56), 56)
        ):
            if type_ == _PT_LOAD:
                loads.append((address, offset, size))
            elif type_ == _PT_DYNAMIC:
                dynamic = (offset, size)
        if dynamic is None:
            raise ElfError("no dynamic section")
        return loads, dynamic

    def _read_dynamic(self, where: tuple[int, int]) -> list[tuple[int, int]]:
        return list(struct.iter_unpack("<qQ", _whole(self._read(where[0], min(where[1], 1 << 16)), 16)))

    def _values(self, tag: int) -> list[int]:
        return [value for key, value in self._tags if key == tag]

    def _offset(self, tag: int) -> int:
        """Where in the file the table that `tag` points to begins."""
        values = self._values(tag)
        if not values:
            raise ElfError("a dynamic table is missing")
        for address, offset, size in self._loads:
            if address <= values[0] < address + size:
                return values[0] - address + offset
        raise ElfError("a dynamic table is outside the loaded segments")

    def _string(self, offset: int) -> str:
        return self._name(offset, 4096).decode("utf-8", "replace")

    def _name(self, offset: int, limit: int) -> bytes:
        if self._strtab:
            return self._strtab[offset : self._strtab.find(b"\0", offset)]
        return self._read(self._offset(_STRTAB) + offset, limit).split(b"\0", 1)[0]

    def _whole_strtab(self) -> bytes:
        if not self._strtab:
            sizes = self._values(_STRSZ)
            self._strtab = self._read(self._offset(_STRTAB), sizes[0] if sizes else 0) + b"\0"
        return self._strtab

    def _is_definition(self, index: int, symbol: bytes) -> bool:
        entry = self._read(self._offset(_SYMTAB) + index * _SYMBOL.size, _SYMBOL.size)
        if len(entry) < _SYMBOL.size:
            return False
        name, _, _, section, _, _ = _SYMBOL.unpack(entry)
        return section != 0 and self._name(name, len(symbol) + 1) == symbol

    def _unhashed_count(self) -> int:
        """How many symbols are before those of the GNU hash table; the undefined ones are all among them."""
        if self._values(_GNU_HASH):
            first = struct.unpack("<II", self._read(self._offset(_GNU_HASH), 8))[1]
            if first > 1:
                return first
        elif self._values(_HASH):
            return struct.unpack("<II", self._read(self._offset(_HASH), 8))[1]
        return next((size // _SYMBOL.size for _, size, kind, _ in self._sections() if kind == _SHT_DYNSYM), 0)

    def _read_gnu_hash(self) -> bytes:
        """The GNU hash table up to the next table of the file: its own length is written nowhere in it."""
        if not self._values(_GNU_HASH):
            raise ElfError("no GNU hash table")
        start = self._offset(_GNU_HASH)
        sizes = [size for offset, size, _, _ in self._sections() if offset == start]
        return self._read(start, sizes[0] if sizes else min(self._size - start, 4 << 20))

    def _sections(self) -> list[tuple[int, int, int, bytes]]:
        """The (offset, size, type, name) of each section; none when the section table was stripped."""
        table = _whole(self._read(self._section_table, self._num_sections * 64), 64) if self._section_table else b""
        rows = list(struct.iter_unpack("<IIQQQQIIQQ", table))
        if self._names_index >= len(rows):
            return []
        names = self._read(rows[self._names_index][4], min(rows[self._names_index][5], 1 << 16))
        return [(row[4], row[5], row[1], names[row[0] : max(names.find(b"\0", row[0]), 0)]) for row in rows]


class GnuHash:
    """A GNU hash table in memory (bloom filter, buckets, chains), as in glibc's `do_lookup_x`."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._num_buckets, self._first, self._bloom_words, self._shift = struct.unpack_from("<IIII", data)
        self._buckets = 16 + 8 * self._bloom_words
        self._chains = self._buckets + 4 * self._num_buckets
        if not self._num_buckets or not self._bloom_words or self._chains > len(data):
            raise ElfError("damaged GNU hash table")

    def candidates(self, hash_: int) -> list[int]:
        """The indices of the symbols with this hash."""
        data = self._data
        (word,) = struct.unpack_from("<Q", data, 16 + 8 * (hash_ // 64 % self._bloom_words))
        if not word >> (hash_ % 64) & word >> ((hash_ >> self._shift) % 64) & 1:
            return []
        (index,) = struct.unpack_from("<I", data, self._buckets + 4 * (hash_ % self._num_buckets))
        if index < self._first:
            return []
        found = []
        place = self._chains + 4 * (index - self._first)
        for _ in range(_CHAIN_LIMIT):
            if place + 4 > len(data):
                break
            (chained,) = struct.unpack_from("<I", data, place)
            if (chained ^ hash_) >> 1 == 0:
                found.append(index)
            if chained & 1:
                break
            index, place = index + 1, place + 4
        return found


def gnu_hash(symbol: bytes) -> int:
    """The hash that GNU hash tables are built on."""
    value = 5381
    for byte in symbol:
        value = value * 33 + byte & 0xFFFFFFFF
    return value


def _whole(data: bytes, size: int) -> bytes:
    """`data` without an incomplete last record."""
    return data[: len(data) // size * size]
