"""Where rewards come from, in runs on the real stack: rules, a user's function, a reward model, and their weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from rltrain.config.schema import RewardModelConfig
from rltrain.rewards.model import RewardModel, conversation
from rltrain.toy.tokenizer import build_tokenizer
from tests.trainer.end_to_end.matrix.stage import Stage, scores
from tests.trainer.workers.fsdp.models import ROPE

pytestmark = pytest.mark.timeout(400)
GRPO = ("algorithm.adv_estimator=grpo", "trainer.total_training_steps=1")
RULES = "reward_model.rules=[{kind: digits, weight: 0.5}, {kind: format, name: form, pattern: '[0-9]+', weight: 0.3}]"
FUNCTION = """
def bonus(data_source, solution_str, ground_truth, extra_info=None, scale=1.0):
    assert data_source == "toy/copy" and len(ground_truth) == 4
    return scale * len(solution_str)
"""


def test_rules_and_a_users_function_add_up_by_weight(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "reward.py").write_text(FUNCTION)
    custom = "custom_reward_function"
    played = stage.play(
        *GRPO,
        RULES,
        f"{custom}.path={tmp_path / 'reward.py'}",
        f"{custom}.name=bonus",
        f"{custom}.weight=0.2",
        f"{custom}.reward_kwargs={{scale: 2.0}}",
    )
    (step,), (batch,) = played.steps, played.batches
    for sample, score in zip(batch.samples, scores(batch).tolist(), strict=True):
        parts = sample.reward_parts
        assert set(parts) == {"digits", "form", "custom"}
        assert parts["custom"] == 2.0 * len(sample.response_text)
        assert parts["form"] == float(sample.response_text.isdigit())
        assert score == pytest.approx(0.5 * parts["digits"] + 0.3 * parts["form"] + 0.2 * parts["custom"], abs=1e-6)
    for part in ("digits", "form", "custom"):
        mean = sum(sample.reward_parts[part] for sample in batch.samples) / len(batch)
        assert step[f"reward/toy/copy/{part}/mean"] == pytest.approx(mean)
        assert step[f"reward/toy/copy/{part}/count"] == len(batch)
    assert step["critic/score/mean"] == pytest.approx(float(scores(batch).mean()))


@pytest.mark.row("F32", "F34")
def test_a_reward_model_scores_beside_the_rules(stage: Stage, tmp_path: Path) -> None:
    tokenizer = build_tokenizer(32)
    torch.manual_seed(1)
    config = AutoConfig.for_model("llama", **ROPE, num_labels=1, pad_token_id=tokenizer.pad_token_id)
    AutoModelForSequenceClassification.from_config(config, dtype=torch.float32).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model = ("reward_model.enable=true", f"reward_model.model.path={tmp_path}", "reward_model.weight=2.0")
    played = stage.play(*GRPO, *model)
    (step,), (batch,) = played.steps, played.batches
    found = [sample.reward_parts["model"] for sample in batch.samples]
    settings = {"enable": True, "model": {"path": str(tmp_path)}}
    alone = RewardModel(RewardModelConfig.model_validate(settings), device="cpu", dtype=torch.float32)
    expected, _ = alone.score([conversation(s.messages, s.response_text) for s in batch.samples])
    assert found == pytest.approx(expected, abs=1e-5)
    assert len(set(found)) > 10
    for sample, score in zip(batch.samples, scores(batch).tolist(), strict=True):
        assert score == pytest.approx(sample.reward_parts["digits"] + 2.0 * sample.reward_parts["model"], abs=1e-5)
    assert step["reward/toy/copy/model/mean"] == pytest.approx(sum(found) / len(found))
    assert step["reward/model_truncated"] == 0
