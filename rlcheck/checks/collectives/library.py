"""Which NCCL library a run will load, and whether that one is known to be bad."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from rlcheck.check import Evidence, Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.collectives.settings import BadVersion, table
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.nccl import NcclFacts, TorchLinkage

_BY_VARIABLE = ("LD_PRELOAD", "LD_LIBRARY_PATH")


def nccl_version(facts: Facts) -> str:
    """The version of the NCCL that torch loads, "" when it cannot be known."""
    if facts.nccl.value is None or facts.nccl.value.torch.value is None:
        return ""
    linkage = facts.nccl.value.torch.value
    if linkage.loaded_version or not facts.python.value or not facts.python.value.torch.value:
        return linkage.loaded_version
    return facts.python.value.torch.value.bundled_nccl


def _bundled(nccl: NcclFacts) -> str:
    return next((library.version for library in nccl.libraries if library.origin == "bundled" and library.version), "")


def _says(linkage: TorchLinkage) -> tuple[Evidence, ...]:
    return (evidence("nccl.torch.loaded", linkage.loaded, f"{linkage.loaded_by} of {linkage.path}"),)


@check("NCL001", "torch loads the NCCL that it came with", needs=("nccl.torch",), playbook="nccl-foreign-library",
       problem="torch loads another NCCL than it came with")  # fmt: skip
def torch_loads_its_own(facts: Facts) -> Verdict:
    """Follows the dynamic linker from torch to the libnccl file that it takes.

    What it does:
        Reads NEEDED, RPATH and RUNPATH of torch's CUDA library and searches as ld.so does: LD_PRELOAD, RPATH,
        LD_LIBRARY_PATH, RUNPATH, system. Compares the result with the copy in the Python environment. Wheels of
        torch use RPATH, which LD_LIBRARY_PATH cannot override; conda and source builds often do not.

    Why it matters:
        Torch is built and tested against one NCCL: an older one ends in "undefined symbol: nccl…" at import, and one
        that differs between nodes stops the run with "Mismatched NCCL version detected".
    """
    nccl = need(facts.nccl)
    linkage = need(nccl.torch)
    if not linkage.needs_nccl:
        return passed("NCCL is linked into torch statically")
    bundled = _bundled(nccl)
    if not linkage.loaded:
        return warn(
            "a libnccl.so.2 that torch can load", "none", headline="torch finds no NCCL", evidence=_says(linkage)
        )
    loaded = linkage.loaded_version or "of unknown version"
    if linkage.loaded_by not in _BY_VARIABLE:
        return passed(f"NCCL {loaded} by {linkage.loaded_by}: {linkage.loaded}")
    if bundled and linkage.loaded_version == bundled:
        return passed(f"{linkage.loaded_by} puts another copy first, of the same version {bundled}")
    if not bundled:
        return info(f"{linkage.loaded_by} decides: NCCL {loaded} from {linkage.loaded}; torch brought none of its own")
    return warn(
        f"NCCL {bundled}, which torch was installed with",
        f"{loaded} from {linkage.loaded}, by {linkage.loaded_by}",
        evidence=_says(linkage),
        params={"variable": linkage.loaded_by, "bundled": bundled},
    )


@check("NCL002", "No other version of NCCL is on the library path", needs=("nccl",), playbook="nccl-foreign-library",
       caused_by=("NCL001",),
       problem="Another version of NCCL is on the library path")  # fmt: skip
def copies_agree(facts: Facts) -> Verdict:
    """Compares every libnccl that a process could find.

    What it does:
        Lists the copies in LD_PRELOAD, in the Python environment, on LD_LIBRARY_PATH and in the system's directories.
        A copy of another version in the system's directories only is usual in container images and is only told.

    Why it matters:
        A library that asks for libnccl.so.2 by name before torch is imported (a profiler, cupy, an engine's own loader)
        gets the first copy on the path, and torch then shares it.
    """
    nccl = need(facts.nccl)
    known = [library for library in nccl.libraries if library.version and "nccl.so" in library.path]
    if len(known) < 2:
        return passed(f"one copy: {known[0].path} {known[0].version}") if known else skip("no libnccl found")
    bundled = _bundled(nccl)
    lines = tuple(f"{library.version} {library.path} ({library.origin})" for library in known)
    if len({library.version for library in known}) == 1:
        return passed(f"{len(known)} copies, all {known[0].version}")
    first = next((library for library in known if library.origin == "LD_LIBRARY_PATH"), None)
    if first is not None and bundled and first.version != bundled:
        return warn(
            f"no other version than {bundled} on LD_LIBRARY_PATH",
            f"{first.version} in {first.path}",
            details=lines,
            evidence=(evidence("nccl.libraries", first.path, "LD_LIBRARY_PATH"),),
            params={"variable": "LD_LIBRARY_PATH", "bundled": bundled},
        )
    text = ", ".join(f"{library.version} ({library.origin})" for library in known[:6])
    return passed(f"torch takes its own; installed are {text}", details=lines)


@check("NCL003", "One NCCL package is installed", needs=("python",), playbook="nccl-foreign-library",
       problem="Two NCCL packages are installed")  # fmt: skip
def one_package(facts: Facts) -> Verdict:
    """Looks for two NCCL distributions in one Python environment.

    What it does:
        nvidia-nccl-cu11, -cu12 and -cu13 all install nvidia/nccl/lib/libnccl.so.2: the one that was installed last
        has the file, and removing either takes it away.

    Why it matters:
        The file then fits one of the packages only: torch fails to import with "undefined symbol: ncclCommResume" or
        the like, or runs with an NCCL that it was not built for.
    """
    found = {d.name: d.version for d in need(facts.python).distributions if d.name.startswith("nvidia-nccl-cu")}
    if len(found) < 2:
        return passed(" ".join(next(iter(found.items())))) if found else skip("no NCCL package in this environment")
    return warn(
        "one nvidia-nccl package",
        ", ".join(f"{name} {version}" for name, version in sorted(found.items())),
        evidence=tuple(
            evidence(f"python.distributions.{name}", version, "site-packages") for name, version in found.items()
        ),
        params=_repair(facts, found),
    )


def _repair(facts: Facts, found: dict[str, str]) -> dict[str, str]:
    """The package of torch's CUDA major, to be kept, and the one to be removed."""
    torch = need(facts.python).torch.value
    wanted = f"nvidia-nccl-cu{torch.cuda.partition('.')[0]}" if torch is not None else ""
    keep = wanted if wanted in found else max(found)
    return {"keep": keep, "version": found[keep], "other": min(name for name in found if name != keep)}


@check("NCL004", "This NCCL has no known defect", needs=("nccl.torch",), playbook="known-bad-release",
       problem="This NCCL has a known defect")  # fmt: skip
def version_is_good(facts: Facts) -> Verdict:
    """Compares the NCCL that torch loads with the versions that are known to be bad.

    What it does:
        The list is data (nccl_env.json): each entry has a range, what goes wrong and the report that says so.

    Why it matters:
        These defects look like network trouble: a run hangs or takes memory without an error, and no setting helps.
    """
    linkage = need(need(facts.nccl).torch)
    text = nccl_version(facts)
    try:
        version = Version(text)
    except InvalidVersion:
        return skip("the NCCL version cannot be read")
    if "librccl" in linkage.loaded:
        return skip(f"RCCL {text}: the list is of NVIDIA's releases")
    hits = [bad for bad in table().versions if _hits(bad, version, linkage)]
    if not hits:
        return passed(f"NCCL {text}: nothing known against it")
    worst = hits[0]
    details = tuple(f"{bad.range}: {bad.problem} ({bad.source})" for bad in hits)
    if all(bad.severity == "info" for bad in hits):
        return info(f"NCCL {text} {worst.problem}", details=details)
    serious = next(bad for bad in hits if bad.severity != "info")
    return warn(
        f"an NCCL outside {serious.range}",
        f"{text}, which {serious.problem}",
        details=details,
        evidence=(evidence("nccl.torch.loaded_version", text, linkage.loaded),),
        params={"version": text},
    )


def _hits(bad: BadVersion, version: Version, linkage: TorchLinkage) -> bool:
    return version in SpecifierSet(bad.range) and (not bad.static_only or not linkage.needs_nccl)
