"""RAY_EXPERIMENTAL_NOSET_…: whether Ray hands out the GPUs, or leaves that to the program."""

from __future__ import annotations

from packaging.version import Version

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.cluster.common import ON, ray_version, variable
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts

_PREFIX = "RAY_EXPERIMENTAL_NOSET_"
_KNOWN = frozenset(
    {"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "ONEAPI_DEVICE_SELECTOR",
     "ZE_AFFINITY_MASK", "TPU_VISIBLE_CHIPS", "TENSTORRENT_VISIBLE_DEVICES",
     "RBLN_RT_VISIBLE_DEVICES", "NEURON_RT_VISIBLE_CORES",
     "MBLT_RT_VISIBLE_DEVICES", "HABANA_VISIBLE_MODULES", "FURIOSA_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"}
)  # fmt: skip
_HIP_SINCE = Version("2.45.0")
_BOOLEAN_SINCE = Version("2.54.0")
_OFF = ("0", "false", "")


def _switches(facts: Facts) -> dict[str, str]:
    """The variables of this kind, by what follows the prefix."""
    found = need(facts.environ)
    return {name.removeprefix(_PREFIX): value for name, value in found.items() if name.startswith(_PREFIX)}


def _has_amd(facts: Facts) -> bool:
    rocm = facts.rocm.value
    return bool(rocm is not None and rocm.devices.value)


@check("RAY010", "NOSET variables are ones that Ray reads", needs=("environ", "python"), playbook="ray-noset-devices",
       problem="Ray does not read a NOSET variable that is set")  # fmt: skip
def noset_names(facts: Facts) -> Verdict:
    """Compares the RAY_EXPERIMENTAL_NOSET_… variables with those that the installed Ray knows.

    What it does:
        Finds misspelt ones, and on AMD machines the one of the other half: Ray up to 2.44 reads …ROCR_VISIBLE_DEVICES,
        2.45 and later …HIP_VISIBLE_DEVICES.

    Why it matters:
        A variable that Ray does not read leaves Ray in charge of the devices although the program counts on choosing
        them itself, which ends as "invalid device ordinal" or with two ranks on one GPU.
    """
    switches = _switches(facts)
    if not switches:
        return passed("none is set")
    unknown = sorted(set(switches) - _KNOWN)
    if unknown:
        name = _PREFIX + unknown[0]
        return warn("a NOSET variable that Ray reads", f"{name}, which no version reads", params={"variable": name},
                    evidence=(evidence(f"environ.{name}", switches[unknown[0]]),))  # fmt: skip
    version = ray_version(facts)
    if version is None or not _has_amd(facts):
        return passed(", ".join(_PREFIX + name for name in sorted(switches)))
    right, wrong = ("HIP", "ROCR") if version >= _HIP_SINCE else ("ROCR", "HIP")
    if f"{wrong}_VISIBLE_DEVICES" in switches and f"{right}_VISIBLE_DEVICES" not in switches:
        name = f"{_PREFIX}{wrong}_VISIBLE_DEVICES"
        return warn(
            f"{_PREFIX}{right}_VISIBLE_DEVICES with Ray {version}",
            f"only {name}",
            evidence=(evidence(f"environ.{name}", switches[f"{wrong}_VISIBLE_DEVICES"]),),
            params={"variable": name, "right_variable": f"{_PREFIX}{right}_VISIBLE_DEVICES"},
        )
    return passed(", ".join(_PREFIX + name for name in sorted(switches)))


@check("RAY011", "NOSET values mean what they say", needs=("environ", "python"), playbook="ray-noset-devices",
       problem="A NOSET value does not mean what it says")  # fmt: skip
def noset_values(facts: Facts) -> Verdict:
    """Reads the values of the NOSET variables as the installed Ray does.

    What it does:
        Before Ray 2.54 any text that is not empty counts as on, 0 and false included. From 2.54 on only 1 and true do.

    Why it matters:
        The same "=0" in a job script switches device handling off in one version and leaves it on in the next, and an
        upgrade of Ray then moves ranks to other GPUs.
    """
    switches, version = _switches(facts), ray_version(facts)
    if not switches:
        return passed("none is set")
    if version is None:
        return skip("Ray is not installed in the examined environment")
    if version < _BOOLEAN_SINCE:
        odd = [name for name, value in sorted(switches.items()) if value and value.lower() in (*_OFF, "no", "off")]
        meaning = "on"
    else:
        odd = [name for name, value in sorted(switches.items()) if value.lower() not in (*ON, *_OFF)]
        meaning = "off"
    if not odd:
        return passed(f"clear for Ray {version}")
    name = _PREFIX + odd[0]
    return warn(
        "1, or not set",
        f"{name}={switches[odd[0]]}, which Ray {version} takes for {meaning}",
        evidence=(evidence(f"environ.{name}", switches[odd[0]]),),
        params={"variable": name},
    )


@check("RAY012", "Ray hands out the GPUs", needs=("environ",), playbook="ray-noset-devices",
       problem="Ray does not assign GPUs to its workers")  # fmt: skip
def noset_on(facts: Facts) -> Verdict:
    """Notes that Ray was told not to set the device variables of its workers.

    What it does:
        Reports CUDA, HIP and ROCR switches that are on.

    Why it matters:
        Each worker then sees every GPU of the machine, which is right for programs that choose devices themselves
        (OpenRLHF asks for it with vLLM engines) and puts all ranks on GPU 0 for those that rely on Ray.
    """
    names = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
    switches = _switches(facts)
    found = [_PREFIX + name for name in names if switches.get(name, "").lower() not in _OFF]
    if not found:
        return passed("each worker sees the GPUs that Ray gave it")
    return info(
        f"{found[0]}={variable(facts, found[0])}: every Ray worker sees all GPUs and must choose by itself",
        params={"variable": found[0]},
    )
