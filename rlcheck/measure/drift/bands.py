"""How far engine and training may be apart, by dtype, read from data/drift.json; each number there has its source."""

from __future__ import annotations

from rlcheck.facts.base import Struct
from rlcheck.facts.drift import DriftFacts
from rlcheck.tables import Threshold, table

FLOAT32 = "float32"
ACCELERATOR = "float32 on an accelerator"
BFLOAT16 = "bfloat16"
_COARSEST_FIRST = ("float8", BFLOAT16, "float16", FLOAT32)
_OTHER_NAMES = {"bf16": BFLOAT16, "half": "float16", "fp16": "float16", "float": FLOAT32, "fp32": FLOAT32}


class Band(Struct, frozen=True, forbid_unknown_fields=True):
    """Mean absolute differences: up to the first number rounding explains them, above the second it does not.

    `log_probs`: of natural logarithms, `probs`: of probabilities.
    """

    log_probs: tuple[float, float]
    probs: tuple[float, float]
    source: str
    why: str


class Drift(Struct, frozen=True, forbid_unknown_fields=True):
    """The file."""

    numbers: dict[str, Threshold]
    bands: dict[str, Band]


def drift() -> Drift:
    """Return the table."""
    return table("drift", Drift)


def number(name: str) -> float:
    """The threshold of this name.

    Raises:
        KeyError: there is none.
    """
    return drift().numbers[name].value


def dtype_name(text: str) -> str:
    """One of the names of data/drift.json for what a config or a library calls a dtype; "" if it is none of them."""
    plain = text.lower().removeprefix("torch.").strip()
    if "fp8" in plain or "float8" in plain:
        return "float8"
    plain = _OTHER_NAMES.get(plain, plain)
    return plain if plain in _COARSEST_FIRST else ""


def coarser(one: str, other: str) -> str:
    """The name of the coarser of two dtypes; "" if either is not known."""
    names = dtype_name(one), dtype_name(other)
    return "" if "" in names else min(names, key=_COARSEST_FIRST.index)


def band(dtype: str, device: str) -> Band:
    """The band of DTYPE (a name of the file, "" for one that is not known: taken as bfloat16) on DEVICE."""
    name = dtype or BFLOAT16
    if name == FLOAT32 and device not in ("", "cpu"):
        name = ACCELERATOR
    return drift().bands[name]


def noise(rollout_dtype: str, train_dtype: str, device: str) -> float:
    """The largest mean |log p| difference that rounding explains for the coarser of the two dtypes."""
    return band(coarser(rollout_dtype, train_dtype), device).log_probs[0]


def explained(drift: DriftFacts) -> float:
    """The same for a measurement. What the measurement itself took for rounding, it has not tried to explain."""
    return max(drift.noise, noise(drift.rollout_dtype, drift.train_dtype, drift.device))
