"""Which files and classes of each trainer hold its keys: one function a trainer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import yaml

from tests.tools.trainer_keys.models import Models
from tests.tools.trainer_keys.nested import Classes, Entries, missing
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
    """Both of its programs: `train_ppo`, whose models share every GPU, was there to 0.6.1."""
    del beside
    programs = {"ppo": "train_ppo_ray", "shared": "train_ppo"}
    found = {name: arguments(source.text(f"openrlhf/cli/{name}.py") or "") for name in programs.values()}
    groups = {name: keys for name, keys in found.items() if keys}
    return groups, {kind: [name] for kind, name in programs.items() if name in groups}


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


_MILES_SKIPPED = (*(name for name in _SKIPPED if name != "tp_size"), "enable_return_indexer_topk")
"""The same of `miles/backends/sglang_utils/arguments.py`."""
# Options of miles's own branch of sglang, which is not released, that its scripts and tests use.
_MILES_SGLANG = ("sglang-remote-instance-weight-loader-ib-device", "sglang-true-on-policy-contract")


def _miles(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    """miles with the Megatron-LM and the router of its Dockerfile, and sglang; FSDP has a parser of its own."""
    megatron_lm, server, routes = beside
    text = source.text("miles/backends/fsdp_utils/arguments.py") or ""
    dashes = {name.replace("_", "-"): row for name, row in fields(text, "FSDPArgs").items()}
    groups: Groups = {
        "megatron": megatron(megatron_lm),
        "fsdp": {name: row | ({"flag": True} if row["types"] == ["bool"] else {}) for name, row in dashes.items()},
        "sglang": sglang(server, _MILES_SKIPPED) | {name: {"types": [], "nullable": True} for name in _MILES_SGLANG},
        "router": router(routes),
        "engines": arguments(source.text("miles/backends/sglang_utils/arguments.py") or ""),
        "dashboard": arguments(source.text("miles/dashboard/args.py") or ""),
        "miles": arguments(source.text("miles/utils/arguments.py") or ""),
    }
    # Of engines that evaluate: each of SGLang's again, which a flag may turn off as well.
    own = ["sglang", "eval-=sglang", "router", "engines", "dashboard", "miles"]
    plain, fsdp = ["megatron", *own], ["fsdp", *own]
    return groups, {"rl": plain, "async": plain, "rl-fsdp": fsdp, "async-fsdp": fsdp}


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


_NEMO = {"grpo": "grpo", "ppo": "ppo", "single": "single_controller_utils/config"}
_NEMO_CLASSES = r"nemo_rl/(?:algorithms|data|data_plane|distributed|models|utils|experience)/.*\.py"
# What stands for `GenerationConfig`, by the backend.
_NEMO_ENGINES = ("VllmConfig", "SGLangConfig", "TrtllmConfig", "MCoreGenerationConfig", "DynamoConfig")


def _nemo(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    """The classes below `MasterConfig`, and the keys that the base configs have beside those."""
    del beside
    texts = source.texts("nemo_rl", _NEMO_CLASSES)
    shipped = source.texts("examples", r".*\.yaml")
    quoted = {name for text in texts.values() for name in re.findall(r"[\"'](\w+)[\"']", text)}
    groups: Groups = {}
    for kind, file in _NEMO.items():
        own = texts.get(f"nemo_rl/algorithms/{file}.py", "")
        if "class MasterConfig" not in own:
            continue
        classes = Classes([own, *texts.values()])
        groups[kind] = classes.keys("MasterConfig")
        for engine in _NEMO_ENGINES:
            found = classes.keys(engine, "policy.generation.") if classes.has(engine) else {}
            # Nothing checks the types of these: `PolicyConfig.generation` is a `GenerationConfig`.
            groups[kind] |= {key: {**row, "nullable": True} for key, row in found.items() if key not in groups[kind]}
        for base in ("grpo_math_1B", "ppo_math_1B") if kind != "ppo" else ("ppo_math_1B",):
            _add(groups[kind], shipped.get(f"examples/configs/{base}.yaml", ""))
        for text in shipped.values():
            _add(groups[kind], text, only=quoted)
    return shared(groups)


_SKYRL = (
    "skyrl/train/config/config.py",
    "skyrl-gym/skyrl_gym/envs/search/env.py",
    "skyrl-gym/skyrl_gym/envs/sql/env.py",
)


def _skyrl(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    """The dataclasses below `SkyRLTrainConfig`, which alone hold defaults since the base YAML went."""
    del beside
    texts = [text for path in _SKYRL if (text := source.text(path))]
    keys = Classes(texts, open_kinds=("int", "float", "bool")).keys("SkyRLTrainConfig")
    for section, row in _SKYRL_DEFAULTS.items():
        keys[section] = {**keys[section], "default": row}
    keys["trainer.logger"]["types"] = sorted({*keys["trainer.logger"]["types"], "list"})  # nothing checks it
    # `from_cli_overrides` takes these, too, and drops the second where it is true.
    keys["generator.inference_engine.async_engine"] = {"types": ["bool"], "deprecated": "is always true now; remove it"}
    keys["trainer.use_sample_packing"] = {"types": ["bool"], "sets": "trainer.remove_microbatch_padding"}
    return {"SkyRLTrainConfig": keys}, {"main_base": ["SkyRLTrainConfig"], "own": ["SkyRLTrainConfig"]}


# Of a class that is used with a default of its own in one place.
_SKYRL_DEFAULTS = {
    "trainer.policy.model.path": "Qwen/Qwen2.5-1.5B-Instruct",
    "trainer.critic.optimizer_config.lr": 5e-6,
}


_AREAL_MISSING = (
    "experiment_name", "trial_name", "rollout.backend", "train_dataset.path", "train_dataset.type",
    *(f"{section}.{key}" for section in ("saver", "evaluator", "recover", "stats_logger")
      for key in ("experiment_name", "trial_name", "fileroot")),
)  # fmt: skip
"""Keys whose default is `MISSING`, of sections that every program has."""


def _areal(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    """The dataclasses below `PPOConfig`; programs have subclasses of it."""
    del beside
    keys = Classes([source.text("areal/api/cli_args.py") or ""], open_kinds=("int", "float", "bool")).keys("PPOConfig")
    for key in _AREAL_MISSING:
        keys[key] = {"types": keys[key]["types"], "required": True}
    return {"PPOConfig": keys}, {"grpo": ["PPOConfig"]}


_ROLL = {"rlvr": ("RLVRConfig", "rlvr/rlvr_config"), "agentic": ("AgenticConfig", "agentic/agentic_config")}


def _roll(source: Source, beside: tuple[Source, ...]) -> tuple[Groups, Kinds]:
    """The dataclasses below the config of each pipeline; each has a `RewardConfig` of its own."""
    del beside
    texts = list(source.texts("roll/configs").values())
    own = {kind: source.text(f"roll/pipeline/{path}.py") or "" for kind, (_, path) in _ROLL.items()}
    return shared({kind: Classes([own[kind], *texts]).keys(name) for kind, (name, _) in _ROLL.items()})


def shared(groups: Groups) -> tuple[Groups, Kinds]:
    """Return GROUPS of a kind each, with what all kinds have in one of its own, and the kinds."""
    first = next(iter(groups.values()))
    common = {key: row for key, row in first.items() if all(keys.get(key) == row for keys in groups.values())}
    kinds = {kind: ["shared", kind] for kind in groups}
    own = {kind: {key: row for key, row in keys.items() if key not in common} for kind, keys in groups.items()}
    return {"shared": common, **own}, kinds


def _add(keys: Entries, text: str, *, only: set[str] | None = None) -> None:
    """Add to KEYS what the YAML TEXT has beside them; of its type nothing is known. `only`: names that code reads."""
    tree: dict[str, Any] = yaml.safe_load(text) or {}
    for key in missing(keys, tree):
        if only is None or ("." in key and key.rpartition(".")[2] in only):
            keys[key] = {"nullable": True}


RECIPES: Mapping[str, Recipe] = {
    "areal": Recipe("inclusionAI/AReaL", _areal),
    "miles": Recipe("radixark/miles", _miles),
    "nemo-rl": Recipe("NVIDIA-NeMo/RL", _nemo),
    "openrlhf": Recipe("OpenRLHF/OpenRLHF", _openrlhf),
    "prime-rl": Recipe("PrimeIntellect-ai/prime-rl", _prime_rl),
    "roll": Recipe("alibaba/ROLL", _roll),
    "slime": Recipe("THUDM/slime", _slime),
    "skyrl": Recipe("NovaSky-AI/SkyRL", _skyrl),
    "trl": Recipe("huggingface/trl", _trl),
}
