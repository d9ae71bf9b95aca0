"""Which files and classes of each trainer hold its keys: one function a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.tools.trainer_keys.reading import arguments, fields
from tests.tools.trainer_keys.sources import Source

Groups = dict[str, dict[str, dict[str, Any]]]
Kinds = dict[str, list[str]]


class Recipe(NamedTuple):
    """`repository` on GitHub; `read` gets a release and what goes with it, and returns groups of keys and kinds."""

    repository: str
    read: Callable[[Source, tuple[Source, ...]], tuple[Groups, Kinds]]


def _openrlhf(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    del beside
    return {"train_ppo_ray": arguments(source.text("openrlhf/cli/train_ppo_ray.py") or "")}, {"ppo": ["train_ppo_ray"]}


_TRL = {
    "grpo": ("GRPOConfig", "trl/trainer/grpo_config.py"),
    "rloo": ("RLOOConfig", "trl/trainer/rloo_config.py"),
    "ppo": ("PPOConfig", "trl/experimental/ppo/ppo_config.py", "trl/trainer/ppo_config.py"),
    "async_grpo": ("AsyncGRPOConfig", "trl/experimental/async_grpo/async_grpo_config.py"),
}
_SCRIPT = {"grpo": "GRPOScriptArguments", "rloo": "RLOOScriptArguments"}


def _trl(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    """TRL with the transformers and the accelerate that are its own beside it."""
    transformers, accelerate = beside
    groups: Groups = {
        "TrainingArguments": fields(transformers.text("transformers/training_args.py") or "", "TrainingArguments"),
        "accelerate": arguments(accelerate.text("accelerate/commands/launch.py") or ""),
    }
    groups["accelerate"]["accelerate_config"] = {"types": ["str"], "default": None, "nullable": True}

    def add(name: str, *paths: str) -> bool:
        found = next((keys for path in paths if (text := source.text(path)) and (keys := fields(text, name))), None)
        if found is not None:
            groups[name] = found
        return found is not None

    shared = [name for name, *paths in (
        ("_BaseConfig", "trl/trainer/base_config.py", "trl/trainer/base_trainer.py"),
    ) if add(name, *paths)]  # fmt: skip
    extra = [name for name, *paths in (
        ("OnPolicyConfig", "trl/trainer/utils.py"),
        ("ModelConfig", "trl/trainer/model_config.py"), ("ScriptArguments", "trl/scripts/utils.py"),
        ("DatasetMixtureConfig", "trl/scripts/utils.py"),
    ) if add(name, *paths)]  # fmt: skip
    kinds: Kinds = {"launcher": ["accelerate"]}
    for kind, (name, *paths) in _TRL.items():
        if add(name, *paths):
            own = [_SCRIPT[kind]] if kind in _SCRIPT and add(_SCRIPT[kind], f"trl/scripts/{kind}.py") else []
            kinds[kind] = ["TrainingArguments", *shared, *extra, *own, name]
    return groups, kinds


RECIPES: Mapping[str, Recipe] = {
    "openrlhf": Recipe("OpenRLHF/OpenRLHF", _openrlhf),
    "trl": Recipe("huggingface/trl", _trl),
}
