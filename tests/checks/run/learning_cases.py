"""RUN010 to RUN024: a run on which each fires, and one on which it stays quiet."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import msgspec

from rlcheck.facts.base import known, need
from rlcheck.facts.document import Facts
from rlcheck.facts.run import AuditStep, Curve, SampleRow
from tests.checks.run.simulated import (
    ROLLOUT,
    Answer,
    Policy,
    Reward,
    centred,
    digits,
    grouped,
    raw,
    simulate,
    whitened,
)

SHUFFLED = "val/reward/shuffled"
RISING = [0.1 + 0.03 * step + 0.005 * (step % 2) for step in range(30)]
FLAT = [0.3 + 0.005 * (step % 3) for step in range(30)]
DROPPING = [0.6 - 0.02 * step + 0.003 * (step % 2) for step in range(30)]


def always(reward: Reward) -> Callable[[int], Reward]:
    """The same reward in every step."""
    return lambda step: reward


def negative(answer: Answer) -> float:
    """The sign is turned round."""
    return -digits(answer)


def constant(answer: Answer) -> float:
    """Everything earns 1."""
    return 1.0


def at_random(answer: Answer) -> float:
    """Nothing of the ground truth."""
    return random.Random(answer.text + answer.truth).random()


def by_length(answer: Answer) -> float:
    """The longer the better."""
    return len(answer.text) / 6


def with_nan(facts: Facts, name: str, steps: tuple[int, ...]) -> Facts:
    """The metric NAME has no number at STEPS."""
    run = need(facts.run)
    old = run.curves[name]
    kept = [(step, value) for step, value in zip(old.steps, old.values, strict=True) if step not in steps]
    curve = Curve(steps=tuple(s for s, _ in kept), values=tuple(v for _, v in kept), nonfinite=steps)
    return changed(facts, curves={**run.curves, name: curve})


def changed(facts: Facts, **fields: Any) -> Facts:
    """The run with other fields."""
    return Facts(run=known(msgspec.structs.replace(need(facts.run), **fields)))


def without_samples(facts: Facts) -> Facts:
    """The run wrote none."""
    return changed(facts, samples=GONE)


def saying(*texts: str, truth: str = "42", step: int = 30, length: int = 12, reward: float = 1.0) -> list[SampleRow]:
    """Samples of STEP: to each prompt one of TEXTS."""
    return [SampleRow(step=step, prompt=f"question {place}", response=text, ground_truth=f"{truth}{place}",
                      reward=reward, length=length) for place, text in enumerate(texts)]  # fmt: skip


def at_steps(values: dict[int, float]) -> Curve:
    """A curve with values at these steps only, as validation has."""
    return Curve(steps=tuple(values), values=tuple(values.values()))


def validated(facts: Facts, values: dict[int, float], **more: Curve) -> Facts:
    """The run with a validation reward."""
    run = need(facts.run)
    return changed(facts, curves={**run.curves, "val/reward/mean": at_steps(values), **more})


def sources(facts: Facts, **means: list[float]) -> Facts:
    """Rewards by data source."""
    run = need(facts.run)
    steps = tuple(range(1, 31))
    more = {f"reward/{name}/mean": Curve(steps=steps, values=tuple(values)) for name, values in means.items()}
    more |= {f"reward/{name}/zero_share": Curve(steps=steps, values=tuple(float(not value) for value in values))
             for name, values in means.items()}  # fmt: skip
    return changed(facts, curves={**run.curves, **more})


def parts(facts: Facts, **means: list[float]) -> Facts:
    """Rewards of one source, by part."""
    made = sources(facts, math=RISING)
    run, steps = need(made.run), tuple(range(1, 31))
    more = {f"reward/math/{name}/mean": Curve(steps=steps, values=tuple(values)) for name, values in means.items()}
    return changed(made, curves={**run.curves, **more})


PLAIN = " ".join(
    f"{word}{ending}"
    for ending in ("", "s", "ed")
    for word in ("look", "ask", "call", "want", "turn", "help", "play", "talk", "walk", "work")
)
GOOD = simulate(Policy())
GONE = Facts().rollout
PPO = simulate(Policy(advantages=whitened, estimator="gae"))
ONE_EACH = changed(PPO, settings={**need(PPO.run).settings, f"{ROLLOUT}.n": 1})
RISEN = simulate(Policy(), critic__score__mean=RISING)
STILL = simulate(Policy(skill=lambda progress: 0.3))
FLIPPED = simulate(Policy(reward=always(negative)))
FALLING = simulate(Policy(skill=lambda progress: 0.5 * (1 - progress)))
COLLAPSED = simulate(Policy(skill=lambda progress: 2 * progress if progress < 0.4 else 0.1))
SATURATED = simulate(Policy(), critic__score__mean=[0.99 + 0.001 * (step % 3) for step in range(30)])
SMALL = simulate(Policy(advantages=centred, estimator="gae"))
DR_GRPO = simulate(Policy(advantages=centred, settings={"algorithm.norm_adv_by_std_in_grpo": False}))
TWINS = simulate(Policy(twins=2))
SPARSE = simulate(Policy(), train__zero_advantage_groups=[0.9] * 30)
SAME_ANSWER = changed(RISEN, samples=known((*saying(*"abcdefgh", step=1), *saying(*["it is 7"] * 8))))
ONE_SOURCE_EMPTY = sources(GOOD, math=RISING, code=[0.0] * 30)
VAL_FALLS = validated(RISEN, {0: 0.5, 10: 0.4, 20: 0.3, 30: 0.2})
NEVER_ENDS = simulate(Policy(ends=0.0))
CUT = simulate(Policy(limit=3, stated=3))
SOLVED_AT_THE_LIMIT = without_samples(simulate(Policy(), critic__score__mean=[0.5] * 10 + [0.97] * 20))
BANNED = simulate(Policy(), response_length__min=[3.0] * 15 + [6.0] * 15,
                  response_length__clip_ratio=[0.8, 0.78, 0.82] * 5 + [1.0] * 15)  # fmt: skip
FILLS_UP = simulate(Policy(), response_length__min=[3.0] * 15 + [6.0] * 15,
                    response_length__clip_ratio=[0.4 + 0.04 * step for step in range(15)] + [1.0] * 15)  # fmt: skip
NO_GROUP = simulate(Policy(advantages=lambda s, n: [0.0 for _ in s]), ("train/zero_advantage_groups",))
ONE_SIGN = changed(simulate(Policy(advantages=raw)), settings={})
DISCOUNTED = changed(
    simulate(Policy(advantages=whitened, estimator="gae"), critic__returns__mean=[0.1] * 30,
             critic__rewards__mean=[0.2] * 30, response_length__mean=[5.0] * 30),
    settings={**need(PPO.run).settings, "algorithm.gamma": 0.5})  # fmt: skip
SHORT = without_samples(simulate(Policy(limit=6, ends=0.1)))
LONGER = simulate(Policy(), response_length__mean=[3.0 + step for step in range(30)], critic__score__mean=DROPPING)

NO_PROMPT = validated(RISEN, {0: 0.2, 10: 0.7, 30: 0.83}, **{
    SHUFFLED: at_steps({0: 0.2, 10: 0.7, 30: 0.82})})  # fmt: skip
TWO_PROMPTS = changed(RISEN, samples=known(tuple(
    row for step in range(1, 31, 5) for row in saying("4", "7", step=step))))  # fmt: skip
OTHER_ROWS = simulate(Policy(), critic__score_advantage_corr=[-0.1 + 0.01 * (step % 5) for step in range(30)])
_WHOLE = {**need(GOOD.run).settings, "reward_model.rules": [{"kind": "digits", "weight": 1.0}]}
UNDERPAID = changed(GOOD, settings=_WHOLE, audit=known((AuditStep(step=1, truths=(("3797", 0.75), ("4649", 0.75))),)))
CUT_OFF = changed(
    GOOD,
    settings=_WHOLE,
    samples=known(
        tuple(
            SampleRow(step=step, prompt=f"copy {truth}", response=truth + more, ground_truth=truth, reward=reward)
            for step in range(1, 31)
            for truth, more, reward in (("3797", "", 0.75), ("4649", "1", 1.0), ("1082", "55", 0.8))
        )
    ),
)
REPEATED = changed(
    GOOD,
    samples=known(
        tuple(
            SampleRow(step=step, prompt="copy 3797", response=f"{place}{'' if place % 2 else step}", reward=0.1)
            for step in range(1, 31)
            for place in range(8)
        )
    ),
)

CASES: dict[str, tuple[Facts, Facts]] = {
    "RUN010": (with_nan(GOOD, "critic/score/mean", (12, 13, 14)), GOOD),
    "RUN011": (simulate(Policy(reward=always(constant))), GOOD),
    "RUN012": (FLIPPED, GOOD),
    "RUN013": (TWINS, GOOD),
    "RUN014": (SPARSE, GOOD),
    "RUN015": (SMALL, PPO),
    "RUN016": (STILL, GOOD),
    "RUN017": (COLLAPSED, GOOD),
    "RUN018": (SATURATED, GOOD),
    "RUN019": (SAME_ANSWER, GOOD),
    "RUN020": (ONE_SOURCE_EMPTY, sources(GOOD, math=RISING, code=FLAT)),
    "RUN021": (VAL_FALLS, validated(RISEN, {0: 0.1, 10: 0.3, 20: 0.5, 30: 0.8})),
    "RUN022": (NEVER_ENDS, GOOD),
    "RUN023": (CUT, GOOD),
    "RUN024": (LONGER, GOOD),
}

OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "RUN010": (
        with_nan(GOOD, "critic/score/mean", (30,)),
        changed(GOOD, error="the reward 'exact' of sample 3/1 is nan, must be finite", outcome="failed"),
    ),
    "RUN011": (
        simulate(Policy(reward=lambda step: digits if step < 14 else lambda answer: 0.0)),
        simulate(Policy(reward=always(constant), steps=2)),
        without_samples(simulate(Policy(reward=always(constant)), ("critic/score/max", "critic/score/std"))),
    ),
    "RUN012": (
        simulate(Policy(reward=always(negative), every=10)),
        simulate(Policy(reward=lambda step: digits if step < 12 else negative)),
        changed(FLIPPED, settings={"reward_model.rules": [{"kind": "digits", "weight": -1.0}]}, framework="rltrain"),
        changed(FLIPPED, settings={"custom_reward_function.weight": -0.5}, framework="rltrain"),
        simulate(Policy(skill=lambda p: 0.02, advantages=lambda s, n: [-a for a in whitened(s, n)], estimator="gae")),
        FALLING,
        simulate(Policy(reward=always(at_random))),
        validated(without_samples(simulate(Policy(reward=always(negative)))), {0: 0.06, 30: 0.0}),
        without_samples(changed(FLIPPED, settings={"custom_reward_function.weight": -0.5})),
        OTHER_ROWS,
        UNDERPAID,
        CUT_OFF,
    ),
    "RUN013": (
        simulate(Policy(twins=8)),
        simulate(Policy(twins=2), ("response/duplicate_ratio",), actor__entropy=[2.5] * 30),
        REPEATED,
    ),
    "RUN014": (
        simulate(Policy(reward=always(constant))),
        NO_GROUP,
        simulate(Policy(), train__zero_advantage_groups=[0.1 + 0.03 * step for step in range(30)],
                 critic__score__mean=[0.1 + 0.03 * step for step in range(30)]),
    ),
    "RUN015": (
        simulate(Policy(advantages=centred)),
        simulate(Policy(advantages=raw)),
        simulate(Policy(advantages=lambda s, n: [3 * a for a in grouped(s, n)])),
        simulate(Policy(advantages=lambda s, n: [a + 0.4 for a in whitened(s, n)], estimator="reinforce_plus_plus")),
        simulate(Policy(advantages=centred, estimator="gae"), ("critic/advantages/std",)),
        simulate(Policy(advantages=raw, estimator="rloo")),
        DR_GRPO,
        ONE_SIGN,
        changed(simulate(Policy(advantages=lambda s, n: [-a for a in raw(s, n)])), settings={}),
        DISCOUNTED,
    ),
    "RUN017": (
        simulate(Policy(), critic__score__mean=[min(0.7, 0.1 + 0.05 * s) - 0.03 * max(0, s - 20) for s in range(30)]),
        simulate(Policy(), critic__score__min=[-9.0] * 30, critic__score__mean=[
            min(2.0, -1 + 0.3 * s) - 0.4 * max(0, min(s, 27) - 20) for s in range(30)]),
    ),
    "RUN019": (
        validated(RISEN, {0: 0.95, 30: 0.95}, **{"val/reward/best_constant": at_steps({0: 0.97, 30: 0.97})}),
        changed(RISEN, samples=known((*saying(*[PLAIN] * 4, step=1), *saying(*["so it is and " * 20] * 4)))),
        parts(RISEN, format=RISING, exact=FLAT),
        simulate(Policy(), critic__score__mean=RISING, rewards__format__mean=RISING, rewards__right__mean=FLAT),
        simulate(Policy(), critic__score__mean=RISING, rollout__repetition_frac=[0.02 * step for step in range(30)]),
        parts(RISEN, style=RISING, exact=DROPPING),
        simulate(Policy(reward=always(by_length), limit=20, stated=20, ends=0.9, skill=lambda p: 0.1),
                 critic__score__mean=RISING),
        NO_PROMPT,
        validated(simulate(Policy(), critic__score__mean=RISING, response_length__mean=[4.0 + s for s in range(30)]),
                  {0: 0.3, 15: 0.3, 30: 0.25}),
    ),
    "RUN020": (
        sources(GOOD, math=RISING, easy=[0.99] * 30),
        sources(changed(GOOD, curves={**need(GOOD.run).curves, "reward/code/count": at_steps({1: 5000.0})}),
                math=RISING, code=[0.0] * 30),
        changed(GOOD, curves={f"val-core/{name}/reward/mean@1": at_steps({0: mean, 10: mean, 20: mean, 30: mean})
                              for name, mean in (("openai/gsm8k", 0.4), ("math", 0.0))}),
    ),
    "RUN018": (simulate(Policy(), critic__score__mean=[0.94, 0.96, 0.97, *[0.98] * 27]),),
    "RUN021": (validated(RISEN, {0: 0.3, 10: 0.31, 20: 0.29, 30: 0.3}), TWO_PROMPTS),
    "RUN022": (
        BANNED,
        changed(NEVER_ENDS, settings={**need(NEVER_ENDS.run).settings, f"{ROLLOUT}.ignore_eos": True}),
        changed(NEVER_ENDS, settings={**need(NEVER_ENDS.run).settings, f"{ROLLOUT}.min_tokens": 6}),
        Facts(run=known(msgspec.structs.replace(
            need(GOOD.run), settings={f"{ROLLOUT}.ignore_eos": True}, curves={}))),
        simulate(Policy(), response_length__min=[3.0] * 15 + [6.0] * 15, critic__score__mean=DROPPING),
        changed(without_samples(simulate(Policy(ends=0.0), ("response_length/clip_ratio",))), settings={}),
    ),
    "RUN023": (
        simulate(Policy(limit=3)),
        simulate(Policy(limit=4)),
        without_samples(simulate(Policy(limit=3))),
        simulate(Policy(limit=4, stated=4)),
        simulate(Policy(limit=4, settings={"data.max_prompt_length": 16, f"{ROLLOUT}.max_model_len": 20})),
        without_samples(simulate(Policy(limit=6, ends=0.1))),
        changed(simulate(Policy(), response_length__clip_ratio=[0.6] * 30), samples=known(tuple(
            row for step in range(1, 31) for row in (
                *saying("a long way to go", step=step, length=6, reward=0.0),
                *saying("it is 420", step=step, length=3, reward=1.0))))),
    ),
    "RUN024": (
        simulate(Policy(), response_length__mean=[30.0 - step for step in range(30)], critic__score__mean=DROPPING),
        simulate(Policy(), response_length__mean=[3.0 + step for step in range(30)], critic__score__mean=FLAT),
    ),
}  # fmt: skip

OTHER_QUIET: dict[str, tuple[Facts, ...]] = {
    "RUN010": (with_nan(GOOD, "critic/score/std", (3, 4, 5)),),
    "RUN011": (simulate(Policy(skill=lambda p: 1.0 if p > 0.5 else 0.3, ends=1.0)), without_samples(GOOD)),
    "RUN012": (PPO, simulate(Policy(reward=always(constant)))),
    "RUN013": (ONE_EACH,),
    "RUN014": (ONE_EACH,),
    "RUN015": (GOOD, changed(DISCOUNTED, settings={**need(DISCOUNTED.run).settings, "algorithm.gamma": 0.99}),
               simulate(Policy(advantages=centred, estimator="rloo")), simulate(Policy(estimator="opo")),
               simulate(Policy(reward=always(constant), advantages=whitened, estimator="gae"))),
    "RUN016": (simulate(Policy(steps=10)), FALLING),
    "RUN017": (simulate(Policy(steps=5)), STILL),
    "RUN018": (changed(SATURATED, first_step=11), simulate(Policy(reward=always(constant)))),
    "RUN019": (STILL, validated(RISEN, {0: 0.2, 10: 0.5, 30: 0.83}, **{SHUFFLED: at_steps({0: 0.2, 10: 0.3, 30: 0.4})}),
               parts(RISEN, format=RISING, exact=RISING)),
    "RUN020": (GOOD, sources(GOOD, math=RISING)),
    "RUN021": (GOOD, validated(RISEN, {0: 0.98, 10: 0.99, 20: 0.98, 30: 0.98}), validated(RISEN, {0: 0.1, 30: 0.1}),
               validated(STILL, {0: 0.5, 10: 0.4, 20: 0.3, 30: 0.2})),
    "RUN022": (CUT, simulate(Policy(ends=0.0, steps=2)),
               simulate(Policy(), response_length__min=[3.0] * 15 + [6.0] * 15), FILLS_UP),
    "RUN023": (SOLVED_AT_THE_LIMIT, simulate(Policy(limit=20, stated=20, ends=0.9)),),
    "RUN024": (simulate(Policy(), response_length__mean=[3.0 + step for step in range(30)]),
               simulate(Policy(steps=5))),
}  # fmt: skip
