"""The facts document: everything that was found out about one machine, and its way in and out of JSON.

Sections are collected by one probe each and are judged by the checks. A document can be saved, sent, redacted, merged
with those of other nodes, and judged anywhere.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.base import Fact, Missing, MissingKind, Struct, why_missing
from rlcheck.facts.canary import CanaryFacts
from rlcheck.facts.cluster import ClusterFacts
from rlcheck.facts.collectives import CollectiveFacts
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.data import DataFacts
from rlcheck.facts.drift import DriftFacts
from rlcheck.facts.gpu import NvidiaFacts, RocmFacts
from rlcheck.facts.hang import HangFacts
from rlcheck.facts.hub import HubFacts
from rlcheck.facts.hygiene import refuse_giants
from rlcheck.facts.memory import MemoryProfile
from rlcheck.facts.nccl import NcclFacts
from rlcheck.facts.network import NetworkFacts
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.python import PythonFacts
from rlcheck.facts.ray import RayFacts
from rlcheck.facts.reach import ReachFacts
from rlcheck.facts.rehearsal import RehearsalFacts
from rlcheck.facts.resume import ResumeFacts
from rlcheck.facts.reward import RewardFacts
from rlcheck.facts.rollout import RolloutFacts
from rlcheck.facts.run import RunFacts
from rlcheck.facts.slow import SlowFacts
from rlcheck.facts.smoke import SmokeFacts
from rlcheck.facts.step import StepFacts
from rlcheck.facts.system import SystemFacts

SCHEMA_VERSION = "2.0"
_MAJOR = SCHEMA_VERSION.partition(".")[0]
_LONG_NUMBER = re.compile(rb"\d{19}")


class Facts(Struct, frozen=True):
    """What is known about one machine, at one time, for one Python environment."""

    schema_version: str = SCHEMA_VERSION
    rlcheck_version: str = ""
    node: str = ""
    collected_at: str = ""
    deep: bool = False
    platform: Fact[PlatformFacts] = Fact()
    environ: Fact[dict[str, str]] = Fact()
    python: Fact[PythonFacts] = Fact()
    nvidia: Fact[NvidiaFacts] = Fact()
    rocm: Fact[RocmFacts] = Fact()
    network: Fact[NetworkFacts] = Fact()
    nccl: Fact[NcclFacts] = Fact()
    system: Fact[SystemFacts] = Fact()
    hub: Fact[HubFacts] = Fact()
    ray: Fact[RayFacts] = Fact()
    reach: Fact[ReachFacts] = Fact()
    cluster: Fact[ClusterFacts] = Fact()
    collectives: Fact[CollectiveFacts] = Fact()
    config: Fact[ConfigFacts] = Fact()
    memory: Fact[MemoryProfile] = Fact()
    data: Fact[DataFacts] = Fact()
    reward: Fact[RewardFacts] = Fact()
    canary: Fact[CanaryFacts] = Fact()
    rollout: Fact[RolloutFacts] = Fact()
    smoke: Fact[SmokeFacts] = Fact()
    rehearsal: Fact[RehearsalFacts] = Fact()
    run: Fact[RunFacts] = Fact()
    drift: Fact[DriftFacts] = Fact()
    step: Fact[StepFacts] = Fact()
    hang: Fact[HangFacts] = Fact()
    resume: Fact[ResumeFacts] = Fact()
    slow: Fact[SlowFacts] = Fact()
    plugins: dict[str, Fact[Any]] = {}


class FactsFile(Struct, frozen=True, omit_defaults=False):
    """What is on disk: the documents of one or of many nodes."""

    schema_version: str = SCHEMA_VERSION
    nodes: tuple[Facts, ...] = ()


class FactsError(UserError):
    """A facts file that cannot be read at all. The message is one line for the user."""


SECTIONS = tuple(name for name in Facts.__struct_fields__ if name not in ("schema_version", "rlcheck_version", "node",
                 "collected_at", "deep", "plugins"))  # fmt: skip


def encode(nodes: tuple[Facts, ...]) -> bytes:
    """The JSON of a facts file, indented for reading."""
    return msgspec.json.format(msgspec.json.encode(FactsFile(nodes=nodes)), indent=1) + b"\n"


def decode(data: bytes, name: str = "facts") -> tuple[Facts, ...]:
    """The documents in a facts file.

    Fields that this version does not know are passed over, so that a file from a newer minor version can be judged.

    Raises:
        FactsError: not JSON, of another shape, of a newer major version, or without a node.
    """
    try:
        header = msgspec.json.decode(data, type=_Header)
    except (ValueError, RecursionError) as error:
        raise FactsError(f"{name}: not a facts file written by `rlcheck collect`: {error}") from None
    if header.schema_version.partition(".")[0] != _MAJOR:
        raise FactsError(
            f"{name}: facts schema {header.schema_version[:20]!r} cannot be read by this rlcheck (it reads "
            f"{_MAJOR}.x); judge it with the version that wrote it, or collect again"
        )
    try:
        nodes = msgspec.json.decode(data, type=FactsFile).nodes
        if _LONG_NUMBER.search(data):
            refuse_giants(msgspec.json.decode(data))
    except (ValueError, RecursionError) as error:
        raise FactsError(f"{name}: damaged facts file: {error}; collect again") from None
    if not nodes:
        raise FactsError(f"{name}: no node in this facts file; collect again")
    names = [facts.node for facts in nodes]
    if len(set(names)) < len(names):
        twice = next(node for node in names if names.count(node) > 1)
        raise FactsError(f"{name}: node {twice!r} is recorded twice; leave one of them out")
    return nodes


class _Header(Struct, frozen=True):
    schema_version: str


def resolve(facts: Facts, path: str) -> Missing | None:
    """Why the fact at dotted `path` has no value, or None when it has one.

    Raises:
        KeyError: there is no such path in the document, whatever the machine.
    """
    here: Any = facts
    for part in path.split("."):
        if isinstance(here, dict):
            here = here.get(part, Fact())  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        elif isinstance(here, msgspec.Struct) and part in here.__struct_fields__:
            here = getattr(here, part)
        else:
            raise KeyError(path)
        if isinstance(here, Fact):
            reason = why_missing(here)  # pyright: ignore[reportUnknownArgumentType]
            if reason is not None:
                return reason
            here = here.value  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return None


def not_collected(reason: str) -> Fact[Any]:
    """A section that was left out on purpose."""
    return Fact(missing=Missing(kind=MissingKind.NOT_COLLECTED, reason=reason))
