"""Limits and changes over a memory model of a few lines: each answer can be worked out by hand."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from rlcheck.facts.config import ConfigFacts, DataSpec, ModelUse, RoleSpec, RolloutSpec, Sharding
from rlcheck.facts.memory import Change, Limits, MemoryProfile
from rlcheck.measure.config import fields
from rlcheck.measure.memory import advice, limits
from rlcheck.measure.memory.cost import rank, slowdown, table
from rlcheck.measure.memory.ladders import ladders
from rlcheck.measure.memory.limits import largest
from rlcheck.measure.memory.predict import Gpu
from rlcheck.measure.memory.summary import fits
from rlcheck.measure.memory.whatif import with_settings
from tests.measure.memory import arithmetic
from tests.measure.memory.samples import GIB, run


@pytest.fixture(autouse=True)
def _few_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(advice, "predicted", arithmetic.predict)
    monkeypatch.setattr(limits, "predicted", arithmetic.predict)


def gpu(gib: float) -> Gpu:
    return Gpu("made up", round(gib * GIB))


def small_run(actor: dict[str, Any] | None = None, **spec: Any) -> ConfigFacts:
    """One GPU: 8 + 16 + 8 GiB of states, 2 GiB for each of four samples."""
    usual: dict[str, Any] = {"name": "actor", "micro_batch_size": 4, "mini_batch_size": 16}
    return run(
        {
            "gpus_per_node": 1,
            "actor": RoleSpec(**{**usual, **(actor or {})}),
            "rollout": RolloutSpec(n=2, memory_utilization=0.2),
            "data": DataSpec(max_prompt_length=512, max_response_length=512, train_batch_size=16),
            **spec,
        }
    )


def typed(found: tuple[Change, ...]) -> list[str]:
    return [" ".join(change.overrides) for change in found]


def test_nothing_is_advised_where_it_fits() -> None:
    assert advice.changes(small_run(), gpu(40), 0) == ()


def test_a_dynamic_batch_comes_first_and_is_as_mild_as_it_may_be() -> None:
    # 32 of states and 2 x 4 of samples: 38 GiB hold three samples, the halving gives two.
    found = advice.changes(small_run(), gpu(38), 0)
    assert found[0].overrides == ("actor.dynamic_batch=true", "actor.max_tokens=2048")
    assert found[0].fits
    assert found[0].peak_bytes == 36 * GIB
    assert "actor.micro_batch_size=2" in typed(found)
    assert [change.fits for change in found] == [True] * len(found)


def test_every_change_that_is_said_to_fit_does() -> None:
    start = small_run({"micro_batch_size": 8})
    for change in advice.changes(start, gpu(37), 0):
        settings = {key: msgspec.json.decode(value) for key, _, value in (o.partition("=") for o in change.overrides)}
        then = arithmetic.predict(with_settings(start, settings), gpu(37), 0)
        assert fits(then) == change.fits
        assert then.peak is not None
        assert then.peak.num_bytes == change.peak_bytes


def test_what_computes_the_same_comes_before_what_asks_for_more() -> None:
    kinds = [step.kind for change in [advice.changes(small_run(), gpu(38), 0)] for step in _steps(change)]
    assert "more_gpus" not in kinds[:3]
    assert "lora" not in kinds[:3]


def _steps(found: tuple[Change, ...]) -> list[Any]:
    by_override = {
        fields.override(small_run(), *step.settings[0]): step for ladder in ladders(small_run()) for step in ladder
    }
    return [by_override[change.overrides[0]] for change in found]


def test_several_changes_are_put_together_when_none_is_enough() -> None:
    # Two phases are too large for different reasons: no single setting mends both, short of more GPUs.
    start = small_run({"model": ModelUse(gradient_checkpointing=False), "sharding": Sharding()}, gpus_per_node=8,
                      nodes=1, rollout=RolloutSpec(n=2, memory_utilization=0.95))  # fmt: skip
    found = advice.changes(start, gpu(12), 0)
    assert found[0].fits
    assert " + " in found[0].title
    assert any(o.startswith("rollout.memory_utilization=") for o in found[0].overrides)
    assert not any(o.startswith(("nodes=", "gpus_per_node=", "actor.model.lora_rank")) for o in found[0].overrides)


def test_what_was_taken_and_not_needed_is_given_back() -> None:
    start = small_run({"model": ModelUse(gradient_checkpointing=False)}, gpus_per_node=8,
                      rollout=RolloutSpec(n=2, memory_utilization=0.95))  # fmt: skip
    found = advice.changes(start, gpu(12), 0)[0]
    for left_out in found.overrides:
        if left_out.startswith("actor.max_tokens"):
            continue
        others = [o for o in found.overrides if o != left_out]
        settings = {key: msgspec.json.decode(value) for key, _, value in (o.partition("=") for o in others)}
        assert not fits(arithmetic.predict(with_settings(start, settings), gpu(12), 0)), left_out


def test_the_nearest_set_is_named_where_nothing_is_enough() -> None:
    found = advice.changes(small_run(), gpu(0.5), 0)
    assert found
    assert not any(change.fits for change in found)
    assert found[0].peak_bytes <= min(change.peak_bytes for change in found)


def test_the_host_counts_too() -> None:
    roomy = advice.changes(small_run({"micro_batch_size": 1}), gpu(33), 0)
    tight = advice.changes(small_run({"micro_batch_size": 1}), gpu(33), 4 * GIB)
    assert "actor.sharding.optimizer_offload=true" in typed(roomy)
    assert "actor.sharding.optimizer_offload=true" not in typed(tight)


def test_a_key_that_stands_for_several_roles_is_typed_once() -> None:
    start = run({"actor": RoleSpec(name="actor", dynamic_batch=True), "ref": RoleSpec(name="ref", trained=False)},
                framework="rltrain")  # fmt: skip
    ladder = next(one for one in ladders(start) if one[0].kind == "smaller_batch")
    assert {path for path, _ in ladder[0].settings} >= {"actor.max_tokens", "ref.infer_max_tokens"}
    assert len({fields.override(start, path, value) for path, value in ladder[0].settings}) == 1


def test_settings_without_a_key_are_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fields, "key_of", lambda facts, field: "" if "offload" in field else field)
    steps = [step for ladder in ladders(small_run()) for step in ladder]
    assert steps
    assert not any("offload" in path for step in steps for path, _ in step.settings)


def test_limits_are_the_last_that_fit() -> None:
    # 32 GiB of states: 40 leave room for four samples of 2 GiB; 24 + 16 of the engine are 0.4 of 40.
    found = limits.limits(small_run(), gpu(40), 0)
    assert found.micro_batch_size == 4
    assert found.max_tokens == 4096
    assert found.memory_utilization == pytest.approx(0.4)
    assert (found.kv_tokens, found.concurrent_sequences) == (1000, 10)


def test_a_limit_is_zero_where_not_even_one_fits_and_minus_one_without_such_a_phase() -> None:
    assert limits.limits(small_run(), gpu(33), 0).micro_batch_size == 0
    assert limits.limits(small_run({"trained": False}), gpu(33), 0).micro_batch_size == -1


def test_a_pass_is_never_larger_than_its_mini_batch() -> None:
    assert limits.limits(small_run(), gpu(4000), 0).micro_batch_size == 32


@pytest.mark.parametrize("border", [1, 2, 3, 7, 63, 64, 99, 100])
def test_bisection_finds_the_border(border: int) -> None:
    assert largest(lambda n: n <= border, 1, 100) == border


def test_prices_are_estimates_with_a_source() -> None:
    data = table()
    assert sum(data["shares"].values()) == pytest.approx(1)
    assert all(price["source"] in data["sources"] for price in data["changes"].values())
    assert all(price["part"] in data["shares"] for price in data["changes"].values())
    kinds = {step.kind for ladder in ladders(small_run({"model": ModelUse(gradient_checkpointing=False)}))
             for step in ladder}  # fmt: skip
    assert {kind for kind in kinds if not kind.endswith("_transfer")} <= set(data["changes"])


def test_moving_states_costs_less_of_a_longer_step() -> None:
    short, long = small_run(), small_run(data=DataSpec(max_prompt_length=4096, max_response_length=4096))
    prices = []
    for one in (short, long):
        steps = [step for ladder in ladders(one) for step in ladder if step.kind == "optimizer_transfer"]
        prices.append(slowdown(one, arithmetic.predict(one, gpu(40), 0), steps[:1]))
    assert prices[0] > prices[1] > 1


def test_another_training_ranks_behind_whatever_only_costs_time() -> None:
    start = small_run()
    now = arithmetic.predict(start, gpu(20), 0)
    ranks = {ladder[0].kind: rank(start, now, ladder[:1]) for ladder in ladders(start)}
    assert max(ranks, key=ranks.__getitem__) == "lora"


def test_the_engine_keeps_a_cache_for_one_sequence(monkeypatch: pytest.MonkeyPatch) -> None:
    def starving(one: ConfigFacts, device: Gpu, host_bytes: int) -> MemoryProfile:
        enough = one.spec.rollout.memory_utilization >= 0.5
        now = arithmetic.predict(one, device, host_bytes)
        return msgspec.structs.replace(now, limits=Limits(kv_tokens=1000, concurrent_sequences=int(enough)))

    monkeypatch.setattr(advice, "predicted", starving)
    start = small_run({"micro_batch_size": 1}, gpus_per_node=8, rollout=RolloutSpec(n=2, memory_utilization=0.95))
    shares = [o for change in advice.changes(start, gpu(12), 0) for o in change.overrides if "memory_util" in o]
    assert shares
    assert all(float(share.partition("=")[2]) >= 0.5 for share in shares)
