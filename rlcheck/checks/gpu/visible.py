"""CUDA_VISIBLE_DEVICES and its relatives against the GPUs that are there."""

from __future__ import annotations

import re

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.checks.gpu.devices import alive, environ
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvidiaDevice
from rlcheck.text import listed

_HIDES_ALL = ("", "nodevfiles")
_IDENTIFIER = re.compile(r"(?:MIG-)?(?:GPU-)?[0-9A-Fa-f]{2}[0-9A-Fa-f-]*(?:/\d+/\d+)?")
_MAX_DIGITS = 6


def entries(text: str) -> list[str]:
    """The entries of a visible-devices list up to the first negative one, where CUDA stops reading."""
    found: list[str] = []
    # A comma at the end is a common slip that costs nothing: the entries before it count.
    for part in text.rstrip(", \t").split(",") if text.strip(", \t") else ():
        part = part.strip()
        if part.startswith("-"):
            break
        found.append(part)
    return found


def _problem(entry: str, devices: tuple[NvidiaDevice, ...], count: int) -> str:
    """What is wrong with one entry, or ""."""
    if entry.isdecimal():
        exists = len(entry) <= _MAX_DIGITS and int(entry) < count
        return "" if exists else f"{entry[:20]}: there is no such index (0 to {count - 1})"
    if not entry.startswith(("GPU-", "MIG-")):
        return f"{entry[:40]!r}: neither an index nor a UUID"
    if not _IDENTIFIER.fullmatch(entry):
        return ""  # cut or redacted: nothing to compare with
    known = [d.uuid.value for d in devices] if entry.startswith("GPU-") else _slices(devices)
    if not known or None in known:
        return ""
    # Both may be shortened: CUDA takes any unambiguous beginning, and we keep only the beginning ourselves.
    matches = [uuid for uuid in known if uuid is not None and (uuid.startswith(entry) or entry.startswith(uuid))]
    return "" if matches else f"{entry[:16]}…: no GPU has this UUID"


def _slices(devices: tuple[NvidiaDevice, ...]) -> list[str | None]:
    sliced = [device for device in devices if value_or(device.mig_enabled, False)]
    if any(device.mig_uuids.value is None for device in sliced):
        return [None]
    return [uuid for device in sliced for uuid in value_or(device.mig_uuids, ())]


@check(
    "GPU011",
    "CUDA_VISIBLE_DEVICES names GPUs that exist",
    needs=("environ", "nvidia.devices"),
    playbook="visible-devices-wrong",
    caused_by=("GPU005",),
    problem="CUDA_VISIBLE_DEVICES names a GPU that does not exist",
)
def visible_exist(facts: Facts) -> Verdict:
    """Compares every entry of CUDA_VISIBLE_DEVICES with the GPUs that the driver shows.

    What it does:
        Checks indices against the number of GPUs, GPU and MIG UUIDs against theirs (beginnings are enough), and looks
        for entries that occur twice.

    Why it matters:
        CUDA silently drops the first entry that it cannot find and all entries after it, and an entry that occurs twice
        makes it show no GPU at all. The run then sees fewer GPUs than it was given, or stops with "invalid device
        ordinal". Ranges such as 0-3 are not understood.
    """
    text = environ(facts).get("CUDA_VISIBLE_DEVICES")
    if text is None:
        return skip("CUDA_VISIBLE_DEVICES is not set")
    named = entries(text)
    if not named or text.strip().lower() in _HIDES_ALL:
        return skip("CUDA_VISIBLE_DEVICES hides every GPU")
    devices = need(need(facts.nvidia).devices)
    if not devices:
        return skip("the driver counts no GPU here")
    wrong = [problem for entry in named if (problem := _problem(entry, devices, len(devices)))]
    wrong += [f"{entry[:16]}: listed twice" for entry in dict.fromkeys(named) if named.count(entry) > 1]
    if not wrong:
        return passed(f"all {len(named)} entries name one of {len(devices)} GPU(s)")
    return fail(
        f"entries for {len(devices)} GPU(s)",
        f"CUDA_VISIBLE_DEVICES={text[:80]!r}",
        details=tuple(wrong[:16]),
        evidence=(
            evidence("environ.CUDA_VISIBLE_DEVICES", text[:200], "environment"),
            evidence("nvidia.devices", len(devices), need(facts.nvidia).source),
        ),
    )


@check(
    "GPU012",
    "The GPUs are not hidden",
    needs=("environ", "nvidia.devices"),
    playbook="visible-devices-wrong",
    problem="CUDA_VISIBLE_DEVICES hides every GPU",
)
def not_hidden(facts: Facts) -> Verdict:
    """Looks for a CUDA_VISIBLE_DEVICES that hides every GPU.

    What it does:
        Looks for the empty value, a list that begins with -1, and Slurm's NoDevFiles.

    Why it matters:
        With all GPUs hidden torch reports none and falls back to the CPU or stops. The empty value is a left-over of
        scripts; Ray sets it in tasks that asked for no GPU, and Slurm in steps without one.
    """
    text = environ(facts).get("CUDA_VISIBLE_DEVICES")
    devices = alive(facts)
    if text is None:
        return passed(f"CUDA_VISIBLE_DEVICES is not set: all {len(devices)} GPU(s) are visible")
    if text.strip().lower() not in _HIDES_ALL and entries(text):
        return passed("CUDA_VISIBLE_DEVICES leaves GPUs visible")
    return warn(
        f"{len(devices)} GPU(s) visible to CUDA",
        f"none: CUDA_VISIBLE_DEVICES={text[:80]!r}",
        evidence=(evidence("environ.CUDA_VISIBLE_DEVICES", repr(text[:80]), "environment"),),
    )


@check(
    "GPU013",
    "CUDA numbers the GPUs as nvidia-smi does",
    needs=("environ", "nvidia.devices"),
    playbook="cuda-device-order",
)
def device_order(facts: Facts) -> Verdict:
    """Looks whether an index means the same GPU to CUDA as to nvidia-smi and Slurm.

    What it does:
        On machines with GPUs of different models looks for CUDA_DEVICE_ORDER=PCI_BUS_ID.

    Why it matters:
        By default CUDA puts the fastest GPU first, while nvidia-smi, NVML and Slurm go by PCI bus. With different
        models index 0 is then not the same card, so a job can land on a GPU that belongs to another user.
    """
    variables = environ(facts)
    devices = alive(facts)
    order = variables.get("CUDA_DEVICE_ORDER", "")
    models = sorted({device.name.value for device in devices if device.name.value})
    if order == "PCI_BUS_ID":
        return passed("CUDA_DEVICE_ORDER is PCI_BUS_ID")
    if len(devices) < 2 or len(models) < 2:
        return passed("the GPUs are alike, so that their order does not matter")
    return info(
        f"CUDA_DEVICE_ORDER is {order or 'not set'} while the models differ ({listed(models)}): set it to PCI_BUS_ID",
        evidence=(evidence("environ.CUDA_DEVICE_ORDER", order or "not set", "environment"),),
    )
