"""What accelerate is told of the processes and of how they share a model: options, its own file, DeepSpeed's JSON.

Keys of accelerate 1.15.0 (`accelerate.commands.launch`, `accelerate.utils.dataclasses`: `DeepSpeedPlugin`,
`FullyShardedDataParallelPlugin`) and of DeepSpeed (deepspeed/runtime/zero/config.py@edaa722).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from rlcheck.measure.config.config import Config
from rlcheck.measure.config.trainer import UNKNOWN
from rlcheck.measure.config.trees import as_tree

_KINDS = {"DEEPSPEED": "deepspeed", "FSDP": "fsdp", "MULTI_GPU": "ddp", "NO": "ddp"}
# trl/accelerate_configs/*.yaml (huggingface/trl@f2cd577).
NAMED = {
    "single_gpu": {"distributed_type": "NO", "num_processes": 1},
    "multi_gpu": {"distributed_type": "MULTI_GPU", "num_processes": 8},
    "fsdp1": {"distributed_type": "FSDP", "num_processes": 8, "fsdp_version": 1,
              "fsdp_reshard_after_forward": "FULL_SHARD"},
    "fsdp2": {"distributed_type": "FSDP", "num_processes": 8, "fsdp_version": 2, "fsdp_reshard_after_forward": True},
    **{f"zero{stage}": {"distributed_type": "DEEPSPEED", "num_processes": 8, "zero_stage": stage}
       for stage in (1, 2, 3)},
}  # fmt: skip
_BUCKET = 500_000_000


def _told(config: Config) -> dict[str, Any]:
    """Keys of the launcher: TRL's named files, the file, and over both the options."""
    words = [part for word in config.before for part in word.split("=", 1)]
    options = {name.lstrip("-").replace("-", "_"): value for name, value in pairwise(words) if name.startswith("-")}
    options |= {word.lstrip("-"): True for word in ("--use_deepspeed", "--use_fsdp") if word in words}
    options |= config.launch
    name = str(options.get("accelerate_config", options.get("config_file", "")))
    return {**NAMED.get(name, {}), **config.launch_file, **options}


def world(config: Config) -> tuple[int | None, int | None]:
    """Nodes and processes on each, as the launcher is told; None where it is not said."""
    told = _told(config)
    nodes = _int(told.get("num_machines") or told.get("nnodes") or told.get("num_nodes"))
    total, each = _int(told.get("num_processes")), _int(told.get("nproc_per_node") or told.get("num_gpus"))
    if each is None and total is not None:
        each = total // max(1, nodes or 1)
    each = each or _num_named(config.before)
    return (nodes or 1, each) if each else (nodes, None)


def _num_named(words: Sequence[str]) -> int | None:
    """The GPUs that the launcher's words name one by one, which it takes all of: of one node alone."""
    for name, value in (word.split("=", 1) for word in words if "=" in word):
        if name in ("CUDA_VISIBLE_DEVICES", "--include"):
            return _num_listed(value)
    return next((_num_listed(value) for name, value in pairwise(words) if name in ("--include", "-i")), None)


def _num_listed(text: str) -> int | None:
    """GPUs in `0,1` or DeepSpeed's `localhost:0,1`; None where it is something else."""
    listed = text.rpartition(":")[2].strip("\"'")
    return len(listed.split(",")) if re.fullmatch(r"\d+(?:,\d+)*", listed) and "@" not in text else None


def _int(value: Any) -> int | None:
    return int(value) if value is not None and str(value).isdecimal() else None


def sharding(config: Config) -> dict[str, Any]:
    """Fields of `Sharding` that the launcher settles; `UNKNOWN` where it is not known, or what it is told."""
    told, inner = _told(config), config.pick.raw("deepspeed")
    kind = _KINDS.get(str(told.get("distributed_type", "")))
    if inner is not None or told.get("use_deepspeed"):
        kind = "deepspeed"
    elif told.get("use_fsdp"):
        kind = "fsdp"
    elif kind is None and world(config)[1] is not None and not _has_file(told):
        kind = "ddp"  # accelerate's and torchrun's own
    common = {"param_offload": False, "optimizer_offload": False, "offload_policy": False, "cpu_optimizer_share": 0.0}
    if kind == "deepspeed":
        return {**common, "strategy": kind, **_deepspeed(told, inner)}
    if kind == "fsdp":
        return {**common, **_fsdp(told)}
    return {**common, "strategy": UNKNOWN if kind is None else kind}


def _has_file(told: dict[str, Any]) -> bool:
    """Whether a file that is not here, or not named on the line, may say more."""
    return str(told.get("accelerate_config", told.get("config_file", ""))) not in ("", *NAMED)


def _fsdp(told: dict[str, Any]) -> dict[str, Any]:
    second = str(told.get("fsdp_version", 1)) == "2"
    how = str(told.get("fsdp_reshard_after_forward", told.get("fsdp_sharding_strategy", "FULL_SHARD")))
    if how.upper() in ("NO_SHARD", "3"):
        return {"strategy": "ddp"}
    return {
        "strategy": "fsdp2" if second else "fsdp",
        # HYBRID_SHARD shards over the GPUs of a node; how many these are is the world's.
        "shard_size": UNKNOWN if "HYBRID" in how.upper() else -1,
        "reshard_after_forward": how.upper() not in ("SHARD_GRAD_OP", "2", "FALSE"),
        "offload_policy": str(told.get("fsdp_offload_params", "false")).lower() == "true",
    }


def _deepspeed(told: dict[str, Any], given: Any) -> dict[str, Any]:
    """The stage and what is on the host: of the JSON where there is one, else of accelerate's own keys."""
    named = told.get("deepspeed_config_file") or (given if isinstance(given, str) else None)
    tree = as_tree(given) or as_tree(told.get("deepspeed"))
    if tree is None and named is not None:
        return dict.fromkeys(("zero_stage", "cpu_optimizer_share", "param_offload", "bucket_elements"), UNKNOWN)
    if tree is None:
        stage = _int(told.get("zero_stage", 2))  # accelerate's default
        devices = {name: str(told.get(f"offload_{name}_device", "none")) for name in ("optimizer", "param")}
        return _offloaded(stage, devices, _BUCKET)
    zero = as_tree(tree.get("zero_optimization")) or {}
    bucket = zero.get("reduce_bucket_size", _BUCKET)
    parts = {name: as_tree(zero.get(f"offload_{name}")) or {} for name in ("optimizer", "param")}
    found_devices = {name: str(part.get("device", "none")) for name, part in parts.items()}
    # "auto": transformers puts the square of the hidden size there, which is far less than the default.
    return _offloaded(_int(zero.get("stage", 0)), found_devices, bucket if isinstance(bucket, int) else 0)


def _offloaded(stage: int | None, devices: dict[str, str], bucket: int) -> dict[str, Any]:
    return {
        "zero_stage": UNKNOWN if stage is None else stage,
        "cpu_optimizer_share": 0.0 if devices["optimizer"] == "none" else 1.0,
        "param_offload": devices["param"] != "none" and stage == 3,
        "bucket_elements": bucket,
    }
