"""The second-best source: `nvidia-smi --query-gpu`, for machines where NVML cannot be asked directly."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable
from typing import Any

from rlcheck.facts.base import Fact, MissingKind, known, missing
from rlcheck.facts.gpu import NvidiaDevice
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.nvidia_devices import bus_id, short_uuid

_MIB = 1 << 20
_BAD_FIELD = re.compile(r'Field "([\w.]+)" is not a valid field')
_NOTHING = ("", "[n/a]", "n/a", "[not supported]", "[unknown error]", "[insufficient permissions]", "[gpu is lost]")
_TIMEOUT_S = 3.0
# Names that older drivers use for the same field (renamed with driver 535).
_LINE_LIMIT = 4096
_OLD_NAMES = {"clocks_event_reasons.active": "clocks_throttle_reasons.active"}


def _capability(text: str) -> tuple[int, int]:
    major, minor = text.split(".")
    return int(major), int(minor)


def _enabled(text: str) -> bool:
    return {"enabled": True, "disabled": False}[text.lower()]


def _mode(text: str) -> str:
    return text.lower().replace(" ", "_")


def _mib(text: str) -> int:
    return round(float(text)) * _MIB


# Our fact, the field to ask for, and how to read it.
_FIELDS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "uuid": ("uuid", short_uuid),
    "name": ("name", str),
    "bus_id": ("pci.bus_id", bus_id),
    "compute_capability": ("compute_cap", _capability),
    "memory_total_bytes": ("memory.total", _mib),
    "memory_used_bytes": ("memory.used", _mib),
    "memory_reserved_bytes": ("memory.reserved", _mib),
    "ecc_enabled": ("ecc.mode.current", _enabled),
    "ecc_uncorrected": ("ecc.errors.uncorrected.volatile.total", int),
    "clock_events": ("clocks_event_reasons.active", lambda text: int(text, 16)),
    "pcie_gen": ("pcie.link.gen.current", int),
    "pcie_gen_max": ("pcie.link.gen.max", int),
    "pcie_width": ("pcie.link.width.current", int),
    "pcie_width_max": ("pcie.link.width.max", int),
    "mig_enabled": ("mig.mode.current", _enabled),
    "compute_mode": ("compute_mode", _mode),
    "persistence": ("persistence_mode", _enabled),
    "temperature_c": ("temperature.gpu", int),
    "power_w": ("power.draw", float),
    "power_limit_w": ("power.limit", float),
    "power_default_w": ("power.default_limit", float),
}
_UNASKED = missing(MissingKind.UNSUPPORTED, "nvidia-smi was asked instead of NVML and does not give it")


def query(ctx: ProbeContext) -> Fact[tuple[str, tuple[NvidiaDevice, ...]]]:
    """The driver's version and the devices, or why nvidia-smi did not say.

    A field that this nvidia-smi does not know is asked for by its older name, or left out, and the rest asked again.
    """
    fields = ["index", "driver_version", *(field for field, _ in _FIELDS.values())]
    started = ctx.now()
    while ctx.now() - started < _TIMEOUT_S:
        result = ctx.run(
            ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"], timeout_s=_TIMEOUT_S
        )
        if result.value is None:
            return Fact(missing=result.missing)
        output = result.value.stdout
        refused = _BAD_FIELD.search(output + result.value.stderr)
        if refused is None or refused.group(1) not in fields:
            return _parse(output, fields, result.value.returncode)
        bad = refused.group(1)
        fields = [_OLD_NAMES.get(bad, "") if field == bad else field for field in fields]
        fields = [field for field in fields if field]
    return missing(MissingKind.TIMEOUT, "nvidia-smi refused too many fields")


def _parse(output: str, fields: list[str], returncode: int) -> Fact[tuple[str, tuple[NvidiaDevice, ...]]]:
    devices: list[NvidiaDevice] = []
    driver = ""
    # Cut, since the reader raises on a field of more than 131072 characters.
    lines = [line[:_LINE_LIMIT] for line in output.splitlines()[:256]]
    for cells in csv.reader(lines, skipinitialspace=True):
        row = dict(zip(fields, (cell.strip() for cell in cells), strict=False))
        if len(cells) != len(fields) or not row["index"].isdecimal():
            continue
        driver = row["driver_version"]
        devices.append(_device(int(row["index"]), row))
    if devices:
        return known((driver, tuple(devices)))
    first = next((line.strip() for line in output.splitlines() if line.strip()), "nothing")
    return missing(MissingKind.ERROR, f"nvidia-smi (exit {returncode}) said: {first[:120]}")


def _device(index: int, row: dict[str, str]) -> NvidiaDevice:
    facts: dict[str, Any] = dict.fromkeys(NvidiaDevice.__struct_fields__[2:], _UNASKED)
    for name, (field, convert) in _FIELDS.items():
        facts[name] = _cell(row.get(field, row.get(_OLD_NAMES.get(field, ""))), convert)
    return NvidiaDevice(index=index, **facts)


def _cell(text: str | None, convert: Callable[[str], Any]) -> Fact[Any]:
    if text is None:
        return missing(MissingKind.UNSUPPORTED, "this nvidia-smi does not know the field")
    if text.lower() in _NOTHING:
        kind = MissingKind.ERROR if "error" in text.lower() or "lost" in text.lower() else MissingKind.ABSENT
        return missing(kind, f"nvidia-smi: {text or 'empty'}")
    try:
        return known(convert(text))
    except (ValueError, KeyError, OverflowError):
        return missing(MissingKind.ERROR, f"nvidia-smi gave {text[:40]!r}")
