"""Metrics of a finished batch."""

from __future__ import annotations

import pytest
import torch

from rltrain.controller.step_metrics import measure
from rltrain.core.batch import Batch
from rltrain.core.metrics import Metrics
from tests.trainer.controller.build import batch, config


def measured(bypass: bool) -> Metrics:
    made = batch()
    zeros = torch.zeros(made["response_mask"].shape)
    prompts = torch.ones(3, 2, dtype=torch.bool)
    fields = dict.fromkeys(
        ("token_level_rewards", "advantages", "returns", "old_log_probs", "rollout_log_probs"), zeros
    )
    made = made.with_fields(fields | {"attention_mask": torch.cat([prompts, made["response_mask"]], dim=1)})
    base = config()
    correction = base.algorithm.rollout_correction.model_copy(update={"bypass_mode": bypass})
    algorithm = base.algorithm.model_copy(update={"rollout_correction": correction})
    return measure(5, made, base.model_copy(update={"algorithm": algorithm}))


def test_all_tokens_are_counted() -> None:
    assert measured(bypass=False)["perf/total_num_tokens"] == 12


def test_engine_and_actor_are_compared_only_where_both_were_computed() -> None:
    """With bypass_mode the difference would be 0 whatever is wrong."""
    assert measured(bypass=False)["training/rollout_probs_diff_mean"] == 0
    assert not [name for name in measured(bypass=True) if "rollout_probs" in name or "rollout_log" in name]


def test_answers_whose_log_probs_were_not_asked_for_are_left_out_and_the_others_counted() -> None:
    made = batch()
    mask, prompts = made["response_mask"], torch.ones(3, 2, dtype=torch.bool)
    zeros = torch.zeros(mask.shape)
    fields = dict.fromkeys(("token_level_rewards", "advantages", "returns", "old_log_probs"), zeros)
    # Rows that were not asked for hold 0, which is not what the engine would have said.
    engine = {
        "rollout_log_probs": zeros + torch.tensor([[0.0], [-0.5], [0.0]]),
        "rollout_log_probs_asked": ids(0, 1, 0),
    }
    made = made.with_fields(fields | engine | {"attention_mask": torch.cat([prompts, mask], dim=1)})
    metrics = measure(5, made, config())
    assert metrics["training/rollout_log_probs_diff_mean"] == 0.5
    assert metrics["training/rollout_probs_diff_answers"] == 1


def ids(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers).bool()


def test_entropy_is_of_the_policy_before_the_update_and_of_response_tokens_alone() -> None:
    made = batch()
    mask = made["response_mask"]
    prompts = torch.ones(3, 2, dtype=torch.bool)
    zeros = dict.fromkeys(("token_level_rewards", "advantages", "returns"), torch.zeros(mask.shape))
    entropys = torch.where(mask, 2.0, 100.0)
    made = made.with_fields(zeros | {"attention_mask": torch.cat([prompts, mask], dim=1), "entropys": entropys})
    assert measure(5, made, config())["actor/entropy"] == 2.0
    assert "actor/entropy" not in measured(bypass=False)


def versioned(versions: list[int]) -> Batch:
    """As `batch`, its rows sampled by weights of VERSIONS."""
    made = batch()
    mask, fields = made["response_mask"], ("token_level_rewards", "advantages", "returns")
    prompts = torch.ones(3, 2, dtype=torch.bool)
    zeros = dict.fromkeys(fields, torch.zeros(mask.shape))
    attention = torch.cat([prompts, mask], dim=1)
    return made.with_fields(zeros | {"attention_mask": attention, "policy_version": torch.tensor(versions)})


@pytest.mark.parametrize(
    ("step", "versions", "warmup", "mean", "largest"),
    [
        (1, [0, 0, 0], 0, 0.0, 0.0),
        (5, [4, 4, 4], 0, 0.0, 0.0),
        (5, [4, 2, 3], 0, 1.0, 2.0),
        # The actor has not moved while the critic warms up.
        (4, [0, 0, 0], 4, 0.0, 0.0),
        (5, [4, 4, 4], 4, 0.0, 0.0),
        (7, [0, 6, 6], 4, 1.0, 3.0),
    ],
)
def test_staleness(step: int, versions: list[int], warmup: int, mean: float, largest: float) -> None:
    metrics = measure(step, versioned(versions), config(critic_warmup=warmup))
    assert metrics["training/policy_staleness/mean"] == mean
    assert metrics["training/policy_staleness/max"] == largest


def test_an_answer_of_full_length_need_not_be_cut() -> None:
    metrics = measure(5, versioned([4, 4, 4]), config())
    assert metrics["response/truncated_ratio"] == pytest.approx(1 / 3)
    assert "train/zero_advantage_groups" not in metrics
