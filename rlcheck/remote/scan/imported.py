"""Which missing packages a package imports whenever it is imported itself: read from its sources, nothing is run."""

from __future__ import annotations

import os
import re
from typing import Dict, Iterable, Iterator, List, Mapping, Tuple

from .files import read

_FILES_LIMIT = 2000
# Imports at the margin of a module are made in any case: those in `try`, `if` and functions are indented.
_IMPORT = re.compile(rb"^(?:from[ \t]+([.\w]+)[ \t]+import[ \t]+\(?([^\n]*)|import[ \t]+([\w., \t]+))", re.M)
_USUAL = {"pyyaml": "yaml", "pillow": "PIL", "opencv-python": "cv2", "opencv-python-headless": "cv2",
          "scikit-learn": "sklearn", "python-dateutil": "dateutil", "protobuf": "google.protobuf", "pyzmq": "zmq",
          "beautifulsoup4": "bs4", "nvidia-ml-py": "pynvml", "gitpython": "git"}  # fmt: skip


def module_of(distribution: str) -> str:
    """The name under which a distribution that is not installed is most likely imported."""
    return _USUAL.get(distribution, distribution.replace("-", "_"))


def unguarded(roots: Mapping[str, Iterable[str]], location: str, wanted: Mapping[str, str]) -> Dict[str, str]:
    """Return `file:line` of the first import of each of `wanted` that is made whenever a package is imported.

    Args:
        roots: import name of the package to the attributes that a run takes from it (they may be loaded late).
        location: the directory that has the package.
        wanted: distribution to import name.
    """
    found: Dict[str, str] = {}
    for package, attributes in roots.items():
        waiting = _files(location, package)
        initial = read(waiting[0]) or b"" if waiting else b""
        for attribute in attributes:
            late = re.search(rb"[\"']%s[\"']\s*:\s*[\"']([.\w]+)" % re.escape(attribute).encode(), initial)
            if late:
                waiting += _files(location, _absolute(late.group(1).decode(), package, True))
        _follow(waiting, package, location, wanted, found)
    return found


def _follow(waiting: List[str], package: str, location: str, wanted: Mapping[str, str], found: Dict[str, str]) -> None:
    seen = set(waiting)
    while waiting and len(seen) < _FILES_LIMIT:
        path = waiting.pop(0)
        data = read(path) or b""
        inside = os.path.relpath(path, location)[: -len(".py")].split(os.sep)
        is_package = inside[-1] == "__init__"
        current = ".".join(inside[:-1] if is_package else inside)
        for module, names, place in _imports(data, current, is_package):
            for distribution, name in wanted.items():
                if module == name or module.startswith(name + "."):
                    line = data.count(b"\n", 0, place) + 1
                    found.setdefault(distribution, f"{os.path.relpath(path, location)}:{line}")
            if module.split(".")[0] == package:
                for one in (module, *(f"{module}.{name}" for name in names)):
                    fresh = [file for file in _files(location, one) if file not in seen]
                    seen.update(fresh)
                    waiting += fresh


def _imports(data: bytes, current: str, is_package: bool) -> Iterator[Tuple[str, List[str], int]]:
    """Each imported module, the names taken from it, and where in the file."""
    for match in _IMPORT.finditer(data):
        origin, taken, plain = (group.decode("ascii", "replace") if group else "" for group in match.groups())
        if origin:
            names = [name.split()[0] for name in taken.rstrip(")").split(",") if name.strip()]
            yield _absolute(origin, current, is_package), names, match.start()
        for name in plain.split(","):
            if name.strip():
                yield name.split()[0], [], match.start()


def _absolute(module: str, current: str, is_package: bool) -> str:
    """`module` as seen from anywhere, when `current` names it, perhaps with leading dots."""
    rest = module.lstrip(".")
    dots = len(module) - len(rest)
    if not dots:
        return module
    parts = current.split(".")
    base = parts[: len(parts) - (dots - 1 if is_package else dots)]
    return ".".join([*base, rest] if rest else base)


def _files(location: str, module: str) -> List[str]:
    """The files that run when `module` is imported: the packages that it is in, and its own."""
    parts, found = module.split("."), []
    if not all(part.isidentifier() for part in parts):
        return []
    for depth in range(1, len(parts) + 1):
        base = os.path.join(location, *parts[:depth])
        found += [path for path in (f"{base}/__init__.py", f"{base}.py") if os.path.isfile(path)][:1]
    return found
