"""States that cannot fit stop a run before it takes a device."""

from __future__ import annotations

import pytest

from tests.trainer.config import SMALL
from trainer.config import Machine, RunConfig, load, resolve
from trainer.dry_run import ModelShape, RoleMemory, roles_memory
from trainer.memory_check import complaint, device_bytes, floor_bytes

GIB = 2**30
SHAPE = ModelShape(2 * GIB, 0, 4096, 32_000, 1024, True)


def on_gpus(*overrides: str) -> RunConfig:
    return resolve(load(SMALL, overrides), Machine("cuda", 4, 64))


def test_only_one_role_has_gradients_at_a_time() -> None:
    roles = [RoleMemory("actor", 4, 4, 8, "device"), RoleMemory("critic", 2, 2, 4, "device")]
    assert floor_bytes(roles) == 16 + 6


def test_what_is_offloaded_counts_while_it_works_alone() -> None:
    away = "device; weights and optimizer on the host while idle"
    roles = [RoleMemory("actor", 4, 4, 8, away), RoleMemory("critic", 2, 2, 4, away)]
    assert floor_bytes(roles) == 16
    assert floor_bytes([RoleMemory("actor", 4, 4, 8, "host"), RoleMemory("reference", 2, 0, 0, "host while idle")]) == 2


def test_too_large_for_a_gpu() -> None:
    config = on_gpus()
    floor = int(floor_bytes(roles_memory(config, SHAPE)))
    assert complaint(config, SHAPE, floor) is None
    line = complaint(config, SHAPE, floor - 1)
    assert line is not None
    assert line.startswith("MEM001: weights, gradients and optimizer states need 14.0 GiB, but each GPU has 14.0 GiB")
    assert "\n" not in line


def test_more_ranks_or_offload_mend_it() -> None:
    offload = [
        f"{role}.fsdp_config.{what}=true"
        for role in ("actor_rollout_ref.actor", "critic")
        for what in ("param_offload", "optimizer_offload")
    ]
    capacity = 9 * GIB
    assert complaint(on_gpus(), SHAPE, capacity)
    assert complaint(on_gpus(*offload), SHAPE, capacity) is None
    assert complaint(on_gpus("trainer.nnodes=2"), SHAPE, capacity) is None


def test_on_a_cpu_the_ranks_share_the_machine() -> None:
    config = resolve(load(SMALL, ["trainer.num_cpu_ranks=2"]), Machine("cpu", 0, 2))
    line = complaint(config, SHAPE, 63 * GIB)
    assert line is not None
    assert "need 64.0 GiB, but this machine has 63.0 GiB" in line
    assert complaint(config, SHAPE, 65 * GIB) is None


@pytest.mark.parametrize(("shape", "capacity"), [(None, GIB), (SHAPE, 0)])
def test_nothing_is_said_about_what_is_not_known(shape: ModelShape | None, capacity: int) -> None:
    assert complaint(on_gpus(), shape, capacity) is None


def test_the_machine_has_memory() -> None:
    assert device_bytes("cpu") > GIB
