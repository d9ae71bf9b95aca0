"""The compiler tool chain that Triton and torch.compile call while a run starts."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.facts.base import MissingKind, need, why_missing
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import distribution, num_gpus

# Up to here Triton certainly compiles its launcher with the machine's C compiler; later ones may ship it built.
_BUILDS_ITS_LAUNCHER = Version("3.7")


def _why_not(facts: Facts) -> Verdict | None:
    """Why the tool chain does not matter here, or why that is not known."""
    version = distribution(facts, "triton", "triton-rocm", "pytorch-triton-rocm")
    if version is None:
        return unknown("which packages are installed is not known")
    if not version:
        return skip("Triton is not installed")
    if not num_gpus(facts):
        return skip("no GPU for Triton to compile for")
    return None


def _certain(facts: Facts) -> bool:
    version = distribution(facts, "triton", "triton-rocm", "pytorch-triton-rocm")
    try:
        return Version(version or "0") < _BUILDS_ITS_LAUNCHER
    except InvalidVersion:
        return False


@check("SYS037", "Triton finds a C compiler", needs=("system", "python"), playbook="c-compiler-missing",
       problem="Triton finds no C compiler")  # fmt: skip
def compiler(facts: Facts) -> Verdict:
    """Looks for the C compiler that Triton calls.

    What it does:
        Triton takes the variable CC, else gcc, else clang, from PATH; a `cc` alone does not count. Fails for Triton
        before 3.7 with GPUs, warns for later ones. Without GPUs, notes a missing C++ compiler, which torch.compile
        uses for the processor.

    Why it matters:
        Slim images have no compiler. The first kernel then fails with "Failed to find C compiler", minutes after the
        start, when the models are loaded.
    """
    tools = need(facts.system).toolchain
    proof = (evidence("system.toolchain.compilers", ", ".join(tools.compilers) or "none", "PATH"),)
    if distribution(facts, "torch") and not num_gpus(facts) and "g++" not in tools.compilers:
        return info("no C++ compiler (g++), which torch.compile uses on processors", evidence=proof)
    reason = _why_not(facts)
    if reason is not None:
        return reason
    problem = fail if _certain(facts) else warn
    if tools.cc and not tools.cc_found:
        return problem("a program behind the variable CC", f"CC={tools.cc}, which is not there", evidence=proof)
    if not tools.cc and not {"gcc", "clang"} & set(tools.compilers):
        found = "neither on PATH" + (", only cc" if "cc" in tools.compilers else "")
        return problem("gcc or clang for Triton", found, evidence=proof)
    return passed("Triton finds a C compiler", evidence=proof)


@check(
    "SYS038",
    "Triton finds Python's headers",
    needs=("system", "python"),
    playbook="python-headers-missing",
    caused_by=("SYS037",),
    problem="Triton does not find Python's headers",
)
def headers(facts: Facts) -> Verdict:
    """Looks for Python.h of the examined interpreter.

    What it does:
        Looks where the interpreter says its headers are. Fails for Triton before 3.7 with GPUs, warns for later ones.

    Why it matters:
        Distributions put the headers in a package of their own. Without them the compiler stops with "Python.h: No
        such file or directory", and Triton reports only that the command failed.
    """
    tools = need(facts.system).toolchain
    reason = _why_not(facts)
    if reason is not None:
        return reason
    lacking = why_missing(tools.python_h)
    if lacking is None:
        return passed("Python.h is there", evidence=(evidence("system.toolchain.python_h", tools.python_h.value),))
    if lacking.kind is not MissingKind.ABSENT:
        return unknown(lacking.reason)
    looked_in = ", ".join(tools.include_dirs)
    proof = (evidence("system.toolchain.include_dirs", looked_in, "the interpreter"),)
    problem = fail if _certain(facts) else warn
    return problem("Python.h for Triton", f"none in {looked_in}", evidence=proof)


@check(
    "SYS039",
    "The driver's library is found by the linker",
    needs=("system", "python"),
    playbook="libcuda-not-linked",
    caused_by=("GPU006",),
)
def libcuda(facts: Facts) -> Verdict:
    """Looks for the driver's libcuda.so.1 where Triton looks for it.

    What it does:
        Triton asks `/sbin/ldconfig -p`, then LD_LIBRARY_PATH, or takes TRITON_LIBCUDA_PATH. Warns when there is none,
        and when LD_LIBRARY_PATH holds the toolkit's stub, which only satisfies the linker.

    Why it matters:
        Triton stops with "libcuda.so cannot found!" although CUDA works: torch finds the library by another way. A stub
        that is found first makes every CUDA call fail with error 34 or "no CUDA-capable device".
    """
    system = need(facts.system)
    tools = system.toolchain
    if not system.devices.nvidia_driver:
        return skip("no NVIDIA driver is loaded")
    reason = _why_not(facts)
    if reason is not None:
        return reason
    proof = (evidence("system.toolchain.libcuda", ", ".join(tools.libcuda) or "none", "/etc/ld.so.cache"),)
    stubs = [path for path in tools.libcuda_stubs if not path.startswith("/usr/local/cuda")]
    if not tools.libcuda:
        instead = f", only the stub {tools.libcuda_stubs[0]}" if tools.libcuda_stubs else ""
        return warn("libcuda.so.1 where the linker looks", f"none{instead}", evidence=proof)
    if stubs:
        return warn("no stub library in LD_LIBRARY_PATH", stubs[0], evidence=proof)
    if not tools.ldconfig:
        return warn("/sbin/ldconfig, which Triton asks", "none", evidence=proof)
    return passed(f"libcuda.so.1 is {tools.libcuda[0]}", evidence=proof)
