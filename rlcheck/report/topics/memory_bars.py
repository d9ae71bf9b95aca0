"""Memory as stacked bars of characters: a bar for each phase, a character for each kind of owner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rlcheck.facts.memory import MemoryProfile, Phase
from rlcheck.measure.memory.summary import KINDS, by_kind, gib

BAR_WIDTH = 44
"""With the name of a phase and two numbers beside it the bar stays within 80 columns."""
GLYPHS = {
    "weights": "█", "gradients": "▓", "optimizer": "▒", "activations": "░", "logits": "▚", "unsharded": "▞",
    "buffers": "▪", "kv_cache": "▦", "graphs": "▥", "engine": "▤", "context": "▨", "fragments": "□", "slack": "▫",
}  # fmt: skip
OTHER, FREE, LIMIT = "◆", "·", "|"
TITLES = {
    "kv_cache": "KV cache", "unsharded": "gathered layers", "engine": "engine", "context": "contexts",
    "fragments": "fragments", "slack": "allocator slack", "buffers": "buffers", "graphs": "CUDA graphs",
}  # fmt: skip
"""What a kind is called where there is room; its own name where it is not in here."""

COLOURS = {
    "weights": "#4477aa", "gradients": "#66ccee", "optimizer": "#228833", "activations": "#ccbb44",
    "logits": "#ee6677", "unsharded": "#aa3377", "buffers": "#bbbbbb", "kv_cache": "#ee8866", "graphs": "#ffaabb",
    "engine": "#99ddff", "context": "#777777", "fragments": "#cc99bb", "slack": "#dddddd",
}  # fmt: skip
"""Paul Tol's bright and light schemes (https://sronpersonalpages.nl/~pault/), told apart by colour-blind readers."""
OTHER_COLOUR = "#44bb99"


def bar(sizes: Mapping[str, int], limit_bytes: int, scale_bytes: int, width: int = BAR_WIDTH) -> str:
    """One bar: kinds in their order, each with its character; `|` stands where the limit is.

    The parts are rounded together, so that the whole bar is as long as the sum; a kind that has less than half a
    character is not seen.
    """
    scale = max(scale_bytes, 1)
    cells: list[str] = []
    done = 0
    for kind, size in sizes.items():
        done += size
        end = min(width, round(width * done / scale))
        cells += [GLYPHS.get(kind, OTHER)] * (end - len(cells))
    cells = cells[:width] + [FREE] * (width - len(cells))
    mark = max(0, min(width - 1, round(width * limit_bytes / scale)))
    # Beyond the limit nothing is free: what reaches over it stands out behind the mark.
    cells = [cell if n < mark or cell != FREE else " " for n, cell in enumerate(cells)]
    cells[mark] = LIMIT
    return "".join(cells).rstrip()


def bars(phases: Sequence[Phase], limit_bytes: int, total_bytes: int) -> list[str]:
    """A bar for each phase, all on one scale: the GPU's memory, or the peak where that is more."""
    scale = max([total_bytes, limit_bytes, *(phase.num_bytes for phase in phases)])
    return [bar(by_kind(phase), limit_bytes, scale) for phase in phases]


def legend(phases: Sequence[Phase]) -> str:
    """The characters that occur, with their kinds."""
    there = {kind for phase in phases for kind in by_kind(phase)}
    known = [f"{GLYPHS[kind]} {TITLES.get(kind, kind)}" for kind in KINDS if kind in there]
    others = [f"{OTHER} {', '.join(sorted(there - set(KINDS)))}"] if there - set(KINDS) else []
    return ", ".join([*known, *others, f"{FREE} free", f"{LIMIT} what is usable"])


def kinds_of(memory: MemoryProfile) -> list[str]:
    """The kinds of owners that occur, in their order; unknown ones last."""
    there = {kind for phase in memory.phases for kind in by_kind(phase)}
    return [*(kind for kind in KINDS if kind in there), *sorted(there - set(KINDS))]


def title_of(memory: MemoryProfile) -> str:
    """What the picture shows, in a line."""
    peak = memory.peak
    what = f"peak {gib(peak.num_bytes)} in {peak.name}" if peak is not None else "nothing on a GPU"
    return f"{memory.architecture or 'model'} on {memory.gpu} ({gib(memory.usable_bytes)} usable): {what}"
