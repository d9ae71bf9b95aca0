"""What the trainers of verl assert of a config when they start, beyond verl's own check of configs."""

from __future__ import annotations

from collections.abc import Iterator

from rlcheck.check import Verdict, check, skip
from rlcheck.checks.config.say import Case, conclude, config_of
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_v1, is_verl, value, who, whole

_MODE, _MODES = "trainer.v1.trainer_mode", ("sync", "colocate_async", "separate_async")
_ROLLOUT = "actor_rollout_ref.rollout"
_BACKEND = f"{_ROLLOUT}.checkpoint_engine.backend"
_SYNC_STEP = "trainer.v1.separate_async.parameter_sync_step"
_REPLAY = ("actor_rollout_ref.actor.megatron.router_replay.mode", "actor_rollout_ref.actor.veomni.router_replay.mode")


def mode_cases(run: ConfigFacts) -> Iterator[Case]:
    """The rules of the trainer that the config chooses."""
    if not is_verl(run):
        return
    yield from _sampling(run)
    yield from _correction(run)
    mode = value(run, _MODE, "sync")
    if is_v1(run) and mode not in _MODES:
        yield Case("fail", _MODE, f"one of {', '.join(_MODES)} ({who(run)} knows no other)", str(mode))
    if is_v1(run) and mode == "separate_async":
        yield from _separate(run)
    if is_v1(run) and value(run, "algorithm.filter_groups.enable", False):
        yield from _groups(run)


def _sampling(run: ConfigFacts) -> Iterator[Case]:
    rollout, gen = run.spec.rollout, whole(run, "data.gen_batch_size")
    if rollout.val_do_sample and rollout.temperature <= 0:
        words = f"rollout.temperature > 0 with val_kwargs.do_sample=True ({who(run)} refuses it)"
        yield Case("fail", "rollout.temperature", words, str(rollout.temperature), 1.0)
    prompts = run.spec.data.train_batch_size
    if is_v1(run) and gen > 0 and prompts % gen:
        words = f"a divisor of train_batch_size={prompts}, which is fetched in such parts"
        yield Case("fail", "data.gen_batch_size", words, str(gen))


def _correction(run: ConfigFacts) -> Iterator[Case]:
    rollout = run.spec.rollout
    if run.spec.algorithm.bypass_mode and not rollout.calculate_log_probs:
        words = (
            "rollout.calculate_log_probs=True with rollout_correction.bypass_mode, which takes the engine's log-probs"
        )
        yield Case("fail", "rollout.calculate_log_probs", words, "False", True)
    for name in _REPLAY:
        if run.spec.algorithm.bypass_mode and value(run, name, "disabled") == "R2":
            words = (
                f"another mode than R2 with bypass_mode, which skips the pass that R2 records ({who(run)} refuses it)"
            )
            yield Case("fail", name, words, "R2")


def _separate(run: ConfigFacts) -> Iterator[Case]:
    """GPUs of their own for rollout, and a mini batch for each update."""
    mini, prompts, step = run.spec.actor.mini_batch_size or 0, run.spec.data.train_batch_size, whole(run, _SYNC_STEP, 1)
    if mini and prompts != step * mini:
        words = f"parameter_sync_step × ppo_mini_batch_size = {step * mini} with trainer_mode=separate_async"
        yield Case("fail", "data.train_batch_size", words, str(prompts), step * mini)
    for name in (f"{_ROLLOUT}.nnodes", f"{_ROLLOUT}.n_gpus_per_node"):
        if whole(run, name) <= 0:
            yield Case(
                "fail", name, "more than 0: separate_async generates on GPUs of its own", str(run.values.get(name)), 1
            )
    if value(run, _BACKEND, "naive") == "naive":
        words = "nccl, nixl or another that crosses processes, with separate_async"
        yield Case("fail", _BACKEND, words, "naive", "nccl")
    if _has_colocated_reward(run):
        words = "True with separate_async, whose engines never make room for a reward model"
        yield Case("fail", "reward.reward_model.enable_resource_pool", words, "False", True)


def _groups(run: ConfigFacts) -> Iterator[Case]:
    if not value(run, "algorithm.filter_groups.metric", ""):
        yield Case("fail", "algorithm.filter_groups.metric", "a metric with filter_groups.enable=True", "none", "acc")
    if _has_colocated_reward(run):
        words = "True with filter_groups, which needs rewards while it samples"
        yield Case("fail", "reward.reward_model.enable_resource_pool", words, "False", True)


def _has_colocated_reward(run: ConfigFacts) -> bool:
    enabled = bool(value(run, "reward.reward_model.enable", False))
    return enabled and not value(run, "reward.reward_model.enable_resource_pool", False)


@check("CFG029", "The config obeys the rules of the chosen verl trainer", needs=("config",),
       playbook="config-refused", problem="The chosen trainer does not take the config")  # fmt: skip
def trainer_mode(facts: Facts) -> Verdict:
    """Applies what verl's trainers assert when they start: modes, asynchronous training, group filtering.

    What it does:
        separate_async needs nodes for rollout, a transfer back-end that crosses processes, and
        train_batch_size = parameter_sync_step × ppo_mini_batch_size. Group filtering needs a metric and rewards at
        sampling time; bypass_mode the engine's log-probabilities.

    Why it matters:
        These rules are in the trainers, not in verl's check of configs, so that a run breaks them one at a time,
        after Ray and parts of the workers have started.
    """
    run = config_of(facts)
    if not is_verl(run):
        return skip("these are rules of verl's trainers")
    return conclude(run, list(mode_cases(run)), "the trainer takes the config")
