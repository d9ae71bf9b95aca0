"""`rlcheck memory-profile --plot FILE.png|.html`: the phases as stacked bars against what the GPU has."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from rlcheck.cli.app import UserError
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MemoryProfile
from rlcheck.memory.summary import KINDS, by_kind, compared, gib
from rlcheck.report.memory_bars import TITLES

COLOURS = {
    "weights": "#4477aa", "gradients": "#66ccee", "optimizer": "#228833", "activations": "#ccbb44",
    "logits": "#ee6677", "unsharded": "#aa3377", "buffers": "#bbbbbb", "kv_cache": "#ee8866", "graphs": "#ffaabb",
    "engine": "#99ddff", "context": "#777777", "fragments": "#cc99bb", "slack": "#dddddd",
}  # fmt: skip
"""Paul Tol's bright and light schemes (https://sronpersonalpages.nl/~pault/), told apart by colour-blind readers."""
OTHER_COLOUR = "#44bb99"
_GIB = 1 << 30
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
            from rlcheck.report.memory_page import page

            path.write_text(page(facts, memory), encoding="utf-8")
        sys.stderr.write(f"wrote {path}\n")
    except OSError as error:
        raise UserError(f"--plot {path}: cannot be written: {error.strerror or error}; choose another place") from None


def kinds_of(memory: MemoryProfile) -> list[str]:
    """The kinds of owners that occur, in their order; unknown ones last."""
    there = {kind for phase in memory.phases for kind in by_kind(phase)}
    return [*(kind for kind in KINDS if kind in there), *sorted(there - set(KINDS))]


def title_of(memory: MemoryProfile) -> str:
    """What the picture shows, in a line."""
    peak = memory.peak
    what = f"peak {gib(peak.num_bytes)} in {peak.name}" if peak is not None else "nothing on a GPU"
    return f"{memory.architecture or 'model'} on {memory.gpu} ({gib(memory.usable_bytes)} usable): {what}"


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
        widths = [by_kind(phase).get(kind, 0) / _GIB for phase in phases]
        axis.barh(range(len(phases)), widths, left=left, color=COLOURS.get(kind, OTHER_COLOUR),
                  label=TITLES.get(kind, kind), edgecolor="white", linewidth=0.4)  # fmt: skip
        left = [a + b for a, b in zip(left, widths, strict=True)]
    axis.axvline(memory.usable_bytes / _GIB, color="black", linestyle="--", linewidth=1, label="usable")
    rows = {phase.name: number for number, phase in enumerate(phases)}
    found = [(one.peak_bytes / _GIB, rows[phase.name]) for phase, one, _ in compared(memory)]
    if found:
        axis.plot(*zip(*found, strict=True), "D", color="black", markersize=5, label="measured")
    axis.set_yticks(range(len(phases)), [phase.name for phase in phases])
    axis.invert_yaxis()
    axis.set_xlabel("GiB on one GPU")
    axis.set_title(title_of(memory), fontsize="medium")
    axis.legend(fontsize="small", bbox_to_anchor=(1.01, 1), loc="upper left")
    figure.savefig(path, dpi=110, format="png")
