"""`--plot FILE`: what can be said about the file before any work is spent."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

from rlcheck.errors import UserError


def require_plottable(path: Path) -> None:
    """Make sure that a picture can be written to `path`.

    Raises:
        UserError: a suffix that is neither .png nor .html, a place that cannot be written, no matplotlib for a .png.
    """
    suffix = path.suffix.lower()
    if suffix not in (".png", ".html"):
        raise UserError(f"--plot {path}: name a file that ends in .png or .html")
    if not path.parent.is_dir():
        raise UserError(f"--plot {path}: there is no directory {path.parent}; make it, or choose another place")
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UserError(f"--plot {path}: cannot be written; choose another place")
    if suffix == ".png" and find_spec("matplotlib") is None:
        raise UserError(
            f"--plot {path}: a .png needs matplotlib; install it with: pip install 'rlcheck[plot]', or name a .html"
        )
