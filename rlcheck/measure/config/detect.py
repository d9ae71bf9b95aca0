"""Which framework a config is of."""

from __future__ import annotations

from rlcheck.measure.config.document import Document
from rlcheck.measure.config.rltrain_data import keys as rltrain_keys
from rlcheck.measure.config.spec_file import is_spec
from rlcheck.measure.config.trees import flatten, has

_RLTRAIN_ONLY = ("toy", "sft_warmup", "reward_model.rules", "reward_model.timeout_s", "trainer.num_cpu_ranks")
_VERL_ONLY = ("hydra", "defaults", "global_profiler", "reward", "transfer_queue", "actor_rollout_ref.actor._target_")


def framework_of(document: Document | None) -> str:
    """rltrain, verl or spec. A config that either framework could read is verl's unless all keys are rltrain's."""
    if document is None:
        return "verl"
    tree = document.tree
    if is_spec(document):
        return "spec"
    if any(has(tree, key) for key in _RLTRAIN_ONLY):
        return "rltrain"
    if any(has(tree, key) for key in _VERL_ONLY):
        return "verl"
    written = [key for key, _ in flatten(tree)]
    return "rltrain" if written and all(_known(key) for key in written) else "verl"


def _known(key: str) -> bool:
    parts = key.split(".")
    return any(".".join(parts[:length]) in rltrain_keys() for length in range(len(parts), 0, -1))
