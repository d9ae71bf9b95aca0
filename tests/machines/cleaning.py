"""From a record of `rlcheck collect` to one that can be published and kept small.

What names the infrastructure of the machine goes: variables, groups and paths. Of the distributions those stay
that the RL stack has or asks for, and of their requirements those that are in force, so that every check about them
says what it said before. Cleaning a clean record changes nothing.
"""

from __future__ import annotations

import json
import re
from fnmatch import fnmatchcase
from pathlib import Path

import msgspec

from rlcheck.facts.base import Fact, known
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.gpu import NvidiaFacts
from rlcheck.facts.python import Distribution, PythonFacts
from rlcheck.facts.system import Place, SystemFacts
from rlcheck.requirements import demands, parse

STACK = [
    row["name"]
    for row in json.loads(
        (Path(__file__).resolve().parents[2] / "rlcheck" / "data" / "stack.json").read_text(encoding="utf-8")
    )
]
# A trainer's extras name its engines' pins, which are judged although nobody can know that they were asked for.
TRAINERS = ("verl", "trl", "openrlhf")
ENGINES = ("vllm", "sglang", "all")
LEFT_OUT = re.compile(r"CONTAINER|PIP_|SSL_|.*CA_BUNDLE|PMIX_|OMPI_|SHELL$|TERM$|CXX$|CUDAHOSTCXX$")
PIP_PATHS = re.compile(r"cert|find.links|index|timeout|version.check", re.I)
OTHERS_OPTIONS = re.compile(r"resv_|resuid|resgid|discard")
TEXTS = (
    (re.compile(rb"(\d\.\d+\.\d+)-fc(?:-\w+)+"), rb"\1"),
    (re.compile(rb"/root/\.pyenv/versions/[\d.]+"), rb"/usr/local"),
    (re.compile(rb"/root/\.(?:pyenv|cargo)/[\w./-]*:"), rb""),
)


def clean(facts: Facts, name: str) -> Facts:
    """The record `name`, fit to be published."""
    if facts.python.value is not None and facts.python.value.prefix:
        facts = decode(encode((facts,)).replace(facts.python.value.prefix.encode(), f"/opt/{name}".encode()))[0]
    data = encode((facts,))
    for pattern, replacement in TEXTS:
        data = pattern.sub(replacement, data)
    facts = decode(data)[0]
    environ = facts.environ.value or {}
    return msgspec.structs.replace(
        facts,
        node=name,
        environ=known({k: v.split(" ")[0] if k == "NVIDIA_REQUIRE_CUDA" else v for k, v in environ.items()
                       if not LEFT_OUT.match(k)}),
        python=then(facts.python, _python),
        nvidia=then(facts.nvidia, _nvidia),
        network=then(facts.network, lambda n: msgspec.structs.replace(n, hostname=name)),
        system=then(facts.system, _system),
    )  # fmt: skip


def then(fact: Fact, function):
    """The fact with its value changed, or the same reason for having none."""
    return fact if fact.value is None else known(function(fact.value))


def in_stack(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in STACK)


def _python(python: PythonFacts) -> PythonFacts:
    presumed = tuple((trainer, engine) for trainer in TRAINERS for engine in ENGINES)
    found = msgspec.structs.replace(python, distributions=tuple(_of_stack(d) for d in python.distributions))
    in_force = demands(found, presumed).in_force
    lines = {(demand.owner, demand.requirement) for demand in in_force}
    asked_for = {demand.requirement.name for demand in in_force}
    kept = tuple(
        msgspec.structs.replace(d, requires=tuple(line for line in d.requires if (d.name, parse(line)) in lines))
        for d in found.distributions
        if in_stack(d.name) or d.name in asked_for or d.broken
    )
    pip_config = tuple(line for line in python.pip_config if not PIP_PATHS.search(line.partition("=")[0]))
    return msgspec.structs.replace(found, distributions=kept, pip_config=pip_config)


def _of_stack(distribution: Distribution) -> Distribution:
    if in_stack(distribution.name):
        return distribution
    return msgspec.structs.replace(distribution, requires=(), requires_read=False)


def _nvidia(nvidia: NvidiaFacts) -> NvidiaFacts:
    return msgspec.structs.replace(
        nvidia,
        devices=then(
            nvidia.devices,
            lambda gpus: tuple(msgspec.structs.replace(g, uuid=known(f"GPU-{g.index:08x}")) for g in gpus),
        ),
    )


def _system(system: SystemFacts) -> SystemFacts:
    cgroup = system.cgroup
    if cgroup.value is not None and cgroup.value.path.startswith("/process"):
        at = "/sys/fs/cgroup/memory.max" if cgroup.value.memory_limit_at else ""
        cgroup = known(msgspec.structs.replace(cgroup.value, path="/", memory_limit_at=at))
    return msgspec.structs.replace(
        system, cgroup=cgroup, shm=then(system.shm, _place), places=tuple(_place(place) for place in system.places)
    )


def _place(place: Place) -> Place:
    options = tuple(option for option in place.options if not OTHERS_OPTIONS.match(option))
    path = "/root/run" if place.purpose == "cwd" else place.path
    return msgspec.structs.replace(place, path=path, options=options)
