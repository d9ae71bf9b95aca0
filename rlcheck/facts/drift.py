"""What `rlcheck drift` measured: the engine's log-probabilities of its own samples against the training stack's."""

from __future__ import annotations

from rlcheck.facts.base import Fact, Struct
from rlcheck.facts.rollout import Failure, StageTime


class Gap(Struct, frozen=True):
    """How far two readings of the same sampled tokens are apart.

    `probs_diff_*`: |p_train - p_rollout|, as verl defines it (rollout_probs_diff). `log_probs_diff_*`: the same of
    natural logarithms. With rho = p_train / p_rollout: `kl` (k1) is the mean of -log rho, `k3_kl` that of
    rho - log rho - 1, `is_mean` and `is_std` of rho itself, `ess` = mean(rho)^2 / mean(rho^2). `corr` and `log_corr`
    are Pearson's, of probabilities and of logarithms; `slope` that of a line through the training side's logarithms
    over the engine's; None where they are not defined. `share_above`: tokens whose probabilities differ by over 0.01.
    """

    num_tokens: int = 0
    probs_diff_mean: float = 0.0
    probs_diff_max: float = 0.0
    probs_diff_std: float = 0.0
    log_probs_diff_mean: float = 0.0
    log_probs_diff_max: float = 0.0
    kl: float = 0.0
    k3_kl: float = 0.0
    is_mean: float = 1.0
    is_std: float = 0.0
    ess: float = 1.0
    corr: float | None = None
    log_corr: float | None = None
    slope: float | None = None
    share_above: float = 0.0


class TokenGap(Struct, frozen=True):
    """One sampled token. `before` and `after`: text around it; `position`: its place in the response, from 0."""

    token: str
    token_id: int
    position: int
    rollout_prob: float
    train_prob: float
    before: str = ""
    after: str = ""
    prompt: str = ""
    """Kind of prompt that it answers."""


class Bin(Struct, frozen=True):
    """Tokens from `low` up to, not including, `high`."""

    low: float
    high: float
    num_tokens: int
    probs_diff_mean: float = 0.0
    log_probs_diff_mean: float = 0.0


class Variant(Struct, frozen=True):
    """The same samples, or the same prompts, with one thing changed.

    `family`: wrong (the two sides do not mean the same thing) or imprecise (kernels, dtype). `overrides`: what a run
    would set to have it so. `gap`: what is left; None where it could not be tried (`error`). `removes`: it takes the
    difference away, down to what rounding explains.
    """

    name: str
    title: str
    family: str = "imprecise"
    side: str = "training"
    """Which side was changed: rollout, training or both."""
    overrides: tuple[str, ...] = ()
    gap: Gap | None = None
    removes: bool = False
    error: str = ""
    seconds: float = 0.0


class OperationGap(Struct, frozen=True):
    """One operation of the model on one sequence, computed by both sides. `input_equal`: its inputs were equal to the
    bit, so what differs here enters here. Differences are absolute, in the values of the activations."""

    name: str
    layer: int = -1
    """-1: outside of the decoder layers."""
    max_diff: float = 0.0
    mean_diff: float = 0.0
    scale: float = 0.0
    """Mean absolute value of the training side's output."""
    equal: bool = False
    input_equal: bool = False
    own_max_diff: float | None = None
    own_mean_diff: float | None = None
    """With the engine's inputs on the training side: what this operation adds by itself. None: not measured."""


class WeightsUse(Struct, frozen=True):
    """Weights compared by checksum after a sync: published by the training side, read back from the engine."""

    num_tensors: int = 0
    differing: tuple[str, ...] = ()
    num_stale: int = 0
    """Of those that differ, hold to the bit what the sync before had brought."""


class PromptsUse(Struct, frozen=True):
    """Prompt tokens as the engine read them, against those that the training stack reads."""

    num_prompts: int = 0
    num_differing: int = 0
    length_diff_mean: float = 0.0
    """Training minus engine, in tokens."""
    example_rollout: str = ""
    example_train: str = ""


class DriftFacts(Struct, frozen=True):
    """One measurement of one config.

    `noise`: the largest mean |log p| difference that rounding explains for the coarser of the two dtypes.
    `by_position` and `by_length` bin tokens by place in the response and by length of the whole sequence; `histogram`
    by |log-probability difference|. `points`: (engine, training) log-probabilities of some tokens, for a scatter plot.
    """

    target: str = ""
    model: str = ""
    engine: str = ""
    engine_version: str = ""
    device: str = ""
    rollout_dtype: str = ""
    train_dtype: str = ""
    temperature: float = 1.0
    noise: float = 0.0
    batch_invariant: bool = False
    weights_from: str = ""
    """saved, random or toy."""
    num_prompts: int = 0
    num_responses: int = 0
    stages: tuple[StageTime, ...] = ()
    failure: Failure | None = None
    gap: Fact[Gap] = Fact()
    by_kind: dict[str, Gap] = {}
    by_position: tuple[Bin, ...] = ()
    by_length: tuple[Bin, ...] = ()
    histogram: tuple[Bin, ...] = ()
    points: tuple[tuple[float, float], ...] = ()
    worst: tuple[TokenGap, ...] = ()
    prompts: Fact[PromptsUse] = Fact()
    weights: Fact[WeightsUse] = Fact()
    variants: Fact[tuple[Variant, ...]] = Fact()
    operations: Fact[tuple[OperationGap, ...]] = Fact()
    notes: tuple[str, ...] = ()
