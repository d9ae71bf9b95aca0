"""On a GPU: the kernels for packed rows, NCCL, and moves between host and device. Run by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainer.workers.fsdp import scenes
from tests.trainer.workers.fsdp.configs import make_config
from tests.trainer.workers.fsdp.models import make_large, random_batch

pytestmark = [
    pytest.mark.gpu(1),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
]


def keys(dtype: str, **fsdp: Any) -> dict[str, Any]:
    return {"fsdp_config": {"dtype": dtype, **fsdp}}


def read(models: Path, shape: str, dtype: str, packed: bool, device: str) -> torch.Tensor:
    batch = random_batch(8, seed=2)
    config = make_config(models / shape, packed=packed, actor=keys(dtype), critic=keys(dtype))
    with scenes.worker(config, device=device) as worker:
        return torch.stack([worker.log_probs(batch)["old_log_probs"], worker.values(batch)["values"]])


@pytest.mark.parametrize("packed", [True, False], ids=["packed", "padded"])
@pytest.mark.parametrize("shape", ["qwen2", "qwen2-window", "llama", "opt-projected"])
def test_a_gpu_reads_what_a_cpu_reads(models: Path, shape: str, packed: bool) -> None:
    on_cpu = read(models, shape, "float32", packed, "cpu")
    torch.testing.assert_close(read(models, shape, "float32", packed, "cuda:0"), on_cpu, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("shape", ["qwen2", "qwen2-window", "llama", "opt-projected"])
def test_the_kernel_for_packed_rows_agrees_with_padded_rows(models: Path, shape: str) -> None:
    packed, padded = (read(models, shape, "bfloat16", packed, "cuda:0") for packed in (True, False))
    exact = read(models, shape, "float32", False, "cuda:0")
    assert (packed - exact).abs().mean() < 2 * (padded - exact).abs().mean() + 1e-3


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_training_on_a_gpu_follows_training_on_a_cpu(models: Path, single: list[dict[str, float]], dtype: str) -> None:
    config = make_config(models / "qwen2", actor=keys(dtype), critic=keys(dtype))
    with scenes.worker(config, device="cuda:0") as worker:
        steps = scenes.Run(worker, config).steps(0, 4)
    relative = 1e-3 if dtype == "float32" else 0.1
    for mine, theirs in zip(steps, single[:4], strict=True):
        for name in ("actor/grad_norm", "critic/vf_loss"):
            assert mine[name] == pytest.approx(theirs[name], rel=relative)


@pytest.mark.parametrize("always", [False, True], ids=["while idle", "offload_policy"])
def test_a_run_with_roles_on_the_host_is_the_same_run(models: Path, tmp_path: Path, always: bool) -> None:
    kept = keys("float32", param_offload=True, optimizer_offload=True, offload_policy=always)
    plain, config = (make_config(models / "qwen2", actor=one, critic=one) for one in (keys("float32"), kept))
    with scenes.worker(plain, device="cuda:0") as worker:
        wanted = scenes.Run(worker, plain).steps(0, 2)
    with scenes.worker(config, device="cuda:0") as worker:
        run = scenes.Run(worker, config)
        steps = [run.step(0)]
        before = (worker.parameter_hash(), scenes.full(worker))
        assert all(tensor.is_cuda for tensor in before[1].values()), "weights are sent from the device"
        worker.save(tmp_path / "train")
        steps.append(run.step(1))
        worker.load(tmp_path / "train")
        assert worker.parameter_hash() == before[0]
        steps.append(run.step(1))
        worker.export(tmp_path / "out")
    # With the policy the optimizer steps on the host, whose last bits differ; the KL term is a difference of two logs.
    for mine, theirs in zip(steps, [*wanted, wanted[1]], strict=True):
        for name in ("actor/grad_norm", "critic/grad_norm", "critic/vf_loss", "actor/kl_loss"):
            relative = 1e-4 if always and name == "actor/kl_loss" else 1e-5
            assert mine[name] == pytest.approx(theirs[name], rel=relative), name


def settled() -> int:
    """Bytes allocated, without cuBLAS's workspaces: 64 MiB on a Hopper GPU as soon as anything was multiplied."""
    torch._C._cuda_clearCublasWorkspaces()
    return torch.cuda.memory_allocated()


def test_roles_on_the_host_leave_the_device_between_their_uses(models: Path) -> None:
    """What stays is small: random numbers, workspaces. A role's parameters and optimizer states are megabytes."""
    path = make_large(models)
    size = (path / "model.safetensors").stat().st_size
    kept = keys("float32", param_offload=True, optimizer_offload=True)
    config = make_config(path, actor={**kept, "use_kl_loss": False}, critic=kept)
    batch = random_batch(4, seed=1)
    with scenes.worker(config, device="cuda:0") as worker:
        uses = [
            lambda: None,  # loading
            lambda: worker.log_probs(batch),
            lambda: worker.values(batch),
            lambda: scenes.Run(worker, config).step(0),
            lambda: [None for _ in worker.full_weights()],
        ]
        for number, use in enumerate(uses):
            settled()
            torch.cuda.reset_peak_memory_stats()
            use()
            peak = torch.cuda.max_memory_allocated()
            assert settled() < 0.3 * size, number
            if number in (1, 2):
                assert 0.9 * size < peak < 1.7 * size, "one role alone"
            if number == 3:
                assert peak > 3.9 * size, "weights, gradients and two states at once"
            if number == 4:
                assert peak < 0.3 * size, "weights are sent one at a time"
