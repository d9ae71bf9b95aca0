"""What comes back from the engine, as one batch."""

from __future__ import annotations

import pytest
import torch

from rltrain.controller.assemble import assemble
from rltrain.core.batch import Batch, Sample
from rltrain.toy.tokenizer import build_tokenizer
from rltrain.workers.rollout.protocol import Completion

SAMPLES = [Sample("0-0", 0, prompt_ids=(5, 6, 7)), Sample("0-1", 1, prompt_ids=(8,))]
COMPLETIONS = [
    Completion((9,), (-0.5,), "stop", policy_version=7),
    Completion((10, 11, 12), (-0.1, -0.2, -0.3), "length", policy_version=6),
]


def batch(keep_log_probs: bool = True) -> Batch:
    return assemble(SAMPLES, COMPLETIONS, build_tokenizer(None), keep_log_probs)


def test_prompts_end_and_responses_begin_side_by_side() -> None:
    made = batch()
    assert made["attention_mask"].tolist() == [[True, True, True, True, False, False], [False, False] + [True] * 4]
    assert made["position_ids"][1].tolist() == [0, 0, 0, 1, 2, 3]
    assert made["input_ids"][0, :4].tolist() == [5, 6, 7, 9]
    assert made["input_ids"][1, 2:].tolist() == [8, 10, 11, 12]
    assert made["response_mask"].tolist() == [[True, False, False], [True] * 3]
    assert made["truncated"].tolist() == [False, True]
    assert made["policy_version"].tolist() == [7, 6]
    torch.testing.assert_close(made["rollout_log_probs"], torch.tensor([[-0.5, 0, 0], [-0.1, -0.2, -0.3]]))


def test_the_engines_log_probs_are_left_out_if_the_config_says_so() -> None:
    assert batch().names - batch(keep_log_probs=False).names == {"rollout_log_probs"}
    with pytest.raises(KeyError, match="which rollout writes"):
        batch(keep_log_probs=False)["rollout_log_probs"]
