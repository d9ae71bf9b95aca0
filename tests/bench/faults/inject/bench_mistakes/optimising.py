"""Mistakes in the optimizer, the loss and the gradient."""

from __future__ import annotations

from typing import Any

from bench_mistakes.registry import Counter, mistake, wrap


@mistake("rltrain.workers.fsdp.optim")
def lr_times(module: Any, factor: float) -> None:
    """The learning rate is FACTOR times what the metrics and the config say: a schedule applied twice."""

    def step(real: Any, self: Any, device: str) -> Any:
        inner = self.optimizer.step

        def scaled() -> None:
            for group in self.optimizer.param_groups:
                group["lr"] *= factor
            inner()

        self.optimizer.step = scaled
        try:
            return real(self, device)
        finally:
            self.optimizer.step = inner

    wrap(module.Stepper, "step", step)


@mistake("rltrain.workers.fsdp.optim")
def weights_do_not_change(module: Any, step: int = 1) -> None:
    """The optimizer has parameters of its own, not the model's: it steps, and nothing changes. From call STEP on."""
    calls = Counter()

    def stepped(real: Any, self: Any, device: str) -> Any:
        inner = self.optimizer.step
        if calls() >= step:
            self.optimizer.step = lambda: None
        try:
            return real(self, device)
        finally:
            self.optimizer.step = inner

    wrap(module.Stepper, "step", stepped)


@mistake("rltrain.workers.fsdp.actor")
def loss_spike(module: Any, step: int, factor: float, steps: int = 1) -> None:
    """A bad batch: at STEP (and STEPS - 1 more) the loss is FACTOR times what it should be."""
    updates = _updates(module)

    def loss(real: Any, self: Any, *args: Any) -> Any:
        value, found = real(self, *args)
        return (value * factor if step <= updates.value < step + steps else value), found

    wrap(module.ActorLoss, "__call__", loss)


@mistake("rltrain.workers.fsdp.actor")
def loss_is_nan(module: Any, step: int) -> None:
    """From STEP on the loss is no number."""
    updates = _updates(module)

    def loss(real: Any, self: Any, *args: Any) -> Any:
        value, found = real(self, *args)
        if updates.value < step:
            return value, found
        return value * float("nan"), {**found, "pg_loss": found["pg_loss"] * float("nan")}

    wrap(module.ActorLoss, "__call__", loss)


@mistake("rltrain.workers.fsdp.actor")
def weights_turn_nan(module: Any, step: int) -> None:
    """After STEP one weight of the actor is no number: a kernel that divides by zero."""

    def update(real: Any, role: Any, *args: Any) -> Any:
        found = real(role, *args)
        if updates() == step:
            for parameter in role.model.parameters():
                parameter.data.to_local().view(-1)[:1] = float("nan")
                break
        return found

    updates = Counter()
    wrap(module, "update_actor", update)


@mistake("rltrain.workers.fsdp.actor")
def entropy_sign(module: Any) -> None:
    """The entropy bonus is added to the loss."""
    _signs(module, entropy=-1.0, kl=1.0)


@mistake("rltrain.workers.fsdp.actor")
def kl_sign(module: Any) -> None:
    """The KL loss is taken off."""
    _signs(module, entropy=1.0, kl=-1.0)


def _signs(module: Any, entropy: float, kl: float) -> None:
    def loss(real: Any, self: Any, *args: Any) -> Any:
        value, found = real(self, *args)
        config = self._config
        value = value + (1.0 - entropy) * config.entropy_coeff * found["entropy_loss"]
        if "kl_loss" in found:
            value = value - (1.0 - kl) * config.kl_loss_coef * found["kl_loss"]
        return value, {**found, "loss": value}

    wrap(module.ActorLoss, "__call__", loss)


@mistake("rltrain.workers.fsdp.actor")
def entropy_sign_unseen(module: Any) -> None:
    """The entropy bonus is added to what is differentiated; the loss in the metrics is the right one."""

    def loss(real: Any, self: Any, *args: Any) -> Any:
        value, found = real(self, *args)
        return value + 2.0 * self._config.entropy_coeff * found["entropy_loss"], found

    wrap(module.ActorLoss, "__call__", loss)


@mistake("rltrain.workers.fsdp.actor")
def kl_sign_unseen(module: Any) -> None:
    """The same of the KL loss."""

    def loss(real: Any, self: Any, *args: Any) -> Any:
        value, found = real(self, *args)
        return value - 2.0 * self._config.kl_loss_coef * found["kl_loss"], found

    wrap(module.ActorLoss, "__call__", loss)


@mistake("rltrain.controller.algorithm")
def kl_reward_sign(module: Any) -> None:
    """KL in the reward is paid instead of charged."""

    def apply(real: Any, scores: Any, old: Any, ref: Any, mask: Any, coef: float, kind: str) -> Any:
        return real(scores, old, ref, mask, -coef, kind)

    wrap(module, "apply_kl_to_reward", apply)


@mistake("rltrain.workers.fsdp.critic")
def critic_detached(module: Any) -> None:
    """The values that the critic's loss sees carry no gradient."""
    wrap(module, "values", lambda real, *args: (found := real(*args)).detach() + 0.0 * found)


@mistake("rltrain.workers.fsdp.critic")
def critic_learns_others(module: Any) -> None:
    """The critic's returns are those of other rows."""

    def terms(real: Any, predicted: Any, old: Any, returns: Any, mask: Any, clip: float) -> Any:
        return real(predicted, old, returns.roll(1, dims=0), mask, clip)

    wrap(module, "value_loss_terms", terms)


def _updates(module: Any) -> Counter:
    """Counts the updates of the actor on this rank."""
    updates = Counter()

    def update(real: Any, *args: Any) -> Any:
        updates()
        return real(*args)

    wrap(module, "update_actor", update)
    return updates
