"""Puts the parts together: one document about the interpreter that runs this."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from typing import Any

from . import (
    damage,
    distributions,
    extensions,
    imported,
    interpreter,
    leftovers,
    metadata,
    moved,
    owners,
    places,
    torch_build,
)
from .distributions import Record
from .files import Listings, read
from .linker import Linker

# `compiled` and `numpy` are patterns of files: which to examine, and of which to tell NumPy's C API. `symbols`: whether
# its torch symbols are looked up. `alternatives`: the package loads whichever of its compiled files fits. `deep`: what
# an import test imports, as `module` or `module:attribute`.
_DEFAULTS: dict[str, Any] = {"compiled": [], "numpy": [], "symbols": True, "alternatives": False, "deep": []}
_SITE_NAMES = ("site-packages", "dist-packages")


class Stack:
    """The table of the packages that matter (`rlcheck/data/stack.json`), by the name of a distribution."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self._exact = {row["name"]: row for row in rows if "*" not in row["name"]}
        self._patterns = [row for row in rows if "*" in row["name"]]
        self._prefixes = tuple(row["name"].split("*", 1)[0] for row in self._patterns)

    def row(self, name: str) -> dict[str, Any] | None:
        """The row about distribution `name`, every field filled."""
        row = self._exact.get(name)
        if row is None and name.startswith(self._prefixes):
            row = next((row for row in self._patterns if fnmatchcase(name, row["name"])), None)
        if row is None:
            return None
        imports = [] if "*" in row["name"] else [name.replace("-", "_")]
        return {**_DEFAULTS, "imports": imports, **row}

    def import_names(self) -> list[str]:
        """Every import name that the table knows."""
        rows = [*map(self.row, self._exact), *self._patterns]
        return sorted({name for row in rows if row for name in row.get("imports", [])})


class _Scan:
    """One examination; each part survives the failure of the others."""

    def __init__(self, stack: Stack, environ: Mapping[str, str], root: str, sys_path: tuple[str, ...]) -> None:
        self.stack = stack
        self.environ = environ
        self.root = root.rstrip("/")
        self.errors: dict[str, str] = {}
        self.listings = Listings()
        self.sys_path = sys_path
        self.site_directories = [path for path in self.sys_path if os.path.basename(path) in _SITE_NAMES]
        self.records: list[Record] = []
        self.reached: list[Record] = []
        self.contents: list[owners.Contents] = []
        self.torch: dict[str, Any] | None = None

    def part(self, name: str, function: Callable[[], Any], default: Any) -> Any:
        """The result of `function`; when a hostile environment breaks it, `default`, and the reason is noted."""
        try:
            return function()
        except Exception as error:
            self.errors[name] = f"{type(error).__name__}: {error}".split("\n", 1)[0][:300]
            return default

    def run(self) -> dict[str, Any]:
        """The whole document."""
        document = self.part("interpreter", lambda: interpreter.describe(self.environ, self.root), {})
        document["sys_path"] = self.sys_path
        document.update(self.part("moved", lambda: moved.describe(self.listings), {}))
        self.records = self.part("distributions", lambda: distributions.find(self.sys_path, self.listings), [])
        self.reached = self.part("requirements", lambda: self._details(), [])
        self.contents = self.part("owners", lambda: owners.contents(self.reached), [])
        document["owners"] = self.part("owners", lambda: owners.shared(self.contents), {})
        document.update(self.part("shadowed", self._shadowed, {}))
        self.torch = self.part("torch", self._torch, None)
        document["torch"] = self._torch_fact()
        document["extensions"] = self.part("extensions", self._extensions, [])
        conda = document.get("conda_packages", {})
        document["leftovers"] = self.part("leftovers", lambda: self._leftovers(conda), ())
        document["unguarded"] = self.part("unguarded", self._unguarded, {})
        self.part("damage", lambda: damage.mark(self.contents, self._compiled()), None)
        document["distributions"] = [record.document() for record in self.records]
        document["modules"] = self.part("modules", self._modules, [])
        document["errors"] = self.errors
        return document

    def _details(self) -> list[Record]:
        return distributions.read_details(self.records, lambda name: self.stack.row(name) is not None)

    def _compiled(self) -> set[str]:
        """The distributions of the stack, and what brings their libraries."""
        return {record.name for record in self.reached if self.stack.row(record.name) is not None}

    def _unguarded(self) -> dict[str, str]:
        have = {record.name for record in self.records}
        for record in self.reached:
            have.update((self.stack.row(record.name) or {}).get("without", ()))
        found: dict[str, str] = {}
        for record in self.reached:
            row = self.stack.row(record.name)
            asked = [metadata.parse_requirement(line) for line in record.details.get("requires", ())] if row else []
            lost = {name: imported.module_of(name) for name, _, extra in asked if not extra and name not in have}
            lost = {name: module for name, module in lost.items() if name and not self._importable(module)}
            if lost and row:
                attributes = [spec.partition(":")[2] for spec in row["deep"] if ":" in spec]
                roots = dict.fromkeys(row["imports"], attributes)
                location = record.details.get("editable") or record.location
                found = {**imported.unguarded(roots, location, lost), **found}
        return found

    def _importable(self, module: str) -> bool:
        return bool(places.providers(module.partition(".")[0], self.sys_path, self.listings))

    def _shadowed(self) -> dict[str, Any]:
        homes: dict[str, list[tuple[str, str]]] = {}
        for record in self.reached:
            row = self.stack.row(record.name)
            for name in row["imports"] if row else ():
                homes.setdefault(name, []).append((record.location, record.details.get("editable", "")))
        here = interpreter.working_directory(self.environ)
        hidden = places.shadowed(homes, self.sys_path, self.listings)
        if not here or here in self.sys_path:
            return {"shadowed": hidden}
        fresh = places.shadowed(homes, [here, *self.sys_path], self.listings)
        mine = {name: found for name, found in fresh.items() if name not in hidden and found[0].startswith(here)}
        copies = [name for name, found in mine.items() if places.is_copy(found)]
        return {
            "shadowed": {**hidden, **mine},
            "shadowing_copies": copies,
            "hidden_stdlib": places.hidden_stdlib(here, self.listings),
        }

    def _torch(self) -> dict[str, Any] | None:
        record = next((record for record in self.reached if record.name == "torch"), None)
        place = places.winner(places.providers("torch", self.sys_path, self.listings))
        directory = place.path if place is not None else _editable_torch(record)
        if not directory:
            return None
        nccl = next((record.version for record in self.records if record.name.startswith("nvidia-nccl-cu")), "")
        return torch_build.describe(directory, record.version if record else "", nccl)

    def _torch_fact(self) -> dict[str, Any]:
        if self.torch is not None:
            return {"value": self.torch}
        if "torch" in self.errors:
            return {"missing": {"kind": "error", "reason": f"torch's files: {self.errors['torch']}"}}
        return {"missing": {"kind": "absent", "reason": "torch is not installed in this environment"}}

    def _extensions(self) -> list[dict[str, Any]]:
        prefix_lib = f"{sys.prefix}/lib" if os.path.isdir(f"{sys.prefix}/conda-meta") else ""
        location = self.torch["location"] if self.torch else ""
        torch_lib, extra = torch_build.library_directories(location, self.sys_path, prefix_lib)
        linker = Linker(torch_lib, extra, self.environ.get("LD_LIBRARY_PATH", ""), self.root)
        rows = {item.record.name: self.stack.row(item.record.name) for item in self.contents}
        wanted = {name: row for name, row in rows.items() if row is not None and row["compiled"]}
        try:
            return extensions.examine(self.contents, wanted, linker)
        finally:
            linker.close()

    def _modules(self) -> list[str]:
        """What an import test has to import (`module` or `module:attribute`), torch before what rests on it."""
        specs: list[str] = []
        for record in self.reached:
            row = self.stack.row(record.name)
            for spec in row["deep"] if row else ():
                top = spec.partition(":")[0].partition(".")[0]
                if record.details.get("editable") or places.providers(top, self.sys_path, self.listings):
                    specs.append(spec)
        return sorted(dict.fromkeys(specs), key=lambda spec: spec != "torch")

    def _leftovers(self, conda: Mapping[str, str]) -> tuple[str, ...]:
        owned = {top for item in self.contents for top in item.tops} | {name.replace("-", "_") for name in conda}
        for record in self.reached:
            row = self.stack.row(record.name)
            if row and (record.details.get("editable") or not os.path.exists(record.file("RECORD"))):
                owned.update(row["imports"])
        unowned = leftovers.unowned_packages(
            self.stack.import_names(), self.site_directories, owned, self._claimed, self.listings
        )
        return leftovers.find(self.site_directories, self.records, self.listings, unowned, self._is_module)

    def _is_module(self, name: str) -> bool:
        standard = (*sys.builtin_module_names, *getattr(sys, "stdlib_module_names", ()), *sys.modules)
        return name in standard or self._importable(name)

    def _claimed(self, name: str) -> bool:
        """Whether a distribution outside the stack installs module `name` (a fork under another name, say)."""
        reached = {id(record) for record in self.reached}
        needle = f"\n{name}/".encode()
        for record in self.records:
            if id(record) not in reached:
                files = b"\n" + (read(record.file("RECORD")) or read(record.file("top_level.txt")) or b"")
                if needle in files or needle[:-1] + b"\n" in files + b"\n":
                    return True
        return False


def _editable_torch(record: Record | None) -> str:
    """torch's package directory in a source tree that an import hook, not `sys.path`, leads to."""
    source = record.details.get("editable", "") if record is not None else ""
    return f"{source}/torch" if source and os.path.isdir(f"{source}/torch") else ""


def scan(
    rows: list[dict[str, Any]], environ: Mapping[str, str], root: str = "/", sys_path: list[str] | None = None
) -> dict[str, Any]:
    """The Python section of the facts document, as plain data.

    Args:
        rows: the stack table.
        environ: environment variables of the examined interpreter.
        root: prefix of the system's files, "/" on a real machine.
        sys_path: the search path to examine; by default the interpreter's own, without what belongs to this run.
    """
    path = interpreter.search_path(sys.path) if sys_path is None else tuple(dict.fromkeys(sys_path))
    return _clean(_Scan(Stack(rows), environ, root, path).run())


def _clean(value: Any) -> Any:
    """`value` with every string encodable: file names may hold bytes that are no text."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_clean(item) for item in value]
    return value
