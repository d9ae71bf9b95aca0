"""Which CUDA a package was built for, from its files, its local version or its name; and NVIDIA's own wheels."""

from __future__ import annotations

import re
from collections.abc import Iterable

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.python.common import environment, installed, major, named, pip_params, shortened, torch_build
from rlcheck.checks.python.conflicts import analysis
from rlcheck.facts.document import Facts
from rlcheck.facts.python import Distribution
from rlcheck.requirements import Demand, admits, by_package, common
from rlcheck.text import listed, several

_IN_NAME = re.compile(r"(?:^|[-_])(?:cu|cuda)(1[0-9])(?:x|\d?)$")
_IN_LOCAL = re.compile(r"(?:^|[.+])cu(1[0-9])(?=\d?(?:\D|$)|\d$)")
_MAJORS_IN_USE = range(10, 20)


def torch_cuda_major(facts: Facts) -> int:
    """The CUDA major version of torch; 0 for a build without CUDA."""
    return major(torch_build(facts).cuda)


def cuda_majors(facts: Facts, distribution: Distribution) -> set[int]:
    """Every CUDA major version that a distribution has code for; empty when nothing shows one."""
    found = {
        extension.cuda_major
        for extension in environment(facts).extensions
        if extension.distribution == distribution.name and extension.cuda_major in _MAJORS_IN_USE
    }
    return found or _declared(distribution)


def _declared(distribution: Distribution) -> set[int]:
    local = distribution.version.partition("+")[2]
    matches = (_IN_LOCAL.search(local), _IN_NAME.search(distribution.name))
    return {int(match.group(1)) for match in matches if match}


def built_for(majors: Iterable[int]) -> str:
    """`12 and 13`."""
    return " and ".join(str(number) for number in sorted(majors))


@check(
    "ENV017",
    "NVIDIA's wheels are those that torch pins",
    needs=("python.torch",),
    playbook="nvidia-wheels",
    caused_by=("ENV010",),
)
def nvidia_wheels(facts: Facts) -> Verdict:
    """Compares the installed nvidia-* wheels with the versions that torch declares.

    What it does:
        Evaluates the pins of torch, and of the cuda-toolkit package behind it, on NVIDIA's library wheels.

    Why it matters:
        torch is tested with exactly these cuDNN, cuBLAS and NCCL versions. Another version may be an intended repair;
        if it is not, it explains wrong results, slow kernels or hangs that are not seen elsewhere.
    """
    build, found = torch_build(facts), analysis(facts)
    pins = [d for d in found.in_force if d.owner in ("torch", "cuda-toolkit") and _is_library(d) and not d.presumed]
    if not build.cuda or not pins:
        return skip("torch declares no CUDA wheels")
    other, lacking = list[str](), list[str]()
    for name, wanted in by_package(pins).items():
        have, pin = found.installed.get(name), common([d.requirement.specifier for d in wanted])
        if have is None:
            lacking.append(f"{name}{pin or ''}")
        elif pin is not None and not admits(pin, have.version):
            other.append(f"{named(have)} instead of {pin}")
    if not other and not lacking:
        return passed(f"all {len(by_package(pins))} CUDA wheels are those that torch {build.version} pins")
    lines = other + [f"{name} is not installed" for name in lacking]
    first = lacking[0] if lacking else next(iter(other)).split()[0] + other[0].rpartition(" ")[2]
    return warn(
        f"the CUDA wheels that torch {build.version} pins",
        f"{len(other)} other version(s), {len(lacking)} missing: {lines[0]}",
        details=shortened(lines),
        evidence=(evidence("python.distributions", lines[0], "METADATA of torch"),),
        params=pip_params(facts, requirement=first, torch_version=build.version),
    )


def _is_library(demand: Demand) -> bool:
    return demand.requirement.name.startswith("nvidia-")


@check("ENV018", "CUDA wheels are of one major version", needs=("python.torch",), playbook="nvidia-wheels",
       problem="CUDA wheels of two major versions are installed")  # fmt: skip
def one_cuda(facts: Facts) -> Verdict:
    """Looks for NVIDIA library wheels of several CUDA major versions side by side.

    What it does:
        Sorts the nvidia-*-cu12 and nvidia-*-cu13 wheels by their major version and compares them with torch's.

    Why it matters:
        Each major version takes one to three gigabytes, and a package that finds its libraries through a search path
        can load those of the other one. It is the usual trace of an upgrade from torch 2.10 to 2.11.
    """
    ours, have = torch_cuda_major(facts), installed(facts)
    if not ours:
        return skip("torch is built without CUDA")
    by_major = dict[int, list[str]]()
    for name in have:
        match = re.fullmatch(r"nvidia-[a-z0-9-]+-cu(1[0-9])", name)
        if match:
            by_major.setdefault(int(match.group(1)), []).append(name)
    others = {number: names for number, names in by_major.items() if number != ours}
    if not others:
        return passed(f"all CUDA wheels are for CUDA {ours}")
    number, names = next(iter(sorted(others.items())))
    users = sorted({d.owner for d in analysis(facts).in_force if d.requirement.name in names and not d.presumed})
    needed = f"; required by {listed(users, 4)}" if users else "; required by nobody"
    return info(
        f"{len(names)} wheel(s) for CUDA {number} beside torch of CUDA {ours}: {listed(names, 4)}{needed}",
        details=shortened([named(have[name]) for name in names]),
        params=pip_params(facts, names=several(names)),
    )
