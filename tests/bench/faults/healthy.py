"""Runs with no mistake in them: five seeds of each recipe, and choices that are no mistakes."""

from __future__ import annotations

from tests.bench.faults.fault import ACTOR, ROLLOUT, WITH_KL, Fault

SEEDS = tuple(
    Fault(
        f"healthy-{recipe}-{seed}",
        (),
        "nothing is wrong",
        recipe=f"toy-{recipe}",
        overrides=(f"trainer.seed={seed}",),
        plain=seed > 3,
    )
    for seed in range(1, 6)
    for recipe in ("ppo", "grpo")
)

CHOICES = (
    Fault("healthy-kl", (), "a KL loss", overrides=WITH_KL, extra=True),
    Fault("healthy-temperature", (), "sampled at 0.7", "toy-grpo", (f"{ROLLOUT}.temperature=0.7",), extra=True),
    Fault(
        "healthy-dr-grpo",
        (),
        "advantages that the config wants undivided",
        "toy-grpo",
        ("algorithm.norm_adv_by_std_in_grpo=false", f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"),
        extra=True,
    ),
    Fault("healthy-rloo", (), "another estimator", "toy-grpo", ("algorithm.adv_estimator=rloo",), extra=True),
    Fault("healthy-hf", (), "the hf engine", overrides=(f"{ROLLOUT}.name=hf",), plain=True, extra=True),
    Fault(
        "healthy-epochs",
        (),
        "two epochs on each batch, no entropy bonus, a warm-up of the learning rate",
        overrides=(f"{ACTOR}.ppo_epochs=2", f"{ACTOR}.entropy_coeff=0", f"{ACTOR}.optim.lr_warmup_steps=3"),
        extra=True,
    ),
)
