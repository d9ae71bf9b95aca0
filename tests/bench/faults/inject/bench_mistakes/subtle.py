"""Mistakes that leave most curves as they are: what a review planted to see which of them the curves still show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bench_mistakes.registry import mistake, wrap


@mistake("rltrain.workers.fsdp.worker")
def reference_is_another(module: Any) -> None:
    """The reference is a model of other random weights."""

    def add(real: Any, self: Any, name: str, sharded: Any) -> None:
        if name == "ref":
            torch = module.torch
            made = torch.Generator().manual_seed(self._info.rank)
            with torch.no_grad():
                for parameter in sharded.model.parameters():
                    shard = parameter.to_local()
                    if parameter.ndim > 1:
                        shard.copy_(0.05 * torch.randn(shard.shape, generator=made))
        real(self, name, sharded)

    wrap(module.TrainWorker, "_add", add)


@mistake("rltrain.controller.roles")
def padding_in_the_loss(module: Any) -> None:
    """The actor's update has a mask of ones."""

    def minis(real: Any, *args: Any) -> Any:
        return [[replace(mini, shard=_all(mini.shard)) for mini in rank] for rank in real(*args)]

    wrap(module, "actor_minis", minis)


def _all(shard: Any) -> Any:
    return {**shard, "response_mask": shard["response_mask"] | True}


@mistake("rltrain.workers.fsdp.forward")
def response_positions_shifted(module: Any) -> None:
    """In training the response is one position further away from the prompt than it is in the engine."""

    def outputs(real: Any, model: Any, rows: Mapping[str, Any], packed: bool) -> Any:
        places = rows["position_ids"].clone()
        places[:, -rows["response_mask"].shape[1] :] += 1
        return real(model, {**rows, "position_ids": places}, packed)

    wrap(module, "response_outputs", outputs)


@mistake("rltrain.workers.fsdp.models")
def temperature_twice(module: Any) -> None:
    """Training divides by the temperature twice."""

    def policy(real: Any, *args: Any) -> Any:
        made = real(*args)
        return replace(made, temperature=made.temperature**2)

    wrap(module, "make_policy", policy)


@mistake("rltrain.controller.algorithm")
def rewards_shifted_in_the_estimator(module: Any) -> None:
    """Each row's advantage is of the reward of the row before; the scores in the metrics are right."""

    def compute(real: Any, name: str, **given: Any) -> Any:
        rewards, mask = given["token_level_rewards"], given["response_mask"]
        last = (mask.sum(-1) - 1).clamp(min=0)[:, None]
        moved = rewards.new_zeros(rewards.shape).scatter(1, last, rewards.sum(-1).roll(1)[:, None])
        return real(name, **{**given, "token_level_rewards": moved})

    wrap(module, "compute_advantages", compute)


@mistake("rltrain.workers.fsdp.actor")
def micro_losses_are_summed(module: Any, count: int) -> None:
    """Of COUNT micro batches, each gives a whole loss: their sum is not divided."""
    wrap(module, "aggregate", lambda real, *args: count * real(*args))


@mistake("rltrain.workers.fsdp.optim")
def optimizer_forgets(module: Any) -> None:
    """The optimizer's state is emptied after each step."""

    def step(real: Any, self: Any, device: str) -> Any:
        try:
            return real(self, device)
        finally:
            self.optimizer.state.clear()

    wrap(module.Stepper, "step", step)


@mistake("rltrain.workers.fsdp.worker")
def dropout_while_reading(module: Any, share: float) -> None:
    """Old log-probabilities are read with dropout on."""

    def read(real: Any, self: Any, shard: Any) -> Any:
        def drop(_layer: Any, _given: Any, out: Any) -> Any:
            return module.torch.nn.functional.dropout(out, share, training=True)

        layers = [m for name, m in self._models["actor"].model.named_modules() if name.endswith(".mlp")]
        hooks = [layer.register_forward_hook(drop) for layer in layers]
        try:
            return real(self, shard)
        finally:
            for hook in hooks:
                hook.remove()

    wrap(module.TrainWorker, "log_probs", read)


@mistake("rltrain.controller.algorithm")
def advantages_are_their_mean(module: Any) -> None:
    """Every token gets the mean of all advantages."""

    def compute(real: Any, *args: Any, **given: Any) -> Any:
        advantages, returns = real(*args, **given)
        mask = given["response_mask"]
        return mask * advantages[mask].mean(), returns

    wrap(module, "compute_advantages", compute)


@mistake("rltrain.controller.loop")
def same_batch_each_step(module: Any) -> None:
    """Each step has the prompts of the first one, and its request seeds."""
    first: list[Any] = []

    def collect(real: Any, self: Any, step: int, rows: Any) -> Any:
        first[:] = first or [rows]
        return real(self, step, first[0])

    wrap(module.Collector, "collect", collect)


@mistake("rltrain.controller.rollout", part_of="same_batch_each_step")
def same_seeds(module: Any) -> None:
    """The seeds of `same_batch_each_step`."""
    wrap(module, "request_seed", lambda real, run, _step, prompt, sample: real(run, 1, prompt, sample))


@mistake("rltrain.workers.fsdp.comm_timing")
def rank_sends_nothing(module: Any, rank: int) -> None:
    """The gradient of RANK is zeroed before it is reduced."""
    _zeroed(module, "__call__", rank)


@mistake("rltrain.workers.fsdp.comm_timing")
def rank_is_lost_on_the_wire(module: Any, rank: int) -> None:
    """The same, behind what the trainer measures of its own gradients."""
    _zeroed(module, "_timed", rank)


def _zeroed(module: Any, name: str, rank: int) -> None:
    def reduced(
        real: Any, self: Any, output_tensor: Any, input_tensor: Any, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        sent = input_tensor * 0 if module.dist.get_rank() == rank else input_tensor
        return real(self, output_tensor, sent, group, op, async_op)

    wrap(module.TimedReduceScatter, name, reduced)


@mistake("rltrain.workers.fsdp.critic")
def targets_a_token_late(module: Any) -> None:
    """The critic learns for each token the return of the one before, and 0 for the first."""

    def terms(real: Any, predicted: Any, old: Any, returns: Any, *rest: Any) -> Any:
        late = returns.roll(1, dims=1)
        late[:, 0] = 0.0
        return real(predicted, old, late, *rest)

    wrap(module, "value_loss_terms", terms)


@mistake("rltrain.controller.reward_manager")
def last_character_cut(module: Any) -> None:
    """The answer is scored without its last character."""
    wrap(module, "request", lambda real, one: real(replace(one, response_text=one.response_text[:-1])))
