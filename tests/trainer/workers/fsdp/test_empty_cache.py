"""Memory is given back to a GPU when nothing computes there any more."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import rltrain
from rltrain.core.tensors import empty_cache


def test_all_streams_are_waited_for_before_memory_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: calls.append("synchronize"))
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("empty_cache"))
    empty_cache()
    assert calls == ["synchronize", "empty_cache"]


def test_a_process_without_a_gpu_gets_no_context() -> None:
    empty_cache()
    assert not torch.cuda.is_initialized()


def test_nothing_else_empties_the_cache() -> None:
    """Code of the trainer that calls torch's own would unmap what another stream reads."""
    root = Path(rltrain.__file__).parent
    calls = [path for path in root.rglob("*.py") if "torch.cuda.empty_cache()" in path.read_text(encoding="utf-8")]
    assert [path.name for path in calls] == ["tensors.py"]
