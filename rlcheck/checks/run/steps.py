"""RUN030, RUN038: how far one training step moves the policy."""

from __future__ import annotations

from itertools import pairwise

from rlcheck.check import Evidence, Verdict, check, fail, info, passed, warn
from rlcheck.checks.run.behaviour import (
    CLIPPED,
    EDGE,
    ENTROPY,
    GRAD_NORM,
    STEP_KL,
    end_of,
    reward_move,
    solved,
    start_of,
)
from rlcheck.checks.run.causes import DRIFT
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, lacking, number_setting, proof, run_of, setting
from rlcheck.checks.run.settings import CLIPS, EPOCHS, LR, kind_of_model, override, several_updates, usual_lr
from rlcheck.checks.run.spikes import spikes_of
from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import left_band, median, steps_words, window

_SHOWN = (STEP_KL, CLIPPED, "actor/entropy", "critic/score/mean", GRAD_NORM, "actor/lr")


_USUAL = {"usual": "usual"}
KEPT_IN = "actor_rollout_ref.actor.fsdp_config.model_dtype"
"""The data type in which the optimizer changes the weights."""


@check("RUN030", "The policy's steps are of a sane size", needs=NEEDS, playbook="steps-too-large",
       caused_by=("DRF001", "DRF002", "DRF003", "DRF005", "RUN040", "RUN056"))  # fmt: skip
def step_size(facts: Facts) -> Verdict:
    """Judges the learning rate, and how far a step moves the policy from the one that sampled.

    What it does:
        Takes the largest learning rate that the run used, from its metrics or its config, and the KL from the old to
        the new policy (actor/ppo_kl) with the clip fraction from the first step on. Fails on a rate that no network
        takes (0.05 and more with Adam), and on steps of a KL above 0.1 that break entropy, reward or the clip. Warns
        on large steps that broke nothing yet, on steps that hardly move a policy that learns nothing, and names a rate
        that is high for the model.

    Why it matters:
        Adam moves each weight by about the learning rate at every step. Steps that are too large break the policy in
        the first few, and it does not come back.
    """
    run = run_of(facts)
    rate, kl = largest_rate(run), curve_of(run, STEP_KL)
    if rate is None and kl is None:
        return lacking(run, STEP_KL, "actor/lr")
    since = broken_since(run)
    broke = broken_words(run, since)
    if rate is not None and ((rate >= limit("absurd_lr") and not _plain_sgd(run)) or (rate >= _suspect(run) and broke)):
        return _too_fast(run, rate, since, broke)
    if since is not None:
        return _too_far(run, rate, since, broke)
    if kl is not None and rate is not None and _hardly_moves(run, kl, rate):
        return _too_short(run, kl, rate)
    if rate is not None and rate >= _suspect(run):
        return info(
            f"a learning rate of {rate:g} is high ({_suspect(run):g} and more), though steps are small so far",
            details=drawn(run, *_SHOWN),
            evidence=(proof("actor/lr", f"{rate:g}", run.first_step, run.last_step),),
        )
    words = [f"learning rate at most {rate:g}"] if rate is not None else []
    words += [f"KL of a step {median(kl.values) or 0.0:.2g}, at most {max(kl.values):.2g}"] if kl is not None else []
    return passed(", ".join(words))


def largest_rate(run: RunFacts) -> float | None:
    """The largest learning rate of the policy: as it was used, else as the config says."""
    used = curve_of(run, "actor/lr")
    return max(used.values) if used is not None else number_setting(run, LR)


def _suspect(run: RunFacts) -> float:
    kind = kind_of_model(run)
    return limit("suspect_lr_of_full_model") if kind == "full" else limit("suspect_lr")


def _plain_sgd(run: RunFacts) -> bool:
    """Whether steps are as long as the gradient, so that the rate alone says nothing."""
    return "sgd" in str(setting(run, "actor_rollout_ref.actor.optim.optimizer", "optim") or "").lower()


def broken_since(run: RunFacts) -> int | None:
    """The first step from which steps of the policy stay too large; None if there is none, or a spike comes first."""
    kl = curve_of(run, STEP_KL)
    if kl is None:
        return _shocked_at(run)
    most = limit("step_kl")
    since = left_band(kl, -most, most, min(EDGE, max(2, len(kl.values))))
    early = kl.values[:2]
    # One large value may be what a first step with nothing but a bonus looks like: what follows must show the harm.
    if since is None and any(abs(value) > 5 * most for value in early) and _hit(run, kl.steps[0]):
        since = kl.steps[0]
    spike = min((found.step for found in spikes_of(run, "actor")), default=None)
    # What a single gradient broke is reported by RUN031.
    return None if since is not None and spike is not None and kl.steps[0] + 1 < spike <= since else since


def _hit(run: RunFacts, since: int) -> bool:
    """Whether the clip held most tokens, or the entropy became quite another, in the steps after SINCE."""
    clipped = curve_of(run, CLIPPED)
    later = window(clipped, since, since + NEAR).values if clipped is not None else ()
    return max(later, default=0.0) > limit("broken_clip_fraction") or bool(_entropy_words(run, since))


def _shocked_at(run: RunFacts) -> int | None:
    """Where no KL of a step is logged: the step among the first after which the entropy is quite another."""
    entropy, move = curve_of(run, *ENTROPY), reward_move(run)
    if entropy is None or move is None or move.up:
        return None
    for place in range(1, min(1 + EDGE, len(entropy.values))):
        before, after = entropy.values[place - 1], entropy.values[place]
        if after < 0.5 * before or after > max(1.5 * before, before + limit("entropy_explosion_nats")):
            return entropy.steps[place - 1]
    return None


def broken_words(run: RunFacts, since: int | None) -> tuple[str, ...]:
    """What says that the steps are too large: clip, entropy, reward. Nothing does where the reward rises after them."""
    move = None if since is None else reward_move(run, since + 1)
    if since is None or (move is not None and move.up):
        return ()
    words: list[str] = []
    clipped = curve_of(run, CLIPPED)
    if clipped is not None:
        later = window(clipped, since, since + NEAR).values
        if later and max(later) > limit("broken_clip_fraction"):
            words.append(f"the clip holds {max(later):.0%} of the tokens")
    words += _entropy_words(run, since)
    if move is not None:
        words.append(f"the reward went from {move}")
    return tuple(words)


NEAR = 10
"""Steps after the break that are looked at."""


def _entropy_words(run: RunFacts, since: int) -> list[str]:
    entropy = curve_of(run, *ENTROPY)
    if entropy is None:
        return []
    later = window(entropy, since + 1, since + NEAR).values
    first = entropy.values[0] if since <= entropy.steps[0] else start_of(entropy)
    low, high = (min(later), max(later)) if later else (first, first)
    if low < 0.5 * first or high > 1.5 * first:
        return [f"the entropy went from {first:.3g} to {low if low < 0.5 * first else high:.3g}"]
    return []


def _too_fast(run: RunFacts, rate: float, since: int | None, broke: tuple[str, ...]) -> Verdict:
    kind = kind_of_model(run)
    usual = usual_lr(run)
    what = {"lora": "LoRA", "tiny": "so small a model"}.get(kind, "full tuning")
    first = since if since is not None else run.first_step
    return fail(
        f"a learning rate near {usual:g}, as {what} takes",
        f"a learning rate of {rate:g}"
        + (f"; since step {since} {', '.join(broke)}" if broke and since is not None else ""),
        details=drawn(run, *_SHOWN),
        evidence=(proof("actor/lr", f"{rate:g}", first, run.last_step), *_kl_proof(run, first)),
        params={**_stop(first), **override(run, LR, usual)},
    )


def _stop(since: int) -> dict[str, str]:
    """What the playbook says of steps that are too large, which is wrong for those that are too small."""
    return {"since": str(since), **_USUAL}


def _too_far(run: RunFacts, rate: float | None, since: int, broke: tuple[str, ...]) -> Verdict:
    kl = curve_of(run, STEP_KL)
    later = [abs(value) for value in window(kl, since, run.last_step).values] if kl is not None else []
    # Without the KL, what broke may have broken otherwise.
    judge = fail if broke and later else warn
    divisor = 10 if max(later, default=0.0) > 10 * limit("step_kl") else 2
    return judge(
        f"steps that move the policy by a KL of at most {limit('step_kl'):g}",
        _sizes(later, since) + (f"; {', '.join(broke)}" if broke else ""),
        details=(steps_words(since, run.last_step), *drawn(run, *_SHOWN)),
        evidence=_kl_proof(run, since),
        params={
            **_stop(since),
            **(_fewer_epochs(run) or override(run, LR, rate / divisor if rate else usual_lr(run))),
        },
    )


def _fewer_epochs(run: RunFacts) -> dict[str, str]:
    epochs = number_setting(run, EPOCHS)
    return override(run, EPOCHS, 1) if epochs is not None and epochs > limit("many_epochs") else {}


def _sizes(later: list[float], since: int) -> str:
    usual = median(later) or 0.0
    if not later:
        return f"larger steps from step {since} on"
    if usual <= limit("step_kl"):
        return f"a KL of up to {max(later):.3g} in a step, from step {since} on"
    return f"a KL of {usual:.3g} in a step ({max(later):.3g} at most), from step {since} on"


def _hardly_moves(run: RunFacts, kl: Curve, rate: float) -> bool:
    """A rate far below the usual one, several updates after which the policy is almost the same, nothing learned."""
    clipped, move = curve_of(run, CLIPPED), reward_move(run)
    if not kind_of_model(run) or rate > 0.1 * usual_lr(run) or not several_updates(run) or rounded_away(run):
        return False
    if len(kl.values) < limit("slow_steps") or move is None or move.up or solved(run):
        return False
    tiny = (median(abs(value) for value in kl.values) or 0.0) < limit("tiny_step_kl")
    return tiny and (clipped is None or not median(clipped.values))


def rounded_away(run: RunFacts) -> bool:
    """Whether steps are below the spacing of weights in bfloat16, and neither reward nor policy moves."""
    rate, kl, move = largest_rate(run), curve_of(run, STEP_KL), reward_move(run)
    if setting(run, KEPT_IN) not in ("bfloat16", "bf16") or rate is None or rate >= limit("bfloat16_step"):
        return False
    if run.num_steps < limit("slow_steps") or move is None or move.up or kl is None:
        return False
    return (median(abs(value) for value in kl.values) or 0.0) <= limit("tiny_step_kl")


def _too_short(run: RunFacts, kl: Curve, rate: float) -> Verdict:
    usual = median(abs(value) for value in kl.values) or 0.0
    return warn(
        f"a learning rate near {usual_lr(run):g}, with which a policy moves",
        f"a learning rate of {rate:g}: a KL of {usual:.2g} in a step, and a reward that goes from {reward_move(run)}",
        headline="The policy's steps are too small",
        details=drawn(run, *_SHOWN),
        evidence=(proof(STEP_KL, f"{usual:.3g}", kl.steps[0], kl.steps[-1]),),
        params={**_USUAL, **override(run, LR, usual_lr(run))},
    )


def _kl_proof(run: RunFacts, first: int) -> tuple[Evidence, ...]:
    kl = curve_of(run, STEP_KL)
    return () if kl is None else (proof(STEP_KL, f"{start_of(window(kl, first, run.last_step)):.3g}", first),)


@check("RUN038", "PPO's clip limits only a small share of the tokens", needs=NEEDS, playbook="steps-too-large",
       caused_by=(*DRIFT, "RUN030", "RUN031", "RUN033", "RUN036"),
       problem="The clip holds too many tokens")  # fmt: skip
def clip_fraction(facts: Facts) -> Verdict:
    """Looks at the share of tokens that PPO's clip holds.

    What it does:
        Fails when the policy changes, with several optimizer steps on a batch, while clip fraction and KL of a step are
        exactly 0: the old log-probabilities are the new policy's own. Warns when actor/pg_clipfrac stays above 0.3
        (because steps are large, or the clip is next to nothing), and when it is above 0 although each step has one
        optimizer step only: then the new policy is the old one, and no token can have left the clip.

    Why it matters:
        A token that the clip holds teaches nothing. Many of them mean that the policy goes too far from the one that
        sampled; some on a step that should be exact mean that its log-probabilities were computed in another way.
    """
    run = run_of(facts)
    curve = curve_of(run, CLIPPED)
    if curve is None:
        return lacking(run, CLIPPED)
    several, high = several_updates(run), limit("clip_fraction")
    if several and never_differs(run) and policy_moved(run):
        return _old_is_new(run, curve)
    since = left_band(curve, None, high)
    if since is not None and (end_of(curve) > high or (median(curve.values) or 0.0) > high):
        return warn(
            f"at most {high:.0%} of the tokens held by the clip",
            f"{median(window(curve, since, run.last_step).values) or 0.0:.0%} of the tokens from step {since} on"
            + (f", with a clip ratio of {number_setting(run, *CLIPS):g}" if _wider_clip(run) else ""),
            details=drawn(run, CLIPPED, STEP_KL, "actor/lr"),
            evidence=(proof(CLIPPED, f"{end_of(curve):.3g}", since, run.last_step),),
            params={**_USUAL, **_wider_clip(run)} if _wider_clip(run) else {**_stop(since), **half_rate(run)},
        )
    if several is False and (median(curve.values) or 0.0) > limit("on_policy_clip_fraction"):
        return warn(
            "no token beyond the clip, since each step has one optimizer step",
            f"{median(curve.values) or 0.0:.2%} of the tokens",
            headline="The clip holds tokens in the first optimizer step",
            details=drawn(run, CLIPPED, STEP_KL),
            evidence=(proof(CLIPPED, f"{median(curve.values) or 0.0:.3g}", run.first_step, run.last_step),),
            params={"updates": "one"},
        )
    if several and not any(curve.values) and len(curve.values) >= 5:
        small = median(abs(value) for value in kl.values) if (kl := curve_of(run, STEP_KL)) is not None else None
        why = "" if small is None else f": the KL of a step is {small:.2g}"
        return info(f"the clip never holds a token{why}", details=drawn(run, CLIPPED, STEP_KL))
    return passed(f"{median(curve.values) or 0.0:.2%} of the tokens, at most {max(curve.values):.1%}")


def _old_is_new(run: RunFacts, curve: Curve) -> Verdict:
    return fail(
        "a new policy that differs from the old one after the first optimizer step of a batch",
        f"a KL of a step and a clip fraction of exactly 0 in all {len(curve.values)} steps, while the policy changes:"
        " the old log-probabilities are the new policy's own, and the clip never acts",
        headline="The old policy is taken for the new one",
        details=drawn(run, STEP_KL, CLIPPED, GRAD_NORM, "actor/lr", "actor/entropy", "critic/score/mean"),
        evidence=(proof(STEP_KL, 0, curve.steps[0], curve.steps[-1]),),
        params={"old": "old log-probabilities"},
    )


def never_differs(run: RunFacts) -> bool:
    """Whether KL of a step and clip fraction are logged, and exactly 0 in every step."""
    kl, clipped = curve_of(run, STEP_KL), curve_of(run, CLIPPED)
    if kl is None or clipped is None or len(kl.values) < EDGE:
        return False
    return not any(kl.values) and not any(clipped.values)


def policy_moved(run: RunFacts) -> bool:
    """Whether the policy became another one over the run: by hashes of its weights, its reward or its entropy."""
    audit = [one.parameter_hashes for one in value_or(run.audit, ()) if one.parameter_hashes]
    if len(audit) > 1:
        return sum(before != after for before, after in pairwise(audit)) > len(audit) // 2
    move, entropy = reward_move(run), curve_of(run, *ENTROPY)
    fell = entropy is not None and abs(end_of(entropy) - start_of(entropy)) > 0.1 * abs(start_of(entropy))
    return fell or (move is not None and move.up)


def _wider_clip(run: RunFacts) -> dict[str, str]:
    """The override for a clip that is next to nothing for a ratio of tokens; GSPO's ratio is of whole answers."""
    widest = max((number_setting(run, key) or 0.0 for key in CLIPS), default=0.0)
    whole = str(setting(run, "actor_rollout_ref.actor.policy_loss.loss_mode") or "vanilla") != "vanilla"
    set_at_all = any(key in run.settings for key in CLIPS)
    return override(run, CLIPS[0], 0.2) if set_at_all and widest < limit("least_clip") and not whole else {}


def half_rate(run: RunFacts) -> dict[str, str]:
    """The override that halves the policy's learning rate; empty where the rate is not known."""
    rate = largest_rate(run)
    return override(run, LR, rate / 2) if rate else {}
