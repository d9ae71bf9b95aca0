"""The curated compatibility rules: `rlcheck/data/compat.json`, read once, with its shape checked."""

from __future__ import annotations

from functools import cache
from typing import Literal

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.tables import table


class _Row(Struct, frozen=True, forbid_unknown_fields=True):
    """Base of a rule: every one says where it was read, and when it was checked."""

    source: str = ""
    date: str = ""


class EngineExtra(_Row, frozen=True, kw_only=True):
    """An extra of a training framework that an environment with its engine looks to have been installed with."""

    framework: str
    engine: str
    extra: str


class ImportGuard(_Row, frozen=True, kw_only=True):
    """Packages whose versions `owner` compares when it is imported, and raises."""

    owner: str
    packages: tuple[str, ...]


class Omission(_Row, frozen=True, kw_only=True):
    """Distributions that are left out on purpose where `beside` is installed."""

    beside: str
    missing: tuple[str, ...]
    why: str


class TorchRelease(_Row, frozen=True, kw_only=True):
    """What a torch release series from the package index is built with."""

    release: str
    cuda: str
    nccl: str
    triton: str
    python: str
    rocm: str = ""


class FirstRelease(_Row, frozen=True, kw_only=True):
    """The release from which something holds."""

    first: str


class PythonFloor(_Row, frozen=True, kw_only=True):
    """The Python that a package wants from `release` on."""

    package: str
    release: str
    python: str


class Companion(_Row, frozen=True, kw_only=True):
    """Versions of a package with compiled torch code, and the torch releases that they were built for."""

    package: str
    versions: str
    torch: str


class EnginePairs(_Row, frozen=True, kw_only=True):
    """Engines that normally cannot share an environment, and the pairs of releases that can."""

    engines: tuple[str, str]
    known_good: tuple[dict[str, str], ...]


class KnownBad(_Row, frozen=True, kw_only=True):
    """A release range that is known to go wrong.

    `with_` are other distributions that must be there in a range ("" for any). `fine_on_capability` is the major
    compute capability of the GPUs on which it does not happen.
    """

    id: str
    topic: str
    package: str
    versions: str
    severity: Literal["info", "warn", "fail"]
    symptom: str
    advice: str
    fix: str
    with_: dict[str, str] = msgspec.field(name="with", default_factory=dict[str, str])
    machine: str = ""
    needs_gpu: bool = False
    fine_on_capability: int = 0


class Owners(_Row, frozen=True, kw_only=True):
    """Distributions that install the same module. `only` narrows the rule to versions of some of them."""

    module: str
    distributions: tuple[str, ...]
    keep: str
    severity: Literal["warn", "fail"]
    why: str
    only: dict[str, str] = {}


class GlibcFloor(_Row, frozen=True, kw_only=True):
    """The C library that a wheel needs although its own tag does not say so."""

    package: str
    versions: str
    glibc: str


class AarchGap(_Row, frozen=True, kw_only=True):
    """Releases of tensordict without a wheel for aarch64, and the old one that pip then installs."""

    first_missing: str
    last_missing: str
    fallback: str


class Library(_Row, frozen=True, kw_only=True):
    """What a shared library is, and the distribution that brings it."""

    pattern: str
    distribution: str
    what: str


class RemovedVariable(_Row, frozen=True, kw_only=True):
    """A variable that vLLM stopped reading: gone in the first release looked at that does not know it."""

    gone_in: str
    instead: str = ""


class VllmVariables(_Row, frozen=True, kw_only=True):
    """Every VLLM_* variable that a release between the first and the last one looked at knows."""

    removed: dict[str, RemovedVariable]
    known: tuple[str, ...]
    first_checked: str
    last_checked: str


class ExpandableSegments(_Row, frozen=True, kw_only=True):
    """What vLLM's sleep mode does under PyTorch's expandable segments."""

    vllm: str
    severity: Literal["warn", "fail"]
    effect: str


class Renamed(_Row, frozen=True, kw_only=True):
    """The torch releases that know the new name of a variable."""

    torch: str


class Leftover(_Row, frozen=True, kw_only=True):
    """A variable for debugging that must not stay set. `bad` is `true` for any truth value, else the value itself."""

    name: str
    bad: str
    effect: str


class Compat(Struct, frozen=True, forbid_unknown_fields=True):
    """The whole file. `stack` is in order of importance: root causes are named in it.

    `stdlib_of_stack` are the modules of the standard library that are loaded with torch, ray, datasets, transformers
    and vllm.
    """

    about: str
    updated: str
    stack: tuple[str, ...]
    stack_imports: tuple[str, ...]
    engine_extras: tuple[EngineExtra, ...]
    import_guards: tuple[ImportGuard, ...]
    stdlib_of_stack: frozenset[str]
    omissions: tuple[Omission, ...]
    torch: tuple[TorchRelease, ...]
    torch_cuda_on_aarch64: FirstRelease
    python_floors: tuple[PythonFloor, ...]
    companions: tuple[Companion, ...]
    engine_pairs: EnginePairs
    known_bad: tuple[KnownBad, ...]
    owners: tuple[Owners, ...]
    cuda_bound: tuple[str, ...]
    cuda_loose: tuple[str, ...]
    glibc_floors: tuple[GlibcFloor, ...]
    tensordict_aarch64: AarchGap
    libraries: tuple[Library, ...]
    vllm_variables: VllmVariables
    expandable_segments: tuple[ExpandableSegments, ...]
    alloc_conf_renamed: Renamed
    leftover_variables: tuple[Leftover, ...]


def compat() -> Compat:
    """Return the rules."""
    return table("compat", Compat)


@cache
def stack_rank() -> dict[str, int]:
    """The place of each stack distribution in order of importance."""
    return {name: place for place, name in enumerate(compat().stack)}
