"""Answers that were cut count in no loss, where the config says so; the rest is learnt from as before."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from rltrain.config.schema import RunConfig
from rltrain.controller.roles import learnt_from
from rltrain.core.batch import Batch, Sample
from rltrain.workers.fsdp.split import actor_minis, critic_minis
from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import random_batch

CUT = 3
IDS = ("input_ids", "prompts", "responses")


def learnt(config: RunConfig, changed: bool, whole: bool = False) -> tuple[str, float]:
    """Hash of the actor after a step, and tokens in its loss.

    CHANGED: the cut answer's advantages and returns are others. WHOLE: no answer was cut.
    """
    rows = random_batch(16, seed=8)
    with scenes.worker(config) as worker:
        fields: dict[str, Tensor] = {
            **{name: value.int() if name in IDS else value for name, value in rows.items() if name != "position_ids"},
            **worker.log_probs(rows),
            **worker.values(rows),
            **worker.ref_log_probs(rows),
        }
        for name in ("advantages", "returns"):
            fields[name] = fields[name].clone()
            fields[name][CUT] += 10.0 * changed * fields["response_mask"][CUT]
        truncated = torch.zeros(16, dtype=torch.bool)
        truncated[CUT] = not whole
        fields["truncated"] = truncated
        batch = learnt_from(Batch.of([Sample(uid=str(row), index=row) for row in range(16)], fields), config).bare()
        worker.update_critic(critic_minis(batch, config, 1, 1)[0])
        metrics = worker.update_actor(actor_minis(batch, config, 1, 1)[0])
        return worker.parameter_hash(), metrics["actor/loss_tokens"]


@pytest.mark.parametrize("packed", [True, False])
def test_a_cut_answer_moves_nothing(models: Path, packed: bool) -> None:
    config = make_config(models / "qwen2", packed=packed, algorithm={"mask_truncated_completions": True})
    mask = random_batch(16, seed=8)["response_mask"]
    masked, count = learnt(config, changed=False)
    assert learnt(config, changed=True) == (masked, count)
    assert count == int(mask.sum() - mask[CUT].sum())
    assert learnt(config, changed=False, whole=True) != (masked, count)


def test_it_is_off_by_default(models: Path) -> None:
    config = make_config(models / "qwen2")
    assert learnt(config, changed=False)[0] != learnt(config, changed=True)[0]
    assert learnt(config, changed=False) == learnt(config, changed=False, whole=True)
