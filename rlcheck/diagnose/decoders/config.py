"""The arithmetic of batches and lengths that asserts show, done to its end."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rlcheck.diagnose.decode import Decoder


def _numbers(groups: Mapping[str, str], *names: str) -> tuple[int, ...]:
    """The whole numbers of these groups, or nothing if one is missing or none."""
    found = tuple(int(groups[name]) for name in names if groups.get(name, "").isdecimal())
    return found if len(found) == len(names) else ()


def nearest_batch(groups: Mapping[str, str]) -> dict[str, str]:
    """The sizes next to `batch` that `parts` divide: "510 or 516"."""
    numbers = _numbers(groups, "batch", "parts")
    if not numbers or not numbers[1] or numbers[0] % numbers[1] == 0:
        return {}
    batch, parts = numbers
    below, above = batch // parts * parts, -(-batch // parts) * parts
    return {"batch_nearest": f"{below} or {above}" if below else str(above)}


def generation_batch(groups: Mapping[str, str]) -> dict[str, str]:
    """What TRL's product is, and the smallest per-device batch that holds whole groups."""
    numbers = _numbers(groups, "per_device", "processes", "generations")
    if not numbers:
        numbers = _numbers(groups, "per_device", "processes")
        return {"trl_total": str(math.prod(numbers))} if numbers else {}
    per_device, processes, generations = numbers
    found = {"trl_total": str(per_device * processes)}
    if processes and generations:
        found["per_device_nearest"] = str(generations // math.gcd(processes, generations))
    return found


def deepspeed_product(groups: Mapping[str, str]) -> dict[str, str]:
    """Micro batch × accumulation × GPUs, which DeepSpeed's train batch should be."""
    numbers = _numbers(groups, "ds_micro", "ds_accumulation", "ds_world")
    return {"ds_product": str(math.prod(numbers))} if numbers else {}


def tokens_over(groups: Mapping[str, str]) -> dict[str, str]:
    """By how many tokens a prompt is too long."""
    numbers = _numbers(groups, "sequence_length", "max_length")
    return {"tokens_over": str(numbers[0] - numbers[1])} if numbers and numbers[0] > numbers[1] else {}


DECODERS: dict[str, Decoder] = {
    "batch": nearest_batch,
    "per_device": generation_batch,
    "ds_micro": deepspeed_product,
    "sequence_length": tokens_over,
}
