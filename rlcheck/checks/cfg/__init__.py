"""Checks of family CFG: keys, batches, parallelism and placement of a run; its models, data, training and logging."""

from rlcheck.check import checks_in
from rlcheck.checks.cfg import (
    batches,
    clipping,
    estimators,
    keys,
    kl,
    lengths,
    logging,
    lora,
    models,
    modes,
    pairs,
    parallel,
    paths,
    placement,
    refused,
    sampling,
    schedule,
    tokenizer,
    training,
)

CHECKS = checks_in(
    keys, refused, batches, pairs, parallel, placement, estimators, schedule, modes,
    models, tokenizer, lengths, lora, training, clipping, kl, sampling, paths, logging,
)  # fmt: skip
