"""Checksums of what each module of a model gives in one pass: where two programs first compute other numbers."""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from rltrain.workers.fsdp.build import decoder_layers
from rltrain.workers.fsdp.value_model import ValueModel
from rltrain.workers.sync.checksum import checksum

NOT_FINITE = " not finite"
"""What a checksum ends with where a number is NaN or infinite."""


class Outputs:
    """Listens to the next pass of MODEL, and to no other.

    Args:
        model: sharded.
        every: listen to each module that holds parameters; otherwise to decoder layers alone.
    """

    def __init__(self, model: nn.Module, every: bool) -> None:
        self.found: dict[str, str] = {}
        """By module, in the order of computation; of this rank's rows."""
        layers = {id(one) for one in decoder_layers(model.backbone if isinstance(model, ValueModel) else model)}
        heard = [
            (name, module)
            for name, module in model.named_modules()
            if id(module) in layers or (every and name and next(module.parameters(recurse=False), None) is not None)
        ]
        self._handles = [module.register_forward_hook(self._hear(name)) for name, module in heard]
        self._handles.append(model.register_forward_hook(self._end))

    def close(self) -> None:
        """Listen no more."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def _end(self, _module: nn.Module, _inputs: Any, _output: Any) -> None:
        self.close()

    def _hear(self, name: str) -> Callable[..., None]:
        def hear(_module: nn.Module, _inputs: Any, output: Any) -> None:
            values = output[0] if isinstance(output, tuple) else output
            if isinstance(values, Tensor):
                self.found.setdefault(name, digest(values.detach()))

        return hear


def digest(values: Tensor) -> str:
    """A checksum of VALUES, where they are: of all bits on a host; on a GPU minus zero counts as zero."""
    if values.device.type == "cpu":
        found = hashlib.sha256(values.contiguous().flatten().view(torch.uint8).numpy().data).hexdigest()[:16]
    else:
        found = checksum(values)
    return found if bool(values.isfinite().all()) else found + NOT_FINITE
