"""What a training run has left behind: its metrics step by step, samples, audit record and settings."""

from __future__ import annotations

from operator import lt
from typing import Any

import msgspec

from rlcheck.facts.base import Fact, Struct


class Curve(Struct, frozen=True):
    """One metric over the steps of a run.

    `steps` ascend, each once: of a step that was written twice (a resumed run) the last value counts. `values` are
    finite, one for each of `steps`; steps whose value was NaN or infinite are in `nonfinite`. `name`: what the
    framework calls it, where that is not the name under which it is filed.
    """

    steps: tuple[int, ...] = ()
    values: tuple[float, ...] = ()
    nonfinite: tuple[int, ...] = ()
    name: str = ""

    def __post_init__(self) -> None:
        """Of a record that somebody has edited, what is no point of an ascending curve is left out."""
        steps, values = self.steps, self.values
        if len(steps) == len(values) and all(map(lt, steps, steps[1:])):
            return
        points = sorted(dict(zip(steps, values, strict=False)).items())
        msgspec.structs.force_setattr(self, "steps", tuple(step for step, _ in points))
        msgspec.structs.force_setattr(self, "values", tuple(value for _, value in points))


class SampleRow(Struct, frozen=True):
    """One answer that the run wrote down, cut to what a reader needs. `length` in tokens, -1: not said."""

    step: int
    uid: str = ""
    source: str = ""
    prompt: str = ""
    response: str = ""
    ground_truth: str = ""
    reward: float = 0.0
    parts: dict[str, float] = {}
    length: int = -1
    policy_version: int = -1


class AuditStep(Struct, frozen=True):
    """The audit record of one step. -1 and "" where it does not say."""

    step: int
    response_tokens: int = -1
    loss_tokens: float = -1.0
    optimizer_steps: int = -1
    parameter_hashes: tuple[str, ...] = ()
    """Of the actor's shards, by rank."""
    shard_hashes: tuple[str, ...] = ()
    """Of the tokens that each rank learnt from, by rank."""
    shard_losses: tuple[float, ...] = ()
    """Policy loss of each rank's own rows, by rank."""
    reward: float | None = None
    """Of one sample, as it was learnt from."""
    reward_again: float | None = None
    """The same sample, scored again."""
    recomputed_max_diff: float | None = None
    """Largest change of a log-probability when rows were read again one at a time."""
    adam_steps: int = -1
    """Steps by the count in the optimizer's own state, which its moments were made of."""
    truths: tuple[tuple[str, float], ...] = ()
    """Ground truths that were scored as answers, and what each earned."""


class RunFacts(Struct, frozen=True):
    """One run. Metrics are filed under verl's names (`rlcheck/data/metric_names.json` maps those of others).

    `framework`: rltrain, verl, openrlhf, trl, slime, skyrl, prime-rl, nemo-rl, "" where it is not known. `outcome`:
    finished, failed, interrupted, running (its process lives), dead (it should and does not), "" where nothing says.
    `settings`: the run's config, dotted keys with verl's names to plain values; empty where there is none. `ranks`: of
    metrics that were written by each rank, its curves by rank.
    """

    source: str = ""
    framework: str = ""
    files: tuple[str, ...] = ()
    outcome: str = ""
    error: str = ""
    """What the run said when it failed."""
    idle_s: Fact[float] = Fact()
    """Since the metrics were written last."""
    num_steps: int = 0
    first_step: int = 0
    last_step: int = 0
    total_steps: int = 0
    """Planned; 0: not known."""
    settings: dict[str, Any] = {}
    curves: dict[str, Curve] = {}
    ranks: dict[str, tuple[Curve, ...]] = {}
    samples: Fact[tuple[SampleRow, ...]] = Fact()
    audit: Fact[tuple[AuditStep, ...]] = Fact()
    notes: tuple[str, ...] = ()
