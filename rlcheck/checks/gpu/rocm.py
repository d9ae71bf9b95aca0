"""AMD GPUs: driver, device nodes, and torch's build against ROCm and the GPUs."""

from __future__ import annotations

import re

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.gpu.devices import (
    OTHER_OWNERS,
    amd_label,
    distribution_version,
    environ,
    instincts,
    numbers,
    torch_kind,
    torch_of,
)
from rlcheck.checks.gpu.tables import tables
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import PciGpu
from rlcheck.text import listed


def _compute_cards(pci: tuple[PciGpu, ...]) -> list[PciGpu]:
    """The Instinct cards among the AMD GPUs; a laptop's display adapter is none."""
    return [
        gpu
        for gpu in pci
        if (gpu.device_id in tables().amd_pci or gpu.pci_class.startswith("12")) and gpu.driver not in OTHER_OWNERS
    ]


def wants_rocm(facts: Facts) -> bool:
    """Whether the ROCm questions arise: torch is a ROCm build, or there are Instinct GPUs."""
    return torch_kind(facts) == "rocm" or bool(instincts(facts))


@check("GPU036", "The amdgpu driver is loaded", needs=("rocm.pci",), playbook="amdgpu-driver-not-loaded")
def amdgpu_loaded(facts: Facts) -> Verdict:
    """Looks for the amdgpu kernel driver when there is an AMD Instinct GPU on the PCI bus.

    What it does:
        Compares the Instinct cards on the bus with /sys/module/amdgpu. Plain display adapters, and cards given to a
        virtual machine, are left out.

    Why it matters:
        Without the kernel driver there is no /dev/kfd, and ROCm sees no GPU.
    """
    rocm = need(facts.rocm)
    cards = _compute_cards(need(rocm.pci))
    if not cards:
        return skip("there is no AMD Instinct GPU on the PCI bus")
    if rocm.driver_loaded:
        return passed(f"amdgpu is loaded for {len(cards)} Instinct GPU(s)")
    problem = fail if torch_kind(facts) == "rocm" else warn
    return problem(
        "the amdgpu kernel driver to be loaded",
        f"{len(cards)} Instinct GPU(s) on the PCI bus and no amdgpu",
        evidence=(evidence("rocm.pci", listed(gpu.bus_id for gpu in cards), "/sys/bus/pci/devices"),),
    )


@check("GPU039", "A ROCm torch has one Triton", needs=("python.torch",), playbook="triton-mismatch",
       problem="A second Triton is installed beside a ROCm torch")  # fmt: skip
def one_triton(facts: Facts) -> Verdict:
    """Looks for PyPI's `triton` in an environment whose torch is a ROCm build.

    What it does:
        ROCm wheels of torch bring `triton-rocm` (formerly `pytorch-triton-rocm`), which has the import name `triton`,
        too; looks for both in one environment, and for PyPI's alone.

    Why it matters:
        Both distributions write into the directory `triton`, so what is imported depends on the order of installation,
        and removing one breaks the other.
    """
    torch = torch_of(facts)
    if torch_kind(facts) != "rocm":
        return skip("torch is not a ROCm build")
    plain = distribution_version(facts, "triton")
    own = next((n for n in ("triton-rocm", "pytorch-triton-rocm") if distribution_version(facts, n)), "")
    if not plain or "rocm" in plain:
        return passed(f"torch {torch.version} has {own or 'triton ' + plain if own or plain else 'no triton'}")
    seen = (evidence("python.distributions", f"triton {plain}", "installed metadata"),)
    if not own:
        return info(f"triton {plain} replaces torch's triton-rocm: fine only if it was built for it", evidence=seen)
    return warn(
        f"only {own} beside torch {torch.version}",
        f"triton {plain}, which writes into the same directory",
        evidence=seen,
        params={
            "own": own,
            "version": distribution_version(facts, own),
            "index": "rocm" + ".".join(map(str, numbers(torch.hip)[:2])),
        },
    )


@check(
    "GPU040", "ROCm and torch's ROCm agree", needs=("python.torch", "rocm.rocm_version"), playbook="rocm-torch-mismatch"
)
def rocm_for_torch(facts: Facts) -> Verdict:
    """Compares the installed ROCm with the one that torch was built with.

    What it does:
        Compares major and minor of /opt/rocm with `torch.version.hip`, as numbers (7.14 is newer than 7.2).

    Why it matters:
        torch's wheels bring their own ROCm libraries, but engines and extensions compiled here, RCCL plug-ins and
        LD_LIBRARY_PATH bring those of /opt/rocm into the same process. Across a major version that ends in missing
        symbols.
    """
    torch = torch_of(facts)
    if torch_kind(facts) != "rocm":
        return skip("torch is not a ROCm build")
    installed = need(need(facts.rocm).rocm_version)
    system, built = numbers(installed)[:2], numbers(torch.hip)[:2]
    if len(system) < 2 or len(built) < 2:
        return unknown(f"cannot compare ROCm {installed!r} with torch's {torch.hip!r}")
    if system == built:
        return passed(f"ROCm {installed} and torch {torch.version} (HIP {torch.hip}) agree")
    seen = (evidence("rocm.rocm_version", installed, "/opt/rocm/.info/version"),
            evidence("python.torch.hip", torch.hip, "torch/version.py"))  # fmt: skip
    wanted, found = f"{built[0]}.{built[1]}", f"{system[0]}.{system[1]}"
    if system[0] == built[0]:
        return info(f"torch was built with ROCm {wanted}, installed is {found}: compile extensions against {wanted}",
                    evidence=seen)  # fmt: skip
    return warn(f"ROCm {wanted}, with which torch {torch.version} was built", f"ROCm {installed}", evidence=seen,
                params={"index": f"rocm{found}"})  # fmt: skip


@check("GPU041", "torch has code for these AMD GPUs", needs=("python.torch", "rocm.devices"),
       playbook="torch-lacks-gfx",
       problem="torch has no code for an AMD GPU of this machine")  # fmt: skip
def gfx_in_torch(facts: Facts) -> Verdict:
    """Compares each GPU's target (gfx942, …) with those that torch was compiled for.

    What it does:
        Reads the targets of the driver's GPUs and torch's list; features after a colon (`:xnack-`) are left out.

    Why it matters:
        On a GPU that the build leaves out the first kernel stops with "invalid device function", or hipBLAS does with a
        missing TensileLibrary.
    """
    torch = torch_of(facts)
    if torch_kind(facts) != "rocm":
        return skip("torch is not a ROCm build")
    targets = {arch.split(":")[0] for arch in torch.arch_list if re.fullmatch(r"gfx[0-9a-z-]+(:.*)?", arch)}
    devices = [device for device in need(need(facts.rocm).devices) if device.gfx]
    if not devices:
        return skip("the driver shows no AMD GPU with a known target")
    if not targets:
        return unknown("torch's files do not say which targets it was compiled for")
    if "HSA_OVERRIDE_GFX_VERSION" in value_or(facts.environ, {}):
        return skip("HSA_OVERRIDE_GFX_VERSION makes ROCm take the GPUs for another target")
    bad = [device for device in devices if device.gfx not in targets]
    if not bad:
        return passed(f"torch {torch.version} has code for {listed(sorted({d.gfx for d in devices}))}")
    seen = (evidence("python.torch.arch_list", " ".join(sorted(targets))[:200], "torch"),)
    if len(bad) < len(devices) and not set(bad) & set(instincts(facts)):
        return info(
            f"torch has no code for {listed(amd_label(d) for d in bad)}; the other GPUs are served", evidence=seen
        )
    return fail(
        f"torch {torch.version} with code for {listed(sorted({d.gfx for d in bad}))}",
        f"only {listed(sorted(targets))}",
        details=tuple(amd_label(device) for device in bad[:16]),
        evidence=seen,
        params={"gfx": bad[0].gfx},
    )


@check("GPU042", "ROCm is new enough for these GPUs", needs=("python.torch", "rocm.devices"),
       playbook="torch-lacks-gfx",
       problem="ROCm is too old for these GPUs")  # fmt: skip
def rocm_for_gfx(facts: Facts) -> Verdict:
    """Compares torch's ROCm with the first release that supports each GPU.

    What it does:
        Looks the targets up in a table: gfx942 needs ROCm 6.0, gfx950 needs 7.0.

    Why it matters:
        An older ROCm does not know the GPU: its libraries have no kernels for it and its RCCL no tuning, so it stops at
        the first matrix product or collective.
    """
    torch = torch_of(facts)
    if torch_kind(facts) != "rocm":
        return skip("torch is not a ROCm build")
    built = numbers(torch.hip)[:2]
    if len(built) < 2:
        return unknown(f"torch's HIP version {torch.hip!r} cannot be read")
    known = tables().gfx
    floors = {d.gfx: known[d.gfx].min_rocm for d in need(need(facts.rocm).devices) if d.gfx in known}
    bad = {gfx: floor for gfx, floor in floors.items() if floor and built < numbers(floor)[:2]}
    if not bad:
        return passed(f"HIP {torch.hip} covers these GPUs")
    return fail(
        listed(f"ROCm {floor} or newer for {gfx} ({known[gfx].names})" for gfx, floor in bad.items()),
        f"torch {torch.version} with HIP {torch.hip}",
        evidence=(evidence("python.torch.hip", torch.hip, "torch/version.py"),),
        params={"gfx": next(iter(bad))},
    )


@check("GPU049", "No foreign GPU target is forced", needs=("environ", "rocm.devices"), playbook="rocm-variables",
       problem="HSA_OVERRIDE_GFX_VERSION is set on an Instinct GPU")  # fmt: skip
def no_override(facts: Facts) -> Verdict:
    """Looks for HSA_OVERRIDE_GFX_VERSION on machines with Instinct GPUs.

    What it does:
        The variable makes ROCm take every GPU for another target. It is a help for unsupported consumer cards.

    Why it matters:
        On an Instinct GPU it loads kernels of another chip, which crash, or compute wrongly without a word.
    """
    value = environ(facts).get("HSA_OVERRIDE_GFX_VERSION", "")
    cards = instincts(facts)
    if not cards:
        return skip("there is no Instinct GPU")
    if not value:
        return passed("HSA_OVERRIDE_GFX_VERSION is not set")
    return warn(
        f"no HSA_OVERRIDE_GFX_VERSION with {listed(sorted({d.gfx for d in cards}))}",
        f"HSA_OVERRIDE_GFX_VERSION={value[:40]!r}",
        evidence=(evidence("environ.HSA_OVERRIDE_GFX_VERSION", value[:40], "environment"),),
    )
