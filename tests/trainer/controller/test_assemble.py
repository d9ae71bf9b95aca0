"""What comes back from the engine, as one batch."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from rltrain.controller.assemble import answered, assemble
from rltrain.core.batch import Batch, Sample
from rltrain.core.trajectory import Trajectory, float_array, int_array
from rltrain.toy.tokenizer import build_tokenizer
from rltrain.workers.fsdp.micro import take
from rltrain.workers.rollout.protocol import Completion

SAMPLES = [Sample("0-0", 0, prompt_ids=(5, 6, 7)), Sample("0-1", 1, prompt_ids=(8,))]
COMPLETIONS = [
    Completion(int_array([9]), float_array([-0.5]), "stop", versions=((0, 7),)),
    Completion(int_array([10, 11, 12]), float_array([-0.1, -0.2, -0.3]), "length", versions=((0, 6), (2, 8))),
]


def batch(*completions: Completion) -> Batch:
    return answered(SAMPLES, completions or COMPLETIONS, build_tokenizer(None))


def test_prompts_end_and_responses_begin_side_by_side() -> None:
    made = batch()
    assert made["attention_mask"].tolist() == [[True, True, True, True, False, False], [False, False] + [True] * 4]
    assert made["input_ids"][0, :4].tolist() == [5, 6, 7, 9]
    assert made["input_ids"][1, 2:].tolist() == [8, 10, 11, 12]
    assert made["prompts"].tolist() == made["input_ids"][:, :3].tolist()
    assert made["responses"].tolist() == made["input_ids"][:, 3:].tolist()
    assert made["response_mask"].tolist() == [[True, False, False], [True] * 3]
    assert made["truncated"].tolist() == [False, True]
    assert made["policy_version"].tolist() == [7, 6], "the oldest that wrote any of it"
    torch.testing.assert_close(made["rollout_log_probs"], torch.tensor([[-0.5, 0, 0], [-0.1, -0.2, -0.3]]))
    assert made.engine_mask.equal(made["response_mask"])


def test_positions_and_wide_ids_are_made_where_they_are_read() -> None:
    read = take(batch().bare(), [0, 1])
    assert read["position_ids"].tolist() == [[0, 1, 2, 3, 3, 3], [0, 0, 0, 1, 2, 3]]
    assert read["input_ids"].dtype == torch.int64


def test_log_probs_that_were_not_asked_for_count_nowhere() -> None:
    made = batch(COMPLETIONS[0], replace(COMPLETIONS[1], log_probs=None))
    assert made["rollout_log_probs"].tolist() == [[-0.5, 0, 0], [0, 0, 0]]
    assert made.engine_mask.tolist() == [[True, False, False], [False] * 3]
    silent = batch(*(replace(one, log_probs=None) for one in COMPLETIONS))
    assert not {"rollout_log_probs", "rollout_log_probs_asked"} & silent.names


def test_what_a_tool_wrote_is_read_and_not_learnt_from() -> None:
    """Two turns of the policy, and between them two tokens that are not its own."""
    mask = np.array([True, True, False, False, True])
    turns = Trajectory(int_array([9, 10, 30, 31, 11]), mask, float_array([-1, -2, 0, 0, -3]), ((0, 4),), False)
    made = assemble([replace(SAMPLES[0], response_text="")], [turns], 0)
    assert made["attention_mask"].tolist() == [[True] * 8]
    assert made["response_mask"].tolist() == [mask.tolist()]
    assert made["input_ids"][0, 3:].tolist() == [9, 10, 30, 31, 11]
    assert made["rollout_log_probs"].tolist() == [[-1, -2, 0, 0, -3]]
