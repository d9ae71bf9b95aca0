"""Which files and classes of each trainer hold its keys: one function a trainer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.tools.trainer_keys.models import Models
from tests.tools.trainer_keys.parsers import megatron, patched, router, sglang
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


_SKIPPED = (
    "model_path", "config", "trust_remote_code", "random_seed", "enable_memory_saver", "tp_size", "port", "nnodes",
    "node_rank", "dist_init_addr", "gpu_id_step", "base_gpu_id", "nccl_port", "skip_server_warmup",
    "enable_return_routed_experts",
)  # fmt: skip
"""Options of SGLang's server that `slime/backends/sglang_utils/arguments.py` leaves out."""
_PATCHES = ("megatron", "sglang", "sglang-top_p", "sglang-release_hicache", "sglang-pull_weights",
            "sglang-deterministic")  # fmt: skip


def _slime(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    """slime with the Megatron-LM, the sglang and the sglang-router of its Dockerfile, and its patches of them."""
    megatron_lm, server, routes = beside
    groups: Groups = {"megatron": megatron(megatron_lm), "sglang": sglang(server, _SKIPPED), "router": router(routes)}
    for name in _PATCHES:
        added, served = patched(source.text(f"docker/patch/latest/{name}.patch") or "")
        groups["megatron"] |= added
        groups["sglang"] |= served
    groups["engines"] = {
        option: key for option, key in arguments(source.text("slime/backends/sglang_utils/arguments.py") or "").items()
        if option not in groups["sglang"]
    }  # fmt: skip
    groups["slime"] = arguments(source.text("slime/utils/arguments.py") or "")
    every = ["megatron", "sglang", "router", "engines", "slime"]
    return groups, {"rl": every, "async": every}


_PRIME = {
    "rl": ("rl", "RLConfig"), "trainer": ("trainer", "TrainerConfig"), "sft": ("sft", "SFTConfig"),
    "orchestrator": ("orchestrator", "OrchestratorConfig"), "inference": ("inference", "InferenceConfig"),
    "evals": ("evals", "EvalsConfig"), "env-server": ("env_server", "EnvServerConfig"),
}  # fmt: skip


def _prime_rl(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    del beside

    def read(module: str) -> str | None:
        path = f"{module.replace('.', '/')}.py"
        return source.text(f"packages/prime-rl-configs/src/{path}") if module.startswith("prime_rl.configs") else None

    models = Models(read)
    groups = {kind: models.keys(f"prime_rl.configs.{module}", name) for kind, (module, name) in _PRIME.items()}
    return groups, {kind: [kind] for kind in groups}


RECIPES: Mapping[str, Recipe] = {
    "openrlhf": Recipe("OpenRLHF/OpenRLHF", _openrlhf),
    "prime-rl": Recipe("PrimeIntellect-ai/prime-rl", _prime_rl),
    "slime": Recipe("THUDM/slime", _slime),
    "trl": Recipe("huggingface/trl", _trl),
}
