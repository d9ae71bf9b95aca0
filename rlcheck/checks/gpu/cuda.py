"""torch's CUDA against the driver and against the GPUs' compute capability."""

from __future__ import annotations

import re

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.checks.gpu.devices import instincts, label, numbers, readings, torch_kind, torch_of
from rlcheck.checks.gpu.tables import tables
from rlcheck.facts.base import MissingKind, need, value_or, why_missing
from rlcheck.facts.document import Facts
from rlcheck.text import listed

# PyTorch's wheel index for the newest CUDA that a driver of this CUDA major can run.
_WHEELS = {11: "cu118", 12: "cu129"}
_ARCH = re.compile(r"(?:(sm|compute)_)?(\d{1,3})\.?(\d)([af]?)(\+PTX)?", re.I)


def decoded(cuda_driver: int) -> str:
    """The driver's CUDA version from its number: 12080 is 12.8."""
    return f"{cuda_driver // 1000}.{cuda_driver % 1000 // 10}"


@check(
    "GPU008",
    "The driver is new enough for torch's CUDA",
    needs=("python.torch", "nvidia.driver_version"),
    playbook="driver-too-old-for-torch",
    caused_by=("GPU001", "GPU002", "GPU003"),
)
def driver_for_torch(facts: Facts) -> Verdict:
    """Compares the CUDA that torch was built with and the CUDA that the driver supports.

    What it does:
        Takes the driver's CUDA number from NVML (1000 * major + 10 * minor: 12080 is 12.8); without it, the driver's
        version against NVIDIA's floors (11.x: 450, 12.x: 525, 13.x: 580). Within one CUDA major any minor version runs.

    Why it matters:
        torch stops with "The NVIDIA driver on your system is too old (found version 12080)" at the first use of a GPU.
        torch from PyPI went from CUDA 12.8 to 13.0 with release 2.11, so an upgrade of torch alone can break a machine.
    """
    torch = torch_of(facts)
    nvidia = need(facts.nvidia)
    if not torch.cuda:
        return skip("torch is not a CUDA build")
    major = (numbers(torch.cuda) or (0,))[0]
    driver = need(nvidia.driver_version)
    raw = nvidia.cuda_driver.value
    if raw is None and any(library.name == "libcuda.so" and library.kind == "compat" for library in nvidia.libraries):
        return unknown("a forward-compatibility libcuda decides, and its CUDA version could not be asked")
    floor = tables().cuda_floors.get(major)
    if not major or (raw is None and (floor is None or not numbers(driver))):
        return unknown(f"no driver floor is known for CUDA {torch.cuda!r} with driver {driver!r}")
    enough = raw // 1000 >= major if raw is not None else numbers(driver)[0] >= (floor or 0)
    said = f"driver {driver}" + (f" with CUDA {decoded(raw)} (reported as {raw})" if raw is not None else "")
    if enough:
        return passed(f"{said} runs torch {torch.version} (CUDA {torch.cuda})")
    own_major = raw // 1000 if raw is not None else max((m for m, f in tables().cuda_floors.items()
                                                         if f <= numbers(driver)[0]), default=11)  # fmt: skip
    return fail(
        f"a driver for CUDA {major}.x ({floor or 'newer'} or later) for torch {torch.version}",
        said,
        details=(f"torch reports this as: driver too old (found version {raw})",) if raw is not None else (),
        evidence=(
            evidence("python.torch.cuda", torch.cuda, "torch/version.py"),
            evidence("nvidia.cuda_driver", raw if raw is not None else "missing", "NVML"),
            evidence("nvidia.driver_version", driver, nvidia.source or "/proc/driver/nvidia/version"),
        ),
        params={"floor": str(floor or ""), "wheels": _WHEELS.get(own_major, "cu129"), "cuda_major": str(major)},
    )


def runs_on(arch: str, capability: tuple[int, int]) -> str:
    """How code for `arch` (sm_90, sm_90a, compute_90, 9.0+PTX) runs on a GPU: binary, ptx, or "" for not at all."""
    match = _ARCH.fullmatch(arch.strip())
    if match is None:
        return ""
    kind, major, minor, suffix, with_ptx = match.groups()
    target = (int(major), int(minor))
    same_major = target[0] == capability[0] and target[1] <= capability[1]
    # "a" code uses features of one chip alone; "f" code those of one family, which is a major version.
    fits = target == capability if suffix.lower() == "a" else same_major
    if (kind or "sm").lower() == "sm" and fits:
        return "binary"
    is_ptx = (kind or "").lower() == "compute" or bool(with_ptx)
    forward = fits if suffix else target <= capability
    return "ptx" if is_ptx and forward else ""


@check(
    "GPU009",
    "torch has code for these GPUs",
    needs=("python.torch", "nvidia.devices"),
    playbook="torch-lacks-gpu-architecture",
    problem="torch has no code for a GPU of this machine",
)
def architectures(facts: Facts) -> Verdict:
    """Compares each GPU's compute capability with the architectures that torch was compiled for.

    What it does:
        A binary for sm_XY runs on GPUs of the same major and the same or a higher minor number, one with the suffix
        `a` only on exactly that GPU, and PTX (compute_XY) on anything as new or newer, compiled when it starts.

    Why it matters:
        On a GPU that its build leaves out, torch stops with "no kernel image is available for execution on the
        device". Very new GPUs miss in old builds, and old ones (Volta, Pascal) were dropped from new builds.
    """
    torch = torch_of(facts)
    if not torch.cuda:
        return skip("torch is not a CUDA build")
    archs = [arch for arch in torch.arch_list if _ARCH.fullmatch(arch.strip())]
    if not archs:
        return unknown("torch's files do not say which architectures it was compiled for")
    found = readings(facts, lambda device: device.compute_capability)
    ways = [(device, cc, {runs_on(arch, cc) for arch in archs}) for device, cc in found.items]
    bad = [(device, cc) for device, cc, way in ways if not way - {""}]
    slow = [(device, cc) for device, cc, way in ways if way - {""} == {"ptx"}]
    shown = evidence("python.torch.arch_list", " ".join(archs), "torch")
    if bad:
        # An old card for the display beside the ones that compute stops nobody who leaves it out.
        problem = fail if len(bad) == len(ways) else warn
        return problem(
            f"torch {torch.version} with code for compute capability {listed(sorted({_dotted(cc) for _, cc in bad}))}",
            f"only {listed(archs)}",
            details=tuple(f"{label(device)} has compute capability {_dotted(cc)}" for device, cc in bad[:16]),
            evidence=(shown, evidence("nvidia.devices.compute_capability", _dotted(bad[0][1]), "NVML")),
            params={"capability": _dotted(bad[0][1])},
        )
    if slow:
        names = listed(label(device) for device, _ in slow)
        return info(
            f"torch has only PTX for {names}: the driver compiles its kernels at the first start, which takes minutes",
            evidence=(shown,),
        )
    return found.fine(f"torch {torch.version} has binaries for every GPU")


def _dotted(capability: tuple[int, int]) -> str:
    return f"{capability[0]}.{capability[1]}"


@check(
    "GPU010",
    "The GPUs are of a generation that RL stacks support",
    needs=("nvidia.devices",),
    playbook="gpu-generation-too-old",
    problem="A GPU is too old for RL stacks",
)
def generation(facts: Facts) -> Verdict:
    """Looks for compute capability 8.0 (Ampere) or newer on every GPU.

    What it does:
        Reads the compute capability of each GPU.

    Why it matters:
        bfloat16, the default dtype of RL trainers and engines, and FlashAttention 2 both need compute capability 8.0;
        on Volta and Turing runs must be set to float16 and another attention, and FlashAttention fails outright.
    """
    found = readings(facts, lambda device: device.compute_capability)
    old = [(device, cc) for device, cc in found.items if cc < (8, 0)]
    if not old:
        return found.fine("every GPU has compute capability 8.0 or newer")
    return warn(
        "compute capability 8.0 or newer (bfloat16, FlashAttention 2)",
        listed(f"{label(device)}: {_dotted(cc)}" for device, cc in old),
        evidence=(evidence("nvidia.devices.compute_capability", _dotted(old[0][1]), "NVML"),),
    )


@check(
    "GPU037",
    "torch was built for the GPUs of this machine",
    needs=("python.torch",),
    playbook="torch-cpu-build",
    problem="torch was built for another kind of GPU",
)
def build_matches_maker(facts: Facts) -> Verdict:
    """Compares torch's build (CUDA or ROCm) with the maker of the GPUs.

    What it does:
        Looks for NVIDIA GPUs that answer and for AMD Instinct GPUs, and at `torch.version.cuda` and `torch.version.hip`
        as written in torch's files. A build without any GPU is the question of ENV014.

    Why it matters:
        A torch of the other kind sees no GPU at all: `torch.cuda.is_available()` is false and the run stops or crawls
        on the CPU. `pip install torch` brings the CUDA build, also on AMD machines.
    """
    nvidia = sum(not d.handle_error for d in value_or(facts.nvidia.value.devices, ())) if facts.nvidia.value else 0
    amd = len(instincts(facts))
    if not nvidia and not amd:
        reason = why_missing(facts.nvidia)
        if reason is not None and reason.kind is not MissingKind.ABSENT:
            return unknown(f"could not look for GPUs: {reason.reason}")
        return skip("no GPU is there to compare torch's build with")
    torch = torch_of(facts)
    kind = torch_kind(facts)
    if kind == "cpu":
        return skip("torch is a CPU build, which ENV014 judges")
    seen = (evidence("python.torch", f"{torch.version} cuda={torch.cuda!r} hip={torch.hip!r}", "torch/version.py"),)
    if (kind == "cuda" and nvidia) or (kind == "rocm" and amd):
        return passed(f"torch {torch.version} is a {kind} build")
    makers = " and ".join(name for name, count in ((f"{nvidia} NVIDIA", nvidia), (f"{amd} AMD Instinct", amd)) if count)
    wanted = "a CUDA build of torch" if nvidia else "a ROCm build of torch"
    index = tables().torch_rocm.get(".".join(map(str, numbers(torch.version)[:2])), "7.2")
    return fail(
        f"{wanted} for {makers} GPU(s)",
        f"torch {torch.version}, a {kind} build",
        evidence=seen,
        params={"index": "cu129" if nvidia else f"rocm{index}"},
    )
