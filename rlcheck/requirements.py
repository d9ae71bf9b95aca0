"""What installed distributions require of each other, judged from their METADATA alone.

Pure and fast: a line of a big environment is looked at as text first, and only what decides something becomes an
object of `packaging`. Extras count when an installed distribution asks for them; the caller may presume others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache

import msgspec
from packaging.markers import InvalidMarker, Marker, UndefinedComparison, UndefinedEnvironmentName
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from rlcheck.facts.python import Distribution, PythonFacts

_LINE = re.compile(
    r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*(?:\[([^\[\]]*)\])?\s*(?:@\s*(\S+)(?:\s+|$)|(\([^()]*\)|[^;()@\[\]]*))\s*(?:;(.*))?",
    re.DOTALL,
)
_EXTRA = re.compile(r"""\bextra\s*==\s*['"]([^'"]+)['"]|['"]([^'"]+)['"]\s*==\s*extra\b""")
_MARKER_ERRORS = (InvalidMarker, UndefinedComparison, UndefinedEnvironmentName, ValueError, KeyError, TypeError)


class Requirement(msgspec.Struct, frozen=True):
    """One `Requires-Dist` line, taken apart. `name` and `extras` are normalized; `marker` is as written."""

    name: str
    extras: tuple[str, ...] = ()
    specifier: str = ""
    url: str = ""
    marker: str = ""

    @property
    def text(self) -> str:
        """The requirement as one types it for pip, without the marker."""
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras} @ {self.url}" if self.url else f"{self.name}{extras}{self.specifier}"


class Demand(msgspec.Struct, frozen=True):
    """A requirement that is in force here, and who makes it.

    `extra` is the extra of the owner that it comes with, "" for none; `presumed` says that nobody asked for that
    extra in METADATA, but that the environment looks as if it had been.
    """

    owner: str
    owner_version: str
    requirement: Requirement
    extra: str = ""
    presumed: bool = False

    @property
    def who(self) -> str:
        """The owner as a reader names it: `verl 0.9.1[sglang]`."""
        return f"{self.owner} {self.owner_version}" + (f"[{self.extra}]" if self.extra else "")

    @property
    def says(self) -> str:
        """`verl 0.9.1[sglang] requires transformers==5.9.0`."""
        return f"{self.who} requires {self.requirement.text}"


class Demands(msgspec.Struct, frozen=True):
    """Every requirement in force, and the lines that are not requirements at all: (owner, line)."""

    in_force: tuple[Demand, ...]
    invalid: tuple[tuple[str, str], ...] = ()


def parse(line: str) -> Requirement | None:
    """The parts of a `Requires-Dist` line; None when it is none."""
    match = _LINE.fullmatch(line)
    if match is None:
        return None
    name, extras, url, specifier, marker = match.groups()
    specifier = (specifier or "").strip().strip("()").replace(" ", "")
    if specifier and specifiers(specifier) is None:
        return None
    wanted = tuple(sorted({canonicalize_name(extra.strip()) for extra in (extras or "").split(",") if extra.strip()}))
    return Requirement(canonicalize_name(name), wanted, specifier, url or "", (marker or "").strip())


@lru_cache(maxsize=4096)
def specifiers(text: str) -> SpecifierSet | None:
    """The specifier set, None when it is invalid."""
    try:
        found = SpecifierSet(text)
        found.contains("0")  # its versions are only read when they are needed, and may be too long for an integer
    except (InvalidSpecifier, ValueError):
        return None
    return found


@lru_cache(maxsize=4096)
def version(text: str) -> Version | None:
    """The version, None when it is not one of PEP 440."""
    try:
        return Version(text)
    except ValueError:  # InvalidVersion, and numbers of thousands of digits
        return None


@lru_cache(maxsize=8192)
def admits(specifier: str, installed: str) -> bool:
    """Whether an installed version satisfies a specifier: pre-releases count, `2.13.0+cpu` satisfies `==2.13.0`.

    What cannot be read is given the benefit of the doubt: a broken version is another check's finding.
    """
    wanted, found = specifiers(specifier), version(installed)
    return not specifier or wanted is None or found is None or wanted.contains(found, prereleases=True)


def installed_by_name(python: PythonFacts) -> dict[str, Distribution]:
    """The distribution that counts for each name: the first on the path."""
    found: dict[str, Distribution] = {}
    for distribution in python.distributions:
        found.setdefault(distribution.name, distribution)
    return found


def demands(python: PythonFacts, presumed_extras: Iterable[tuple[str, str]] = ()) -> Demands:
    """Every requirement in force between installed distributions.

    Args:
        presumed_extras: (distribution, extra) pairs to take as asked for; what follows from them is marked.
    """
    return _Collector(python).collect(presumed_extras)


class _Collector:
    """Follows requirements from distribution to distribution until no new extra comes up."""

    def __init__(self, python: PythonFacts) -> None:
        self.environment = python.marker_environment
        self.installed = installed_by_name(python)
        self.in_force: list[Demand] = []
        self.invalid: list[tuple[str, str]] = []
        self.with_extra: dict[str, list[tuple[frozenset[str], str]]] = {}
        self.done: set[tuple[str, str]] = set()
        self.waiting: list[tuple[str, str]] = []
        self.answers: dict[tuple[str, str], bool | None] = {}

    def collect(self, presumed_extras: Iterable[tuple[str, str]]) -> Demands:
        for distribution in self.installed.values():
            if distribution.requires_read:
                self._base(distribution)
        self._follow(presumed=False)
        self.waiting = [(name, canonicalize_name(extra)) for name, extra in presumed_extras]
        self._follow(presumed=True)
        return Demands(tuple(self.in_force), tuple(self.invalid))

    def _base(self, distribution: Distribution) -> None:
        """Take in what is required without an extra; keep the rest for when its extra is asked for."""
        for line in distribution.requires:
            if "extra" in line:
                names = frozenset(canonicalize_name(a or b) for a, b in _EXTRA.findall(line))
                if names:
                    self.with_extra.setdefault(distribution.name, []).append((names, line))
                    if " or " not in line:
                        continue
            self._add(distribution, line, "", presumed=False)

    def _follow(self, presumed: bool) -> None:
        while self.waiting:
            name, extra = self.waiting.pop()
            if (name, extra) in self.done or name not in self.installed:
                continue
            self.done.add((name, extra))
            for names, line in self.with_extra.get(name, ()):
                if extra in names:
                    self._add(self.installed[name], line, extra, presumed)

    def _add(self, owner: Distribution, line: str, extra: str, presumed: bool) -> None:
        requirement = parse(line)
        if requirement is None:
            self.invalid.append((owner.name, line))
            return
        applies = self._applies(requirement.marker, extra)
        if applies is None:
            self.invalid.append((owner.name, line))
        elif applies:
            self.in_force.append(Demand(owner.name, owner.version, requirement, extra, presumed))
            self.waiting += [(requirement.name, wanted) for wanted in requirement.extras]

    def _applies(self, marker: str, extra: str) -> bool | None:
        """Whether a marker holds here; None when it cannot be read."""
        if not marker:
            return True
        key = (marker, extra if "extra" in marker else "")
        if key not in self.answers:
            try:
                self.answers[key] = Marker(marker).evaluate({**self.environment, "extra": extra})
            except _MARKER_ERRORS:
                self.answers[key] = None
        return self.answers[key]


def common(wanted: Sequence[str]) -> str | None:
    """The shortest specifier that says the same as all of `wanted` together; None when no version satisfies them.

    Whether such a version was ever published is not known here.
    """
    texts = sorted({part for text in wanted for part in text.split(",") if part})
    merged = specifiers(",".join(texts))
    if merged is None:
        return None
    witnesses = [candidate for candidate in _candidates(texts) if merged.contains(candidate, prereleases=True)]
    return _shortest(texts, witnesses) if witnesses else None


def _candidates(texts: Iterable[str]) -> list[Version]:
    """Versions between which no specifier of `texts` can tell apart others: its edges, and a step beyond each."""
    found = {Version("0")}
    for text in texts:
        edge = version(text.lstrip("<>=!~").removesuffix(".*"))
        if edge is None:
            continue
        release = edge.release
        found |= {edge, Version(".".join(map(str, (*release, 0, 0, 1))))}
        # `~=1.4.2` ends at 1.5, so the step beyond is taken at every place.
        found |= {Version(".".join(map(str, (*release[:n], release[n] + 1)))) for n in range(len(release))}
        found.add(Version(f"{edge.public}.post1" if edge.post is None and edge.dev is None else edge.public))
    return sorted(found)


def _shortest(texts: list[str], witnesses: list[Version]) -> str:
    """Leave out every part that the others imply, judged on the candidates of all of them."""
    exact = [text for text in texts if text.startswith("==") and not text.endswith(".*")]
    if exact:
        return max(exact, key=len)  # the longest carries the local version, where one of them does
    kept = list(texts)
    candidates, satisfied = _candidates(texts), set(witnesses)
    for text in sorted(texts, key=_weakest_first):
        rest = specifiers(",".join(part for part in kept if part != text))
        if rest is not None and {c for c in candidates if rest.contains(c, prereleases=True)} == satisfied:
            kept.remove(text)
    return ",".join(sorted(kept, key=lambda text: text[0] == "<"))


def _weakest_first(text: str) -> tuple[bool, str]:
    return not text.startswith("!="), text


def clashing(pair: Iterable[Demand]) -> bool:
    """Whether no version satisfies all of these demands on one package."""
    return common([demand.requirement.specifier for demand in pair]) is None


def by_package(found: Iterable[Demand]) -> Mapping[str, list[Demand]]:
    """The demands on each package."""
    packages: dict[str, list[Demand]] = {}
    for demand in found:
        packages.setdefault(demand.requirement.name, []).append(demand)
    return packages
