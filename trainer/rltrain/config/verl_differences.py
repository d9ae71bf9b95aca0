"""Where a key that rltrain shares with verl does otherwise here, and why; each is noted in a config that meets it.

Read against the sources of verl 0.9.1. What is not listed has verl's meaning. `docs/trainer/from-verl.md` has this as a
table, which `tests.tools.build` writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from rlcheck.measure.config.picking import usual_dtype
from rltrain.config import names
from rltrain.config.estimators import has_need
from rltrain.config.schema import RunConfig

_ACTOR, _ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
VERL = "verl 0.9"

Applies = Callable[[RunConfig, Collection[str]], bool]
"""Whether a config (as validated, not yet resolved), in which so many keys were given, meets the difference."""


@dataclass(frozen=True)
class Difference:
    """One key."""

    key: str
    verls: str
    own: str
    why: str
    applies: Applies | None
    """None: such a config is refused."""

    @property
    def note(self) -> str:
        """What is printed."""
        return f"{self.key}: {self.own}; {VERL}: {self.verls}"


def _clip_ratio_alone(config: RunConfig, given: Collection[str]) -> bool:
    actor = config.actor_rollout_ref.actor
    follows = actor.clip_ratio_low is None or actor.clip_ratio_high is None
    return f"{_ACTOR}.clip_ratio" in given and actor.clip_ratio != 0.2 and follows


def _divided_by_width(config: RunConfig, _: Collection[str]) -> bool:
    actor, mode = config.actor_rollout_ref.actor, "seq-mean-token-sum-norm"
    return actor.loss_scale_factor is None and mode in (actor.loss_agg_mode, config.critic.loss_agg_mode)


def _greedy_though_warm(config: RunConfig, _: Collection[str]) -> bool:
    val = config.actor_rollout_ref.rollout.val_kwargs
    return val.temperature > 0 and not val.do_sample


def _rounds_are_bounded(config: RunConfig, _: Collection[str]) -> bool:
    return config.algorithm.filter_groups.enable and config.algorithm.filter_groups.max_num_gen_batches > 0


def _critic_is_filled_by_tokens(config: RunConfig, _: Collection[str]) -> bool:
    critic = config.critic
    trains = has_need(config.algorithm.adv_estimator, "critic") if critic.enable is None else critic.enable
    dynamic = (
        config.actor_rollout_ref.actor.use_dynamic_bsz if critic.use_dynamic_bsz is None else critic.use_dynamic_bsz
    )
    return trains and dynamic and critic.ppo_max_token_len_per_gpu is None


def _function_beside_model(config: RunConfig, _: Collection[str]) -> bool:
    return config.reward_model.enable and config.custom_reward_function.path is not None


def _steps_beside_epochs(config: RunConfig, given: Collection[str]) -> bool:
    return config.trainer.total_training_steps is not None and "trainer.total_epochs" in given


DIFFERENCES = (
    Difference(
        f"{_ACTOR}.clip_ratio",
        "no effect, as clip_ratio_low and clip_ratio_high are 0.2 and go first (workers/config/actor.py)",
        "bounds the ratio on each side whose clip_ratio_low or clip_ratio_high is not given",
        "what the key says, and what verl's loss does where the two are null",
        _clip_ratio_alone,
    ),
    Difference(
        f"{_ACTOR}.loss_scale_factor",
        "null divides by the padded width of each micro batch (agg_loss in trainer/ppo/core_algos.py)",
        "null divides by data.max_response_length",
        "the loss must not depend on how long the longest answer beside a sample is",
        _divided_by_width,
    ),
    Difference(
        f"{_ROLLOUT}.val_kwargs.do_sample",
        "is not read, the temperature decides alone (trainer/ppo/v1/agent_loop_tq.py)",
        "false makes validation greedy: val_kwargs.temperature has no effect",
        "what verl's config says of the key",
        _greedy_though_warm,
    ),
    Difference(
        "algorithm.filter_groups.max_num_gen_batches",
        "ignored, with a warning (trainer/ppo/v1/trainer_base.py)",
        "the run ends if so many rounds of generation do not fill a batch",
        "as in DAPO's recipe, which the key is from; 0: no limit",
        _rounds_are_bounded,
    ),
    Difference(
        "critic.ppo_max_token_len_per_gpu",
        "null is 32768 (trainer/config/critic/critic.yaml)",
        "null takes the actor's",
        "who lowers the actor's for memory means the critic, too; the result does not depend on it",
        _critic_is_filled_by_tokens,
    ),
    Difference(
        "custom_reward_function.path",
        "the function alone is the reward, and may ask the model (experimental/reward_loop/reward_loop.py)",
        "beside reward_model.enable the reward is the weighted sum of both",
        "custom_reward_function.weight and reward_model.weight say how much of each; 0 leaves one out",
        _function_beside_model,
    ),
    Difference(
        "trainer.total_training_steps",
        "the run also ends after total_epochs, while the learning rate follows total_training_steps",
        "decides alone, total_epochs has no effect",
        "the length of the run and of its schedule are one",
        _steps_beside_epochs,
    ),
    Difference(
        f"{_ROLLOUT}.n",
        "in a group of one, grpo, rloo and reinforce_plus_plus_baseline learn from the raw reward",
        "these estimators need n > 1",
        "there is nothing to compare with",
        None,
    ),
)


def met(config: RunConfig, given: Collection[str]) -> Iterator[str]:
    """The note of each difference that CONFIG, with the keys GIVEN, meets."""
    return (one.note for one in DIFFERENCES if one.applies is not None and one.applies(config, given))


def other_defaults() -> Mapping[str, tuple[Any, Any]]:
    """Shared keys with another default: verl's, and rltrain's. Not those where null means what verl spells out."""
    found: dict[str, tuple[Any, Any]] = {}
    for key, leaf in names.leaves().items():
        if key not in names.verl_keys() or leaf.required:
            continue
        verls, own = names.verl_keys()[key], leaf.default
        own = list(cast("tuple[Any, ...]", own)) if isinstance(own, tuple) else own
        inherited = own is None and isinstance(verls, str) and verls.startswith("${oc.select:")
        left_open = verls is None and own in (False, "compute_score")
        if not inherited and not left_open and _usual(verls) != _usual(own):
            found[key] = (verls, own)
    return found


def _usual(value: Any) -> Any:
    return usual_dtype(value) if isinstance(value, str) else value
