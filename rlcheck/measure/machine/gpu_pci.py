"""GPUs on the PCI bus, from files alone."""

from __future__ import annotations

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.gpu import PciGpu
from rlcheck.measure.machine.context import ProbeContext

NVIDIA = "10de"
AMD = "1002"
_DEVICES = "/sys/bus/pci/devices"
_GPU_CLASSES = ("03", "12")


def pci_gpus(ctx: ProbeContext, vendor: str) -> Fact[tuple[PciGpu, ...]]:
    """The display and compute devices of a vendor. Cheap when there are none: the kernel's own list is one file."""
    listing = ctx.read_text("/proc/bus/pci/devices").value
    if listing is not None and f"\t{vendor}" not in listing:
        return known(())
    names = ctx.list_dir(_DEVICES)
    if names.value is None:
        return absent("this machine shows no PCI bus") if names.missing is None else Fact(missing=names.missing)
    return known(tuple(gpu for name in names.value[:4096] if (gpu := _gpu(ctx, name, vendor)) is not None))


def _gpu(ctx: ProbeContext, name: str, vendor: str) -> PciGpu | None:
    base = f"{_DEVICES}/{name}"
    if _hex(ctx, f"{base}/vendor") != vendor:
        return None
    pci_class = _hex(ctx, f"{base}/class")[:4]
    if pci_class[:2] not in _GPU_CLASSES:
        return None
    driver = (ctx.read_link(f"{base}/driver").value or "").rsplit("/", 1)[-1]
    return PciGpu(bus_id=name.lower(), device_id=_hex(ctx, f"{base}/device"), pci_class=pci_class, driver=driver)


def _hex(ctx: ProbeContext, path: str) -> str:
    return (ctx.read_text(path, limit=32).value or "").strip().lower().removeprefix("0x")
