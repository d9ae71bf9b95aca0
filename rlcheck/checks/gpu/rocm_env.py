"""Settings that ROCm needs, or no longer wants, by release, and the state of AMD GPUs."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.checks.gpu.devices import amd_label, environ, instincts, numbers, torch_kind, torch_of
from rlcheck.facts.base import FactMissingError, need, value_or, why_missing
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import AmdDevice
from rlcheck.text import GIB, gib, listed

_SMALL_BYTES = 2 * GIB
_SMALL_SHARE = 0.03


def _hip(facts: Facts) -> tuple[int, ...]:
    """Major and minor of the ROCm that torch brings; () when torch is no ROCm build."""
    found = numbers(torch_of(facts).hip) if torch_kind(facts) == "rocm" else ()
    return (*found, 0)[:2] if found else ()


def _cards(facts: Facts) -> tuple[AmdDevice, ...]:
    """The Instinct GPUs.

    Raises:
        FactMissingError: the GPUs could not be looked at.
    """
    need(need(facts.rocm).devices)
    return instincts(facts)


@check(
    "GPU046",
    "RCCL's MSCCL setting suits this ROCm",
    needs=("environ", "python.torch", "rocm.devices"),
    playbook="rccl-msccl-crash",
    problem="MSCCL is on in RCCL of ROCm 6.4",
)
def msccl(facts: Facts) -> Verdict:
    """Judges RCCL_MSCCL_ENABLE by ROCm release.

    What it does:
        On ROCm 6.4 with several GPUs it wants the value 0; from 7.13 on the variable is dead.

    Why it matters:
        RCCL of ROCm 6.4 can crash in ncclCommSplit when it sets up MSCCL, which is what FSDP with several process
        groups calls. Later releases have the cure, so a left-over setting only hides an optimisation.
    """
    hip = _hip(facts)
    cards = _cards(facts)
    value = environ(facts).get("RCCL_MSCCL_ENABLE")
    if not hip or len(cards) < 2:
        return skip("no collectives between AMD GPUs run from here")
    seen = (evidence("environ.RCCL_MSCCL_ENABLE", value or "not set", "environment"),)
    if hip == (6, 4) and value != "0":
        return warn("RCCL_MSCCL_ENABLE=0 on ROCm 6.4", value or "not set", evidence=seen)
    if hip >= (7, 13) and value is not None:
        return info(f"RCCL_MSCCL_ENABLE={value[:20]} has no effect from ROCm 7.13 on", evidence=seen)
    return passed(f"RCCL_MSCCL_ENABLE suits ROCm {hip[0]}.{hip[1]}")


@check(
    "GPU047",
    "MI200 GPUs keep their scratch memory",
    needs=("environ", "python.torch", "rocm.devices"),
    playbook="rocm-variables",
    problem="HSA_NO_SCRATCH_RECLAIM is not set for MI200 GPUs",
)
def scratch_reclaim(facts: Facts) -> Verdict:
    """Looks for HSA_NO_SCRATCH_RECLAIM=1 on MI200 GPUs with ROCm 7.13 or newer.

    What it does:
        Looks at the GPUs' target (gfx90a), torch's ROCm and the variable.

    Why it matters:
        Without HSA_NO_SCRATCH_RECLAIM=1 collectives on MI200 are slow from ROCm 7.13 on: RCCL's release notes name the
        variable as the way back to full speed.
    """
    hip = _hip(facts)
    cards = [device for device in _cards(facts) if device.gfx == "gfx90a"]
    if len(cards) < 2 or hip < (7, 13):
        return skip("the question arises on several MI200 GPUs with ROCm 7.13 or newer")
    value = environ(facts).get("HSA_NO_SCRATCH_RECLAIM", "")
    if value == "1":
        return passed("HSA_NO_SCRATCH_RECLAIM is 1")
    return warn(
        "HSA_NO_SCRATCH_RECLAIM=1 for gfx90a",
        value or "not set",
        evidence=(evidence("environ.HSA_NO_SCRATCH_RECLAIM", value or "not set", "environment"),),
    )


@check(
    "GPU048",
    "RCCL chooses its channels itself",
    needs=("environ", "python.torch", "rocm.devices"),
    playbook="rocm-variables",
    problem="RCCL's channels are pinned",
)
def channels(facts: Facts) -> Verdict:
    """Looks for NCCL_MIN_NCHANNELS and NCCL_MAX_NCHANNELS on ROCm 7.0 and newer.

    What it does:
        Reads both variables and NCCL_THREAD_THRESHOLDS.

    Why it matters:
        From ROCm 7.0 on RCCL has a model that chooses channels by message size, and any of these variables switches it
        off. NCCL_MIN_NCHANNELS=112 was a tip for MI300X with ROCm 6.
    """
    hip = _hip(facts)
    if len(_cards(facts)) < 2 or hip < (7, 0):
        return skip("the question arises on several Instinct GPUs with ROCm 7.0 or newer")
    names = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_THREAD_THRESHOLDS")
    set_ = [f"{name}={environ(facts)[name][:20]}" for name in names if name in environ(facts)]
    if not set_:
        return passed("RCCL chooses its channels itself")
    return warn(
        f"RCCL's own choice of channels on ROCm {hip[0]}.{hip[1]}",
        listed(set_),
        evidence=tuple(evidence(f"environ.{text.split('=')[0]}", text, "environment") for text in set_),
        params={"name": set_[0].split("=")[0]},
    )


@check("GPU050", "TunableOp is not left tuning", needs=("environ", "rocm.devices"), playbook="rocm-variables",
       problem="TunableOp is left tuning")  # fmt: skip
def tunableop(facts: Facts) -> Verdict:
    """Looks for PyTorch's TunableOp with its tuning pass switched on.

    What it does:
        PYTORCH_TUNABLEOP_ENABLED=1 tunes unless PYTORCH_TUNABLEOP_TUNING=0.

    Why it matters:
        While TunableOp tunes, every new matrix shape is timed with hundreds of kernels. Rollouts and packed batches
        bring new shapes all the time, so that steps take minutes and nothing says why.
    """
    if not _cards(facts):
        return skip("there is no Instinct GPU")
    enabled = environ(facts).get("PYTORCH_TUNABLEOP_ENABLED", "0")
    tuning = environ(facts).get("PYTORCH_TUNABLEOP_TUNING", "1")
    if enabled != "1" or tuning == "0":
        return passed("TunableOp does not tune")
    return warn(
        "TunableOp off, or PYTORCH_TUNABLEOP_TUNING=0",
        "PYTORCH_TUNABLEOP_ENABLED=1 with tuning on",
        evidence=(evidence("environ.PYTORCH_TUNABLEOP_ENABLED", enabled, "environment"),),
    )


@check("GPU051", "AMD GPUs are not partitioned", needs=("rocm.devices",), playbook="gpu-partitioned",
       problem="AMD GPUs are partitioned")  # fmt: skip
def partitions(facts: Facts) -> Verdict:
    """Reads the compute and memory partition modes of MI300 and MI350 GPUs.

    What it does:
        Expects SPX (one device a GPU) and NPS1 (one memory pool).

    Why it matters:
        In CPX or NPS4 a GPU shows up as many small devices with a slice of the memory each: models that fit before no
        longer do, and recipes count the wrong number of GPUs.
    """
    devices = _cards(facts)
    judged = [d for d in devices if d.compute_partition.value or d.memory_partition.value]
    if not judged:
        return skip("these GPUs have no partition modes, or do not show them")
    bad = [
        (d, f"{value_or(d.compute_partition, '?')}, {value_or(d.memory_partition, '?')}")
        for d in judged
        if value_or(d.compute_partition, "SPX") != "SPX" or value_or(d.memory_partition, "NPS1") != "NPS1"
    ]
    if not bad:
        return passed(f"{len(judged)} GPU(s) are SPX, NPS1")
    return warn(
        "SPX, NPS1",
        listed(f"{amd_label(d)}: {mode}" for d, mode in bad),
        evidence=tuple(evidence(f"rocm.devices[{d.node}].compute_partition", mode, "sysfs") for d, mode in bad[:16]),
    )


@check("GPU038", "No AMD GPU has uncorrectable errors", needs=("rocm.devices",), playbook="gpu-memory-errors",
       problem="An AMD GPU has uncorrectable errors")  # fmt: skip
def ras(facts: Facts) -> Verdict:
    """Adds up the uncorrectable errors of every block of each Instinct GPU.

    What it does:
        Reads the driver's RAS counters in sysfs.

    Why it matters:
        An uncorrectable error killed a program or will do so; a GPU that has them gets more under load.
    """
    cards = _cards(facts)
    if not cards:
        return skip("there is no Instinct GPU")
    counts = [(device, device.ras_uncorrected.value) for device in cards if device.ras_uncorrected.value is not None]
    if not counts:
        _say_why(cards, "ras")
    bad = [(device, count) for device, count in counts if count]
    if not bad:
        return passed("no uncorrectable error")
    return warn(
        "0 uncorrectable errors",
        listed(f"{amd_label(device)}: {count}" for device, count in bad),
        evidence=tuple(evidence(f"rocm.devices[{d.node}].ras_uncorrected", n, "sysfs ras") for d, n in bad[:16]),
    )


def _say_why(cards: tuple[AmdDevice, ...], what: str) -> None:
    """End the check with the reason that the first card gives.

    Raises:
        FactMissingError: always, when there are cards.
    """
    for device in cards:
        reason = why_missing(device.ras_uncorrected if what == "ras" else device.memory_used_bytes)
        if reason is not None:
            raise FactMissingError(reason)


@check("GPU052", "The AMD GPUs' memory is free", needs=("rocm.devices",), playbook="gpu-memory-in-use",
       problem="AMD GPU memory is already in use")  # fmt: skip
def memory_free(facts: Facts) -> Verdict:
    """Looks for memory of Instinct GPUs that other programs hold.

    What it does:
        Compares the memory in use with the total; less than 2 GiB, or 3 %, is taken for the driver's own.

    Why it matters:
        Rollout engines claim a share of the total memory and stop at once when others hold more than the rest.
    """
    cards = _cards(facts)
    known = [(d, d.memory_used_bytes.value, value_or(d.memory_total_bytes, 0)) for d in cards]
    judged = [(d, used, total) for d, used, total in known if used is not None]
    if not cards:
        return skip("there is no Instinct GPU")
    if not judged:
        _say_why(cards, "memory")
    busy = [(d, used, total) for d, used, total in judged if used > max(_SMALL_BYTES, int(_SMALL_SHARE * total))]
    if not busy:
        return passed("no other program holds GPU memory")
    return warn(
        "GPUs without other programs' memory",
        listed(f"{amd_label(d)}: {gib(used)} of {gib(total)} in use" for d, used, total in busy),
        evidence=tuple(evidence(f"rocm.devices[{d.node}].memory_used_bytes", n, "sysfs") for d, n, _ in busy[:16]),
    )
