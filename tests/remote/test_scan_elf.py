"""The ELF reader and the link test on paper, on shared objects that the compiler made for the test."""

from __future__ import annotations

import os
import platform
import struct
from pathlib import Path

import pytest

from rlcheck.remote.scan import linker, torch_build
from rlcheck.remote.scan.elf import Elf, ElfError, GnuHash, gnu_hash
from tests.remote.trees import compile_library, install, scan

NEW = "_ZN3c106detail14torchCheckFailEPKcS2_jRKNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE"
OLD = "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs"


def calls(*symbols: str) -> str:
    """C source of an extension that calls these functions."""
    body = "".join(f"extern void {s}(void);" for s in symbols)
    return body + "void PyInit__C(void) {" + "".join(f"{s}();" for s in symbols) + "}"


def fake_torch(site: Path, *defined: str, version: str = "2.13.0+cpu") -> Path:
    """A torch whose libc10 defines these functions; an empty libtorch_cpu beside it."""
    body = "".join(f"void {s}(void) {{}}" for s in defined) or "int nothing;"
    install(site, "torch", version, files={"torch/__init__.py": "", "torch/version.py": f"__version__ = '{version}'\n"})
    compile_library(site / "torch/lib/libc10.so", body, "-Wl,-soname,libc10.so")
    compile_library(site / "torch/lib/libtorch_cpu.so", "int cpu;", "-Wl,-soname,libtorch_cpu.so")
    return site / "torch/lib"


def add_extension(site: Path, path: str, source: str, *options: str, distribution: str = "vllm") -> None:
    compile_library(site / path, source, *options)
    install(site, distribution, files={path: ""})


def only_extension(site: Path, **more: object) -> dict:
    return next(row for row in scan(site, **more)["extensions"] if row["distribution"] != "torch")


def test_an_extension_that_fits(tmp_path: Path) -> None:
    lib = fake_torch(tmp_path, NEW, "_ZN2at4onesEv")
    add_extension(tmp_path, "vllm/_C.abi3.so", calls(NEW, "_ZN2at4onesEv"), f"-L{lib}", "-lc10")
    row = only_extension(tmp_path)
    assert row["needed"] == ["libc10.so"]
    assert (row["unresolved_libs"], row["unresolved_symbols"], row["cxx11_abi"]) == ([], [], "new")


@pytest.mark.row("F02")
def test_an_extension_of_another_torch(tmp_path: Path) -> None:
    """F02: `undefined symbol` at import, told from the files."""
    lib = fake_torch(tmp_path, OLD, "_ZN2at4onesEv")
    add_extension(tmp_path, "vllm/_C.abi3.so", calls(OLD, "_ZN2at4onesEv"), f"-L{lib}", "-lc10")
    compile_library(lib / "libc10.so", f"void {NEW}(void) {{}}", "-Wl,-soname,libc10.so")
    document = scan(tmp_path)
    row = document["extensions"][0]
    assert document["torch"]["value"]["cxx11_abi"] == "new"
    assert row["cxx11_abi"] == "old"
    assert sorted(row["unresolved_symbols"]) == ["_ZN2at4onesEv", OLD]
    assert row["num_unresolved_symbols"] == 2


def test_weak_and_foreign_symbols_do_not_count(tmp_path: Path) -> None:
    lib = fake_torch(tmp_path, NEW)
    source = (
        f"extern void {NEW}(void); extern void _ZN2at4weakEv(void) __attribute__((weak)); extern void PyList_New(void);"
    )
    source += f"void PyInit__C(void) {{ {NEW}(); if (_ZN2at4weakEv) _ZN2at4weakEv(); PyList_New(); }}"
    add_extension(tmp_path, "vllm/_C.so", source, f"-L{lib}", "-lc10")
    assert only_extension(tmp_path)["unresolved_symbols"] == []


def test_symbols_of_an_own_library_resolve(tmp_path: Path) -> None:
    lib = fake_torch(tmp_path, NEW)
    own = compile_library(tmp_path / "vllm/libs/libown.so", "void _ZN5torch3ownEv(void) {}", "-Wl,-soname,libown.so")
    options = [f"-L{lib}", "-lc10", f"-L{own.parent}", "-lown", "-Wl,-rpath,$ORIGIN/libs"]
    add_extension(tmp_path, "vllm/_C.so", calls(NEW, "_ZN5torch3ownEv", "_ZN5torch4goneEv"), *options)
    row = only_extension(tmp_path)
    assert row["unresolved_libs"] == []
    assert row["unresolved_symbols"] == ["_ZN5torch4goneEv"]


@pytest.mark.row("F02")
def test_missing_libraries_and_the_cuda_major(tmp_path: Path) -> None:
    """F02: `libcudart.so.12` not found beside a torch of CUDA 13."""
    fake_torch(tmp_path)
    stub = compile_library(tmp_path / "stubs/libcudart.so", "void cudaFree(void) {}", "-Wl,-soname,libcudart.so.12")
    add_extension(tmp_path, "vllm/_C.so", calls("cudaFree"), f"-L{stub.parent}", "-lcudart")
    row = only_extension(tmp_path)
    assert row["unresolved_libs"] == ["libcudart.so.12"]
    assert row["cuda_major"] == 12


@pytest.mark.parametrize("how", ["runpath", "rpath", "library path", "nvidia package", "cache", "default"])
def test_where_the_linker_looks(tmp_path: Path, how: str) -> None:
    site, root = tmp_path / "site", tmp_path / "root"
    fake_torch(site)
    places = {
        "runpath": site / "cuda",
        "rpath": site / "cuda",
        "library path": tmp_path / "elsewhere",
        "nvidia package": site / "nvidia/cuda_runtime/lib",
        "cache": root / "opt/cuda",
        "default": root / "usr/lib64",
    }
    library = compile_library(places[how] / "libcudart.so.13", "void cudaFree(void) {}", "-Wl,-soname,libcudart.so.13")
    tags = {"runpath": "--enable-new-dtags", "rpath": "--disable-new-dtags"}
    options = [str(library), *([f"-Wl,{tags[how]},-rpath,$ORIGIN/../cuda"] if how in tags else [])]
    add_extension(site, "vllm/_C.so", calls("cudaFree"), *options)
    environ = {"LD_LIBRARY_PATH": f"/nowhere:{library.parent}"} if how == "library path" else {}
    if how == "cache":
        (root / "etc").mkdir(parents=True)
        (root / "etc/ld.so.cache").write_bytes(cache_file({"libcudart.so.13": "/opt/cuda/libcudart.so.13"}))
    assert only_extension(site, environ=environ, root=str(root))["unresolved_libs"] == []
    library.unlink()
    assert only_extension(site, environ=environ, root=str(root))["unresolved_libs"] == ["libcudart.so.13"]


def cache_file(libraries: dict[str, str], flags: int | None = None) -> bytes:
    flags = {"x86_64": 0x0303, "aarch64": 0x0A03}[platform.machine()] if flags is None else flags
    entries, strings = b"", b""
    start = 48 + 24 * len(libraries)
    for name, path in libraries.items():
        key = start + len(strings)
        strings += name.encode() + b"\0"
        value = start + len(strings)
        strings += path.encode() + b"\0"
        entries += struct.pack("<iIIIQ", flags, key, value, 0, 0)
    header = b"glibc-ld.so.cache1.1" + struct.pack("<II", len(libraries), len(strings)) + bytes(20)
    return header + entries + strings


def test_linker_cache(tmp_path: Path) -> None:
    path = tmp_path / "ld.so.cache"
    path.write_bytes(b"ld.so-1.7.0\0" + cache_file({"libx.so.1": "/x/libx.so.1"}))
    assert linker.read_cache(str(path), platform.machine()) == {"libx.so.1": "/x/libx.so.1"}
    path.write_bytes(cache_file({"libx.so.1": "/x/libx.so.1"}, flags=0x0003))
    assert linker.read_cache(str(path), platform.machine()) == {}, "libraries of another word size"
    for damaged in (b"", b"glibc-ld.so.cache1.1", cache_file({"l": "/l"})[:60], os.urandom(500)):
        path.write_bytes(damaged)
        assert linker.read_cache(str(path), platform.machine()) == {}


def test_the_real_cache_of_this_machine_if_it_has_one() -> None:
    cache = linker.read_cache("/etc/ld.so.cache", platform.machine())
    assert all(path.startswith("/") and name in path for name, path in cache.items() if name.startswith("libc.so"))


def test_without_torch_no_symbol_is_judged(tmp_path: Path) -> None:
    add_extension(tmp_path, "vllm/_C.so", calls(NEW), "-Wl,--no-as-needed")
    row = only_extension(tmp_path)
    assert row.get("unresolved_symbols", []) == []


def test_of_alternative_builds_the_best_is_reported(tmp_path: Path) -> None:
    lib = fake_torch(tmp_path, NEW)
    stub = compile_library(tmp_path / "stubs/libav.so", "void av(void) {}", "-Wl,-soname,libavcodec.so.58")
    compile_library(tmp_path / "torchcodec/core4.so", calls("av"), f"-L{stub.parent}", "-lav")
    compile_library(tmp_path / "torchcodec/core7.so", calls(NEW), f"-L{lib}", "-lc10")
    install(tmp_path, "torchcodec", files={"torchcodec/core4.so": "", "torchcodec/core7.so": ""})
    assert [Path(row["path"]).name for row in scan(tmp_path)["extensions"]] == ["core7.so"]


def test_extensions_for_another_python_and_bundled_libraries_are_left_out(tmp_path: Path) -> None:
    fake_torch(tmp_path)
    names = ["vllm/_x.cpython-27-x86_64-linux-gnu.so", "vllm/v.libs/libz.so", "vllm/_y.abi3.so"]
    for name in names:
        compile_library(tmp_path / name, "int x;")
    install(tmp_path, "vllm", files=dict.fromkeys(names, ""))
    assert [Path(row["path"]).name for row in scan(tmp_path)["extensions"]] == ["_y.abi3.so"]


def test_numpy_1(tmp_path: Path) -> None:
    fake_torch(tmp_path)
    old, new = "numpy.core._multiarray_umath", "numpy._core._multiarray_umath"
    compile_library(tmp_path / "vllm/old.so", f'const char *x(void) {{ return "{old}"; }}')
    compile_library(tmp_path / "vllm/new.so", f'const char *x(int i) {{ return i ? "{old}" : "{new}"; }}')
    install(tmp_path, "vllm", files={"vllm/old.so": "", "vllm/new.so": ""})
    found = {Path(row["path"]).name: row["uses_numpy_1"] for row in scan(tmp_path)["extensions"]}
    assert found == {"old.so": True, "new.so": False}


def test_hostile_files_are_an_error_each(tmp_path: Path) -> None:
    good = compile_library(tmp_path / "good.so", calls(NEW)).read_bytes()
    contents = {
        "empty": b"",
        "text": b"#!/bin/sh\n",
        "cut": good[:100],
        "headers only": good[:64],
        "32 bit": good[:4] + b"\x01" + good[5:],
        "big end": good[:5] + b"\x02" + good[6:],
        "executable": good[:16] + b"\x02\x00" + good[18:],
        "far table": good[:32] + struct.pack("<Q", 1 << 60) + good[40:],
        "other machine": good[:18] + b"\x03\x00" + good[20:],
    }
    for name, content in contents.items():
        (tmp_path / "vllm").mkdir(exist_ok=True)
        (tmp_path / f"vllm/{name}.so").write_bytes(content)
    os.mkfifo(tmp_path / "vllm/fifo.so")
    install(tmp_path, "vllm", files={f"vllm/{name}.so": "" for name in (*contents, "gone", "fifo")})
    (tmp_path / "vllm/gone.so").unlink()
    rows = {Path(row["path"]).stem: row["error"] for row in scan(tmp_path)["extensions"]}
    assert set(rows) == {*contents, "gone", "fifo"}
    assert all(rows.values()), rows
    assert rows["gone"] == "No such file or directory"
    assert rows["fifo"] == "not a regular file"
    assert rows["empty"] == "empty file"
    assert rows["other machine"] == "built for another processor"


def test_no_byte_of_a_file_can_break_the_reader(tmp_path: Path) -> None:
    """Every byte of the tables flipped in turn: an answer or an ElfError, and never long."""
    good = bytearray(compile_library(tmp_path / "good.so", calls(NEW)).read_bytes())
    path = tmp_path / "bad.so"
    for place in [*range(1200), *range(max(1200, len(good) - 2500), len(good))]:
        changed = bytearray(good)
        changed[place] ^= 0xFF
        path.write_bytes(changed)
        try:
            with Elf(str(path)) as elf:
                elf.undefined((b"_ZN",))
                elf.defines(NEW.encode(), gnu_hash(NEW.encode()))
                elf.section(b".rodata", 1 << 20)
        except (ElfError, OSError, struct.error):
            continue


def test_a_hash_table_without_an_end_is_left() -> None:
    table = struct.pack("<IIIIQI", 1, 1, 1, 0, 2**64 - 1, 1) + struct.pack("<I", 8) * 100_000
    assert len(GnuHash(table).candidates(9)) <= 10_000
    with pytest.raises(ElfError):
        GnuHash(struct.pack("<IIII", 0, 0, 0, 0))


def test_defines_agrees_with_the_file(tmp_path: Path) -> None:
    names = [f"_ZN2at4fn{n:03}Ev" for n in range(300)]
    lib = compile_library(tmp_path / "lib.so", "".join(f"void {name}(void) {{}}" for name in names[::2]))
    with Elf(str(lib)) as elf:
        assert [name for name in names if elf.defines(name.encode(), gnu_hash(name.encode()))] == names[::2]


def test_the_abi_is_told_from_names() -> None:
    assert torch_build.abi_of(NEW.encode()) == "new"
    assert torch_build.abi_of(OLD.encode()) == "old"
    assert torch_build.abi_of(b"_ZN3c105ErrorC2ENS_14SourceLocationESs\0x") == "old"
    assert torch_build.abi_of(b"_ZN3c106detail14torchCheckFailEPKcS2_jS2_\0_ZN2at9processSsEv") == ""
