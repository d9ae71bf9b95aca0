"""Throw-away environments: a venv, and an index that is a directory of small wheels made on the spot.

The wheels have the names, versions and requirements of the real ones, which is what the checks read; where files
matter they have files. Everything is installed and fixed by the real pip, without a network.
"""

from __future__ import annotations

import base64
import hashlib
import os
import subprocess
import sys
import venv
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pip

from tests.fixes.scene import Scene

_PIP_SITE = Path(pip.__file__).parents[1]
_TAG = "py3-none-any"


class Environment:
    """A venv with pip below the scene's directory, and its index.

    Pip is a link to the one beside the tests: ensurepip would take seconds for each case.
    """

    def __init__(self, scene: Scene) -> None:
        self.here, self.index = scene.here / "env", scene.here / "index"
        self.index.mkdir()
        venv.create(self.here, with_pip=False, symlinks=True)
        self.python = self.here / "bin" / "python"
        self.site = next((self.here / "lib").glob("python3*/site-packages"))
        for source in (_PIP_SITE / "pip", *_PIP_SITE.glob("pip-*.dist-info")):
            (self.site / source.name).symlink_to(source)
        (self.here / "bin" / "pip").write_text(f'#!/bin/sh\nexec "{self.python}" -m pip "$@"\n')
        (self.here / "bin" / "pip").chmod(0o755)
        scene.environ |= {
            "PATH": f"{self.here / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.here),
            "PIP_NO_INDEX": "1",
            "PIP_FIND_LINKS": str(self.index),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_NO_CACHE_DIR": "1",
            "PIP_NO_INPUT": "1",
            "PIP_ROOT_USER_ACTION": "ignore",
            "PIP_NO_COMPILE": "1",
        }
        scene.words = ["env", "--python", str(self.python)]

    def offer(self, name: str, version: str, *requires: str, files: Mapping[str, str | bytes] | None = None) -> Path:
        """Put a wheel into the index: its requirements, and its files (else one module of its name)."""
        return write_wheel(self.index, name, version, requires, files)

    def have(self, name: str, version: str, *requires: str, files: Mapping[str, str | bytes] | None = None) -> Path:
        """Install a wheel as `pip install --no-deps` leaves it; it is in the index, too. Return its record."""
        wheel = self.offer(name, version, *requires, files=files)
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(self.site)
        return self.site / f"{name.replace('-', '_')}-{version}.dist-info"

    def pip(self, scene: Scene, *words: str) -> None:
        """Run pip as the fault needs it."""
        environ = {**os.environ, **{name: value for name, value in scene.environ.items() if value is not None}}
        subprocess.run([self.python, "-m", "pip", *words], env=environ, check=True, capture_output=True, timeout=60)


def write_wheel(
    index: Path, name: str, version: str, requires: Sequence[str] = (), files: Mapping[str, str | bytes] | None = None
) -> Path:
    """Write a wheel of a pure Python package; return its path."""
    stem = f"{name.replace('-', '_')}-{version}"
    needs = "".join(f"Requires-Dist: {line}\n" for line in requires)
    content: dict[str, str | bytes] = dict(
        files or {f"{name.replace('-', '_')}/__init__.py": f"__version__ = {version!r}\n"}
    )
    content[f"{stem}.dist-info/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{needs}"
    content[f"{stem}.dist-info/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: {_TAG}\n"
    rows = [_row(path, data if isinstance(data, bytes) else data.encode()) for path, data in content.items()]
    content[f"{stem}.dist-info/RECORD"] = "".join((*rows, f"{stem}.dist-info/RECORD,,\n"))
    target = index / f"{stem}-{_TAG}.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in content.items():
            archive.writestr(path, data)
    return target


def _row(path: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{path},sha256={digest},{len(data)}\n"


def user_site(python: str = sys.executable) -> str:
    """The name of a version's site-packages below the user's base directory."""
    done = subprocess.run([python, "-c", "import sys; print('python%d.%d' % sys.version_info[:2])"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    return f"lib/{done.stdout.strip()}/site-packages"
