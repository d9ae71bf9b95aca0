"""Clipping of the policy's ratio, of values and of gradients; the entropy bonus."""

from __future__ import annotations

from rlcheck.check import Verdict, check, passed, skip
from rlcheck.checks.config.limits import limit
from rlcheck.checks.config.roles import roles
from rlcheck.checks.config.say import Case, conclude, config_of, given
from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_legacy, is_verl, who

# Where verl's actor engines read the limit, and the key beside it that they do not.
_READ, _UNREAD = "{}.optim.clip_grad", "{}.grad_clip"
# Losses that clip the ratio itself; the others (cispo, geo_mean, dppo_tv, …) use the same keys for bounds of their own.
_CLIP_RATIOS = ("vanilla", "gspo")
_VERL_ROLES = {"actor": "actor_rollout_ref.actor", "critic": "critic"}


def _clips(actor: RoleSpec) -> tuple[float, float]:
    low = actor.clip_ratio if actor.clip_ratio_low is None else actor.clip_ratio_low
    high = actor.clip_ratio if actor.clip_ratio_high is None else actor.clip_ratio_high
    return low, high


@check("CFG052", "The policy's ratio is clipped as usual", needs=("config",), playbook="run-clipping",
       problem="The policy's ratio is not clipped as usual")  # fmt: skip
def ratio(facts: Facts) -> Verdict:
    """Looks at the clip of the ratio between new and old policy, by the loss that uses it.

    What it does:
        Warns above 0.3 for PPO's loss and above 0.01 for GSPO's; losses that clip in a way of their own are left
        alone. Fails for a dual clip (clip_ratio_c) that is not above 1, which stops the first update.

    Why it matters:
        PPO is stable because it clips. A wide clip lets one batch move the policy far: oscillating loss, rising KL.
    """
    run = config_of(facts)
    actor = run.spec.actor
    cases = list[Case]()
    if actor.clip_ratio_c is not None and actor.clip_ratio_c <= 1 and actor.loss_mode == "vanilla":
        cases += [Case("fail", "actor.clip_ratio_c", "more than 1",
                       f"{actor.clip_ratio_c:g}, which {who(run)} refuses", to=3.0)]  # fmt: skip
    if actor.loss_mode not in _CLIP_RATIOS:
        return conclude(run, cases, f"{actor.loss_mode} clips in its own way")
    low, high = _clips(actor)
    gspo = actor.loss_mode == "gspo"
    most, usual = (limit("max_gspo_clip_ratio"), 4e-4) if gspo else (limit("max_clip_ratio"), 0.2)
    for name, value in (("high", high), ("low", low)):
        field = f"actor.clip_ratio_{name}" if getattr(actor, f"clip_ratio_{name}") is not None else "actor.clip_ratio"
        if value > most and field not in (case.field for case in cases):
            what = "for sequences (gspo)" if gspo else "for tokens"
            cases += [Case("warn", field, f"at most {most:g} {what}", f"{value:g}", to=usual)]
    return conclude(run, cases, f"{low:g} below, {high:g} above")


@check("CFG053", "The clip that was set is the one that acts", needs=("config",), playbook="run-clipping",
       problem="The clip that was set is not the one that acts")  # fmt: skip
def ratio_in_effect(facts: Facts) -> Verdict:
    """Notices a clip_ratio that others override.

    What it does:
        clip_ratio_low and clip_ratio_high, where they are not null, go before clip_ratio. verl's defaults for both are
        0.2, so a clip_ratio alone changes nothing there.

    Why it matters:
        The clip that you believe to have set is still 0.2.
    """
    run = config_of(facts)
    actor = run.spec.actor
    low, high = _clips(actor)
    if not given(run, "actor.clip_ratio") or actor.clip_ratio in (low, high):
        return passed("as set")
    if given(run, "actor.clip_ratio_low") and given(run, "actor.clip_ratio_high"):
        return passed("both sides are given")
    found = f"clip_ratio {actor.clip_ratio:g} without effect: {low:g} below and {high:g} above act"
    sides = [side for side in ("high", "low") if not given(run, f"actor.clip_ratio_{side}")]
    cases = [
        Case("warn", "actor.clip_ratio", f"{actor.clip_ratio:g} on both sides", found,
             to=actor.clip_ratio, also=f"actor.clip_ratio_{side}") for side in sides
    ]  # fmt: skip
    return conclude(run, cases, "")


@check("CFG054", "Gradients are clipped", needs=("config",), playbook="run-clipping",
       problem="Gradients are not clipped")  # fmt: skip
def gradients(facts: Facts) -> Verdict:
    """Looks at the largest gradient norm of actor and critic.

    What it does:
        Warns without a limit and above 100, fails at 0 or below. verl asserts that there is one. Also notices verl's
        older key grad_clip, which its engines do not read: they read optim.clip_grad.

    Why it matters:
        One bad batch gives one huge gradient: the critic's loss becomes infinite, then all weights are nan, and the
        engine answers with exclamation marks.
    """
    run = config_of(facts)
    cases = list[Case]()
    for role in roles(run):
        if role.spec.trained:
            cases += _limit(run, role.name, role.spec.optim.grad_clip) + _unread(run, role.name)
    return conclude(run, cases, "with a limit")


def _limit(run: ConfigFacts, name: str, norm: float | None) -> list[Case]:
    field = f"{name}.optim.grad_clip"
    if norm is None:
        refused = run.framework == "verl"
        found = "none, which verl refuses" if refused else "none"
        return [Case("fail" if refused else "warn", field, "a largest gradient norm, such as 1.0", found, to=1.0)]
    if norm <= 0:
        return [Case("fail", field, "a limit above 0", f"{norm:g}: no gradient is left", to=1.0)]
    if norm > limit("max_grad_clip"):
        return [Case("warn", field, f"at most {limit('max_grad_clip'):g}", f"{norm:g}, which never acts", to=1.0)]
    return []


def _unread(run: ConfigFacts, name: str) -> list[Case]:
    role = _VERL_ROLES.get(name, "")
    read, unread = _READ.format(role), _UNREAD.format(role)
    if not is_verl(run) or is_legacy(run) or not role or unread not in run.given:
        return []
    wanted, acts = run.values.get(unread), run.values.get(read)
    if wanted == acts:
        return []
    found = f"grad_clip {wanted}, which is not read: {read}={acts} acts"
    if isinstance(wanted, int | float) and 0 < wanted <= limit("max_grad_clip"):
        return [Case("warn", unread, f"the limit in {read}", found, to=wanted, also=read)]
    # Where it acts this value would stop the training, so it becomes the one that acts.
    return [Case("warn", unread, f"the limit in {read}", found, to=acts)]


@check("CFG055", "Values are clipped as usual", needs=("config",), playbook="run-clipping",
       problem="Values are not clipped as usual")  # fmt: skip
def values(facts: Facts) -> Verdict:
    """Looks at cliprange_value, by which the critic's prediction may move in one update.

    What it does:
        Warns at 0 or below; mentions what is above 1.

    Why it matters:
        At 0 the clipped loss holds the critic where it is. A range above the spread of the rewards clips nothing.
    """
    run = config_of(facts)
    critic = run.spec.critic
    if critic is None or critic.cliprange_value is None:
        return skip("no critic, or no clip of its values")
    clip, field = critic.cliprange_value, "critic.cliprange_value"
    if clip <= 0:
        return conclude(run, [Case("warn", field, "more than 0", f"{clip:g}", to=0.5)], "")
    if clip <= limit("max_value_clip"):
        return passed(f"{clip:g}")
    usual = f"at most {limit('max_value_clip'):g}"
    return conclude(run, [Case("info", field, usual, f"cliprange_value {clip:g}", to=0.5)], "")


@check("CFG056", "The entropy bonus is a small bonus", needs=("config",), playbook="run-entropy")
def entropy(facts: Facts) -> Verdict:
    """Looks at the sign and size of entropy_coeff.

    What it does:
        The coefficient times the entropy is subtracted from the loss: positive keeps the policy open. Warns below 0 and
        above 0.1.

    Why it matters:
        Below 0 the policy is pushed to certainty and stops exploring. Large ones let the entropy explode into random
        text; with an LLM even 0.001 has done that.
    """
    run = config_of(facts)
    coeff, field, most = run.spec.actor.entropy_coeff, "actor.entropy_coeff", limit("max_entropy_coeff")
    if coeff < 0:
        to = -coeff if -coeff <= most else 0.0
        return conclude(run, [Case("warn", field, "0 or more", f"{coeff:g}, which punishes entropy", to=to)], "")
    if coeff > most:
        return conclude(run, [Case("warn", field, f"at most {most:g}", f"{coeff:g}", to=0.0)], "")
    return passed(f"{coeff:g}")
