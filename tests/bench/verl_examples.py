"""Whether verl's own example scripts fit on the hardware that they name, as `rlcheck memory-profile` predicts it.

    python -m tests.bench.verl_examples CHECKOUT [COMMIT …]

Reads every script below examples that names its hardware, in its file name (`…_2_h800_…`, as verl's page on device
tuning asks for) or in a comment at its head (`8xH20/H100/H200`, `12 nodes x 8x 80GB`). Of alternatives the smallest GPU
counts. A script of packed rows on GSM8K fits if it does at the lengths that verl's own log of GSM8K shows; predictions
are at full length otherwise. A script that does not start, as it sets keys that verl does not have, one that cannot be
read, and one whose model's sizes are not known here are listed with the reason and are in no figure. CHECKOUT: a clone,
or its git directory. COMMIT: HEAD, if none is named.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
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
_GSM8K_TOKENS = 105 + 239
"""Prompt and response in the mean: docs/start/quickstart.rst of verl-project/verl@1dda039, step 0 of its log,
which cuts responses at 256 tokens: longer ones would be longer in the mean."""
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


def scripts(checkout: str, commit: str, directory: Path) -> Iterator[Path]:
    """The example scripts of COMMIT, which are put below DIRECTORY with all that lies beside them."""
    packed = directory / "examples.tar"
    _git(checkout, "archive", "-o", str(packed), commit, "examples")
    with tarfile.open(packed) as archive:
        archive.extractall(directory, filter="data")
    yield from sorted((directory / "examples").rglob("*.sh"))


def _git(checkout: str, *words: str) -> str:
    return subprocess.run(["git", "-C", checkout, *words], capture_output=True, text=True, check=True).stdout


def judged(path: Path, text: str, on: Hardware, release: str) -> tuple[bool | None, str]:
    """Whether the script fits on its hardware, and the figure; None: not predicted, and why."""
    try:
        run = read_run(str(path), [], verl_version=release)
        if unknown := [problem.key for problem in run.problems if problem.kind == "unknown"]:
            return None, f"it does not start: verl {run.version} has no {unknown[0]}"
        each = min(on.gpus, _NODE)
        spec = msgspec.structs.replace(run.spec, nodes=max(on.gpus // each, 1), gpus_per_node=each)
        memory = profile_of(msgspec.structs.replace(run, spec=spec), on.gpu, 0)
    except (UserError, GpuError) as error:
        return None, str(error).rpartition(".sh: ")[2]
    peak = max(memory.phases, key=lambda phase: phase.needed_bytes)
    said = f"{gib(peak.needed_bytes)} of {gib(memory.usable_bytes)} in {peak.name}"
    if not fits(memory) and "gsm8k" in text and memory.mean_tokens >= _GSM8K_TOKENS:
        return True, f"{said} at full length ({memory.longest_tokens}), fits up to {memory.mean_tokens} in the mean"
    if memory.mean_tokens:
        said += f" at full length ({memory.longest_tokens}), fits up to {memory.mean_tokens} in the mean"
    cache = "" if memory.limits.concurrent_sequences else "; the engine's cache holds no sequence"
    return fits(memory), said + cache


def main(checkout: str, commits: list[str]) -> None:
    """Print a line for each script, and how many fit."""
    fitting, told, checkout, here = 0, 0, str(Path(checkout).resolve()), Path.cwd()
    for commit in commits:
        date = _git(checkout, "log", "-1", "--format=%h %cs", commit).strip()
        # Scripts name their configs from where they are started, which is the repository's root.
        with tempfile.TemporaryDirectory() as directory:
            os.chdir(directory)
            for path in scripts(checkout, commit, Path(directory)):
                text = path.read_text(encoding="utf-8")
                if (on := hardware_in(path.name, text)) is None:
                    continue
                fit, said = judged(path, text, on, commit[1:] if commit.startswith("v") else "")
                fitting, told = fitting + bool(fit), told + (fit is not None)
                word = {True: "fits", False: "DOES NOT FIT", None: "not predicted"}[fit]
                print(f"{date} {path.relative_to(directory)}: {on.gpus} x {on.gpu.name}: {word}: {said}")
            os.chdir(here)
    print(f"{fitting} of {told} that could be predicted fit on the hardware that they name")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["HEAD"])
