"""Files of runs, traces and engines, in a few lines each."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

CONFIG = """
data: {train_batch_size: 64, max_prompt_length: 256, max_response_length: 8192, train_files: x.parquet}
actor_rollout_ref:
  model: {path: Qwen/Qwen2.5-7B}
  actor: {ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 1, strategy: fsdp2}
  rollout: {name: vllm, n: 8, tensor_model_parallel_size: 1}
trainer: {n_gpus_per_node: 8, nnodes: 1}
"""
USUAL = {
    "timing_s/gen": 20.0, "timing_s/update_actor": 25.0, "timing_s/old_log_prob": 7.0, "timing_s/reward": 1.0,
    "timing_s/step": 55.0, "response_length/mean": 1000.0, "response_length/max": 2000.0,
    "prompt_length/mean": 200.0, "perf/total_num_tokens": 614400, "critic/score/mean": 0.5,
}  # fmt: skip


def verl(place: Path, **more: float) -> Path:
    """A run of verl: metrics in lines, Hydra's config. MORE: metrics by their last part."""
    (place / ".hydra").mkdir(parents=True)
    (place / ".hydra/config.yaml").write_text(CONFIG)
    data = {name: more.get(name.rpartition("/")[2], value) for name, value in USUAL.items()}
    data["response_length/max"] = more.get("longest", 2000.0)
    lines = [json.dumps({"step": step, "data": data}) for step in range(1, 9)]
    (place / "metrics.jsonl").write_text("\n".join(lines) + "\n")
    return place


def event(name: str, begin: float, end: float, cat: str = "kernel", **more: Any) -> dict[str, Any]:
    """A complete event; milliseconds."""
    return {
        "ph": "X",
        "cat": cat,
        "name": name,
        "ts": begin * 1e3,
        "dur": (end - begin) * 1e3,
        "tid": 7,
        "pid": 0,
        **more,
    }


def trace(path: Path, *events: dict[str, Any], rank: int = 0, world: int = 1, device: str = "NVIDIA H200") -> Path:
    """A trace of torch's profiler, as it indents it."""
    tree = {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": device}] if device else [],
        "distributedInfo": {"backend": "nccl", "rank": rank, "world_size": world},
        "traceEvents": [{"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}}, *events],
    }
    data = json.dumps(tree, indent=2).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def vllm(requests: int, preemptions: int, small: int = 0, passes: int = 0, usage: float = 0.5) -> str:
    """A text of vLLM's `/metrics`."""
    label = 'engine="0",model_name="m"'
    return f"""# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{{label}}} 12.0
vllm:num_requests_waiting{{{label}}} 3.0
vllm:kv_cache_usage_perc{{{label}}} {usage}
vllm:num_preemptions_total{{{label}}} {preemptions}
vllm:prefix_cache_queries_total{{{label}}} 1000.0
vllm:prefix_cache_hits_total{{{label}}} 250.0
vllm:request_success_total{{{label},finished_reason="stop"}} {requests}
vllm:request_success_total{{{label},finished_reason="length"}} 0.0
vllm:iteration_tokens_total_bucket{{{label},le="1.0"}} 0.0
vllm:iteration_tokens_total_bucket{{{label},le="8.0"}} {small}
vllm:iteration_tokens_total_count{{{label}}} {passes}
process_start_time_seconds 1.7e+09
"""


def clock(path: Path, own: tuple[float, ...] = (1.0, 1.0), tail: bool = False, preemptions: int = 0) -> Path:
    """rltrain's clock of eight steps: ranks that work OWN seconds and wait for the slowest; 64 answers of 100 tokens,
    or, with a TAIL, 60 of 20 tokens and 4 of 200."""
    spans = {"ranks": list(range(len(own))), "calls": [1] * len(own), "wall_s": [max(own) + 0.5] * len(own),
             "together_s": [max(own) + 0.5 - one - 0.1 for one in own], "queued_s": [0.1] * len(own)}  # fmt: skip
    paces = [[4, 180, 1.8], [64, 20, 0.4]] if tail else [[64, 100, 2.0]]
    left = [64] * 2 + [4] * 18 if tail else [64] * 20
    slots = [[number, number, 0, 0.9, 10] for number in left]
    round_ = {"engine": 0, "wall_s": 2.3, "requests": 64, "prompt_tokens": 640, "tokens": 2000 if tail else 6400,
              "passes": 200, "first_s": 0.1, "paces": paces, "slots": slots, "preemptions": preemptions}  # fmt: skip
    lines = [json.dumps({"step": step, "train": {"update_actor": spans}, "rounds": [round_]}) for step in range(9)]
    path.write_text("\n".join(lines) + "\n")
    return path
