"""Parts of decoder layers that only pass over memory as one kernel each: norms, rotary embeddings, gated MLPs.

transformers computes them step by step, which on a GPU takes as long as the matrix products between them. What takes
their place is the same formula, which rounds once where the steps rounded several times. A part that is written
otherwise than expected is left as it is: each kind is tried before, on numbers of its own.
"""

# Torch and transformers are typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from types import MethodType
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel

from rltrain.core.compiled import can_compile, is_made, made, on_gpu

ROTARY = "apply_rotary_pos_emb"
"""The function of a modeling file of transformers that turns queries and keys; its layers call it by this name."""
PROJECTIONS = ("gate_proj", "up_proj", "down_proj")
WIDTH = 32
"""Of what is tried."""
SAME = 1e-5
"""Relative, in float32: two orders of the same sums."""


def fuse(model: PreTrainedModel, device: torch.device) -> set[str]:
    """Replace what can be in MODEL, which will compute on DEVICE; kinds of modules and functions that were replaced.

    Weights may lie anywhere yet: none is read.
    """
    replaced: set[str] = set()
    if not on_gpu(device):
        return replaced
    kernels = can_compile()
    forwards: dict[type[nn.Module], Callable[[Any, Tensor], Tensor] | None] = {}
    for module in model.modules():
        kind = type(module)
        if kind not in forwards:
            forwards[kind] = _norm if is_norm(module) else _gated if kernels and is_gated(module) else None
        if (forward := forwards[kind]) is not None:
            module.forward = MethodType(forward, module)
            replaced.add(kind.__name__)
    if kernels and fuse_rotary(model):
        replaced.add(ROTARY)
    return replaced


def fuse_rotary(model: PreTrainedModel) -> bool:
    """Compile the rotary embedding of MODEL's architecture, for all its models in this process; False: it has none."""
    home = sys.modules[type(model).__module__]
    function = getattr(home, ROTARY, None)
    if not callable(function):
        return False
    if not is_made(function):
        setattr(home, ROTARY, made(function))
    return True


def is_norm(module: nn.Module) -> bool:
    """Whether MODULE is a root mean square norm (arXiv:1910.07467) with a weight, as torch's own kernel computes it."""
    if not type(module).__name__.endswith("RMSNorm") or _epsilon(module) is None:
        return False

    def make() -> nn.Module:
        return cast("Callable[..., nn.Module]", type(module))(WIDTH, eps=_epsilon(module))

    return _same(make, _norm)


def is_gated(module: nn.Module) -> bool:
    """Whether MODULE is down(act(gate(x)) * up(x)) (arXiv:2002.05202), of linear layers."""
    if not all(type(getattr(module, name, None)) is nn.Linear for name in PROJECTIONS):
        return False
    small = copy.deepcopy(getattr(module, "config", None))
    act = getattr(module, "act_fn", None)
    if small is None or not isinstance(act, nn.Module) or next(act.parameters(), None) is not None:
        return False
    for name in ("hidden_size", "intermediate_size"):
        setattr(small, name, WIDTH)
    return _same(lambda: cast("Callable[..., nn.Module]", type(module))(small), _gated)


def _same(make: Callable[[], nn.Module], forward: Callable[[Any, Tensor], Tensor]) -> bool:
    """Whether FORWARD gives what a module does that MAKE makes, with random weights."""
    generator = torch.Generator().manual_seed(0)
    try:
        with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
            one = make().float()
            for parameter in one.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator))
            given = torch.randn(3, WIDTH, generator=generator)
            expected, found = one(given), forward(one, given)
        return bool(torch.allclose(expected, found, rtol=SAME, atol=SAME * float(expected.abs().max())))
    except (TypeError, AttributeError, ValueError, RuntimeError):
        return False


def _epsilon(module: nn.Module) -> float | None:
    found = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return found if isinstance(found, float) else None


def _norm(self: Any, hidden: Tensor) -> Tensor:
    return F.rms_norm(hidden, self.weight.shape, self.weight, _epsilon(self))


def _gated(self: Any, hidden: Tensor) -> Tensor:
    gate, up = self.gate_proj(hidden), self.up_proj(hidden)
    return self.down_proj(product(self.act_fn)(gate, up) if on_gpu(hidden.device) else self.act_fn(gate) * up)


_PRODUCTS: dict[type[nn.Module], Callable[[Tensor, Tensor], Tensor]] = {}


def product(act: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """ACT(gate) * up as one kernel: one for all activations of its class, which have no parameters."""

    def multiply(gate: Tensor, up: Tensor) -> Tensor:
        return act(gate) * up

    return made(_PRODUCTS.setdefault(type(act), multiply))
