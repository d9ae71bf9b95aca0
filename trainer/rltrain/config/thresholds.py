"""The thresholds of `algorithm.rollout_correction`, as verl writes them: numbers, or two with an underscore between."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from rltrain.config.schema import RolloutCorrectionConfig

CRITERIA = (
    "token_k1", "token_k2", "token_k3", "seq_sum_k1", "seq_sum_k2", "seq_sum_k3", "seq_mean_k1", "seq_mean_k2",
    "seq_mean_k3", "seq_max_k2", "seq_max_k3",
)  # fmt: skip
"""Values of `rollout_rs`: what is judged, a token or the sum, mean or maximum over an answer, and by which estimate of
the divergence (Schulman 2020, joschu.net/blog/kl-approx.html)."""


@dataclass(frozen=True)
class Bounds:
    """Of a ratio: LOW None where there is no lower one."""

    low: float | None
    high: float


@dataclass(frozen=True)
class Criterion:
    """What keeps a token or an answer. BOUNDS: of the ratio engine / actor for k1, of the divergence for k2 and k3."""

    name: str
    level: Literal["token", "seq_sum", "seq_mean", "seq_max"]
    estimate: Literal["k1", "k2", "k3"]
    bounds: Bounds


def weight_bounds(config: RolloutCorrectionConfig) -> Bounds:
    """`rollout_is_threshold`: 2.0 truncates weights above it; 0.5_2.0 makes those outside of it 0.

    Raises:
        ValueError: it is neither; the message has the key.
    """
    return _bounds("rollout_is_threshold", str(config.rollout_is_threshold))


def criteria(config: RolloutCorrectionConfig) -> tuple[Criterion, ...]:
    """`rollout_rs` with `rollout_rs_threshold`; () where nothing is rejected.

    Raises:
        ValueError: a name or a number that does not fit; the message has the key.
    """
    names = [name.strip() for name in (config.rollout_rs or "").split(",") if name.strip()]
    if config.rollout_rs is not None and not names:
        raise ValueError("rollout_rs: names nothing; set it to null, or to one of " + ", ".join(CRITERIA))
    for name in names:
        if name not in CRITERIA:
            raise ValueError(f"rollout_rs: there is no '{name}'; choose from {', '.join(CRITERIA)}")
    if not names:
        if config.rollout_rs_threshold is not None:
            raise ValueError("rollout_rs_threshold: nothing reads it without rollout_rs, such as seq_mean_k1")
        return ()
    if config.rollout_rs_threshold is None:
        raise ValueError(f"rollout_rs_threshold: {names[0]} needs one, such as {_EXAMPLES[names[0][-2:]]}")
    words = [word.strip() for word in str(config.rollout_rs_threshold).split(",")]
    if len(words) not in (1, len(names)):
        raise ValueError(f"rollout_rs_threshold: {len(words)} for {len(names)} criteria; give one, or one for each")
    thresholds = words * len(names) if len(words) == 1 else words
    return tuple(_criterion(name, word) for name, word in dict(zip(names, thresholds, strict=True)).items())


_EXAMPLES = {"k1": "0.5_2.0 (of the ratio)", "k2": "0.01", "k3": "0.01"}


def _criterion(name: str, word: str) -> Criterion:
    level, _, estimate = name.rpartition("_")
    bounds = _bounds("rollout_rs_threshold", word)
    if estimate == "k1" and bounds.low is None:
        if bounds.high < 1:
            raise ValueError(
                f"rollout_rs_threshold: {name} keeps ratios up to {word}, and so none near 1; give two bounds such as "
                "'0.5_2.0', in quotes: YAML reads 0.5_2 as 0.52"
            )
        bounds = Bounds(1 / bounds.high, bounds.high)
    elif estimate != "k1" and bounds.low is not None:
        raise ValueError(f"rollout_rs_threshold: {name} is a divergence, 0 at best, so it has an upper bound alone")
    return Criterion(
        name,
        cast(Literal["token", "seq_sum", "seq_mean", "seq_max"], level),
        cast(Literal["k1", "k2", "k3"], estimate),
        bounds,
    )


def _bounds(key: str, word: str) -> Bounds:
    numbers = word.split("_") if word else []
    try:
        values = [float(number) for number in numbers]
    except ValueError:
        values = []
    if len(values) not in (1, 2) or not all(0 < value < float("inf") for value in values):
        raise ValueError(f"{key}: '{word}' is no positive number, nor two such as 0.5_2.0")
    if values != sorted(values):
        raise ValueError(f"{key}: {word} has its lower bound last")
    return Bounds(values[0] if len(values) == 2 else None, values[-1])
