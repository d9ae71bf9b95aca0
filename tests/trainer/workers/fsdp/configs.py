"""Run configs for tests of the training side."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rltrain.config.resolve import Machine, resolve
from rltrain.config.schema import RunConfig

OPTIM = {"lr": 5e-4, "lr_scheduler_type": "cosine"}


def make_config(
    model: Path,
    *,
    world_size: int = 1,
    micro: int = 8,
    packed: bool = True,
    actor: dict[str, Any] | None = None,
    critic: dict[str, Any] | None = None,
    model_keys: dict[str, Any] | None = None,
    **sections: Any,
) -> RunConfig:
    """A resolved config for WORLD_SIZE CPU ranks: 4 prompts of 4 samples a step, 2 optimizer steps."""
    shared: dict[str, Any] = {"ppo_mini_batch_size": 2, "ppo_micro_batch_size_per_gpu": micro, "optim": OPTIM}
    extra = {"use_kl_loss": True, "entropy_coeff": 0.01, "kl_loss_coef": 0.1, "fsdp_config": {"dtype": "float32"}}
    config = RunConfig.model_validate(
        {
            "actor_rollout_ref": {
                "model": {"path": str(model), "use_remove_padding": packed, **(model_keys or {})},
                "actor": {**shared, **extra, **(actor or {})},
                "ref": {"log_prob_micro_batch_size_per_gpu": 8},
                "rollout": {
                    "name": "hf",
                    "n": 4,
                    "temperature": 0.7,
                    "dtype": "float32",
                    "log_prob_micro_batch_size_per_gpu": 8,
                },
                "nccl_timeout": 60,
            },
            "critic": {
                **shared,
                **(critic or {}),
                "model": {"use_remove_padding": packed, **(critic or {}).get("model", {})},
            },
            "data": {"train_batch_size": 4, "max_response_length": 10, "max_prompt_length": 9},
            "trainer": {"num_cpu_ranks": world_size, "seed": 3, "device": "cpu"},
            **sections,
        }
    )
    return resolve(config, Machine(device="cpu", num_gpus=0, num_cpus=2))
