"""Configs, requests and user files for the tests of rewards."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.rewards.request import RewardRequest


def run_config(
    *rules: dict[str, Any],
    custom: Path | None = None,
    name: str = "compute_score",
    reward_kwargs: dict[str, Any] | None = None,
    custom_weight: float = 1.0,
    **reward_model: Any,
) -> RunConfig:
    return RunConfig.model_validate(
        {
            "actor_rollout_ref": {"rollout": {"name": "hf"}},
            "data": {"train_files": ["train.jsonl"], "val_files": ["val.jsonl"]},
            "reward_model": {"rules": rules, **reward_model},
            "custom_reward_function": {
                "path": str(custom) if custom else None,
                "name": name,
                "weight": custom_weight,
                "reward_kwargs": reward_kwargs or {},
            },
        }
    )


def request(solution: str = "a", truth: Any = "a", index: int = 0, source: str = "toy", **more: Any) -> RewardRequest:
    return RewardRequest(source, solution, truth, uid=f"0-{index}", **more)


def requests(*solutions: str, truth: Any = "a") -> list[RewardRequest]:
    return [request(solution, truth, index) for index, solution in enumerate(solutions)]


def write(directory: Path, body: str, head: str = "") -> Path:
    """A user's file whose `compute_score` has this body; the first line of the body is line 4."""
    path = directory / "reward.py"
    lines = dedent(body).strip("\n").replace("\n", "\n    ")
    signature = "data_source, solution_str, ground_truth, extra_info=None"
    path.write_text(f"{head or '# no imports'}\n\ndef compute_score({signature}):\n    {lines}\n")
    return path
