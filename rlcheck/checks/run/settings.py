"""The settings of a run that optimisation depends on, and overrides that start from them."""

from __future__ import annotations

import re

from rlcheck.checks.run.common import number_setting, round_up, setting
from rlcheck.facts.run import RunFacts
from rlcheck.measure.run.names import worded

LR = "actor_rollout_ref.actor.optim.lr"
CRITIC_LR = "critic.optim.lr"
GRAD_CLIP = ("actor_rollout_ref.actor.grad_clip", "actor_rollout_ref.actor.optim.clip_grad")
CRITIC_GRAD_CLIP = ("critic.grad_clip", "critic.optim.clip_grad")
CLIPS = tuple(f"actor_rollout_ref.actor.{name}" for name in ("clip_ratio", "clip_ratio_low", "clip_ratio_high"))
EPOCHS = "actor_rollout_ref.actor.ppo_epochs"
ENTROPY_COEFF = "actor_rollout_ref.actor.entropy_coeff"
USE_KL_LOSS = "actor_rollout_ref.actor.use_kl_loss"
KL_LOSS_COEF = "actor_rollout_ref.actor.kl_loss_coef"
KL_IN_REWARD = "algorithm.use_kl_in_reward"
KL_COEF = "algorithm.kl_ctrl.kl_coef"
_BILLIONS = re.compile(r"(?<![\w.])(\d{1,4}(?:\.\d{1,3})?)[bB](?![a-zA-Z])")
_USUAL_LR = {"full": 1e-6, "lora": 1e-5, "tiny": 1e-3}


def override(run: RunFacts, key: str, value: object) -> dict[str, str]:
    """The playbook's parameter `override`, in the framework's words; empty where it has no such setting."""
    text = worded(run.framework, f"{key}={round_up(value) if isinstance(value, float) else value}")
    return {"override": text} if text else {}


def kind_of_model(run: RunFacts) -> str:
    """`tiny` (built from a config that is small), `lora`, `full` (a published size), "" where nothing says."""
    if any(key.startswith("toy.") for key in run.settings):
        return "tiny"
    if (number_setting(run, "actor_rollout_ref.model.lora_rank") or 0) > 0:
        return "lora"
    return "full" if _BILLIONS.search(str(setting(run, "actor_rollout_ref.model.path") or "")) else ""


def usual_lr(run: RunFacts) -> float:
    """The learning rate that such a policy is trained with."""
    return _USUAL_LR.get(kind_of_model(run), _USUAL_LR["full"])


def clip_of(run: RunFacts, keys: tuple[str, ...]) -> tuple[bool, float | None]:
    """Whether the run's config says how gradients are clipped, and the limit (None: they are not)."""
    there = [key for key in keys if key in run.settings]
    value = number_setting(run, *keys)
    return bool(there), value if value is not None and value > 0 else None


def key_in_use(run: RunFacts, keys: tuple[str, ...]) -> str:
    """Which of KEYS the run's config has; the first where it has none."""
    return next((key for key in keys if key in run.settings), keys[0])


def several_updates(run: RunFacts) -> bool | None:
    """Whether each step has more than one optimizer step, so that a policy differs from the one that sampled; None
    where nothing says."""
    taken = run.curves.get("actor/optimizer_steps")
    if taken is not None and taken.values:
        return max(taken.values) > 1
    batch = number_setting(run, "data.train_batch_size")
    mini = number_setting(run, "actor_rollout_ref.actor.ppo_mini_batch_size")
    epochs = number_setting(run, "actor_rollout_ref.actor.ppo_epochs") or 1
    if batch is None or mini is None or mini <= 0:
        return None
    return batch / mini * epochs > 1
