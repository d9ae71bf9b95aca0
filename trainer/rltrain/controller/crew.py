"""The processes of a run: training ranks and engines, placed, started, and ended in order."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rltrain.cluster import allocator
from rltrain.cluster.calls import Call, gather
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.placement import Placement, plan
from rltrain.cluster.runtime import Runtime
from rltrain.config.schema import RunConfig
from rltrain.controller.engine_group import EngineGroup
from rltrain.controller.prepare import Inputs
from rltrain.controller.rollout import Rollout
from rltrain.controller.train_group import TrainGroup
from rltrain.core.clock import Clock
from rltrain.core.progress import Stages
from rltrain.core.work import WorkFiles, place_of
from rltrain.workers.fsdp.rank import RankInfo
from rltrain.workers.fsdp.worker import TrainWorker
from rltrain.workers.rollout.worker import EngineWorker

START_S = 300.0
"""For a process and its imports."""
TRAINING_STAGES = ("old_log_prob", "ref", "values", "update_critic", "update_actor")
"""Stages in which the training ranks count what they have done."""


@dataclass(frozen=True)
class Crew:
    """Everybody who works for a run."""

    train_group: TrainGroup
    engine_group: EngineGroup
    rollout: Rollout
    facts: dict[str, Any]
    """What ranks and engines say of themselves: `training`, `engines`."""

    def groups(self) -> dict[str, WorkerGroup]:
        """All processes, by what they do."""
        return {"train": self.train_group.workers, "engine": self.engine_group.workers}

    def work_files(self) -> WorkFiles:
        """How far the processes are with each long stage."""
        engines = [place_of(log) for log in self.engine_group.workers.logs]
        ranks = [place_of(log) for log in self.train_group.workers.logs]
        return WorkFiles({"gen": engines} | dict.fromkeys(TRAINING_STAGES, ranks))

    def close(self) -> None:
        """End process groups and engines in order, at once; the runtime ends the processes."""
        stopping = self.engine_group.begin_stop()
        self.train_group.shutdown()
        self.engine_group.await_stop(stopping)


def start_crew(
    prepared: Inputs,
    runtime: Runtime,
    clock: Clock,
    stages: Stages,
    total_steps: int,
    train_worker: type[TrainWorker] = TrainWorker,
    engine_worker: type[EngineWorker] = EngineWorker,
) -> Crew:
    """Start all processes of the run and load the models.

    Raises:
        UserError: too few devices, or a model that cannot be loaded.
        RunFailure: a process died or did not come up in time.
    """
    config = prepared.config
    placement = plan(config, runtime.nodes)
    with stages.stage(f"starting {_names(placement)}"):
        ranks = WorkerGroup.open(
            runtime,
            train_worker,
            placement.train,
            train_args(config, placement, runtime),
            deadline_s=START_S,
            environ=rank_environ(config, os.environ),
        )
        building = [ranks.begin_build()]
        engines = WorkerGroup.open(
            runtime,
            engine_worker,
            placement.rollout,
            [(config, slot.rank) for slot in placement.rollout],
            deadline_s=START_S,
            devices_of=ranks,
        )
        building.append(engines.begin_build())
        runtime.require_shared_logs(slot.node for slot in (*placement.train, *placement.rollout))
        train_group = TrainGroup(ranks, config)
        engine_group = EngineGroup(runtime, engines, train_group, config)
        # Engines go on by themselves as soon as they are made, and ranks too, but on a GPU: see `_load`.
        loading = [engine_group.begin_start()]
        if config.trainer.device == "cpu":
            loading.append(train_group.begin_setup(total_steps))
        gather(runtime, building, START_S, "making the workers")
    facts = _load(config, runtime, train_group, engine_group, stages, total_steps, loading)
    if config.actor_rollout_ref.model.use_fused_kernels:
        for role, why in facts["training"][0]["whole_logits"].items():
            if why:
                stages.say(f"note: logits of the {role} exist whole, use_fused_kernels has no effect on it: {why}")
    rollout = Rollout(config, train_group, engine_group, prepared.tokenizer, clock)
    return Crew(train_group, engine_group, rollout, facts)


def rank_environ(config: RunConfig, here: Mapping[str, str]) -> dict[str, str]:
    """Environment variables of training ranks beside those from HERE and from the config: on GPUs, the allocator's."""
    if config.trainer.device != "cuda":
        return {}
    runtime_env: dict[str, Any] = config.ray_kwargs.ray_init.get("runtime_env") or {}
    given: dict[str, str] = runtime_env.get("env_vars") or {}
    return allocator.environ({**here, **given})


def _load(
    config: RunConfig,
    runtime: Runtime,
    train_group: TrainGroup,
    engine_group: EngineGroup,
    stages: Stages,
    total_steps: int,
    loading: list[Call],
) -> dict[str, Any]:
    """Wait until engines and ranks have loaded their models, and return facts about both; LOADING: what has begun.

    On a GPU the engine goes first, and to sleep: it measures what memory is free, which nobody else may change
    meanwhile.
    """
    deadline_s = config.actor_rollout_ref.rollout.start_timeout_s
    limit = "actor_rollout_ref.rollout.start_timeout_s"
    if len(loading) > 1:
        with stages.stage("loading the models and the rollout engine"):
            loaded, training = gather(runtime, loading, deadline_s, "loading the models and the rollout engine", limit)
        return {"training": training, "engines": loaded}
    with stages.stage("loading the rollout engine"):
        [loaded] = gather(runtime, loading, deadline_s, "loading the rollout engine", limit)
        engine_group.sleep()
    with stages.stage("loading the models"):
        [training] = gather(runtime, [train_group.begin_setup(total_steps)], deadline_s, "loading the models", limit)
    return {"training": training, "engines": loaded}


def train_args(config: RunConfig, placement: Placement, runtime: Runtime) -> list[tuple[RunConfig, RankInfo]]:
    """What each training rank is made with."""
    address, port = runtime.rendezvous(placement.train[0].node)
    on_gpu = config.trainer.device == "cuda"
    return [
        (
            config,
            RankInfo(
                rank=slot.rank,
                world_size=len(placement.train),
                master_addr=address,
                master_port=port,
                # Ray shows each training process its own GPU alone.
                device="cuda:0" if on_gpu else "cpu",
            ),
        )
        for slot in placement.train
    ]


def _names(placement: Placement) -> str:
    return f"{counted(len(placement.train), 'training rank')} and {counted(len(placement.rollout), 'engine')}"


def counted(number: int, what: str) -> str:
    """NUMBER of WHAT, in words."""
    return f"{number} {what}{'s' * (number > 1)}"
