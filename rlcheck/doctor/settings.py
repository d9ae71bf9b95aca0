"""The user's own settings: `[tool.rlcheck]` of the nearest pyproject.toml, or a `rlcheck.toml`.

[tool.rlcheck]
select = ["ENV", "GPU"]
[[tool.rlcheck.ignore]]
id = "SYS004"
reason = "swap is wanted on this box"
expires = "2027-01-31"
"""

from __future__ import annotations

import importlib
import os
import re
from datetime import date
from pathlib import Path
from typing import Any

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.base import Struct
from rlcheck.finding import Waiver

# Reading TOML costs milliseconds (and on Python 3.10 a package), so only files that may hold settings are parsed.
_OUR_TABLE = re.compile(r"tool\s*\.\s*[\"']?rlcheck|^\s*[\"']?rlcheck[\"']?\s*[.=]", re.M)
_SURELY_OURS = re.compile(r"tool\s*\.\s*[\"']?rlcheck")


class ConfigError(UserError):
    """A settings file that cannot be used. The message is one line: file, place, what to write instead."""


class IgnoreEntry(Struct, frozen=True, forbid_unknown_fields=True):
    """One finding to live with."""

    id: str
    reason: str = ""
    expires: date | None = None


class Settings(Struct, frozen=True, forbid_unknown_fields=True):
    """What the settings file says. `path` is where it was found, "" when there is none."""

    select: tuple[str, ...] = ()
    ignore: tuple[IgnoreEntry, ...] = ()
    strict: bool = False
    path: str = ""


def load_settings(start: Path) -> Settings:
    """The settings of the nearest directory at or above `start` that has any.

    Raises:
        ConfigError: the file is not TOML, or says something that rlcheck does not know.
    """
    for directory in (start, *start.parents):
        for name in ("rlcheck.toml", "pyproject.toml"):
            path = directory / name
            if os.path.isfile(path):
                table = _table(path)
                if table is not None:
                    return _settings(path, table)
    return Settings()


def settings_here() -> Settings:
    """Return the settings of the working directory; none where it has been removed.

    Raises:
        ConfigError: as for `load_settings`.
    """
    try:
        here = Path.cwd()
    except OSError:
        return Settings()
    return load_settings(here)


def waivers(settings: Settings, options: tuple[str, ...], today: date) -> tuple[dict[str, Waiver], tuple[str, ...]]:
    """Waivers by check ID from settings and `--ignore`, and notes on those that have expired."""
    result: dict[str, Waiver] = {}
    notes: list[str] = []
    for entry in settings.ignore:
        if entry.expires is not None and entry.expires < today:
            notes.append(f"{settings.path}: the ignore of {entry.id} expired on {entry.expires} and is not applied")
        else:
            result[entry.id] = Waiver(reason=entry.reason, expires=entry.expires.isoformat() if entry.expires else "")
    for id in options:
        result[id] = Waiver(reason="--ignore on the command line")
    return result, tuple(notes)


def _table(path: Path) -> dict[str, Any] | None:
    """The `rlcheck` table of a TOML file, or None when it has none."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        if path.name == "rlcheck.toml":
            raise ConfigError(f"{path}: cannot be read: {error}") from None
        return None
    if path.name != "rlcheck.toml" and not _OUR_TABLE.search(text):
        return None
    try:
        toml: Any = importlib.import_module("tomllib")
    except ModuleNotFoundError:  # Python 3.10
        try:
            toml = importlib.import_module("tomli")
        except ModuleNotFoundError:
            if path.name != "rlcheck.toml" and not _SURELY_OURS.search(text):
                return None
            raise ConfigError(f"{path}: reading TOML on Python 3.10 needs `pip install tomli`") from None
    try:
        document: dict[str, Any] = toml.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: not valid TOML: {error}") from None
    if path.name == "rlcheck.toml":
        return document
    tool = document.get("tool")
    table: Any = tool.get("rlcheck") if isinstance(tool, dict) else None  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
    return table if isinstance(table, dict) else None  # pyright: ignore[reportUnknownVariableType]


def _settings(path: Path, table: dict[str, Any]) -> Settings:
    try:
        return msgspec.convert({**table, "path": str(path)}, Settings)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: [tool.rlcheck]: {error}") from None
