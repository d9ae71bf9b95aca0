"""Which AMD GPUs a program sees: the HIP, CUDA and ROCR visible-devices variables, and Ray's view of them.

A difference between them crashes engines, and Ray's releases treat them in five different ways.
"""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, warn
from rlcheck.checks.gpu.devices import distribution_version, environ
from rlcheck.checks.gpu.rocm import wants_rocm
from rlcheck.checks.gpu.tables import RayAmd, tables
from rlcheck.checks.gpu.visible import entries
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts

HIP = "HIP_VISIBLE_DEVICES"
CUDA = "CUDA_VISIBLE_DEVICES"
ROCR = "ROCR_VISIBLE_DEVICES"
_MAX_DIGITS = 6


def ray_rules(facts: Facts) -> tuple[str, RayAmd | None]:
    """The installed Ray's version ("" for none) and what it does with the variables."""
    version = distribution_version(facts, "ray")
    try:
        parsed = Version(version)
    except InvalidVersion:
        return version, None
    return version, next((row for row in tables().ray_amd if SpecifierSet(row.ray).contains(parsed, True)), None)


@check("GPU043", "HIP and CUDA visible devices agree", needs=("environ", "rocm"), playbook="hip-cuda-visible-devices",
       problem="HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES do not fit")  # fmt: skip
def hip_and_cuda(facts: Facts) -> Verdict:
    """Compares HIP_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES, by the rules of the installed Ray.

    What it does:
        ROCm reads both. Whether Ray takes one, both or neither differs: 2.45 to 2.47 fail when only CUDA's is set, 2.48
        when both are, up to 2.56 when they differ, and from 2.57 on Ray looks at HIP's alone.

    Why it matters:
        `import ray` stops with "Inconsistent values found", or Ray counts other GPUs than torch sees, and vLLM crashes
        when it starts its workers.
    """
    if not wants_rocm(facts):
        return skip("nothing here computes on AMD GPUs")
    variables = environ(facts)
    hip, cuda = variables.get(HIP), variables.get(CUDA)
    if cuda is None:
        return passed(f"{CUDA} is not set")
    version, rules = ray_rules(facts)
    params = {"devices": hip if hip is not None else cuda}
    seen = tuple(evidence(f"environ.{n}", variables[n][:80], "environment") for n in (HIP, CUDA) if n in variables)
    if hip is not None and entries(hip) != entries(cuda):
        verb = rules.differ if rules else "the programs differ in which one they obey"
        return (fail if verb.endswith("Error") else warn)(
            f"{HIP} and {CUDA} to name the same GPUs",
            f"{hip[:60]!r} and {cuda[:60]!r}",
            details=(f"Ray {version}: {verb}",) if rules else (),
            evidence=seen,
            params=params,
        )
    if rules is None:
        return passed(f"{CUDA} is obeyed by ROCm; Ray is not installed")
    outcome = rules.cuda_only if hip is None else rules.equal
    state = f"only {CUDA}={cuda[:60]!r}" if hip is None else f"{HIP} and {CUDA} both {cuda[:60]!r}"
    if outcome == "ok" or (outcome == "ignored" and hip is not None):
        return passed(f"Ray {version} accepts {state}")
    if outcome == "ignored":
        return warn(f"{rules.noset}_VISIBLE_DEVICES, the variable that Ray {version} looks at", state,
                    details=(f"Ray {version} ignores it and counts every GPU, while torch obeys it",), evidence=seen,
                    params=params)  # fmt: skip
    return fail(
        f"{HIP} alone with Ray {version}", f"{state}: import ray ends in {outcome}", evidence=seen, params=params
    )


@check("GPU044", "AMD GPUs are not filtered twice", needs=("environ", "rocm"), playbook="hip-cuda-visible-devices",
       problem="ROCR_VISIBLE_DEVICES is set")  # fmt: skip
def rocr_filter(facts: Facts) -> Verdict:
    """Judges ROCR_VISIBLE_DEVICES, which filters below HIP, together with Ray and with the HIP variables.

    What it does:
        Looks what the installed Ray does with the variable, and whether HIP indices reach beyond what it leaves.

    Why it matters:
        Ray from 2.45 on refuses to start when ROCR_VISIBLE_DEVICES is set. With HIP_VISIBLE_DEVICES set as well the HIP
        indices count within what ROCR left over, which ends in "invalid device ordinal" or in the wrong GPU.
    """
    if not wants_rocm(facts):
        return skip("nothing here computes on AMD GPUs")
    variables = environ(facts)
    rocr = variables.get(ROCR)
    if rocr is None:
        return passed(f"{ROCR} is not set")
    upper = HIP if HIP in variables else CUDA
    chosen = entries(variables[upper]) if upper in variables else []
    left = len(entries(rocr))
    beyond = [e for e in chosen if e.isdecimal() and (len(e) > _MAX_DIGITS or int(e) >= left)]
    version, rules = ray_rules(facts)
    outcome = "" if rules is None else rules.rocr_hip if HIP in variables else rules.rocr
    seen = tuple(evidence(f"environ.{n}", variables[n][:80], "environment") for n in (ROCR, upper) if n in variables)
    params = {"devices": rocr}
    if outcome.endswith("Error"):
        found = f"{ROCR}={rocr[:60]!r}: Ray ends in {outcome}"
        return fail(f"no {ROCR} with Ray {version}", found, evidence=seen, params=params)
    if beyond:
        found = f"{upper}={variables[upper][:60]!r} after {ROCR}={rocr[:60]!r} left {left}"
        return fail(f"indices below {left} in {upper}", found, evidence=seen, params=params)
    if chosen:
        found = f"{ROCR}={rocr[:60]!r} and {upper}={variables[upper][:60]!r}"
        return warn("one visible-devices variable", found, evidence=seen, params=params)
    return passed(f"{ROCR} alone chooses {left} GPU(s)")


@check("GPU045", "The visible AMD GPUs exist", needs=("environ", "rocm.devices"), playbook="hip-cuda-visible-devices",
       problem="A variable names an AMD GPU that does not exist")  # fmt: skip
def hip_exist(facts: Facts) -> Verdict:
    """Compares the indices in HIP_VISIBLE_DEVICES or CUDA_VISIBLE_DEVICES with the GPUs that the driver shows.

    What it does:
        Counts the GPUs of the KFD topology (each half of an MI250 counts, and each partition) and looks for indices
        beyond them and for indices given twice.

    Why it matters:
        HIP drops the first index that it cannot find and all after it, so a run sees fewer GPUs than it was given.
    """
    if not wants_rocm(facts):
        return skip("nothing here computes on AMD GPUs")
    variables = environ(facts)
    name = HIP if HIP in variables else CUDA
    if name not in variables:
        return passed("no variable hides AMD GPUs")
    count = len(need(need(facts.rocm).devices))
    named = entries(variables[name])
    if ROCR in variables or not count:
        return skip(f"{ROCR} has renumbered the GPUs" if count else "the driver shows no AMD GPU here")
    bad = [e for e in named if e.isdecimal() and (len(e) > _MAX_DIGITS or int(e) >= count)]
    bad += [f"{e} twice" for e in dict.fromkeys(named) if named.count(e) > 1]
    if not bad:
        return passed(f"{name} names {len(named)} of {count} GPU(s)")
    return fail(
        f"indices from 0 to {count - 1}, each once",
        f"{name}={variables[name][:60]!r}",
        details=tuple(text[:40] for text in bad[:16]),
        evidence=(evidence(f"environ.{name}", variables[name][:80], "environment"),),
        params={"devices": ",".join(map(str, range(min(count, 16))))},
    )
