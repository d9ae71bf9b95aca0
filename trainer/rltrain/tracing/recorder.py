"""Holds what operations gave, pass after pass, and writes it to a file."""

# Safetensors is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from rltrain.tracing.names import LOG_PROBS


class Recorder:
    """Outputs by operation, each `[tokens, features]`, copied as they come: later operations may write over them."""

    def __init__(self) -> None:
        self._parts: dict[str, list[Tensor]] = defaultdict(list)
        self._handles: list[RemovableHandle] = []

    def add(self, name: str, values: Tensor) -> None:
        """Rows of operation NAME, after those that it gave before."""
        self._parts[name].append(values.detach().clone())

    def on_output(self, module: nn.Module, take: Callable[[Any], Any]) -> None:
        """Give what MODULE returns to TAKE, until `close`; what TAKE returns, if anything, takes its place."""

        def hook(_: nn.Module, args: Any, output: Any) -> Any:
            return take(output)

        self._handles.append(module.register_forward_hook(hook))

    def on_input(self, module: nn.Module, take: Callable[[tuple[Any, ...]], Any]) -> None:
        """The same of MODULE's positional arguments."""

        def hook(_: nn.Module, args: tuple[Any, ...]) -> Any:
            return take(args)

        self._handles.append(module.register_forward_pre_hook(hook))

    def parts(self, name: str) -> list[Tensor]:
        """What NAME gave, call by call."""
        return self._parts[name]

    def replace(self, name: str, parts: Sequence[Tensor]) -> None:
        """PARTS in the place of what NAME gave."""
        self._parts[name] = list(parts)

    def close(self) -> None:
        """Listen no more."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def save(self, file: Path, num_rows: int) -> None:
        """Write the first NUM_ROWS rows of each operation to FILE (safetensors)."""
        whole = {name: torch.cat(parts)[:num_rows].cpu().contiguous() for name, parts in self._parts.items() if parts}
        save_file(whole, str(file))


def add_log_probs(recorder: Recorder, values: Sequence[float]) -> None:
    """VALUES of the tokens that follow, as float32."""
    recorder.add(LOG_PROBS, torch.tensor(list(values), dtype=torch.float32)[:, None])
