"""Whether verl's own example scripts fit on the hardware that they name, as `rlcheck memory-profile` predicts it.

    python -m tests.bench.verl_examples CHECKOUT [COMMIT …]

Reads every script below examples that names its hardware, in its file name (`…_2_h800_…`, as verl's page on device
tuning asks for) or in a comment at its head (`8xH20/H100/H200`, `12 nodes x 8x 80GB`). Of alternatives the smallest GPU
counts. A script that cannot be read, or whose model's sizes are not known here, is listed with the reason, and is in no
figure. CHECKOUT: a clone, or its git directory. COMMIT: HEAD, if none is named.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from rlcheck.errors import UserError
from rlcheck.measure.config.read import read_run
from rlcheck.measure.memory.asked import profile_of
from rlcheck.measure.memory.gpus import GpuError, by_name
from rlcheck.measure.memory.predict import Gpu
from rlcheck.measure.memory.summary import fits, gib

_IN_NAME = re.compile(r"_(?P<gpus>\d+)_(?P<gpu>[abhl]\d{2,3})_", re.I)
_IN_HEAD = (
    re.compile(r"^#.*?(?P<nodes>\d+) nodes x (?P<each>\d+)x (?P<size>\d+)GB", re.I),
    re.compile(r"^#.*?(?P<gpus>\d+)\+? GPUs \((?P<size>\d+)GB each", re.I),
    re.compile(r"^#.*?\b(?P<gpus>\d+)x(?P<gpu>[ABHL]\d{2,3}(?:/[ABHL]\d{2,3})*)\b"),
)
_HEAD_LINES, _NODE = 40, 8
_EIGHTY, _USUAL = 80, {"A100": "A100 80GB", "H100": "H100 80GB", "A800": "A800 80GB", "H800": "H800 80GB"}


@dataclass(frozen=True)
class Hardware:
    """What a script names: GPUs in all, and the smallest kind of them."""

    gpus: int
    gpu: Gpu


def hardware_in(name: str, text: str) -> Hardware | None:
    """The hardware that the script NAME with TEXT says it runs on; None where it says none."""
    found = _IN_NAME.search(name)
    if found is not None:
        return Hardware(int(found["gpus"]), _smallest(found["gpu"]))
    for line in text.splitlines()[:_HEAD_LINES]:
        for pattern in _IN_HEAD:
            if (said := pattern.search(line)) is not None:
                parts = said.groupdict()
                gpus = int(parts["gpus"]) if parts.get("gpus") else int(parts["nodes"]) * int(parts["each"])
                return Hardware(gpus, _sized(int(parts["size"])) if parts.get("size") else _smallest(parts["gpu"]))
    return None


def _smallest(names: str) -> Gpu:
    known = (by_name(_USUAL.get(name.upper(), name)) for name in names.split("/"))
    return min((Gpu(one.name, one.total_bytes) for one in known), key=lambda gpu: gpu.total_bytes)


def _sized(size: int) -> Gpu:
    """A GPU that is sold with SIZE GB: an H100 for 80, an H20 for 96."""
    return _smallest("H100" if size == _EIGHTY else "H20")


def scripts(checkout: str, commit: str) -> Iterator[tuple[str, str]]:
    """Paths and texts of the example scripts of COMMIT."""
    names = _git(checkout, "ls-tree", "-r", "--name-only", commit, "examples").splitlines()
    for name in names:
        if name.endswith(".sh"):
            yield name, _git(checkout, "show", f"{commit}:{name}")


def _git(checkout: str, *words: str) -> str:
    return subprocess.run(["git", "-C", checkout, *words], capture_output=True, text=True, check=True).stdout


def judged(name: str, text: str, on: Hardware) -> tuple[bool | None, str]:
    """Whether the script fits on its hardware, and the figure; None: not predicted, and why."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / Path(name).name
        path.write_text(text)
        try:
            run = read_run(str(path), [], look=False)
            each = min(on.gpus, _NODE)
            spec = msgspec.structs.replace(run.spec, nodes=max(on.gpus // each, 1), gpus_per_node=each)
            memory = profile_of(msgspec.structs.replace(run, spec=spec), on.gpu, 0)
        except (UserError, GpuError) as error:
            return None, str(error).replace(f"{directory}/", "")
    peak = max(memory.phases, key=lambda phase: phase.needed_bytes)
    said = f"{gib(peak.needed_bytes)} of {gib(memory.usable_bytes)} in {peak.name}"
    cache = "" if memory.limits.concurrent_sequences else "; the engine's cache holds no sequence"
    return fits(memory), said + cache


def main(checkout: str, commits: list[str]) -> None:
    """Print a line for each script, and how many fit."""
    fitting, told = 0, 0
    for commit in commits:
        date = _git(checkout, "log", "-1", "--format=%h %cs", commit).strip()
        for name, text in scripts(checkout, commit):
            if (on := hardware_in(name, text)) is None:
                continue
            fit, said = judged(name, text, on)
            fitting, told = fitting + bool(fit), told + (fit is not None)
            word = {True: "fits", False: "DOES NOT FIT", None: "not predicted"}[fit]
            print(f"{date} {name}: {on.gpus} x {on.gpu.name}: {word}: {said}")
    print(f"{fitting} of {told} that could be predicted fit on the hardware that they name")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["HEAD"])
