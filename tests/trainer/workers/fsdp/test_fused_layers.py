"""Parts of decoder layers by one kernel each: what is recognised, and that they give what transformers gives."""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from rltrain.workers.fsdp import fused_layers

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4} | {
    "num_key_value_heads": 2, "vocab_size": 128, "pad_token_id": 0
}  # fmt: skip
FOUND = {
    "qwen2": {"Qwen2RMSNorm", "Qwen2MLP"},
    "llama": {"LlamaRMSNorm", "LlamaMLP"},
    "gemma2": {"Gemma2MLP"},  # its norms multiply by 1 + weight
    "phi3": {"Phi3RMSNorm"},  # gate and up are one matrix
    "qwen3_moe": {"Qwen3MoeRMSNorm"},
}


def model_of(kind: str, dtype: torch.dtype = torch.float32, device: str = "cpu") -> PreTrainedModel:
    torch.manual_seed(0)
    with torch.device(device):
        return AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **TINY), dtype=dtype)


def read(model: nn.Module) -> tuple[Tensor, Tensor]:
    """Log-probabilities of some tokens, and all gradients."""
    ids = torch.randint(0, 128, (2, 40), generator=torch.Generator().manual_seed(1))
    model.zero_grad()
    log_p = model(ids).logits.float().log_softmax(-1)[..., 3]
    log_p.sum().backward()
    grads = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    return log_p.detach(), torch.cat([grad.flatten().float() for grad in grads])


@pytest.mark.parametrize("kind", sorted(FOUND))
def test_usual_forms_are_known_and_others_left(kind: str) -> None:
    modules = {type(module): module for module in model_of(kind, device="meta").modules()}
    known = {
        kind.__name__
        for kind, module in modules.items()
        if fused_layers.is_norm(module) or fused_layers.is_gated(module)
    }
    assert known == FOUND[kind]


def test_the_trial_draws_no_number_of_the_run() -> None:
    model = model_of("qwen2")
    torch.manual_seed(3)
    for module in model.modules():
        fused_layers.is_norm(module)
        fused_layers.is_gated(module)
    drawn = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(drawn, torch.rand(1))


def test_a_norm_that_says_otherwise_than_its_name_is_left() -> None:
    class OffRMSNorm(nn.Module):
        def __init__(self, width: int, eps: float = 1e-6) -> None:
            super().__init__()
            self.weight, self.variance_epsilon = nn.Parameter(torch.ones(width)), eps

        def forward(self, hidden: Tensor) -> Tensor:
            return nn.functional.rms_norm(hidden, self.weight.shape, self.weight, self.variance_epsilon) * 1.001

    assert not fused_layers.is_norm(OffRMSNorm(8))


def test_on_a_cpu_nothing_is_replaced() -> None:
    model = model_of("qwen2")
    assert not fused_layers.fuse(model, torch.device("cpu"))
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.fixture
def kernels_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions are traced on this machine as for a GPU, forward and backward, and run without a compiler."""
    traced = dict[Any, Any]()

    def made(function: Any) -> Any:
        return traced.setdefault(function, traced.get(function) or torch.compile(function, backend="aot_eager"))

    monkeypatch.setattr(fused_layers, "made", made)
    monkeypatch.setattr(fused_layers, "can_compile", lambda: True)

    def on_gpu(_: torch.device) -> bool:
        return True

    monkeypatch.setattr(fused_layers, "on_gpu", on_gpu)
    for kind in ("qwen2", "llama"):
        home = importlib.import_module(f"transformers.models.{kind}.modeling_{kind}")
        monkeypatch.setattr(home, fused_layers.ROTARY, getattr(home, fused_layers.ROTARY))


@pytest.mark.usefixtures("kernels_here")
def test_kernels_give_what_the_steps_give() -> None:
    model = model_of("qwen2")
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.train()
    expected, slopes = read(model)
    home = sys.modules[type(model).__module__]
    before = getattr(home, fused_layers.ROTARY)
    assert fused_layers.fuse(model, torch.device("cpu")) == {"Qwen2RMSNorm", "Qwen2MLP", fused_layers.ROTARY}
    assert getattr(home, fused_layers.ROTARY) is not before
    found, own = read(model)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert float((own - slopes).norm() / slopes.norm()) < 1e-5
