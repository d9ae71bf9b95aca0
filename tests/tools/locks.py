"""Reads the lock files of rlcheck/data/stacks and judges them by the requirements their packages declare.

A lock file is a pip requirements file of exact pins. Lines that start with `#:` are for programs: install.sh reads
them with sed, this module with `read_lock`:

    #: python 3.11 3.12          the versions it is for
    #: omits triton | why        a declared requirement that is left out on purpose
    #: section engine            what follows is the rollout engine's and only its: `--engine none` stops here
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
STACKS = ROOT / "rlcheck" / "data" / "stacks"
RECORDS = ROOT / "tests" / "fixtures" / "locks"
ENGINE_SECTION = "engine"


@dataclass(frozen=True)
class Dist:
    """What one distribution's METADATA declares; `requires` holds Requires-Dist lines."""

    version: str
    requires: tuple[str, ...] = ()
    requires_python: str = ""


@dataclass
class Lock:
    """One lock file: its `#:` lines by key, and its pins by section ("" is the part before any section)."""

    name: str
    headers: dict[str, list[str]] = field(default_factory=dict)
    sections: dict[str, list[Requirement]] = field(default_factory=dict)

    def words(self, key: str) -> list[str]:
        """All words of the header lines called `key`."""
        return [word for line in self.headers.get(key, []) for word in line.split()]

    def omitted(self) -> set[str]:
        """Names of the requirements that the lock leaves out on purpose."""
        return {line.split("|")[0].strip() for line in self.headers.get("omits", [])}

    def pins(self, python: str, *, engine: bool = True) -> dict[str, str]:
        """Canonical name -> pinned version, as pip would install it on `python` ("3.12")."""
        parts = [pins for section, pins in self.sections.items() if engine or section != ENGINE_SECTION]
        return {
            canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
            for pins in parts
            for pin in pins
            if pin.marker is None or pin.marker.evaluate(environment(python))
        }


@dataclass(frozen=True, order=True)
class Need:
    """One declared requirement in force: who declares it, and the pin that answers it (None: there is none)."""

    who: str
    requirement: str
    name: str
    found: str | None

    @property
    def met(self) -> bool:
        """Whether the pin satisfies the requirement."""
        return self.found is not None and Requirement(self.requirement).specifier.contains(
            Version(self.found), prereleases=True
        )


def environment(python: str) -> dict[str, str]:
    """Marker environment of CPython `python` on Linux x86-64."""
    linux = {
        "implementation_name": "cpython",
        "os_name": "posix",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "platform_system": "Linux",
        "sys_platform": "linux",
    }
    python_version = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "implementation_version": f"{python}.0",
    }
    return {**{key: str(value) for key, value in default_environment().items()}, **linux, **python_version}


def read_lock(path: Path) -> Lock:
    """The lock file at `path`."""
    lock = Lock(path.stem)
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        header = re.fullmatch(r"#: (\S+) ?(.*)", line)
        if header and header[1] == "section":
            section = header[2]
        elif header:
            lock.headers.setdefault(header[1], []).append(header[2])
        elif line and not line.startswith("#"):
            lock.sections.setdefault(section, []).append(Requirement(line))
    return lock


def read_record(name: str) -> dict[str, Dist]:
    """name==version -> what that package declares, for every pin of the lock called `name`."""
    raw = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return {
        key: Dist(value["version"], tuple(value["requires"]), value["requires_python"]) for key, value in raw.items()
    }


def needs(roots: Iterable[str], pins: dict[str, str], dists: dict[str, Dist], env: dict[str, str]) -> set[Need]:
    """Every declared requirement in force in `env`, reached from `roots` through the pins and their extras."""
    found: set[Need] = set()
    project = Dist(version="", requires=tuple(roots))
    todo = [("the project", root) for root in _declared(project, "", env)]
    seen: set[tuple[str, str]] = set()
    while todo:
        who, requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        found.add(Need(who, str(requirement), name, pins.get(name)))
        for extra in ("", *requirement.extras):
            if name in pins and (name, extra) not in seen:
                seen.add((name, extra))
                dist = dists[f"{name}=={pins[name]}"]
                todo += [(name, declared) for declared in _declared(dist, extra, env)]
    return found


def project_requirements(pyproject: dict[str, dict], extras: Iterable[str]) -> list[str]:
    """The project's own requirements with `extras`; extras that name other extras of the project are followed."""
    project = pyproject["project"]
    requirements = list(project["dependencies"])
    for extra in extras:
        for line in project["optional-dependencies"][extra]:
            own = Requirement(line)
            nested = own.extras if own.name == project["name"] else set()
            requirements += project_requirements(pyproject, nested) if nested else [line]
    return list(dict.fromkeys(requirements))


def _declared(dist: Dist, extra: str, env: dict[str, str]) -> Iterator[Requirement]:
    """Requirements of `dist` that hold in `env` with `extra`; with an extra, only those that it adds."""
    for line in dist.requires:
        requirement = Requirement(line)
        plain = requirement.marker is None or requirement.marker.evaluate({**env, "extra": ""})
        wanted = requirement.marker is None or requirement.marker.evaluate({**env, "extra": extra})
        if wanted and (not extra or not plain):
            yield requirement
