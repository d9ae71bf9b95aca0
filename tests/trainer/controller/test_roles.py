"""What an update has read comes into the batch, and is measured on the answers that the engine was asked about."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
import torch

from rltrain.controller.roles import Actor
from rltrain.controller.train_group import TrainGroup
from rltrain.core.clock import Clock
from tests.trainer.controller.build import batch, config


def test_the_gap_is_of_answers_whose_log_probs_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    actor = Actor(cast(TrainGroup, SimpleNamespace(workers=None, data_ranks=1)), config(), Clock())
    late = {"old_log_probs": torch.full((3, 3), -2.0), "entropys": torch.zeros(3, 3)}
    monkeypatch.setattr(actor, "_late", late)
    engine = torch.zeros(3, 3)  # 0 where it was not asked
    engine[0] = -2.5
    asked = {"rollout_log_probs": engine, "rollout_log_probs_asked": torch.tensor([True, False, False])}
    found, metrics = actor.after_update(batch().with_fields(asked))
    assert found["old_log_probs"].equal(late["old_log_probs"])
    assert metrics["rollout_corr/kl"] == pytest.approx(-0.5)
    assert metrics["rollout_corr/log_ppl_diff_max"] == pytest.approx(-0.5)
