"""Small makers of facts for the ENV tests."""

from __future__ import annotations

import json
from pathlib import Path

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.gpu import NvidiaDevice, NvidiaFacts
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.python import Distribution, Extension, PythonFacts, TorchFacts

SITE = "/env/lib/python3.12/site-packages"
METADATA = json.loads(Path(__file__).with_name("metadata.json").read_text(encoding="utf-8"))
MARKERS = {
    "implementation_name": "cpython",
    "implementation_version": "3.12.3",
    "os_name": "posix",
    "platform_machine": "x86_64",
    "platform_python_implementation": "CPython",
    "platform_release": "6.8.0",
    "platform_system": "Linux",
    "platform_version": "#1 SMP",
    "python_full_version": "3.12.3",
    "python_version": "3.12",
    "sys_platform": "linux",
}


def dist(name: str, version: str, *requires: str, **more) -> Distribution:
    """A distribution whose METADATA was read."""
    return Distribution(name=name, version=version, location=more.pop("location", SITE), installer="pip",
                        requires_read=True, requires=requires, **more)  # fmt: skip


def real(name: str, version: str) -> Distribution:
    """A distribution with the Requires-Dist lines of its real METADATA that matter here (see metadata.json)."""
    entry = METADATA[f"{name} {version}"]
    return dist(name, version, *entry["requires"], requires_python=entry["requires_python"])


def torch(version: str = "2.11.0", cuda: str = "13.0", **more) -> Fact[TorchFacts]:
    """The build of torch."""
    build = {"cxx11_abi": "new", "location": f"{SITE}/torch", **more}
    return known(TorchFacts(version=version, cuda=cuda, **build))


def extension(distribution: str, path: str, **more) -> Extension:
    """A compiled file."""
    return Extension(distribution=distribution, path=f"{SITE}/{path}", **more)


def gpus(*capabilities: tuple[int, int]) -> Fact[NvidiaFacts]:
    """NVIDIA GPUs."""
    devices = tuple(NvidiaDevice(index=i, compute_capability=known(c)) for i, c in enumerate(capabilities))
    return known(NvidiaFacts(source="nvml", devices=known(devices)))


NO_GPU: Fact[NvidiaFacts] = absent("no NVIDIA GPU")


def machine(*distributions: Distribution, **more) -> Facts:
    """A machine with this environment. What is no field of the environment is one of the document."""
    document = {name: more.pop(name) for name in ("nvidia", "rocm") if name in more}
    environ, machine_name = more.pop("environ", {}), more.pop("arch", "x86_64")
    libc, libc_version = more.pop("libc", "glibc"), more.pop("libc_version", "2.39")
    container = more.pop("container", "")
    python = {
        "executable": "/env/bin/python", "version": "3.12.3", "prefix": "/env", "base_prefix": "/usr", "kind": "venv",
        "marker_environment": MARKERS, "torch": absent("torch is not installed"), **more,
    }  # fmt: skip
    return Facts(
        python=known(PythonFacts(distributions=distributions, **python)),
        environ=known(environ),
        platform=known(PlatformFacts(machine=machine_name, libc=libc, libc_version=libc_version, container=container)),
        **{"nvidia": NO_GPU, "rocm": absent("no AMD GPU"), **document},
    )
