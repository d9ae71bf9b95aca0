"""RUN001, RUN002: one training step of the config goes through, and what it measured is numbers."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, unknown
from rlcheck.checks.rollout.start import details_of
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts

_SHOWN = ("actor/pg_loss", "actor/grad_norm", "critic/score/mean", "critic/vf_loss", "actor/ppo_kl")


@check("RUN001", "One training step goes through", needs=("smoke",), playbook="run-makes-no-progress",
       problem="One training step of the config does not go through")  # fmt: skip
def step_goes_through(facts: Facts) -> Verdict:
    """The config trains one step here: engine, rewards, advantages, both updates, and the new weights in the engine.

    What it does:
        Runs the config with a batch cut down to the smallest that its own rules allow, for one step, in a directory of
        its own, without a checkpoint. Lengths, models, placement and engine stay as they are.

    Why it matters:
        What no rule foresees shows at the first step: kernels, memory, workers that do not find each other, a reward
        that raises. In a job that waits in a queue that is a day later.
    """
    smoke = need(facts.smoke)
    failure = smoke.failure
    if failure is None:
        return passed(f"a step of {smoke.train_batch_size} prompts in {smoke.seconds:.1f} s, start and end included")
    if failure.kind == "missing":
        return unknown(failure.line)
    return fail(
        "one training step",
        failure.root or failure.line,
        details=(f"in stage: {failure.stage or 'start of Python'}", *details_of(failure)),
        evidence=(evidence("smoke.failure.line", failure.line, "the run"),),
    )


@check("RUN002", "The metrics of the step are finite", needs=("smoke",), playbook="training-turned-nan",
       caused_by=("RUN001",),
       problem="A metric of the step is not finite")  # fmt: skip
def metrics_are_finite(facts: Facts) -> Verdict:
    """No metric of the step is NaN or infinite.

    What it does:
        Reads the metrics that the step wrote: losses, norms of gradients, KL, rewards.

    Why it matters:
        A loss that is NaN in the first step stays so: every weight is NaN after the first update, and the run goes on
        to train nothing.
    """
    smoke = need(facts.smoke)
    if smoke.failure is not None:
        return skip("there was no step")
    if smoke.not_finite:
        return fail(
            "metrics that are finite",
            f"{', '.join(smoke.not_finite[:4])} not finite",
            details=smoke.not_finite,
            evidence=(evidence("smoke.not_finite", list(smoke.not_finite), "metrics of the step"),),
        )
    shown = [f"{name} {smoke.metrics[name]:.3g}" for name in _SHOWN if name in smoke.metrics]
    return passed(f"{len(smoke.metrics)} metrics, all finite{': ' if shown else ''}{', '.join(shown)}")
