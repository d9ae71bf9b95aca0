"""On GPUs: tensor parallelism, sleep, CUDA IPC into a colocated engine, NCCL into one with a GPU of its own.

Run by hand: `python -m pytest tests/trainer/workers/rollout/test_gpu.py -s` prints the differences that were found.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from rltrain.config.schema import RunConfig
from rltrain.workers.sync import choose
from tests.trainer.workers.rollout.cycle import Limits, cycle
from tests.trainer.workers.rollout.pair import crew, crew_config
from tests.trainer.workers.rollout.tiny import make_model

# Rounding of the kernels: those for float32 attention multiply in TF32.
LIMITS = {
    "float32": Limits(log_prob=5e-3, prob=2e-3),
    "bfloat16": Limits(log_prob=8e-2, prob=1.5e-2),
}
# Keeps off NVLink multicast, which shared hosts forbid.
ENVIRON = {"VLLM_ALLREDUCE_USE_SYMM_MEM": "0", "VLLM_ALLREDUCE_USE_FLASHINFER": "0", "NCCL_NVLS_ENABLE": "0"}


@dataclass(frozen=True)
class Case:
    """Where ranks and engine run, and what they run."""

    kind: str
    dtype: str
    transport: str
    rank_gpus: tuple[str, ...]
    engine_gpus: str
    graphs: bool = False


CASES = {
    "ipc-fp32": Case("opt", "float32", "cuda_ipc", ("0",), "0"),
    "ipc-bf16-graphs": Case("qwen3", "bfloat16", "cuda_ipc", ("0",), "0", graphs=True),
    "ipc-tp2-fp32": Case("qwen2", "float32", "cuda_ipc", ("0", "1"), "0,1"),
    "ipc-tp2-bf16": Case("llama", "bfloat16", "cuda_ipc", ("0", "1"), "0,1"),
    "nccl-fp32": Case("qwen2", "float32", "nccl", ("0",), "1"),
    "nccl-bf16": Case("opt", "bfloat16", "nccl", ("0",), "1"),
}
pytestmark = [
    pytest.mark.gpu(2),
    pytest.mark.timeout(400),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]


def config_of(case: Case, directory: Path) -> RunConfig:
    colocated = case.transport == "cuda_ipc"
    config = crew_config(
        directory,
        device="cuda",
        ranks=len(case.rank_gpus),
        gpus=2,
        parts={"hybrid_engine": colocated, "actor": {"fsdp_config": {"dtype": case.dtype}}},
        dtype=case.dtype,
        tensor_model_parallel_size=len(case.engine_gpus.split(",")),
        n_gpus_per_node=0 if colocated else 1,
        gpu_memory_utilization=0.3,
        enforce_eager=not case.graphs,
    )
    assert choose(config) == case.transport
    return config


@pytest.mark.parametrize("name", CASES)
def test_a_live_engine_takes_weights_and_computes_what_the_actor_computes(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    make_model(case.kind, tmp_path)
    ranks = [{**ENVIRON, "CUDA_VISIBLE_DEVICES": gpu} for gpu in case.rank_gpus]
    engine = {**ENVIRON, "CUDA_VISIBLE_DEVICES": case.engine_gpus}
    with crew(config_of(case, tmp_path), ranks, engine, answer_s=240.0) as running:
        fresh, stale = cycle(running, LIMITS[case.dtype], sleeps=case.transport == "cuda_ipc")
        print(f"\n{name}: mean |d log p|, |d p| after syncs {fresh}, with stale weights {stale}")
