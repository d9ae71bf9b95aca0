"""Transports that run without a GPU, end to end; and the choice among all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from rltrain.cluster.processes import remove_shared_memory
from rltrain.config.schema import RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.sync import Publisher, WeightSync, choose, merge, plan
from rltrain.workers.sync import shm as shm_module
from rltrain.workers.sync.receiver import Receivers
from rltrain.workers.sync.shm import ShmReceiver, ShmSender
from rltrain.workers.sync.transport import Descriptor
from tests.trainer.workers.rollout.tiny import config_of, named_weights
from tests.trainer.workers.sync.local import LocalGroup, Rank

PREFIX = f"rltrain-test-transports-{os.getpid()}-"


def segments() -> list[str]:
    return [path.name for path in Path("/dev/shm").iterdir() if path.name.startswith(PREFIX)]


class Taker:
    """An engine that only keeps what it is given."""

    def __init__(self, wrong: str = "") -> None:
        self.receivers = Receivers(torch.device("cpu"))
        self.got: dict[str, torch.Tensor] = {}
        self.num_syncs = 0
        self._wrong = wrong

    def connect_sync(self, address: Any) -> None:
        self.receivers.connect(address, 1)

    def load_bucket(self, descriptor: Descriptor) -> None:
        tensors = self.receivers.tensors(descriptor, keep=not descriptor.bucket.is_last)
        self.got |= {name: tensor if not descriptor.bucket.is_last else tensor.clone() for name, tensor in tensors}
        if descriptor.bucket.is_last:
            self.receivers.close()
            self.num_syncs += 1

    def checksums(self, names: list[str]) -> dict[str, str]:
        from rltrain.workers.sync import checksum

        return {name: checksum(self.got[name] + 1 if name == self._wrong else self.got[name]) for name in names}


def model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(40, 30), torch.nn.Linear(30, 20), torch.nn.LayerNorm(20))


def sync_of(config: RunConfig, source: torch.nn.Module, *takers: Taker) -> tuple[WeightSync, Rank]:
    rank = Rank(config, source, PREFIX)
    manifest = [(name, tuple(tensor.shape), tensor.dtype) for name, tensor in named_weights(source)]
    rank.publisher._buckets = plan(manifest, 3000)
    assert len(rank.publisher._buckets) == 3
    return WeightSync(LocalGroup(rank), LocalGroup(*takers), 30.0), rank


def with_nodes(config: RunConfig, nodes: int) -> RunConfig:
    return config.model_copy(update={"trainer": config.trainer.model_copy(update={"nnodes": nodes})})


@pytest.mark.parametrize("nodes", [1, 2], ids=["shm", "gloo"])
def test_weights_arrive_again_and_again(nodes: int, tmp_path: Path) -> None:
    source, taker = model(), Taker()
    config = with_nodes(config_of(tmp_path, "hf"), nodes)
    assert choose(config) == ("shm" if nodes == 1 else "gloo")
    sync, rank = sync_of(config, source, taker)
    sync.connect()
    for version in range(3):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.add_(1.0)
        (held,) = sync.sync(version)
        assert held.keys() == {name for name, _ in named_weights(source)}
        assert taker.got.keys() == dict(source.named_parameters()).keys()
        for name, tensor in source.named_parameters():
            assert torch.equal(taker.got[name], tensor)
    assert taker.num_syncs == 3
    assert segments() == []
    rank.publisher.close()


def test_a_new_meeting_after_a_restart(tmp_path: Path) -> None:
    source = model()
    sync, _ = sync_of(with_nodes(config_of(tmp_path, "hf"), 2), source, Taker())
    sync.connect()
    sync.sync(0)
    fresh = Taker()
    sync._engine_group = LocalGroup(fresh)
    sync.connect()
    sync.sync(1)
    assert torch.equal(fresh.got["0.weight"], source[0].weight)


def test_an_engine_that_holds_something_else_is_named(tmp_path: Path) -> None:
    sync, _ = sync_of(config_of(tmp_path, "hf"), model(), Taker(), Taker(wrong="1.bias"))
    with pytest.raises(RunFailure, match=r"version 4: engine 1: 1 of 6 weights differ, the first is '1\.bias'"):
        sync.sync(4)


def test_a_tensor_that_the_publisher_sends_stale_is_named(tmp_path: Path) -> None:
    source = model()
    sync, rank = sync_of(config_of(tmp_path, "hf"), source, Taker())
    kept = source[1].weight.detach().clone()
    sent = {**dict(named_weights(source)), "1.weight": kept}
    rank.publisher._weights = lambda: iter(sent.items())
    sync.sync(0)
    with torch.no_grad():
        source[1].weight.add_(1.0)
    with pytest.raises(RunFailure, match=r"version 1: engine 0: 1 of 6 weights differ, the first is '1\.weight'"):
        sync.sync(1)


def test_an_engine_on_another_host_is_told(tmp_path: Path) -> None:
    (bucket,) = plan([("a", (1,), torch.float32)], 100)
    gone = Descriptor("shm", bucket, {"path": f"/dev/shm/{PREFIX}weights-0", "num_bytes": 4})
    with pytest.raises(RunFailure, match="run on the publisher's host"):
        ShmReceiver().receive(gone)
    with pytest.raises(RunFailure, match="not told where to meet"):
        Receivers(torch.device("cpu")).tensors(Descriptor("nccl", bucket, {}), keep=False)


def test_an_engine_that_never_came_does_not_hold_up_the_next(tmp_path: Path) -> None:
    """A broadcast that waits for a dead engine is left to itself when the engine comes anew."""
    source = model()
    sync, rank = sync_of(with_nodes(config_of(tmp_path, "hf"), 2), source, Taker())
    rank.connect_sync()  # the engine is told of it, and dies
    rank.publish_bucket(0)
    begun = time.monotonic()
    sync.connect()
    sync.sync(1)
    assert time.monotonic() - begun < 20
    assert torch.equal(sync._engine_group.workers[0].got["0.weight"], source[0].weight)


def test_segments_go_when_a_receiver_was_killed(tmp_path: Path) -> None:
    """A process that has mapped the segment is killed; the next sync uses the segment, and removes it."""
    source = model()
    sync, rank = sync_of(config_of(tmp_path, "hf"), source, Taker())
    descriptor = merge([rank.publish_bucket(0)])
    path = descriptor.location["path"]
    holds = f"import mmap; f = open({path!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0); print(m[:1]); input()"
    with subprocess.Popen([sys.executable, "-uc", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as receiver:
        assert receiver.stdout is not None
        assert receiver.stdout.readline()
        receiver.kill()
    assert receiver.returncode == -signal.SIGKILL
    assert len(segments()) == 1
    sync.sync(1)
    assert segments() == []


def test_a_publisher_without_room_says_so_before_the_first_sync(tmp_path: Path) -> None:
    huge = [("embedding", (1 << 40, 64), torch.float32)]
    with pytest.raises(UserError, match=r"needs \d+ MiB of shared memory, /dev/shm has \d+ MiB: .*--shm-size"):
        Publisher(config_of(tmp_path, "hf"), 0, "cpu", "127.0.0.1", PREFIX, huge, lambda: iter(()))


def test_too_little_shared_memory_is_said_before_it_is_written() -> None:
    with pytest.raises(UserError, match=r"needs \d+ MiB of shared memory, /dev/shm has \d+ MiB: .*--shm-size"):
        ShmSender(PREFIX).staging(1 << 50)
    assert segments() == []


def test_what_a_killed_publisher_left_is_cleaned() -> None:
    sender = ShmSender(PREFIX)
    sender.staging(100)
    assert len(segments()) == 1
    assert remove_shared_memory("rltrain-of-another-run-") == []
    assert len(remove_shared_memory(PREFIX)) == 1
    assert segments() == []


def test_a_segment_is_private_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shm_module, "DIRECTORY", tmp_path)
    sender = ShmSender(PREFIX)
    sender.staging(10)
    (path,) = tmp_path.iterdir()
    assert path.stat().st_mode & 0o077 == 0
    sender.close()
    assert list(tmp_path.iterdir()) == []


def test_engines_that_never_come_end_the_wait(tmp_path: Path) -> None:
    config = with_nodes(config_of(tmp_path, "hf"), 2)
    parts = config.actor_rollout_ref.model_copy(update={"nccl_timeout": 1})
    rank = Rank(config.model_copy(update={"actor_rollout_ref": parts}), model(), PREFIX)
    rank.connect_sync()
    assert rank.publish_bucket(0) is not None
    with pytest.raises(RunFailure, match=r"(engines took no weights for 1 s|broadcast to the engines failed)"):
        rank.finish_publish()
    assert threading.active_count() < 50


def test_the_choice(tmp_path: Path) -> None:
    config = config_of(tmp_path, "vllm")
    parts = config.actor_rollout_ref
    apart = parts.model_copy(update={"hybrid_engine": False})
    cuda = config.trainer.model_copy(update={"device": "cuda"})
    assert choose(config) == "shm"
    assert choose(config.model_copy(update={"trainer": cuda})) == "cuda_ipc"
    assert choose(config.model_copy(update={"trainer": cuda, "actor_rollout_ref": apart})) == "nccl"
    assert choose(config.model_copy(update={"actor_rollout_ref": apart})) == "shm"


def test_handles_of_all_ranks_are_merged() -> None:
    first, second = plan([("a", (9,), torch.float32), ("b", (9,), torch.float32)], 40)
    gpu0, gpu1 = Descriptor("cuda_ipc", first, {"gpu0": 1}), Descriptor("cuda_ipc", first, {"gpu1": 2})
    assert merge([gpu0, None, gpu1]) == Descriptor("cuda_ipc", first, {"gpu0": 1, "gpu1": 2})
    for wrong in ([None, None], [gpu0, Descriptor("cuda_ipc", second, {})]):
        with pytest.raises(ValueError, match="not one and the same"):
            merge(wrong)


def test_ranks_that_do_not_send_take_part_in_gathering(tmp_path: Path) -> None:
    rank = Rank(config_of(tmp_path, "hf"), model(), PREFIX, rank=1)
    assert rank.connect_sync() is None
    assert rank.publish_bucket(0) is None
    rank.finish_publish()
    assert segments() == []


def test_weights_beyond_the_plan_are_an_error(tmp_path: Path) -> None:
    source = model()
    rank = Rank(config_of(tmp_path, "hf"), source, PREFIX, rank=1)
    rank.publisher._weights = lambda: iter([*named_weights(source), ("extra", torch.zeros(1))])
    rank.publish_bucket(0)
    with pytest.raises(ValueError, match="'extra' is not in the plan"):
        rank.finish_publish()
