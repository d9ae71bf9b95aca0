"""Where the file of a frame is in an environment, and of which version. A log is foreign input: only files inside of
site-packages, dist-packages and the standard library are opened, as text; nothing is imported or run."""

from __future__ import annotations

import os
import re
import stat
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import msgspec

from rlcheck.diagnose.decoders.build import PACKAGES
from rlcheck.facts.base import Struct
from rlcheck.tables import DATA

MAX_BYTES = 2 << 20
_RECORD = 8 << 20
_MOST_OTHERS = 3
_PACKAGES = re.compile(r".*/(?:site|dist)-packages/", re.S)
_STDLIB = re.compile(r".*/lib(?:64)?/python3(?:\.\d+)?/|[A-Za-z]:/.*/Lib/", re.S)
_VERSION = re.compile(r"^Version: *(\S{1,80})\s*$", re.M)
_NAME = re.compile(r"[-_.]+")
_DEEPEST = 24


class Environment(Struct, frozen=True):
    """Directories of an installed Python, what a config of the run sets, by dotted key, and where the record of raise
    sites is."""

    sites: tuple[str, ...]
    stdlib: str = ""
    config: Mapping[str, str] = {}
    records: str = str(DATA / "raises")


class Module(Struct, frozen=True):
    """A file of an environment. `name` is its path from site-packages on; `package` is "" in the standard library.

    `sure` is False where the log's path has no site-packages and only ends as this file's does.
    """

    path: str
    name: str
    package: str = ""
    version: str = ""
    sure: bool = True


def environment(python: str = "", config: Mapping[str, str] | None = None) -> Environment:
    """The environment of PYTHON, an interpreter or its directory; without it, that of this process. No `sites` in it
    where PYTHON has none at the usual places."""
    if not python:
        own = dict.fromkeys(path for path in sys.path if path.rstrip("/").endswith(("site-packages", "dist-packages")))
        return Environment(sites=tuple(own), stdlib=os.path.dirname(os.__file__), config=config or {})
    path = Path(python).expanduser()
    # The interpreter of a virtual environment is a link: its own place counts.
    prefix = path if path.is_dir() else path.parent.parent
    sites = [
        str(found) for pattern in ("lib*/python3*/*-packages", "Lib/site-packages") for found in prefix.glob(pattern)
    ]
    base = _home(prefix) or prefix
    libraries = sorted(str(found.parent) for found in base.glob("lib/python3.*/os.py"))
    same = [library for library in libraries if any(os.path.basename(library) in site for site in sites)]
    return Environment(sites=tuple(sites), stdlib=(same or libraries or [""])[0], config=config or {})


def _home(prefix: Path) -> Path | None:
    try:
        text = (prefix / "pyvenv.cfg").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"^home *= *(\S.*?) *$", text, re.M)
    return Path(found[1]).parent if found else None


def locate(file: str, where: Environment) -> Module | None:
    """The file that FILE, a path of another machine, is in this environment; None where it has none."""
    path = file.replace("\\", "/")
    if match := _PACKAGES.match(path):
        return _in_sites(path[match.end() :], where)
    if match := _STDLIB.match(path):
        real = _inside(where.stdlib, path[match.end() :])
        return Module(path=real, name=path[match.end() :]) if real else None
    parts = path.split("/")[-_DEEPEST:]
    for at in range(1, len(parts) - 1):  # a checkout of what is installed here
        if parts[at].isidentifier() and (found := _in_sites("/".join(parts[at:]), where)):
            return Module(path=found.path, name=found.name, package=found.package, version=found.version, sure=False)
    return None


def elsewhere(file: str, where: Environment) -> Iterator[Module]:
    """The files of this name in other directories of the same package: between versions, files move."""
    tail = in_packages(file)
    top, _, name = tail.partition("/")
    name = name.rpartition("/")[2]
    for site in where.sites if name else ():
        for info in _infos(site, top):
            listed = re.findall(
                rf"^({re.escape(top)}/(?:[^,\n]{{1,200}}/)?{re.escape(name)}),", _head(f"{info}/RECORD", _RECORD), re.M
            )
            for other in listed[:_MOST_OTHERS]:
                if other != tail and (found := _in_sites(other, where)):
                    yield msgspec.structs.replace(found, sure=False)


def is_stdlib(file: str) -> bool:
    """Whether this path of a log is one of the standard library."""
    path = file.replace("\\", "/")
    return file.startswith("<frozen ") or (_STDLIB.match(path) is not None and _PACKAGES.match(path) is None)


def is_library(file: str) -> bool:
    """Whether this path of a log is one of an installed package."""
    return _PACKAGES.match(file.replace("\\", "/")) is not None


def package_of(file: str) -> str:
    """The directory of site-packages that this path of a log is in, "" if none."""
    return in_packages(file).split("/")[0].removesuffix(".py")


def in_packages(file: str) -> str:
    """This path of a log from site-packages on, "" if it is not in there."""
    path = file.replace("\\", "/")
    match = _PACKAGES.match(path)
    return path[match.end() :] if match else ""


def _in_sites(tail: str, where: Environment) -> Module | None:
    for site in where.sites:
        if real := _inside(site, tail):
            top = tail.split("/", maxsplit=1)[0].removesuffix(".py")
            name, version = _distribution(site, top)
            return Module(path=real, name=tail, package=name, version=version)
    return None


def _inside(root: str, tail: str) -> str:
    """The real path of TAIL below ROOT; "" if it is no Python file there, or a link that leads out."""
    parts = tail.split("/")
    if not root or not tail.endswith(".py") or "\0" in tail or any(part in ("", ".", "..") for part in parts):
        return ""
    try:
        real, base = os.path.realpath(os.path.join(root, *parts)), os.path.realpath(root)
        return real if real.startswith(base + os.sep) and os.path.isfile(real) else ""
    except (OSError, ValueError):
        return ""


def _distribution(site: str, top: str) -> tuple[str, str]:
    """Name and version of what has installed the module TOP; the module's own name and "" where no metadata says."""
    for info in _infos(site, top):
        if found := _VERSION.search(_head(f"{info}/METADATA")):
            return os.path.basename(info).split("-")[0].replace("_", "-"), found[1]
    return top, ""


@cache
def _infos(site: str, top: str) -> list[str]:
    """The `*.dist-info` directories of what may have installed the module TOP."""
    try:
        infos = [name for name in os.listdir(site) if name.endswith(".dist-info")]
    except OSError:
        return []
    wanted = {_plain(top), _plain(PACKAGES.get(top, top).split(" ")[0])}
    named = [info for info in infos if _plain(info.split("-")[0]) in wanted]
    named = named or [info for info in infos if top in _head(f"{site}/{info}/top_level.txt").split()]
    return [f"{site}/{info}" for info in named]


def _plain(name: str) -> str:
    return _NAME.sub("-", name).lower()


def _head(path: str, most: int = 4096) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""


def read(module: Module) -> bytes:
    """What is in the file.

    Raises:
        OSError: it cannot be read, is no regular file, or is larger than `MAX_BYTES`.
    """
    descriptor = os.open(module.path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > MAX_BYTES:
            raise OSError(f"{module.name}: no file of at most {MAX_BYTES} bytes")
        return file.read(MAX_BYTES)
