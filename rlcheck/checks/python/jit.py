"""Settings for kernels that are compiled on this machine."""

from __future__ import annotations

import re

from rlcheck.check import Verdict, check, evidence, passed, skip, warn
from rlcheck.checks.python.common import capabilities, environment, major
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts

_ARCH = re.compile(r"(\d{1,2})\.(\d)([af])?(\+PTX)?")
_ARCH_NAMES = {
    "turing": (7, 5), "ampere": (8, 0), "ada": (8, 9), "hopper": (9, 0), "blackwell": (10, 0), "volta": (7, 0),
}  # fmt: skip
_CUDA_IN_PATH = re.compile(r"cuda-(\d{1,2})(?:\.\d+)?(?:/|$)")


@check(
    "ENV039",
    "TORCH_CUDA_ARCH_LIST covers the GPUs here",
    needs=("environ",),
    playbook="torch-arch-list",
)
def arch_list(facts: Facts) -> Verdict:
    """Compares TORCH_CUDA_ARCH_LIST with the compute capability of the GPUs in this machine.

    What it does:
        Parses the list as torch's extension builder does (`8.0;9.0a+PTX`, or names like Hopper) and looks for an entry
        that runs on each GPU.

    Why it matters:
        Kernels that are compiled on first use (FlashInfer, DeepSpeed, extensions) are built for the GPUs in this list
        only. On any other they fail with `no kernel image is available for execution on the device`. Container images
        often carry a list made for the machine that built them.
    """
    text = need(facts.environ).get("TORCH_CUDA_ARCH_LIST", "").strip()
    if not text:
        return passed("TORCH_CUDA_ARCH_LIST is not set: the GPUs present are taken")
    need(need(facts.nvidia).devices)
    ours = capabilities(facts)
    if not ours:
        return skip("the compute capability of the GPUs is not known")
    wanted = ";".join(f"{big}.{small}" for big, small in sorted(ours))
    entries = [entry for entry in re.split(r"[;\s]+", text) if entry]
    strange = [e for e in entries if not _ARCH.fullmatch(e) and e.removesuffix("+PTX").lower() not in _ARCH_NAMES]
    params = {"arch_list": wanted}
    found = (evidence("environ", f"TORCH_CUDA_ARCH_LIST={text}"),)
    lacking = [f"{big}.{small}" for big, small in sorted(ours) if not any(_covers(e, (big, small)) for e in entries)]
    if lacking and not strange:
        return warn(
            f"entries for {', '.join(lacking)}, the GPUs here",
            f"TORCH_CUDA_ARCH_LIST={text}",
            evidence=found,
            params=params,
        )
    if strange and all(not re.match(r"[A-Za-z]+", e) for e in strange):
        return warn(
            "entries like 9.0 or 9.0+PTX", f"{strange[0]!r} in TORCH_CUDA_ARCH_LIST", evidence=found, params=params
        )
    return passed(f"TORCH_CUDA_ARCH_LIST={text} covers {wanted}")


def _covers(entry: str, ours: tuple[int, int]) -> bool:
    """Whether code built for an entry runs on a GPU: same major and no higher minor; PTX runs on everything newer."""
    ptx = entry.endswith("+PTX")
    match = _ARCH.fullmatch(entry)
    built = _ARCH_NAMES.get(entry.removesuffix("+PTX").lower())
    if match:
        built = (int(match.group(1)), int(match.group(2)))
        if match.group(3) == "a":
            return built == ours
    if built is None:
        return False
    return (built[0] == ours[0] and built[1] <= ours[1]) or (ptx and built <= ours)


@check("ENV040", "CUDA_HOME is of torch's CUDA version", needs=("environ", "python.torch"), playbook="cuda-home")
def cuda_home(facts: Facts) -> Verdict:
    """Compares the CUDA tool kit that CUDA_HOME names with the CUDA version of torch.

    What it does:
        Reads the version from the path in CUDA_HOME or CUDA_PATH (/usr/local/cuda-12.4) where it has one.

    Why it matters:
        Extensions that are compiled on this machine use the compiler in CUDA_HOME, and torch refuses one of another
        major version: "The detected CUDA version mismatches the version that was used to compile PyTorch".
    """
    environ, build = need(facts.environ), need(environment(facts).torch)
    ours = major(build.cuda)
    if not ours:
        return skip("torch is built without CUDA")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        match = _CUDA_IN_PATH.search(environ.get(name, ""))
        if match and int(match.group(1)) != ours:
            return warn(
                f"a CUDA {ours} tool kit: torch {build.version} is built with CUDA {build.cuda}",
                f"{name}={environ[name]}",
                evidence=(evidence("environ", f"{name}={environ[name]}"),),
                params={"name": name, "path": f"/usr/local/cuda-{ours}"},
            )
    return passed(f"CUDA_HOME does not contradict torch's CUDA {build.cuda}")
