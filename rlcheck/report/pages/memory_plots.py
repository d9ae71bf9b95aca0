"""`rlcheck memory-profile --plot FILE.png|.html`: the phases as stacked bars against what the GPU has."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from rlcheck.errors import UserError
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MemoryProfile
from rlcheck.measure.memory.summary import by_kind, compared
from rlcheck.report.pages.memory_page import page
from rlcheck.report.topics.memory_bars import COLOURS, OTHER_COLOUR, TITLES, kinds_of, title_of
from rlcheck.text import GIB

_ROW_INCHES = 0.45


def write_plot(facts: Facts, path: Path) -> None:
    """Write the picture of a prediction; the suffix of `path` says which kind.

    Raises:
        UserError: no prediction, no matplotlib (for .png), or a file that cannot be written.
    """
    memory = facts.memory.value
    if memory is None or not memory.phases:
        raise UserError(f"--plot {path}: there is no predicted phase to draw")
    try:
        if path.suffix.lower() == ".png":
            _write_png(memory, path)
        else:
            path.write_text(page(facts, memory), encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written: {error.strerror or error}; choose another place") from None


def _write_png(memory: MemoryProfile, path: Path) -> None:
    try:
        figure_module = importlib.import_module("matplotlib.figure")
        importlib.import_module("matplotlib.backends.backend_agg")
    except ImportError as error:
        raise UserError(
            f"--plot needs matplotlib ({error}); install it with: pip install 'rlcheck[plot]', or name a .html file"
        ) from None
    phases = memory.phases
    figure: Any = figure_module.Figure(figsize=(10, 1.8 + _ROW_INCHES * len(phases)), layout="constrained")
    axis: Any = figure.subplots()
    left = [0.0] * len(phases)
    for kind in kinds_of(memory):
        widths = [by_kind(phase).get(kind, 0) / GIB for phase in phases]
        axis.barh(range(len(phases)), widths, left=left, color=COLOURS.get(kind, OTHER_COLOUR),
                  label=TITLES.get(kind, kind), edgecolor="white", linewidth=0.4)  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.axvline(memory.usable_bytes / GIB, color="black", linestyle="--", linewidth=1, label="usable")
    rows = {phase.name: number for number, phase in enumerate(phases)}
    found = [(one.peak_bytes / GIB, rows[phase.name]) for phase, one, _ in compared(memory)]
    if found:
        axis.plot(*zip(*found, strict=True), "D", color="black", markersize=5, label="measured")
    axis.set_yticks(range(len(phases)), [phase.name for phase in phases])
    axis.invert_yaxis()
    axis.set_xlabel("GiB on one GPU")
    axis.set_title(title_of(memory), fontsize="medium")
    axis.legend(fontsize="small", bbox_to_anchor=(1.01, 1), loc="upper left")
    figure.savefig(path, dpi=110, format="png")
