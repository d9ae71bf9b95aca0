"""What the checks of drift say beyond their pairs of cases."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest

from rlcheck import judging
from rlcheck.check import Check
from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import DriftFacts, Variant
from rlcheck.facts.run import Curve, RunFacts
from rlcheck.families import FAMILIES
from rlcheck.finding import Finding
from rlcheck.measure.drift.bands import coarser, drift, dtype_name, noise
from rlcheck.playbook import Library
from tests.checks.drift import cases, curves

CHECKS = family_checks("DRF")

LIBRARY = Library()
BY_ID = {check.id: check for check in CHECKS}
FIRES = [(id, facts) for id, several in cases.OTHER_FIRES.items() for facts in several]
QUIET = [(id, facts) for id, several in cases.OTHER_QUIET.items() for facts in several]
KINDS = [
    ("DRF001", curves.FROZEN),
    ("DRF001", curves.OTHER_WEIGHTS),
    ("DRF002", curves.PART),
    ("DRF003", curves.LATE),
    ("DRF003", curves.EVERY_THIRD),
    ("DRF004", curves.TEMPLATE),
    ("DRF004", curves.SPECIAL_TOKEN),
    ("DRF005", curves.RAW),
    ("DRF005", curves.ONE_SIDED),
    ("DRF005", curves.CUT),
    ("DRF005", curves.BENT),
    ("DRF006", curves.TWO_DTYPES),
    ("DRF006", curves.COARSE_LOGITS),
    ("DRF006", curves.KERNEL),
]


def judged(id: str, facts: Facts) -> Finding:
    check: Check = BY_ID[id]
    return judging.judge(facts, (check,), LIBRARY)[0]


def problems(facts: Facts) -> list[Finding]:
    """What `rlcheck run` would show, in its order."""
    found = judging.in_order(judging.judge(facts, CHECKS, LIBRARY), tuple(FAMILIES))
    return [finding for finding in found if finding.status in ("fail", "warn")]


@pytest.mark.parametrize(("id", "facts"), FIRES, ids=[id for id, _ in FIRES])
def test_other_cases_fire(id: str, facts: Facts) -> None:
    assert judged(id, facts).status in {"fail", "warn"} | ({"info"} if id == "DRF028" else set())


@pytest.mark.parametrize(("id", "facts"), QUIET, ids=[id for id, _ in QUIET])
def test_other_cases_stay_quiet(id: str, facts: Facts) -> None:
    assert judged(id, facts).status in {"pass", "skip"}


@pytest.mark.parametrize(("id", "facts"), KINDS, ids=[f"{id}-{place}" for place, (id, _) in enumerate(KINDS)])
def test_the_cause_comes_first_and_alone(id: str, facts: Facts) -> None:
    found = problems(facts)
    assert found[0].id == id, [(finding.id, finding.message) for finding in found]
    assert {finding.id for finding in found} <= {id, "DRF007", "DRF008"}


@pytest.mark.parametrize("facts", [curves.HEALTHY, curves.HEALTHY_16, curves.run(curves.coarse, settings={})])
def test_healthy_runs_have_no_problem(facts: Facts) -> None:
    assert problems(facts) == []


def test_the_step_is_named() -> None:
    frozen = judged("DRF001", curves.FROZEN)
    assert frozen.headline == "The engine has had no new weights since step 10"
    assert "none for 30 steps; engine and actor have drifted apart" in frozen.message
    assert "from step 2 on" in judged("DRF002", curves.PART).message
    assert "about 2 steps old" in judged("DRF003", curves.LATE).message
    assert "once in 3 steps" in judged("DRF003", curves.EVERY_THIRD).message
    assert "from step 11 on" in judged("DRF007", curves.FROZEN).message


def test_a_chart_is_shown() -> None:
    assert any("▁" in line and "█" in line for line in judged("DRF001", curves.FROZEN).details)


def test_lengths_say_what_differs() -> None:
    assert "another chat template" in judged("DRF004", curves.TEMPLATE).message
    assert "one token fewer: a special token" in judged("DRF004", curves.SPECIAL_TOKEN).message


@pytest.mark.parametrize("facts", [curves.RAW, curves.ONE_SIDED, curves.CUT])
def test_the_override_is_given(facts: Facts) -> None:
    first = judged("DRF005", facts).fixes[0]
    assert first.complete
    assert first.command.startswith("actor_rollout_ref.rollout.")


@pytest.mark.parametrize(
    ("variant", "word"),
    [
        (cases.RESPONSES, "token IDs that the engine sampled"),
        (cases.READING, "logits and targets"),
        (cases.UNCUT, "top_p"),
        (cases.RAW_LOG_PROBS, "temperature of the rollout"),
    ],
)
def test_the_fix_fits_the_convention(variant: Variant, word: str) -> None:
    titles = [fix.title for fix in judged("DRF023", cases.explained(variant)).fixes]
    assert any(word in title for title in titles), titles
    if variant in (cases.RESPONSES, cases.READING):
        assert len(titles) == 1


def test_dtypes_are_named_only_where_they_are_known() -> None:
    said = judged("DRF006", curves.KERNEL)
    assert any("are said to compute in bfloat16" in fix.title for fix in said.fixes)
    guessed = judged("DRF006", curves.run(lambda step: 0.08 * curves.jitter(step), settings={}))
    assert guessed.status == "fail"
    assert not any("are said to compute" in fix.title for fix in guessed.fixes)


def test_two_dtypes_are_made_one() -> None:
    found = judged("DRF006", curves.TWO_DTYPES)
    assert found.status == "warn"
    assert found.fixes[0].command == "actor_rollout_ref.actor.fsdp_config.dtype=float32"
    settings = curves.BFLOAT16 | {"actor_rollout_ref.rollout.dtype": "float16"}
    other = judged("DRF006", curves.run(curves.coarse, settings=settings))
    assert other.status == "pass"
    far = judged("DRF006", curves.run(lambda step: 0.08 * curves.jitter(step), settings=settings))
    assert far.fixes[0].command == "actor_rollout_ref.rollout.dtype=bfloat16"


def test_no_dtype_makes_what_is_too_large() -> None:
    unclear = curves.run(lambda step: 0.2 * curves.jitter(step), settings={}, only=("rollout_corr/k3_kl", curves.PROB))
    assert judged("DRF006", unclear).status == "skip"
    assert "more than rounding to 16 bits" in judged("DRF006", unclear).message
    grown = curves.run(lambda step: 0.04 + 0.01 * step, settings={}, only=("rollout_corr/k3_kl", curves.PROB))
    assert judged("DRF006", grown).status == "skip"
    near = curves.run(lambda step: 0.12 * curves.jitter(step), settings=curves.BFLOAT16)
    assert {finding.id for finding in problems(near)} == {"DRF007"}
    assert "more than rounding to 16 bits" in judged("DRF007", unclear).message


def test_a_change_of_sampling_is_not_a_proof_against_the_weights() -> None:
    found = judged("DRF002", curves.LIMIT_CHANGED)
    assert found.status == "warn"
    assert "response_length/mean took another level" in found.message
    assert judged("DRF002", curves.run(curves.behind_from(19))).status == "fail"


def test_a_number_has_the_name_of_its_metric() -> None:
    names = ("rollout_corr/k3_kl", "critic/score/mean")
    k3 = judged("DRF001", curves.run(curves.behind_from(10), moves=False, only=names))
    assert "rollout_corr/k3_kl of" in k3.message
    weights = curves.run(lambda step: 0.6, rollout_corr__chi2_token=lambda step: 1.5)
    assert "rollout_corr/chi2_token 1.5" in judged("DRF008", weights).message


def test_batch_invariance_is_of_one_side() -> None:
    message = judged("DRF028", cases.OTHER_FIRES["DRF028"][0]).message
    assert "agree with itself only: training computes attention of layer 3 otherwise" in message


def test_several_overrides_are_several_words() -> None:
    assert next(fix.command for fix in judged("DRF023", cases.explained(cases.UNCUT)).fixes) == (
        "r.top_p=1.0 r.top_k=-1 r.min_tokens=0"
    )
    commands = [fix.command for fix in judged("DRF024", cases.OTHER_FIRES["DRF024"][0]).fixes]
    assert "rollout.enable_chunked_prefill=false rollout.max_num_batched_tokens=4096" in commands


def test_a_step_that_changed_with_drift_is_named() -> None:
    assert "response_length/mean changed, too" in judged("DRF007", cases.OTHER_FIRES["DRF007"][-1]).message


def test_rounding_that_grows_with_huge_logits_is_not_the_weights() -> None:
    """A run that blows up: float32 rounds logits of 1e4 at 1e-3, while a step moves the policy by nats."""
    blown = curves.run(lambda step: 1.2e-7 * 1.4**step, actor__ppo_kl=lambda step: 3.0)
    assert {judged(id, blown).status for id in ("DRF001", "DRF002", "DRF003", "DRF006")} <= {"pass", "skip"}


def test_too_few_steps_are_unknown() -> None:
    assert judged("DRF001", curves.run(curves.behind_from(3), moves=False, steps=5)).status == "unknown"


def test_frameworks_that_sample_late_by_design_are_told_so() -> None:
    late = curves.run(curves.late_by(2), framework="prime-rl", settings={}, only=("rollout_corr/k3_kl",))
    assert judged("DRF003", late).status == "info"
    elsewhere = curves.run(curves.late_by(2), framework="verl", settings={}, only=("rollout_corr/k3_kl",))
    assert judged("DRF003", elsewhere).status == "warn"
    counted = curves.run(
        curves.rounding, framework="skyrl", settings={}, training__policy_staleness__mean=lambda step: 1.0
    )
    assert judged("DRF003", counted).status == "info"


def test_an_asynchronous_run_names_its_staleness_and_not_the_engine() -> None:
    def of(behind: float) -> Facts:
        return curves.run(
            curves.late_by(2),
            settings={**curves.FLOAT32, "algorithm.max_staleness": 2},
            training__policy_staleness__mean=lambda step: min(behind, step - 1.0),
        )

    within = judged("DRF003", of(2.0))
    assert within.status == "pass"
    assert "2 steps old (policy_staleness says so); 2 are allowed" in within.message
    engine = {judged(id, of(2.0)).status for id in ("DRF001", "DRF002", "DRF004", "DRF005")}
    assert engine <= {"pass", "skip", "unknown"}
    assert judged("DRF003", of(5.0)).status == "fail", "older than its bound allows"


def test_a_run_one_step_off_that_settles_is_healthy() -> None:
    """toy-ppo, one step off: a policy that changes by much at first and by little at the end."""

    def of(size: float, **more: Callable[[int], float]) -> Facts:
        def pace(step: int) -> float:
            return 0.9 ** max(0, step - curves.STEPS // 2)

        return curves.run(
            lambda step: curves.rounding(step) + (step > 1) * size * pace(step) * curves.jitter(step, 0.3),
            settings={**curves.FLOAT32, "algorithm.max_staleness": 1},
            training__policy_staleness__mean=lambda step: min(1.0, step - 1.0),
            actor__ppo_kl=lambda step: 0.02 * pace(step) ** 2 * curves.jitter(step, 0.5),
            **more,
        )

    small = {check.id: judged(check.id, of(0.06)).status for check in CHECKS}
    assert not {"fail", "warn", "error"} & set(small.values()), small
    assert judged("DRF007", of(0.3)).status == "pass"
    assert judged("DRF007", curves.run(curves.behind_from(10), moves=False)).status == "fail"


def test_without_drift_metrics_nothing_is_known() -> None:
    facts = Facts(run=known(RunFacts(num_steps=9, last_step=9, curves={"critic/score/mean": Curve()})))
    passive = [check.id for check in CHECKS if check.needs == ("run",)]
    assert {judged(id, facts).status for id in passive} == {"unknown"}


def test_an_empty_section_is_judged() -> None:
    empty = Facts(run=known(RunFacts()), drift=known(DriftFacts()))
    found = {check.id: judged(check.id, empty).status for check in CHECKS}
    assert "error" not in found.values()
    assert [id for id, status in found.items() if status == "pass"] == ["DRF020"]


def test_a_run_with_a_metric_that_is_never_a_number_is_judged() -> None:
    facts = curves.run(curves.rounding)
    run = facts.run.value
    assert run is not None
    nothing = {name: Curve(nonfinite=curve.steps) for name, curve in run.curves.items()}
    lost = msgspec.structs.replace(facts, run=known(msgspec.structs.replace(run, curves=nothing)))
    statuses = {check.id: judged(check.id, lost).status for check in CHECKS}
    assert statuses.pop("DRF007") == "fail"
    assert set(statuses.values()) <= {"unknown", "skip"}


def test_a_failure_says_what_was_raised_first() -> None:
    found = judged("DRF020", cases.CASES["DRF020"][0])
    assert "OutOfMemoryError" in found.message
    assert judged("DRF020", cases.failed("unsupported", "the engine is sglang")).status == "unknown"
    assert judged("DRF025", cases.failed("crash", "no")).status == "unknown"


def test_changes_that_were_tried_are_listed() -> None:
    details = judged("DRF024", cases.OTHER_FIRES["DRF024"][1]).details
    assert any("leaves 0.03" in line and "[x.y=1]" in line for line in details)
    assert any("not tried (one GPU only)" in line for line in details)


def test_the_first_operation_that_adds_is_named() -> None:
    assert "attention of layer 3" in judged("DRF028", cases.CASES["DRF028"][0]).message


def test_bands_are_ordered_and_sourced() -> None:
    table = drift()
    sizes = [table.bands[name].log_probs[0] for name in ("float32", "float16", "bfloat16", "float8")]
    assert sizes == sorted(sizes)
    for band in table.bands.values():
        assert band.log_probs[0] < band.log_probs[1]
        assert band.probs[0] < band.probs[1]
    for each in (*table.numbers.values(), *table.bands.values()):
        assert each.source.startswith("http")
        assert each.why


def test_the_coarser_dtype_decides() -> None:
    assert coarser("torch.bfloat16", "float32") == "bfloat16"
    assert coarser("fp8_e4m3", "bf16") == "float8"
    assert coarser("auto", "float32") == dtype_name("int8") == ""
    assert noise("float32", "float32", "cpu") < noise("float32", "float32", "cuda") < noise("bf16", "fp32", "cuda")


@pytest.mark.parametrize(
    ("lost", "status"), [((41, 42, 43), "fail"), ((41,), "warn"), ((9, 10, 11), "pass")], ids=["end", "last", "between"]
)
def test_drift_that_ends_as_no_number_is_no_pass(lost: tuple[int, ...], status: str) -> None:
    """NaN in between is a matter of RUN010: what was measured after it counts."""
    run = curves.HEALTHY.run.value
    assert run is not None
    usual = run.curves[curves.PROB]
    numbers = {step: value for step, value in zip(usual.steps, usual.values, strict=True) if step not in lost}
    curve = Curve(steps=tuple(numbers), values=tuple(numbers.values()), nonfinite=lost)
    run = msgspec.structs.replace(run, curves={**run.curves, curves.PROB: curve})
    found = judged("DRF007", Facts(run=known(run)))
    assert found.status == status
    assert ("NaN" in found.message) == (status != "pass")


def test_a_metric_that_is_never_a_number_is_not_called_missing() -> None:
    nothing = Curve(nonfinite=tuple(range(1, 41)))
    run = RunFacts(num_steps=40, last_step=40, curves={"rollout_corr/rollout_is_mean": nothing})
    assert "no number at any step" in judged("DRF008", Facts(run=known(run))).message
