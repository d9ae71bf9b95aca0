"""What the GPU checks share: reading one value of every GPU, naming GPUs, versions, and what torch was built for."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, NoReturn, TypeVar

from rlcheck.check import Verdict, passed, unknown
from rlcheck.checks.gpu.tables import tables
from rlcheck.facts.base import Fact, FactMissingError, Missing, MissingKind, need, value_or, why_missing
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import AmdDevice, NvidiaDevice
from rlcheck.facts.python import TorchFacts
from rlcheck.text import listed

T = TypeVar("T")
OTHER_OWNERS = ("vfio-pci", "pci-stub", "xen-pciback")
"""Drivers that hold a GPU for a virtual machine: it is not for this system."""


@dataclass(frozen=True)
class Readings(Generic[T]):
    """One value of every GPU that gave it, and why the others could not be read."""

    items: tuple[tuple[NvidiaDevice, T], ...]
    unread: tuple[str, ...]

    def fine(self, message: str) -> Verdict:
        """*pass*, unless some GPU could not be read."""
        return unknown(f"could not look at every GPU: {listed(self.unread)}") if self.unread else passed(message)


def alive(facts: Facts) -> tuple[NvidiaDevice, ...]:
    """The NVIDIA GPUs that answer; one that does not is another check's finding.

    Raises:
        FactMissingError: there is none, or it was not possible to look.
    """
    devices = tuple(d for d in need(need(facts.nvidia).devices) if not d.handle_error)
    if not devices:
        not_there("the driver shows no usable NVIDIA GPU here")
    return devices


def not_there(reason: str) -> NoReturn:
    """End the check as not applicable.

    Raises:
        FactMissingError: always, as absent.
    """
    raise FactMissingError(Missing(kind=MissingKind.ABSENT, reason=reason))


def readings(facts: Facts, read: Callable[[NvidiaDevice], Fact[T]]) -> Readings[T]:
    """`read` of every GPU that answers.

    Raises:
        FactMissingError: no GPU has the value (skip), or none could be read (unknown).
    """
    items: list[tuple[NvidiaDevice, T]] = []
    unread: list[str] = []
    last: Missing | None = None
    for device in alive(facts):
        fact = read(device)
        reason = why_missing(fact)
        if reason is None:
            items.append((device, need(fact)))
        else:
            last = reason if last is None or last.kind is MissingKind.ABSENT else last
            if reason.kind is not MissingKind.ABSENT:
                unread.append(f"GPU {device.index}: {reason.reason}")
    if not items and last is not None:
        raise FactMissingError(last)
    return Readings(tuple(items), tuple(unread))


def label(device: NvidiaDevice) -> str:
    """How a GPU is named to the reader: its index and its model."""
    name = value_or(device.name, "").removeprefix("NVIDIA ")[:60]
    return f"GPU {device.index} ({name})" if name else f"GPU {device.index}"


def amd_label(device: AmdDevice) -> str:
    """How an AMD GPU is named to the reader."""
    return f"GPU {device.bus_id} ({device.gfx or 'unknown target'})"


def numbers(version: str) -> tuple[int, ...]:
    """The leading dotted numbers of a version, for comparing: "6.4.43482-0f2d" gives (6, 4, 43482); () for none."""
    match = re.match(r"\s*v?(\d{1,9}(?:\.\d{1,9})*)", version)
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def torch_of(facts: Facts) -> TorchFacts:
    """The examined environment's torch.

    Raises:
        FactMissingError: there is none, or it could not be looked at.
    """
    return need(need(facts.python).torch)


def torch_kind(facts: Facts) -> str:
    """cuda, rocm, cpu, or "" when there is no torch or it was not possible to look."""
    python = facts.python.value
    torch = None if python is None else python.torch.value
    if torch is None:
        return ""
    return "cuda" if torch.cuda else "rocm" if torch.hip else "cpu"


def distribution_version(facts: Facts, name: str) -> str:
    """The installed version of a distribution, "" when it is not installed or it was not possible to look."""
    python = facts.python.value
    found = (d.version for d in python.distributions if d.name == name) if python is not None else ()
    return next(iter(found), "")


def environ(facts: Facts) -> dict[str, str]:
    """The environment variables.

    Raises:
        FactMissingError: they were not collected.
    """
    return need(facts.environ)


def in_container(facts: Facts) -> bool:
    """Whether the machine is known to be a container."""
    return facts.platform.value is not None and bool(facts.platform.value.container)


def is_datacenter(device: NvidiaDevice) -> bool:
    """Whether the card is a data-center model, by its name."""
    return has_word(value_or(device.name, ""), tables().datacenter_names)


def is_sxm(device: NvidiaDevice) -> bool:
    """Whether the card is a model that comes wired to its neighbours with NVLink, by its name."""
    name = value_or(device.name, "")
    return any(model in name for model in tables().nvlink_names) and not any(
        word in name for word in tables().nvlink_exceptions
    )


def has_word(text: str, words: Iterable[str]) -> bool:
    """Whether one of `words` is in `text` as a word of its own (a hyphen ends a word, too)."""
    parts = set(re.split(r"[\s\-_/]+", text))
    return any(word in parts for word in words)


def instincts(facts: Facts) -> tuple[AmdDevice, ...]:
    """The AMD data-center GPUs that the driver shows; () when there are none or it was not possible to look."""
    rocm = facts.rocm.value
    devices: Any = () if rocm is None else value_or(rocm.devices, ())
    known = tables().gfx
    return tuple(d for d in devices if d.gfx in known and known[d.gfx].instinct)
