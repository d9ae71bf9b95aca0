"""What of a device's collectives counts as time with other ranks. Its events are made up: no test machine has a GPU."""

# Torch is typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.fsdp._fully_shard._fsdp_param_group import FSDPParamGroup

from rltrain.core.spent import SPENT
from rltrain.workers.fsdp import comm_timing


class Stream:
    """A stream whose events say at which of its seconds they were."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        monkeypatch.setattr(comm_timing, "_mark", lambda: self.now)
        monkeypatch.setattr(comm_timing, "_elapsed_s", lambda before, after: after - before)
        monkeypatch.setattr("rltrain.core.spent.time.perf_counter", lambda: self.now)


def groups(stream: Stream, device: str) -> Any:
    """Parameters whose weights are waited for a second, whose last reduction for two; the first costs no wait."""

    class Group:
        def __init__(self) -> None:
            self.device = torch.device(device)

        def wait_for_unshard(self) -> None:
            stream.now += 1.0

        def post_backward(self, *_: object) -> None:
            pass

        def finalize_backward(self) -> str:
            stream.now += 2.0
            return "done"

    comm_timing.count_waits(Group)
    comm_timing.count_waits(Group)  # of a second model: they are not counted twice
    return Group()


@pytest.mark.parametrize(("device", "together"), [("cuda", 4.0), ("cpu", 0.0)])
def test_only_what_holds_up_the_computing_counts(device: str, together: float, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(monkeypatch)
    group = groups(stream, device)

    def act() -> str:
        for _ in range(2):
            group.wait_for_unshard()
            stream.now += 3.0  # a layer; collectives beside it are not asked for their times
        group.post_backward("a gradient")
        return group.finalize_backward()

    said, span = SPENT.timed(act)
    assert said == "done"
    assert (span.wall_s, span.together_s, span.own_s) == (10.0, together, 10.0 - together)


def test_fsdp_waits_where_it_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward and a backward pass go through all of `WAITS`, once for each part that has weights."""
    comm_timing.count_waits()
    real = [getattr(FSDPParamGroup, name) for name in comm_timing.WAITS]
    assert all(one.__wrapped__ for one in real)
    passed: list[str] = []
    for name, act in zip(comm_timing.WAITS, real, strict=True):

        def seen(self: Any, *words: Any, name: str = name, act: Any = act) -> Any:
            passed.append(name)
            return act(self, *words)

        monkeypatch.setattr(FSDPParamGroup, name, seen)
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
        for layer in model:
            fully_shard(layer)
        model(torch.ones(2, 4, requires_grad=True)).sum().backward()
    finally:
        dist.destroy_process_group()
    assert [passed.count(name) for name in comm_timing.WAITS] == [4, 2, 2]
