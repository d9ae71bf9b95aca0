"""Compiled files: the C++ ABI, symbols, libraries, NumPy and the C library they were built for."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.checks.python.common import (
    by_importance,
    environment,
    in_stack,
    installed,
    is_at,
    named,
    pip_params,
    reinstall_params,
    shortened,
)
from rlcheck.checks.python.common import torch_build as build_of
from rlcheck.checks.python.compat import Library, compat
from rlcheck.checks.python.symbols import readable, string_abi
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.python import Distribution, Extension
from rlcheck.requirements import parse, version
from rlcheck.text import several

_TORCH_LIBRARIES = ("libtorch", "libc10")
_FROM_THE_DRIVER = re.compile(r"lib(cuda|nvidia-\w+|nvcuvid|nvoptix)\.so")
_MANYLINUX = re.compile(r"manylinux_(\d+)_(\d+)|manylinux(1|2010|2014)(?=_|$)")
_OLD_MANYLINUX = {"1": (2, 5), "2010": (2, 12), "2014": (2, 17)}
_ABI_WORDS = {"new": "new (CXX11_ABI=1)", "old": "old (CXX11_ABI=0)"}


def _of_torch(extension: Extension) -> bool:
    """Whether a compiled file uses torch's C++ code."""
    return bool(extension.unresolved_symbols) or any(name.startswith(_TORCH_LIBRARIES) for name in extension.needed)


def _file(extension: Extension) -> str:
    return extension.path.rpartition("/")[2] or extension.path


def _owner(facts: Facts, extension: Extension) -> str:
    """`flash-attn 2.8.2`."""
    have = installed(facts).get(extension.distribution)
    return named(have) if have else extension.distribution or _file(extension)


@check(
    "ENV019",
    "Extensions use torch's C++ string ABI",
    needs=("python.torch",),
    playbook="undefined-symbol",
    caused_by=("ENV010", "ENV013"),
    problem="An extension uses another C++ string ABI than torch",
)
def cxx_abi(facts: Facts) -> Verdict:
    """Compares the C++ string ABI of compiled extensions with that of torch.

    What it does:
        Reads from the ELF files which ABI their torch symbols were made with: `Ss` in a symbol is the old one,
        `NSt7__cxx1112basic_string` the new one. torch's wheels changed from old to new with 2.6 for CUDA 12.6 and 2.7.

    Why it matters:
        The two ABIs give every function with a string in it another name, so the import ends in `undefined symbol:
        _ZN3c105ErrorC2E…`. No reinstallation of torch of the same build fixes it.
    """
    ours = build_of(facts).cxx11_abi
    if not ours:
        return skip("torch's ABI does not show")
    wrong = [e for e in environment(facts).extensions if _abi_differs(e, ours)]
    if not wrong:
        return passed(f"every extension of torch uses its {_ABI_WORDS.get(ours, ours)} ABI")
    lines = [f"{_owner(facts, e)}: {_file(e)} uses the {_ABI_WORDS.get(e.cxx11_abi)} ABI{_proof(e)}" for e in wrong]
    return fail(
        f"extensions with torch's ABI: {_ABI_WORDS.get(ours, ours)}",
        lines[0],
        details=shortened(lines),
        evidence=(evidence("python.torch.cxx11_abi", ours, "symbols of libc10.so"),),
        params=_again(facts, wrong),
    )


def _again(facts: Facts, wrong: Iterable[Extension]) -> dict[str, str]:
    """Parameters of what installs the owners of extensions again, in their versions."""
    names = list(dict.fromkeys(extension.distribution for extension in wrong))
    have = installed(facts)
    exact = [f"{name}=={have[name].version.partition('+')[0]}" if name in have else name for name in names]
    return pip_params(facts, name=several(names), exact=several(exact))


def _abi_differs(extension: Extension, ours: str) -> bool:
    foreign = extension.distribution != "torch" and _of_torch(extension)
    return foreign and extension.cxx11_abi in _ABI_WORDS and extension.cxx11_abi != ours


def _proof(extension: Extension) -> str:
    symbol = next((s for s in extension.unresolved_symbols if string_abi(s)), "")
    return f", it looks for {readable(symbol)} as {symbol[:90]}" if symbol else ""


@check(
    "ENV020",
    "Extensions find their torch symbols",
    needs=("python.torch",),
    playbook="undefined-symbol",
    caused_by=("ENV010", "ENV011", "ENV012", "ENV013", "ENV019"),
    problem="A compiled extension was built for another torch",
)
def symbols(facts: Facts) -> Verdict:
    """Looks for torch symbols that a compiled extension asks for and that this torch does not define.

    What it does:
        Compares the undefined c10, at and torch symbols of every extension with what torch's libraries define, without
        importing anything. Extensions whose ABI is the reason are left to ENV019.

    Why it matters:
        The extension was built against another torch release, and its import ends in `undefined symbol`. torch promises
        no binary compatibility between releases.
    """
    ours = build_of(facts).cxx11_abi
    wrong = [e for e in environment(facts).extensions if e.unresolved_symbols and not (ours and _abi_differs(e, ours))]
    if not wrong:
        return passed("no extension asks torch for a symbol that it does not have")
    wrong.sort(key=lambda e: by_importance([e.distribution, "zzz"])[0] != e.distribution)
    lines = [
        f"{_owner(facts, e)}: {_file(e)} lacks {len(e.unresolved_symbols)} symbol(s), "
        f"{readable(e.unresolved_symbols[0])} ({e.unresolved_symbols[0][:90]})"
        for e in wrong
    ]
    return fail(
        f"extensions built for torch {build_of(facts).version}",
        lines[0],
        details=shortened(lines),
        evidence=(evidence("python.extensions", wrong[0].unresolved_symbols[0], wrong[0].path),),
        params=_again(facts, wrong),
    )


@check(
    "ENV021",
    "Compiled files find their libraries",
    needs=("python",),
    playbook="library-not-found",
    caused_by=("ENV010", "ENV011", "ENV012", "ENV013", "ENV014", "ENV017", "ENV048"),
    problem="A shared library of a compiled package is not found",
)
def libraries(facts: Facts) -> Verdict:
    """Looks for shared libraries that compiled packages need and that the dynamic linker would not find.

    What it does:
        Follows the NEEDED entries of every compiled file of the stack through RPATH, LD_LIBRARY_PATH and the system's
        directories. The driver's own libraries are left to the GPU checks.

    Why it matters:
        The import ends in `cannot open shared object file`. A missing libcudart.so.12 or libcudnn.so.9 nearly always
        means a package built for another CUDA than torch's, or a wheel that brings the library and is not installed.
    """
    lost = [(e, _lost(e)) for e in environment(facts).extensions if in_stack(e.distribution) and _lost(e)]
    if not lost:
        return passed("every library that the stack's compiled files need is there")
    lost.sort(key=lambda pair: _kind(pair[1][0]) is None)
    extension, names = lost[0]
    lines = [f"{_owner(facts, e)}: {_file(e)} needs {', '.join(found[:4])}{_bringer(found)}" for e, found in lost]
    grave = any(_kind(found[0]) is not None and _loaded_at_import(e) for e, found in lost)
    return (fail if grave else warn)(
        "all libraries of compiled packages to be found",
        lines[0],
        details=shortened(lines),
        evidence=(evidence("python.extensions", names[0], extension.path),),
        params=_wheels(facts, [name for _, found in lost for name in found]),
    )


def _lost(extension: Extension) -> list[str]:
    names = [name for name in extension.unresolved_libs if not _FROM_THE_DRIVER.match(name)]
    return sorted(names, key=lambda name: _kind(name) is None)


def _kind(library: str) -> Library | None:
    return next((row for row in compat().libraries if re.fullmatch(row.pattern, library)), None)


def _bringer(names: Iterable[str]) -> str:
    kinds = [kind for name in names if (kind := _kind(name))]
    return f" ({kinds[0].what})" if kinds else ""


def _wheels(facts: Facts, libraries: Iterable[str]) -> dict[str, str]:
    """Parameters of what installs the wheels that bring LIBRARIES; of one that is there already, its files are lost."""
    kinds = [kind for name in libraries if (kind := _kind(name)) is not None and kind.distribution]
    brings = list(dict.fromkeys(kind.distribution.split(" ")[0] for kind in kinds))
    there = [name for name in brings if name in installed(facts)]
    if there:
        return reinstall_params(facts, there[0])
    return pip_params(facts, brings=several(brings)) if brings else pip_params(facts)


def _loaded_at_import(extension: Extension) -> bool:
    """Whether the package cannot do without this file; these pick one plug-in of several, or can do without."""
    return extension.distribution not in ("torchcodec", "bitsandbytes", "torchao")


@check("ENV022", "Extensions are built for this NumPy", needs=("python",), playbook="numpy-1-extension",
       problem="An extension is not built for this NumPy")  # fmt: skip
def numpy_abi(facts: Facts) -> Verdict:
    """Looks for extensions compiled against NumPy 1 while NumPy 2 is installed.

    What it does:
        Reads from compiled files whether they use the C API of NumPy 1.x and compares with the installed NumPy. Fails
        for packages of the stack and for what they require, warns for others.

    Why it matters:
        NumPy 2 refuses such a module: "A module that was compiled using NumPy 1.x cannot be run in NumPy 2", and the
        import fails or crashes. The other way round works: what was built with NumPy 2 runs on 1.19 and later.
    """
    numpy = installed(facts).get("numpy")
    if not is_at(numpy, ">=2") or numpy is None:
        return skip("NumPy 2 is not installed")
    old = by_importance(e.distribution for e in environment(facts).extensions if e.uses_numpy_1)
    if not old:
        return passed(f"no extension is tied to NumPy 1 beside NumPy {numpy.version}")
    owners = [named(installed(facts)[name]) if name in installed(facts) else name for name in old]
    needed = {name for d in environment(facts).distributions if in_stack(d.name) for name in _required(d)}
    return (fail if any(in_stack(name) or name in needed for name in old) else warn)(
        "extensions built for NumPy 2",
        f"NumPy {numpy.version} and {len(old)} package(s) built for NumPy 1: {owners[0]}",
        details=shortened(owners),
        evidence=(evidence("python.extensions", old[0]),),
        params=pip_params(facts, name=several(old)),
    )


def _required(distribution: Distribution) -> set[str]:
    """What a distribution requires in any case, extras left out."""
    lines = (parse(line) for line in distribution.requires if "extra" not in line)
    return {line.name for line in lines if line is not None}


@check("ENV023", "The C library is new enough for the wheels", needs=("python", "platform"), playbook="glibc-too-old")
def glibc(facts: Facts) -> Verdict:
    """Compares the glibc that the installed wheels were built for with this machine's.

    What it does:
        Takes the lowest glibc from the platform tags of each wheel (manylinux_2_28 means 2.28), and from a table for
        wheels whose own tag hides it.

    Why it matters:
        On an older glibc the import fails with "version `GLIBC_2.34' not found". pip would not have installed such a
        wheel here: the environment was made on another machine, or is shared by nodes of different age.
    """
    platform = need(facts.platform)
    have = version(platform.libc_version)
    if platform.libc != "glibc" or have is None:
        return skip(f"the C library is {platform.libc or 'unknown'}, not glibc")
    floors = {d.name: floor for d in environment(facts).distributions if (floor := _floor(d))}
    newer = [name for name in by_importance(floors) if version(floors[name]) > have]  # type: ignore[operator]
    if not newer:
        return passed(f"glibc {platform.libc_version} is new enough for every wheel")
    lines = [f"{named(installed(facts)[name])} needs glibc {floors[name]}" for name in newer]
    return (fail if any(in_stack(name) for name in newer) else warn)(
        f"wheels for glibc {platform.libc_version} or older",
        lines[0] + (f" and {len(lines) - 1} more" if len(lines) > 1 else ""),
        details=shortened(lines),
        evidence=(evidence("platform.libc_version", platform.libc_version),),
        params=pip_params(facts, name=newer[0], glibc=floors[newer[0]]),
    )


def _floor(distribution: Distribution) -> str:
    """The glibc that a wheel needs, "" when nothing says so."""
    found = [pair for tag in distribution.wheel_tags if (pair := _tag_floor(tag))]
    row = next(
        (r for r in compat().glibc_floors if r.package == distribution.name and is_at(distribution, r.versions)), None
    )
    if row is not None:
        return row.glibc
    return ".".join(map(str, min(found))) if found else ""


def _tag_floor(tag: str) -> tuple[int, int] | None:
    pairs = [_OLD_MANYLINUX[old] if old else (int(one[:4]), int(two[:4])) for one, two, old in _MANYLINUX.findall(tag)]
    return min(pairs) if pairs else None
