"""Rules on `algorithm.rollout_correction`."""

from __future__ import annotations

from collections.abc import Iterator

from rltrain.config.schema import RunConfig
from rltrain.config.thresholds import criteria, weight_bounds

ROLLOUT = "actor_rollout_ref.rollout"


def correction_rules(config: RunConfig) -> Iterator[str]:
    """What contradicts another key, or itself."""
    correction = config.algorithm.rollout_correction
    for read in (weight_bounds, criteria):
        try:
            read(correction)
        except ValueError as error:
            yield f"algorithm.rollout_correction.{error}"
    needs = [name for name in ("rollout_is", "rollout_rs", "bypass_mode") if getattr(correction, name)]
    if needs and config.actor_rollout_ref.rollout.calculate_log_probs is False:
        yield f"algorithm.rollout_correction.{needs[0]}: needs {ROLLOUT}.calculate_log_probs=true (or null)"
    yield from _bypass(config)
    rollout = config.actor_rollout_ref.rollout
    if correction.bypass_mode and (rollout.top_p < 1 or rollout.top_k > 0 or rollout.min_tokens > 0):
        yield (
            f"algorithm.rollout_correction.bypass_mode: {ROLLOUT}.top_p, top_k or min_tokens cut the distribution that "
            "the engine's log-probabilities are of, the actor's are of the whole one, so that ratios would be wrong; "
            "set top_p=1, top_k=-1, min_tokens=0, or bypass_mode=false"
        )


def _bypass(config: RunConfig) -> Iterator[str]:
    """What `bypass_mode` and its losses cannot be combined with."""
    correction, key = config.algorithm.rollout_correction, "algorithm.rollout_correction"
    reinforces = correction.loss_type == "reinforce"
    if reinforces and not correction.bypass_mode:
        yield f"{key}.loss_type: nothing reads it without bypass_mode=true; set that, or leave loss_type=ppo_clip"
    if not correction.bypass_mode:
        return
    if correction.rollout_is is not None and not reinforces:
        yield (
            f"{key}.rollout_is: with bypass_mode the clipped ratio is the correction already; set loss_type=reinforce, "
            "which applies the weights, or rollout_is=null"
        )
    if correction.rollout_is_batch_normalize:
        yield (
            f"{key}.rollout_is_batch_normalize: with bypass_mode weights are known a micro batch at a time, and the "
            "loss would depend on its size; set it to false"
        )
    mode = config.actor_rollout_ref.actor.policy_loss.loss_mode
    if reinforces and mode != "vanilla":
        yield f"{key}.loss_type: reinforce takes the place of policy_loss.loss_mode={mode}; leave that at vanilla"
