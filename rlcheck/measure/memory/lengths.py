"""How long samples may be in the mean where rows are packed: a pass holds what they are, not their limit."""

from __future__ import annotations

from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.measure.memory.limits import largest
from rlcheck.measure.memory.predict import Gpu, predict
from rlcheck.measure.memory.summary import AWAKE
from rlcheck.measure.memory.whatif import with_settings

_TOKENS = 16
"""Means are multiples of this: finer ones say no more."""
_PACKING = ("verl", "rltrain")


def longest_mean(run: ConfigFacts, gpu: Gpu) -> int:
    """Tokens of prompt and response together, in the mean of a micro batch, up to which every training phase fits.

    0 where rows are padded, where passes are filled up to a number of tokens, and where nothing fits.
    """
    spec, data = run.spec, run.spec.data
    trained = [role for role in (spec.actor, spec.critic) if role is not None and role.trained]
    if run.framework not in _PACKING or not trained or not all(map(_is_packed, trained)):
        return 0
    whole = data.max_prompt_length + data.max_response_length

    def fits(steps: int) -> bool:
        tokens = min(steps * _TOKENS, whole)
        prompt = max(tokens * data.max_prompt_length // whole, 1)
        shorter = {"data.max_prompt_length": prompt, "data.max_response_length": max(tokens - prompt, 1)}
        then = predict(with_settings(run, shorter), gpu, 0)
        passes = (phase for phase in then.phases if phase.name not in AWAKE)
        return all(phase.needed_bytes <= then.usable_bytes for phase in passes)

    return min(largest(fits, 1, -(-whole // _TOKENS)) * _TOKENS, whole)


def _is_packed(role: RoleSpec) -> bool:
    return role.model.remove_padding and not role.dynamic_batch and not role.infer_dynamic_batch
