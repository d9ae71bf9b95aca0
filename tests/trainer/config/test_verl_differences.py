"""Each key that does otherwise than in verl is noted where a config meets it, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrain.config.load import load_with_notes
from rltrain.config.resolve import Machine, resolve
from rltrain.config.rules import check
from rltrain.config.verl_differences import DIFFERENCES, other_defaults
from rltrain.core.errors import UserError
from tests.tools.verl_page import PAGE, page

ROOT = Path(__file__).resolve().parents[3]
A, R = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
FUNCTION = "custom_reward_function.path=/tmp/rewards.py"
NORM = "seq-mean-token-sum-norm"
# Key: overrides of toy-ppo that meet the difference, and such that almost do.
MET: dict[str, tuple[tuple[str, ...], ...]] = {
    f"{A}clip_ratio": ((f"{A}clip_ratio=0.1",), (f"{A}clip_ratio=0.1", f"{A}clip_ratio_high=0.3")),
    f"{A}loss_scale_factor": ((f"{A}loss_agg_mode={NORM}",), (f"critic.loss_agg_mode={NORM}",)),
    f"{R}val_kwargs.do_sample": ((f"{R}val_kwargs.temperature=0.5",),),
    "algorithm.filter_groups.max_num_gen_batches": (
        ("algorithm.filter_groups.enable=true", "algorithm.filter_groups.max_num_gen_batches=4"),
    ),
    "critic.ppo_max_token_len_per_gpu": ((f"{A}use_dynamic_bsz=true",), ("critic.use_dynamic_bsz=true",)),
    "custom_reward_function.path": ((FUNCTION, "reward_model.enable=true", "reward_model.model.path=/tmp/model"),),
    "trainer.total_training_steps": (("trainer.total_epochs=4",),),
}
NOT_MET: dict[str, tuple[tuple[str, ...], ...]] = {
    f"{A}clip_ratio": (
        (f"{A}clip_ratio=0.2",),
        (f"{A}clip_ratio=0.1", f"{A}clip_ratio_low=0.2", f"{A}clip_ratio_high=0.2"),
        (f"{A}clip_ratio_low=0.1",),
    ),
    f"{A}loss_scale_factor": (
        (f"{A}loss_agg_mode={NORM}", f"{A}loss_scale_factor=512"),
        (f"{A}loss_agg_mode=seq-mean-token-sum",),
    ),
    f"{R}val_kwargs.do_sample": (
        (f"{R}val_kwargs.temperature=0.5", f"{R}val_kwargs.do_sample=true"),
        (f"{R}val_kwargs.temperature=0",),
    ),
    "algorithm.filter_groups.max_num_gen_batches": (
        ("algorithm.filter_groups.enable=true",),
        ("algorithm.filter_groups.max_num_gen_batches=4",),
    ),
    "critic.ppo_max_token_len_per_gpu": (
        (f"{A}use_dynamic_bsz=true", "critic.ppo_max_token_len_per_gpu=8192"),
        (f"{A}use_dynamic_bsz=true", "critic.use_dynamic_bsz=false"),
        (f"{A}use_dynamic_bsz=true", "algorithm.adv_estimator=grpo"),
    ),
    "custom_reward_function.path": ((FUNCTION,), ("reward_model.enable=true", "reward_model.model.path=/tmp/model")),
    "trainer.total_training_steps": (("trainer.total_training_steps=4",),),
}
REFUSED: dict[str, tuple[str, ...]] = {f"{R}n": ("algorithm.adv_estimator=grpo", f"{R}n=1")}


def noted(*overrides: str) -> set[str]:
    """Keys of the differences that are noted."""
    notes = load_with_notes("toy-ppo", overrides).notes
    return {one.key for one in DIFFERENCES if one.note in notes}


def test_each_difference_is_tried() -> None:
    assert {one.key for one in DIFFERENCES if one.applies is not None} == MET.keys() == NOT_MET.keys()
    assert {one.key for one in DIFFERENCES if one.applies is None} == REFUSED.keys()


@pytest.mark.parametrize(("key", "overrides"), [(key, each) for key, many in MET.items() for each in many])
def test_a_config_that_meets_it_is_told(key: str, overrides: tuple[str, ...]) -> None:
    assert noted(*overrides) == {key}


@pytest.mark.parametrize(("key", "overrides"), [(key, each) for key, many in NOT_MET.items() for each in many])
def test_one_that_does_not_is_left_alone(key: str, overrides: tuple[str, ...]) -> None:
    assert key not in noted(*overrides)


@pytest.mark.parametrize("key", REFUSED)
def test_what_has_no_meaning_here_is_refused(key: str) -> None:
    config = resolve(load_with_notes("toy-ppo", REFUSED[key]).config, Machine("cpu", 0, 2))
    with pytest.raises(UserError, match=key):
        check(config)


@pytest.mark.parametrize("recipe", ["toy-ppo", "toy-grpo"])
def test_recipes_meet_none(recipe: str) -> None:
    assert not [note for note in load_with_notes(recipe).notes if "verl" in note]


def test_the_page_has_them_all() -> None:
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert text == page(ROOT), "run `python -m tests.tools.build`"
    for one in DIFFERENCES:
        assert f"| `{one.key}` | {one.verls} | {one.own} |" in text
    assert other_defaults()["actor_rollout_ref.rollout.max_num_seqs"] == (256, 1024)
    assert all(f"| `{key}` |" in text for key in other_defaults())
