"""The GPU family's data (driver floors, Xid catalogue, throttle bits, AMD targets), read from data/gpu.json."""

from __future__ import annotations

from rlcheck.facts.base import Struct
from rlcheck.tables import table


class RecoveryAction(Struct, frozen=True):
    """What NVIDIA's driver asks for, and how grave that is for a run."""

    name: str
    severity: str
    command: str = ""


class ClockEvent(Struct, frozen=True):
    """One bit of the clocks-event mask; `bad` ones mean that the hardware protects itself."""

    bit: int
    name: str
    bad: bool


class XidEntry(Struct, frozen=True):
    """One error of NVIDIA's catalogue and the immediate action that the catalogue names."""

    meaning: str
    action: str


class XidAction(Struct, frozen=True):
    """How grave an action is ("" for nothing to do) and how to say it."""

    severity: str
    text: str


class GfxTarget(Struct, frozen=True):
    """An AMD target, the cards that have it, and the first ROCm that supports it ("" when any in use does)."""

    names: str
    min_rocm: str = ""
    instinct: bool = False


class RayAmd(Struct, frozen=True):
    """What a range of Ray releases does with the visible-devices variables on AMD.

    Each of `cuda_only`, `equal` (CUDA and HIP the same), `differ`, `rocr` and `rocr_hip` (both of these set) is ok,
    ignored, "HIP wins" or the exception that `import ray` or `ray start` ends in. `noset` is the middle of the variable
    that switches Ray off.
    """

    ray: str
    cuda_only: str
    equal: str
    differ: str
    rocr: str
    rocr_hip: str
    noset: str


class GpuTables(Struct, frozen=True):
    """All of it; keys are as in the JSON file."""

    sources: dict[str, str]
    cuda_floors: dict[int, int]
    nvml_errors: dict[str, str]
    recovery_actions: dict[int, RecoveryAction]
    clock_events: tuple[ClockEvent, ...]
    xids: dict[int, XidEntry]
    xid_actions: dict[str, XidAction]
    datacenter_names: tuple[str, ...]
    nvlink_names: tuple[str, ...]
    nvlink_exceptions: tuple[str, ...]
    gfx: dict[str, GfxTarget]
    amd_pci: dict[str, str]
    torch_rocm: dict[str, str]
    ray_amd: tuple[RayAmd, ...]


def tables() -> GpuTables:
    """Return the data."""
    return table("gpu", GpuTables)
