"""Paths in a config, as the file system sees them."""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Iterator
from typing import cast

# Characters of a path in a message: all of one that a person typed.
_MAX_SHOWN = 200
IN_CHECKPOINT = "huggingface"
"""Where a checkpoint of `rltrain sft` (and of verl) holds its model."""
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")


def absolute(path: str) -> str:
    """PATH with `~` and `$VARS` replaced; a relative one starts from the working directory."""
    return os.path.abspath(os.path.expandvars(os.path.expanduser(path)))


def model_directory(path: str) -> str:
    """The directory of a model: PATH itself, the model in it where PATH is a checkpoint that holds one or, for a hub
    name (`owner/name`), its snapshot in the local cache.

    The network is not asked. A name that is not in the cache comes back as an absolute path that does not exist.
    """
    found = absolute(path)
    inside = os.path.join(found, IN_CHECKPOINT)
    if os.path.isfile(os.path.join(inside, "config.json")):
        return inside
    if os.path.exists(found) or not _HUB_ID.fullmatch(path):
        return found
    return _cached_snapshot(path) or found


def unusable(path: str | os.PathLike[str]) -> str | None:
    """Why PATH can be neither read nor made: it is too long, holds a NUL, or is behind a closed door; else None."""
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        words = error.strerror if isinstance(error, OSError) else str(error)
        text = repr(os.fspath(path))
        return f"the path {text if len(text) < _MAX_SHOWN else text[:_MAX_SHOWN] + '...'} cannot be used: {words}"
    return None


def missing(key: str, path: str) -> str:
    """What to say about PATH, given under KEY, that is not there."""
    if (why := unusable(path)) is not None:
        return f"{key}: {why}"
    said = f"{key}: no such file or directory: {path}"
    if "$" in path:
        return f"{said}; a variable in it is not set"
    if "\\" in path:
        return f"{said}; write / between directories, not \\"
    nearest = path
    while not os.path.isdir(nearest):
        nearest = os.path.dirname(nearest)
    return f"{said} ({nearest} exists; relative paths start from {os.getcwd()})"


def _cached_snapshot(name: str) -> str | None:
    try:
        hub = importlib.import_module("huggingface_hub")
        return cast(str, hub.snapshot_download(name, local_files_only=True))
    except (ImportError, OSError, ValueError):
        return None


def existing(key: str, paths: str | tuple[str, ...] | None) -> Iterator[str]:
    """Yield what to say about each of PATHS, given under KEY, that is not there."""
    for path in (paths,) if isinstance(paths, str) else paths or ():
        if not os.path.exists(path):
            yield missing(key, path)
