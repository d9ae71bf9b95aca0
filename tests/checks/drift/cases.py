"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rlcheck.facts.base import known, missing
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import (
    Bin,
    DriftFacts,
    Gap,
    OperationGap,
    PromptsUse,
    TokenGap,
    Variant,
    WeightsUse,
)
from rlcheck.facts.rollout import Failure, StageTime
from tests.checks.drift import curves
from tests.checks.drift.curves import (
    BENT,
    COARSE_LOGITS,
    CUT,
    EVERY_THIRD,
    FLOAT32,
    FROZEN,
    HEALTHY,
    HEALTHY_16,
    KERNEL,
    LATE,
    LIMIT_CHANGED,
    ONE_SIDED,
    OTHER_WEIGHTS,
    PART,
    RAW,
    SPECIAL_TOKEN,
    TEMPLATE,
    TWO_DTYPES,
    coarse,
    rounding,
    run,
)

SMALL = Gap(
    num_tokens=4096, probs_diff_mean=2e-8, probs_diff_max=1e-6, log_probs_diff_mean=2e-7, log_corr=1.0, slope=1.0
)
LARGE = Gap(num_tokens=4096, probs_diff_mean=0.03, probs_diff_max=0.7, log_probs_diff_mean=0.12, kl=0.02, is_std=0.3,
            ess=0.9, log_corr=0.97, slope=1.0)  # fmt: skip
WORST = TokenGap(token=" the", token_id=279, position=7, rollout_prob=0.91, train_prob=0.2)


def jitter_late(step: int) -> float:
    """Noise that is larger than the steps' own."""
    return curves.jitter(step, 0.2)


def asked_to_be_late(**more: Callable[[int], float]) -> Facts:
    """A run two steps behind, as its config allows."""
    return run(
        curves.late_by(2),
        settings={**FLOAT32, "algorithm.max_staleness": 2},
        training__policy_staleness__mean=lambda step: min(2.0, step - 1.0),
        **more,
    )


def bins(*sizes: float) -> tuple[Bin, ...]:
    return tuple(
        Bin(low=64 * place, high=64 * place + 64, num_tokens=500, log_probs_diff_mean=size)
        for place, size in enumerate(sizes)
    )


def left(size: float) -> Gap:
    return Gap(num_tokens=4096, log_probs_diff_mean=size)


def measured(**changes: Any) -> Facts:
    """A measurement of a config in float32 on a CPU, all well."""
    usual: dict[str, Any] = {
        "target": "run.yaml",
        "engine": "vllm",
        "device": "cpu",
        "rollout_dtype": "float32",
        "train_dtype": "float32",
        "num_prompts": 16,
        "num_responses": 32,
        "stages": (StageTime(name="starting the engine", seconds=20.0),),
        "gap": known(SMALL),
        "by_position": bins(1e-7, 2e-7),
        "by_length": bins(1e-7, 2e-7),
        "worst": (WORST,),
        "prompts": known(PromptsUse(num_prompts=16)),
        "weights": known(WeightsUse(num_tensors=26)),
        "variants": known(()),
        "operations": known((OperationGap(name="embedding", equal=True, input_equal=True),)),
    }
    return Facts(drift=known(DriftFacts(**{**usual, **changes})))


def failed(kind: str, line: str, **more: Any) -> Facts:
    """A measurement that failed."""
    why = missing("error", f"not reached: {line}")  # type: ignore[arg-type]
    nothing = dict.fromkeys(("gap", "prompts", "weights", "variants", "operations"), why)
    return measured(failure=Failure(stage="first sync", kind=kind, line=line, **more), **nothing)


def explained(*variants: Variant, **changes: Any) -> Facts:
    """A large gap, and what was tried."""
    return measured(gap=known(LARGE), variants=known(variants), **changes)


RAW_LOG_PROBS = Variant(name="raw_log_probs", title="the model's own distribution, before temperature 0.7",
                        family="wrong", side="rollout", overrides=("actor_rollout_ref.rollout.temperature=1.0",),
                        gap=left(3e-7), removes=True)  # fmt: skip
FLOAT32_LOGITS = Variant(name="float32_logits", title="logits in float32", overrides=("a.b=float32",), gap=left(4e-7),
                         removes=True)  # fmt: skip
CHUNKS = Variant(name="no_chunked_prefill", title="no chunked prefill", side="rollout",
                 overrides=("rollout.enable_chunked_prefill=false", "rollout.max_num_batched_tokens=4096"),
                 gap=left(5e-7), removes=True)  # fmt: skip
HELPS = Variant(name="alone", title="one row in each pass", overrides=("x.y=1",), gap=left(0.03))
USELESS = Variant(name="eager_attention", title="plain attention", gap=left(0.12))
WITH_BOS = Variant(name="with_bos", title="one more token", family="wrong", gap=left(0.5))
NOT_TRIED = Variant(name="one_gpu", title="the engine on one GPU", error="one GPU only")
ADDS = OperationGap(name="attention", layer=3, max_diff=0.02, scale=0.5, input_equal=True)
FOLLOWS = OperationGap(name="o_proj", layer=3, max_diff=0.03, scale=0.5, own_max_diff=0.0)

TWICE = run(
    lambda step: 0.15,
    settings=curves.HOT,
    training__rollout_log_probs_slope=lambda step: 1.426,
    training__rollout_log_probs_corr=lambda step: 0.998,
)
AFTER_FIRST = run(
    lambda step: 0.007 * 1.12**step,
    training__rollout_log_probs_diff_first=lambda step: 1e-7,
    training__rollout_log_probs_diff_last=lambda step: 0.01 * 1.12**step,
    training__rollout_log_probs_corr=lambda step: 1 - 0.004 * step,
)
ROUGH_START = run(lambda step: 0.03 if step == 1 else coarse(step), settings=curves.BFLOAT16)
UNCUT = Variant(name="uncut_sampling", title="tokens drawn from all", family="wrong", gap=left(1e-7), removes=True,
                overrides=("r.top_p=1.0", "r.top_k=-1", "r.min_tokens=0"))  # fmt: skip
RESPONSES = Variant(name="engine_responses", title="the engine's tokens", family="wrong", gap=left(1e-7), removes=True)
READING = Variant(name="train_reading", title="read by other code", family="wrong", gap=left(1e-7), removes=True)
RENDERED = Variant(name="with_bos", title="one more token", family="wrong", gap=left(1e-7), removes=True)

CASES: dict[str, tuple[Facts, Facts]] = {
    "DRF001": (FROZEN, HEALTHY),
    "DRF002": (PART, HEALTHY),
    "DRF003": (LATE, HEALTHY),
    "DRF004": (TEMPLATE, HEALTHY),
    "DRF005": (RAW, HEALTHY),
    "DRF006": (COARSE_LOGITS, HEALTHY),
    "DRF007": (FROZEN, HEALTHY),
    "DRF008": (
        run(coarse, settings=curves.BFLOAT16, rollout_corr__rollout_is_eff_sample_size=lambda step: 0.1),
        run(coarse, settings=curves.BFLOAT16, rollout_corr__rollout_is_eff_sample_size=lambda step: 0.99),
    ),
    "DRF009": (AFTER_FIRST, HEALTHY),
    "DRF010": (asked_to_be_late(), asked_to_be_late(rollout_corr__rollout_is_mean=lambda step: 1.0)),
    "DRF020": (failed("crash", "RuntimeError: no", root="torch.OutOfMemoryError: CUDA out of memory"), measured()),
    "DRF021": (measured(weights=known(WeightsUse(num_tensors=26, differing=("lm_head.weight",), num_stale=1))),
               measured()),
    "DRF022": (
        measured(prompts=known(PromptsUse(num_prompts=16, num_differing=16, length_diff_mean=1.0,
                                          example_rollout="hi", example_train="<bos>hi"))),
        measured(),
    ),
    "DRF023": (explained(RAW_LOG_PROBS), measured()),
    "DRF024": (explained(FLOAT32_LOGITS), measured()),
    "DRF025": (explained(USELESS), measured()),
    "DRF026": (measured(gap=known(Gap(num_tokens=4096, is_mean=0.9, is_std=4.0, ess=0.05, kl=0.6))), measured()),
    "DRF027": (measured(gap=known(LARGE), by_position=bins(1e-7, 0.3)), measured()),
    "DRF028": (measured(operations=known((ADDS, FOLLOWS))), measured()),
}  # fmt: skip

OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "DRF001": (
        OTHER_WEIGHTS,
        run(curves.behind_from(12, coarse), moves=False, settings=curves.BFLOAT16),
        run(curves.behind_from(36), moves=False),
        run(lambda step: rounding(step) + (0.05 * (step - 10) if 10 < step < 16 else 0.0)),
        run(rounding, training__policy_staleness__mean=lambda step: max(0.0, step - 8.0)),
        run(lambda step: 0.3 if step == 1 else rounding(step)),
        run(curves.behind_from(10), moves=False, only=(curves.PROB, "critic/score/mean", "actor/entropy")),
    ),
    "DRF002": (
        run(curves.behind_from(15)),
        run(lambda step: rounding(step) + (1e-3 * jitter_late(step) if step > 1 else 0.0)),
        run(lambda step: 0.2, training__rollout_log_probs_corr=lambda step: 0.8),
        run(lambda step: 0.037, training__rollout_log_probs_corr=lambda step: 0.99,
            training__rollout_log_probs_slope=lambda step: 0.99),
        LIMIT_CHANGED,
        run(lambda step: 1.5 * jitter_late(step) if step > 1 else rounding(step)),
        run(curves.behind_from(10), moves=False, **{"val-core__toy__reward__mean@1": lambda step: step / 100}),
    ),
    "DRF003": (
        run(curves.late_by(1)),
        EVERY_THIRD,
        run(rounding, training__policy_staleness__mean=lambda step: min(2.0, step - 1.0)),
    ),
    "DRF004": (
        SPECIAL_TOKEN,
        run(lambda step: 0.3, only=(curves.LOG, "training/rollout_actor_probs_pearson_corr"),
            training__rollout_actor_probs_pearson_corr=lambda step: 0.6),
    ),
    "DRF005": (
        ONE_SIDED,
        TWICE,
        CUT,
        BENT,
        run(lambda step: 0.1, settings=curves.HOT, only=(curves.LOG, "training/rollout_actor_probs_pearson_corr"),
            training__rollout_actor_probs_pearson_corr=lambda step: 0.99),
        run(lambda step: 0.1, settings=FLOAT32 | {"actor_rollout_ref.rollout.top_p": 0.9},
            only=(curves.LOG, "training/rollout_actor_probs_pearson_corr"),
            training__rollout_actor_probs_pearson_corr=lambda step: 0.99),
    ),
    "DRF006": (KERNEL, TWO_DTYPES, run(lambda step: 1.5e-5), run(lambda step: 6e-5)),
    "DRF007": (
        TEMPLATE,
        run(lambda step: 0.06 * jitter_late(step), settings=curves.BFLOAT16),
        run(coarse, settings={}, only=("rollout_corr/k3_kl",), rollout_corr__k3_kl=lambda step: 0.2),
        run(coarse, settings={}, only=("rollout_corr/kl",), rollout_corr__kl=lambda step: -0.02),
        run(lambda step: coarse(step) * (20 if step > 20 else 1), settings=curves.BFLOAT16,
            response_length__mean=lambda step: curves.jitter(step) * (900.0 if step > 20 else 100.0)),
    ),
    "DRF008": (run(coarse, settings=curves.BFLOAT16, rollout_corr__rollout_is_std=lambda step: 2.0),),
    "DRF022": (
        measured(prompts=known(PromptsUse(num_prompts=4, num_differing=1, length_diff_mean=7.0))),
        explained(RENDERED),
    ),
    "DRF023": (explained(UNCUT), explained(RESPONSES), explained(READING)),
    "DRF024": (explained(CHUNKS), explained(HELPS, USELESS, NOT_TRIED), explained(USELESS), explained(NOT_TRIED)),
    "DRF025": (measured(gap=known(Gap(num_tokens=9, probs_diff_mean=5e-6))),),
    "DRF026": (measured(gap=known(Gap(num_tokens=9, is_std=1.5))),),
    "DRF027": (measured(gap=known(LARGE), by_length=bins(1e-7, 0.3)),),
    "DRF028": (measured(operations=known((ADDS,)), batch_invariant=True),),
}  # fmt: skip
OTHER_QUIET: dict[str, tuple[Facts, ...]] = {
    "DRF001": (ROUGH_START, HEALTHY_16, PART, LATE, TEMPLATE, RAW, COARSE_LOGITS, run(rounding, steps=1)),
    "DRF002": (HEALTHY_16, FROZEN, LATE, TEMPLATE, RAW, COARSE_LOGITS, KERNEL),
    "DRF003": (
        HEALTHY_16, FROZEN, PART, TEMPLATE, RAW, COARSE_LOGITS,
        run(curves.late_by(2), settings=FLOAT32 | {"trainer.v1.sampler.max_off_policy_threshold": 8}),
    ),
    "DRF004": (HEALTHY_16, FROZEN, PART, LATE, RAW, COARSE_LOGITS, OTHER_WEIGHTS),
    "DRF005": (HEALTHY_16, FROZEN, PART, LATE, COARSE_LOGITS, KERNEL, TEMPLATE),
    "DRF006": (BENT, HEALTHY_16, FROZEN, PART, LATE, RAW, TEMPLATE, OTHER_WEIGHTS),
    "DRF007": (HEALTHY_16, run(lambda step: 0.2 if step == 9 else coarse(step), settings=curves.BFLOAT16)),
    "DRF008": (HEALTHY, run(lambda step: 0.2 if step < 20 else rounding(step))),
    "DRF023": (explained(FLOAT32_LOGITS, WITH_BOS), explained(RENDERED)),
    "DRF024": (
        explained(RAW_LOG_PROBS),
        explained(RENDERED),
        measured(rollout_dtype="bfloat16", train_dtype="bfloat16", gap=known(left(0.019))),
        explained(USELESS, weights=known(WeightsUse(num_tensors=2, differing=("a",)))),
        measured(rollout_dtype="bfloat16", train_dtype="bfloat16", gap=known(left(0.012))),
    ),
    "DRF025": (measured(rollout_dtype="bfloat16", gap=known(Gap(num_tokens=9, probs_diff_mean=0.004))),),
    "DRF027": (measured(by_position=(), by_length=bins(1e-7)), measured(by_position=bins(1e-7, 5e-7))),
}  # fmt: skip
