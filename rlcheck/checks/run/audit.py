"""RUN041, RUN056: what the audit record of a run proves."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, unknown, warn
from rlcheck.checks.run.behaviour import CLIPPED, STEP_KL, reward_move
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, number_setting, proof, run_of, setting
from rlcheck.checks.run.settings import LR, override, several_updates, usual_lr
from rlcheck.checks.run.steps import KEPT_IN, largest_rate, never_differs, policy_moved, rounded_away
from rlcheck.facts.base import need, value_or, why_missing
from rlcheck.facts.document import Facts
from rlcheck.facts.run import AuditStep, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import steps_words

_FEWEST = 3
_OPTIM = LR.rpartition(".")[0]


@check("RUN041", "The policy's weights change", needs=NEEDS, playbook="weights-do-not-change",
       caused_by=("RUN010", "RUN011"))  # fmt: skip
def weights_change(facts: Facts) -> Verdict:
    """Looks whether optimizer steps move the weights at all.

    What it does:
        Compares the audit record's hashes of the parameters from step to step, and fails when they are equal although
        optimizer steps were taken. Fails on a learning rate that is 0, or rounds to it, throughout or from some step
        on. Without both, fails when the policy after several optimizer steps is exactly the one before, in every step.
        Warns when weights are kept in bfloat16, the rate is below what they can hold, and neither
        reward nor policy moves.

    Why it matters:
        A run whose weights stay as they are costs as much as one that learns, and its curves are only noise.
    """
    run = run_of(facts)
    found = _rate_is_zero(run) or _rate_ends(run) or _hashes_stay(run)
    if found is not None and found.status == "fail":
        return found
    return _rounded_away(run) or found or _policy_stays(run)


def _rate_is_zero(run: RunFacts) -> Verdict | None:
    rates = curve_of(run, "actor/lr")
    asked, least = number_setting(run, LR), limit("least_lr")
    if rates is not None and max(rates.values) > least:
        return None
    if rates is not None and len(rates.values) >= _FEWEST and not _warming_up(run, len(rates.values)):
        found, first, last = f"a learning rate of {max(rates.values):g} in every step", rates.steps[0], rates.steps[-1]
    elif rates is None and asked is not None and asked <= least:
        found, first, last = f"a learning rate of {asked:g} in the config", run.first_step, run.last_step
    else:
        return None
    return fail(
        f"a learning rate above {least:g}, which weights can hold",
        found,
        details=drawn(run, "actor/lr", "actor/grad_norm"),
        evidence=(proof("actor/lr", 0, first, last),),
        params=override(run, LR, usual_lr(run)),
    )


def _zero_from(values: tuple[float, ...], least: float) -> int:
    """How many values at the end are at most LEAST, after some that are more; 0 where all are."""
    count = next((place for place, value in enumerate(reversed(values)) if abs(value) > least), None)
    return count or 0


def _rate_ends(run: RunFacts) -> Verdict | None:
    """A schedule that is shorter than the run."""
    rates, least = curve_of(run, "actor/lr"), limit("least_lr")
    count = _zero_from(rates.values, least) if rates is not None else 0
    # The last steps of a schedule that ends with the run round to 0, too.
    if rates is None or count < max(limit("steps_at_rate_0"), 0.05 * len(rates.values)):
        return None
    since, before = rates.steps[-count], rates.values[-count - 1]
    constant = str(setting(run, f"{_OPTIM}.lr_scheduler_type") or "") == "constant"
    return fail(
        f"a learning rate above {least:g} to the end of the run",
        f"a learning rate of {rates.values[-1]:g} from step {since} on, in {count} of {len(rates.values)} steps, after"
        f" {before:g}: the schedule ended there, and nothing is learned after it",
        details=drawn(run, "actor/lr", STEP_KL, "actor/grad_norm"),
        evidence=(proof("actor/lr", f"{rates.values[-1]:g}", since, rates.steps[-1]),),
        params={"since": str(since), **({} if constant else override(run, f"{_OPTIM}.lr_scheduler_type", "constant"))},
    )


def _rounded_away(run: RunFacts) -> Verdict | None:
    """Steps below the spacing of bfloat16, after which neither reward nor policy is another one."""
    rate = largest_rate(run)
    if rate is None or not rounded_away(run):
        return None
    return warn(
        "weights in float32, or steps that 16 bits can hold",
        f"weights in bfloat16 and a learning rate of {rate:g}: most of its steps are rounded away (below about"
        f" {limit('bfloat16_step'):g}), and the reward went from {reward_move(run)}",
        details=drawn(run, "actor/lr", STEP_KL, "actor/grad_norm", "critic/score/mean"),
        evidence=(proof("actor/lr", f"{rate:g}", run.first_step, run.last_step),),
        params=override(run, KEPT_IN, "float32"),
    )


def _warming_up(run: RunFacts, steps: int) -> bool:
    warmup = number_setting(run, "actor_rollout_ref.actor.optim.lr_warmup_steps") or 0
    return steps <= max(warmup, number_setting(run, "trainer.critic_warmup") or 0)


def _hashes_stay(run: RunFacts) -> Verdict | None:
    audit = [one for one in value_or(run.audit, ()) if one.parameter_hashes]
    pairs = [(one, two) for one, two in pairwise(audit) if _stepped(one, two)]
    if not pairs:
        return None
    same = [two for one, two in pairs if one.parameter_hashes == two.parameter_hashes]
    stuck = sorted({rank for one, two in pairs for rank in _stuck(one, two)}) if same else []
    if len(same) < max(1, len(pairs) // 2):
        return passed(f"other weights after {len(pairs) - len(same)} of {len(pairs)} steps")
    return fail(
        "other weights after each optimizer step",
        f"the same in {len(same)} of {len(pairs)} steps, the first is {same[0].step}",
        details=(f"on ranks {', '.join(map(str, stuck))}", *drawn(run, "actor/grad_norm", "actor/lr", STEP_KL)),
        params={"stay": "stay as they are"},
        evidence=(evidence("run.audit.parameter_hashes", "equal", steps_words(same[0].step, same[-1].step)),),
    )


def _stepped(one: AuditStep, two: AuditStep) -> bool:
    """Whether the optimizer stepped between the two records, as far as they say."""
    return two.optimizer_steps > one.optimizer_steps or two.optimizer_steps < 0


def _stuck(one: AuditStep, two: AuditStep) -> list[int]:
    pairs = zip(one.parameter_hashes, two.parameter_hashes, strict=False)
    return [rank for rank, (before, after) in enumerate(pairs) if before == after]


def _policy_stays(run: RunFacts) -> Verdict:
    kl, clipped = curve_of(run, STEP_KL), curve_of(run, CLIPPED)
    if several_updates(run) and never_differs(run) and policy_moved(run):
        return passed("the policy changes over the run (that its KL within a step is 0 is reported by RUN038)")
    if several_updates(run) and kl is not None and clipped is not None and len(kl.values) >= _FEWEST:
        if not any(kl.values) and not any(clipped.values):
            return fail(
                "a policy that differs after several optimizer steps",
                f"a KL of exactly 0 in all {len(kl.values)} steps",
                details=drawn(run, STEP_KL, CLIPPED, "actor/grad_norm", "actor/lr"),
                evidence=(proof(STEP_KL, 0, kl.steps[0], kl.steps[-1]),),
                params={"stay": "stay as they are"},
            )
        return passed("the policy differs after the updates of a step")
    if kl is not None and any(kl.values) and several_updates(run) is not False:
        return passed("the policy differs after the updates of a step")
    return unknown("neither hashes of the weights nor a KL within a step are logged (trainer.audit=true writes them)")


@check("RUN056", "The audit record adds up", needs=NEEDS, playbook="audit-does-not-add-up",
       caused_by=("DRF004", "RUN040"))  # fmt: skip
def audit_adds_up(facts: Facts) -> Verdict:
    """Checks the sums that the audit record makes possible.

    What it does:
        Fails when the loss counted other than the generated tokens times the epochs, and when the optimizer's state
        counts fewer steps than were taken. Warns when a sample that was scored again earned something else, and when
        the count of steps does not rise.

    Why it matters:
        Each is a silent fault: tokens lost or counted twice, a reward that depends on chance, an optimizer that forgets
        its moments.
    """
    run = run_of(facts)
    if why_missing(run.audit) is not None:
        return skip(_absence(run))
    audit = need(run.audit)
    if not audit:
        return skip("the audit record is empty")
    epochs = number_setting(run, "actor_rollout_ref.actor.ppo_epochs") or 1
    for look in (_tokens(epochs), _scores, _forgets, _counts):
        verdict = look(audit)
        if verdict is not None:
            return verdict
    return passed(f"{len(audit)} records: tokens, scores and counts agree")


def _absence(run: RunFacts) -> str:
    """Why there is no audit record."""
    missing = why_missing(run.audit)
    return f"no audit record: {missing.reason}" if missing is not None else ""


def _tokens(epochs: float) -> Callable[[tuple[AuditStep, ...]], Verdict | None]:
    def look(audit: tuple[AuditStep, ...]) -> Verdict | None:
        told = [one for one in audit if one.response_tokens > 0 and one.loss_tokens >= 0]
        wrong = [one for one in told if abs(one.loss_tokens - one.response_tokens * epochs) > 0.5]
        if not wrong:
            return None
        one = wrong[0]
        return fail(
            f"a loss over {one.response_tokens:g} generated tokens x {epochs:g} epochs",
            f"{one.loss_tokens:g} tokens at step {one.step} ({one.loss_tokens - one.response_tokens * epochs:+g}), and"
            f" other sums in {len(wrong)} of {len(told)} steps",
            details=_rows(wrong),
            evidence=(evidence("run.audit.loss_tokens", one.loss_tokens, steps_words(one.step, wrong[-1].step)),),
        )

    return look


def _rows(wrong: list[AuditStep]) -> tuple[str, ...]:
    return tuple(
        f"step {one.step}: {one.response_tokens} generated, {one.loss_tokens:g} in the loss" for one in wrong[:6]
    )


def _scores(audit: tuple[AuditStep, ...]) -> Verdict | None:
    told = [one for one in audit if one.reward is not None and one.reward_again is not None]
    wrong = [one for one in told if abs((one.reward or 0.0) - (one.reward_again or 0.0)) > limit("rescored")]
    if not wrong:
        return None
    return warn(
        "the same reward for the same answer",
        f"{wrong[0].reward:g}, and {wrong[0].reward_again:g} when scored again at step {wrong[0].step}"
        f" ({len(wrong)} of {len(told)} steps)",
        details=tuple(f"step {one.step}: {one.reward:g}, then {one.reward_again:g}" for one in wrong[:6]),
        evidence=(evidence("run.audit.reward_again", wrong[0].reward_again,
                           steps_words(wrong[0].step, wrong[-1].step)),),
    )  # fmt: skip


def _counts(audit: tuple[AuditStep, ...]) -> Verdict | None:
    pairs = [(one, two) for one, two in pairwise(audit)
             if one.optimizer_steps >= 0 and two.optimizer_steps >= 0 and two.step == one.step + 1]  # fmt: skip
    back = [two for one, two in pairs if two.optimizer_steps < one.optimizer_steps]
    if not back:
        return None
    return warn(
        "a count of optimizer steps that rises",
        f"{back[0].optimizer_steps} at step {back[0].step}, more before: the optimizer started again",
        evidence=(evidence("run.audit.optimizer_steps", back[0].optimizer_steps, f"step {back[0].step}"),),
    )


def _forgets(audit: tuple[AuditStep, ...]) -> Verdict | None:
    """The optimizer's own count is behind that of the steps taken: its moments were thrown away in between."""
    told = [one for one in audit if one.adam_steps >= 0 and one.optimizer_steps >= 0]
    wrong = [one for one in told if one.adam_steps < one.optimizer_steps]
    if len(wrong) < max(1, len(told) // 4):
        return None
    last = wrong[-1]
    return fail(
        f"an optimizer whose state was made of the {last.optimizer_steps} steps that it has taken",
        f"{last.adam_steps} by its own count at step {last.step}, fewer than were taken in {len(wrong)} of {len(told)}"
        " steps: its moments are thrown away, so each step is as large as the learning rate whatever the gradient",
        headline="The optimizer forgets its moments",
        evidence=(evidence("run.audit.adam_steps", last.adam_steps, steps_words(wrong[0].step, last.step)),),
        params={"state": "the optimizer's state"},
    )
