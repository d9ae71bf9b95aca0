"""What the numbers of an inference engine's messages mean: sizes that would fit instead of the one that does not."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlcheck.diagnose.decode import Decoder

LORA_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""The values that vLLM takes for max_lora_rank; newer releases take 1, too."""

_MOST_CHOICES = 16
_MARGIN = 0.02


def _tensor_parallel(groups: Mapping[str, str]) -> dict[str, str]:
    """Sizes that divide what has to be cut: all of them, and the largest that divides the one asked for, too."""
    wanted = int(groups["tp"])
    found: dict[str, str] = {}
    for name in ("heads", "kv_heads", "size"):
        number = int(groups.get(name) or 0)
        if number <= 0 or wanted <= 0:
            continue
        found["tp_nearest"] = str(math.gcd(number, wanted))
        if name == "heads":
            sizes = [size for size in range(1, min(number, _MOST_CHOICES) + 1) if number % size == 0]
            found["tp_choices"] = ", ".join(str(size) for size in sizes)
        return found
    return found


def _lora_rank(groups: Mapping[str, str]) -> dict[str, str]:
    """The smallest max_lora_rank that the engine takes and the adapter fits in."""
    rank = int(groups["lora_rank"])
    allowed = next((value for value in LORA_RANKS if value >= rank), None)
    return {} if allowed is None else {"rank_allowed": str(allowed)}


def _share(groups: Mapping[str, str]) -> dict[str, str]:
    """The largest gpu_memory_utilization that the free memory allows, a little below free / total, two digits."""
    free, total = float(groups.get("oom_free") or 0), float(groups.get("oom_total") or 0)
    if not 0 < free <= total:
        return {}
    fits = math.floor((free / total - _MARGIN) * 100) / 100
    return {"share_fits": f"{fits:.2f}"} if fits > 0 else {}


DECODERS: dict[str, Decoder] = {"tp": _tensor_parallel, "lora_rank": _lora_rank, "share": _share}
