"""Where a trainer's source is read: a wheel, or a commit of a git directory (`DIR@REVISION`, or with `=VERSION`)."""

from __future__ import annotations

import re
import subprocess
import zipfile
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path


@dataclass(frozen=True)
class Source:
    """A release. `place` is a wheel, or `DIR@REVISION`; `repository` is what a table calls the git directory."""

    place: str
    repository: str = ""

    @cached_property
    def is_wheel(self) -> bool:
        """Whether it is a wheel."""
        return self.place.endswith(".whl")

    def text(self, path: str) -> str | None:
        """Return the file PATH; None where there is none."""
        if self.is_wheel:
            with zipfile.ZipFile(self.place) as wheel:
                return wheel.read(path).decode("utf-8") if path in wheel.namelist() else None
        directory, revision, _ = self._parts
        done = subprocess.run(
            ["git", "-C", directory, "show", f"{revision}:{path}"], capture_output=True, text=True, check=False
        )
        return done.stdout if done.returncode == 0 else None

    @property
    def name(self) -> str:
        """What a table says: `trl 1.9.0`, or `OpenRLHF/OpenRLHF@3c3be62`."""
        if self.is_wheel:
            package, version = Path(self.place).name.split("-")[:2]
            return f"{package} {version}"
        # Of what a trainer takes beside itself, the directory's name says whose it is.
        owned = re.search(r"([\w.-]+)\+([\w.-]+)", self.place.partition("@")[0])
        repository = "/".join(owned.groups()) if owned is not None else self.repository
        return f"{repository}@{self._git('rev-parse', '--short=10')}"

    @property
    def version(self) -> str:
        """The version of a wheel, the one that was given, that of the file version.txt or setup.py, or a tag."""
        if self.is_wheel:
            return Path(self.place).name.split("-")[1]
        _, revision, given = self._parts
        stated = given or self.text("version.txt")
        if not stated and (made := re.search(r'version="([\d.]+)"', self.text("setup.py") or "")) is not None:
            stated = made[1]
        return (stated or revision).strip().removeprefix("v")

    def texts(self, folder: str, pattern: str = r".*\.py") -> dict[str, str]:
        """Return the files below FOLDER of a git directory whose paths match PATTERN, by path."""
        listed = self._run("ls-tree", "-r", "--name-only", self._parts[1], f"{folder}/").splitlines()
        return {path: self.text(path) or "" for path in listed if re.fullmatch(pattern, path)}

    @property
    def _parts(self) -> tuple[str, str, str]:
        directory, _, rest = self.place.partition("@")
        revision, _, version = rest.partition("=")
        return directory, revision, version

    @property
    def date(self) -> str:
        """The day on which it was made, as ISO says it."""
        if self.is_wheel:
            with zipfile.ZipFile(self.place) as wheel:
                return "-".join(f"{part:02}" for part in max(one.date_time for one in wheel.infolist())[:3])
        return self._git("show", "-s", "--format=%cs")

    def _git(self, *words: str) -> str:
        return re.sub(r"\s+", " ", self._run(*words, f"{self._parts[1]}^{{commit}}"))

    def _run(self, *words: str) -> str:
        command = ["git", "-C", self._parts[0], *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
