"""Checks of a training run: one step made for trial, and the health of a run from its metrics and samples."""

from rlcheck.check import checks_in
from rlcheck.checks.run import (
    advantages,
    audit,
    critic,
    entropy,
    gaming,
    gradients,
    groups,
    kl,
    lengths,
    memory,
    numbers,
    progress,
    ranks,
    rewards,
    sign,
    sources,
    speed,
    staleness,
    step,
    steps,
    validation,
)

_LEARNING = (numbers, rewards, sign, groups, advantages, gaming, sources, validation, lengths)

CHECKS = checks_in(
    step, *_LEARNING, steps, gradients, entropy, kl, critic, ranks, audit, progress, speed, memory, staleness
)
