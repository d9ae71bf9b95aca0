"""Training ranks without engines, which learn from given rows; engines without training ranks, which only answer."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

from rltrain.cluster.calls import gather
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.placement import plan_engines, plan_ranks
from rltrain.cluster.runtime import Runtime
from rltrain.config.schema import RunConfig
from rltrain.controller.crew import START_S, counted, rank_environ, train_args
from rltrain.controller.engine_group import EngineGroup
from rltrain.controller.prepare import Inputs
from rltrain.controller.rollout import Rollout
from rltrain.controller.train_group import TrainGroup
from rltrain.core.clock import Clock
from rltrain.core.progress import Stages
from rltrain.core.work import WorkFiles, place_of
from rltrain.workers.fsdp.worker import TrainWorker
from rltrain.workers.rollout.saved import SavedEngineWorker

LEARNING_STAGES = ("update", "testing")
"""Stages in which ranks without engines count what they have done."""


@dataclass(frozen=True)
class Learning:
    """Training ranks alone, started."""

    train_group: TrainGroup
    facts: dict[str, Any]
    """What ranks say of themselves: `training`."""

    def work_files(self) -> WorkFiles:
        """How far the ranks are with each long stage."""
        ranks = [place_of(log) for log in self.train_group.workers.logs]
        return WorkFiles(dict.fromkeys(LEARNING_STAGES, ranks))

    def close(self) -> None:
        """End the process groups in order; the runtime ends the processes."""
        self.train_group.shutdown()


def start_ranks(config: RunConfig, runtime: Runtime, stages: Stages, total_steps: int) -> Learning:
    """Start the training ranks of CONFIG and load the models.

    Raises:
        UserError: too few devices, or a model that cannot be loaded.
        RunFailure: a process died or did not come up in time.
    """
    placement = plan_ranks(config, runtime.nodes)
    with stages.stage(f"starting {counted(len(placement.train), 'training rank')}"):
        args, environ = train_args(config, placement, runtime), rank_environ(config, os.environ)
        workers = WorkerGroup.open(runtime, TrainWorker, placement.train, args, deadline_s=START_S, environ=environ)
        building = workers.begin_build()
        runtime.require_shared_logs(slot.node for slot in placement.train)
        gather(runtime, [building], START_S, "making the workers")
    train_group = TrainGroup(workers, config)
    with stages.stage("loading the model"):
        limit_s = config.actor_rollout_ref.rollout.start_timeout_s
        [training] = gather(runtime, [train_group.begin_setup(total_steps)], limit_s, "loading the model")
    return Learning(train_group, {"training": training})


class NoTrainGroup:
    """Stands where a `TrainGroup` would: nothing trains, so there is nothing to make room for."""

    workers: Sequence[object] = ()
    policy_version = 0

    def free_cache(self) -> None:
        """Nothing is cached."""

    def park(self) -> None:
        """Nothing is on the devices."""

    def unpark(self) -> None:
        """Nothing was moved."""


class SavedEngineGroup(EngineGroup):
    """Engines that hold the weights of the model's files from their start on, a restarted one too."""

    def _take_weights(self) -> None:
        """They have them."""


@dataclass(frozen=True)
class Answering:
    """Engines alone, started."""

    engine_group: EngineGroup
    rollout: Rollout

    def close(self) -> None:
        """End the engines in order; the runtime ends the processes."""
        self.engine_group.stop()


def start_engines(prepared: Inputs, runtime: Runtime, clock: Clock, stages: Stages) -> Answering:
    """Start the engines of a run, whose `actor_rollout_ref.model.path` holds the weights to answer with.

    Each has its devices to itself, whatever `actor_rollout_ref.hybrid_engine` says.

    Raises:
        UserError: too few devices, or a model that cannot be loaded.
        RunFailure: a process died or did not come up in time.
    """
    config = prepared.config
    slots = plan_engines(config, runtime.nodes)
    with stages.stage(f"starting {counted(len(slots), 'engine')}"):
        args = [(config, slot.rank) for slot in slots]
        workers = WorkerGroup.open(runtime, SavedEngineWorker, slots, args, deadline_s=START_S)
        building = workers.begin_build()
        runtime.require_shared_logs(slot.node for slot in slots)
        gather(runtime, [building], START_S, "making the workers")
    nobody = cast("TrainGroup", NoTrainGroup())
    engines = SavedEngineGroup(runtime, workers, nobody, config)
    with stages.stage("loading the rollout engine"):
        deadline_s = config.actor_rollout_ref.rollout.start_timeout_s
        limit = "actor_rollout_ref.rollout.start_timeout_s"
        gather(runtime, [engines.begin_start()], deadline_s, "loading the rollout engine", limit)
    return Answering(engines, Rollout(config, nobody, engines, prepared.tokenizer, clock))
