"""The fixes of a damaged torch, on the real one: minutes, and two gigabytes of disk, so that CI does not wait for it.

    python -m tests.bench.bench_fixes [--place DIR]

Each case makes an environment with a copy (hard links) of the torch beside this Python, the rest of its packages behind
it, and a local index with that very torch as a wheel. It damages the copy, takes the command of the finding's first fix
out of the report, runs it, and demands three things: the check passes, `import torch` works, and the torch that was
copied from is untouched. The table has one line a case: verdict before and after, seconds in all. The exit code is
1 if any fix did not end its fault.

2026-11-23, Debian 12, two busy cores, torch 2.13.0+cpu, Python 3.11.7: all three fixes ended their fault, and torch was
imported (fail → pass; 236, 210 and 154 s).
"""

from __future__ import annotations

import argparse
import csv
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path

import torch

from tests.fixes.environments import Environment
from tests.fixes.scene import Case, Scene

_TORCH = Path(torch.__file__).parent
_TAG = "-".join((f"cp{sys.version_info.major}{sys.version_info.minor}",) * 2) + "-linux_x86_64"


def whole_wheel(index: Path) -> None:
    """Write the installed torch into INDEX as a wheel, its files as they are."""
    torch_itself = distribution("torch")
    stem = f"torch-{torch_itself.version}"
    record = torch_itself.read_text("RECORD") or ""
    kept = [row for row in csv.reader(record.splitlines()) if not row[0].startswith("..") and ".pyc" not in row[0]]
    with zipfile.ZipFile(index / f"{stem}-{_TAG}.whl", "w", zipfile.ZIP_STORED) as archive:
        for name, *_ in kept:
            source = Path(str(torch_itself.locate_file(name)))
            if source.is_file() and not name.endswith(("/RECORD", "/INSTALLER", "/REQUESTED", "/direct_url.json")):
                archive.write(source, name)
        archive.writestr(f"{stem}.dist-info/RECORD", "".join(f"{name},,\n" for name, *_ in kept))


def copied(scene: Scene) -> Path:
    """An environment with a copy of torch; return the copy's directory."""
    env = Environment(scene)
    record = next(_TORCH.parent.glob("torch-*.dist-info"))
    for source in (_TORCH, record):
        subprocess.run(["cp", "-al", source, env.site / source.name], check=True)
    # What torch requires is behind the copy.
    (env.site / "behind.pth").write_text(f"{_TORCH.parent}\n")
    whole_wheel(env.index)
    return env.site / "torch"


def no_version(scene: Scene) -> None:
    """An upgrade that broke off before version.py was written."""
    (copied(scene) / "version.py").unlink()


def other_version(scene: Scene) -> None:
    """Files of another release under this record."""
    path = copied(scene) / "version.py"
    text = path.read_text().replace(torch.__version__.partition("+")[0], "2.3.1")
    path.unlink()
    path.write_text(text)


def no_library(scene: Scene) -> None:
    """A library that the disk had no room for, and version.py with it."""
    here = copied(scene)
    (here / "lib" / "libc10.so").unlink()
    (here / "version.py").unlink()


_DAMAGES: tuple[Callable[[Scene], None], ...] = (no_version, other_version, no_library)


def once(damage: Callable[[Scene], None], place: Path) -> str:
    """Play one damage in PLACE; return its line of the table."""
    case = Case("torch", "ENV010", "torch-damaged", "torch==", damage)
    started = time.monotonic()
    before, after = case.play(place)
    python = place / "env" / "bin" / "python"
    done = subprocess.run([python, "-c", "import torch; print(torch.__file__)"], capture_output=True, text=True)
    imported = str(place) in done.stdout
    whole = (_TORCH / "version.py").is_file() and (_TORCH / "lib" / "libc10.so").is_file()
    good = after == "pass" and imported and whole
    told = f"import torch {'works' if imported else 'fails'}; the original is {'whole' if whole else 'DAMAGED'}"
    seconds = time.monotonic() - started
    return f"{'ok ' if good else 'NOT'} {damage.__name__:14} {before} → {after}  {told}  {seconds:.0f} s"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--place", type=Path, default=None, help="where the environments are made")
    options = parser.parse_args()
    print(f"torch {torch.__version__} of {sys.version.split()[0]}")
    lines: list[str] = []
    for damage in _DAMAGES:
        place = Path(tempfile.mkdtemp(prefix="fixes-", dir=options.place))
        try:
            lines.append(once(damage, place))
            print(lines[-1], flush=True)
        finally:
            shutil.rmtree(place, ignore_errors=True)
    return 0 if all(line.startswith("ok") for line in lines) else 1


if __name__ == "__main__":
    sys.exit(main())
