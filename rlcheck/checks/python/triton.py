"""Triton, whose internals torch and the engines use."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.python.common import installed, minor, named, pip_params, torch_build, torch_release
from rlcheck.facts.document import Facts
from rlcheck.requirements import admits, common, parse


@check("ENV016", "Triton is the one that torch was built with", needs=("python.torch",), playbook="triton-mismatch")
def triton(facts: Facts) -> Verdict:
    """Compares the installed Triton with the one that torch pins.

    What it does:
        Takes the pin from torch's METADATA, or from a table where there is none.

    Why it matters:
        torch.compile and the engines' kernels call Triton's internals, which change with every minor release: the first
        compiled function then fails with an ImportError or an AttributeError from inside Triton.
    """
    build, have = torch_build(facts), installed(facts)
    there = have.get("triton")
    if build.hip:
        return skip("torch is a ROCm build, which brings a Triton of its own")
    wanted = _triton_wanted(facts)
    if not wanted:
        return skip(f"torch {build.version} does not ask for Triton")
    params = pip_params(facts, requirement=f"triton{wanted}")
    if there is None:
        return warn(
            f"triton{wanted} beside torch {build.version}", "no Triton: torch.compile cannot work", params=params
        )
    if admits(wanted, there.version):
        return passed(f"{named(there)} is the one that torch {build.version} asks for")
    problem = info if minor(wanted.lstrip("=~>")) == minor(there.version) else None
    if problem is not None:
        return info(f"{named(there)} instead of triton{wanted}: the same minor release", params=params)
    return warn(
        f"triton{wanted}, the pin of torch {build.version}",
        named(there),
        evidence=(evidence("python.distributions", named(there), "METADATA"),),
        params=params,
    )


def _triton_wanted(facts: Facts) -> str:
    recorded, build = installed(facts).get("torch"), torch_build(facts)
    lines = [parse(line) for line in recorded.requires] if recorded else []
    pins = [
        line.specifier
        for line in lines
        if line and line.name == "triton" and line.specifier and "extra" not in line.marker
    ]
    if pins or not build.cuda or (recorded is not None and recorded.requires_read):
        return common(pins) or "" if pins else ""
    row = torch_release(build.version)
    return f"=={row.triton}.*" if row and row.triton.count(".") == 1 else f"=={row.triton}" if row else ""
