"""The ranks and engines of a captured step, up on this machine, with the state that the step began with."""

# Safetensors is typed in part.
# pyright: reportUnknownVariableType=false

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError
from rich.console import Console
from safetensors.torch import save_file

from rlcheck.facts.capsule import MiniRecord
from rltrain.cluster.calls import gather
from rltrain.cluster.groups import WorkerGroup
from rltrain.cluster.placement import Slot, plan
from rltrain.cluster.runtime import Runtime
from rltrain.config.engines import ENGINES
from rltrain.config.resolve import replaced
from rltrain.config.schema import ModelConfig, RayKwargsConfig, RunConfig
from rltrain.controller.crew import START_S, Crew, rank_environ, start_crew, train_args
from rltrain.controller.engine_group import EngineGroup
from rltrain.controller.prepare import Inputs, tokenizer_of
from rltrain.controller.rollout import Rollout
from rltrain.controller.train_group import TrainGroup
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError, first_line
from rltrain.core.progress import Done, Stages
from rltrain.measure.replay.read import WEIGHTS, Kept
from rltrain.measure.replay.worker import Counts, ReplayTrainWorker
from rltrain.measure.report import Tell
from rltrain.records.run_record import versions
from rltrain.workers.fsdp.rank import RankInfo
from rltrain.workers.fsdp.state import FACTS

MOST_CPU_RANKS = 32


class ToldStages(Stages):
    """Stages of a start, told to the doctor."""

    def __init__(self, tell: Tell) -> None:
        super().__init__(Console(file=sys.stderr, highlight=False, soft_wrap=True))
        self._tell = tell

    @contextmanager
    def stage(self, words: str, total: int | None = None) -> Generator[Done]:
        """Tell WORDS."""
        self._tell({"stage": words})
        with super().stage(words, total) as done:
            yield done


class NoEngines:
    """Stands where a crew has engines and rollout, and has neither."""

    witness = on_weights = None

    def checksums(self, _names: object) -> list[dict[str, str]]:
        """Nothing is held.

        Raises:
            UserError: always.
        """
        raise UserError("the step was run again without an engine")

    @contextmanager
    def weights_awake(self) -> Generator[None]:
        """Nothing wakes."""
        yield

    def begin_stop(self) -> None:
        """Nothing stops."""

    def await_stop(self, _stopping: None) -> None:
        """Nothing was stopping."""


def config_here(kept: Kept, directory: Path, checkpoint: Path | None, notes: list[str]) -> RunConfig:
    """The captured step's config for this machine, with a model made of the capsule in DIRECTORY.

    Nothing of a capsule runs: no code of its model, no function of its rewards, no variable or package for Ray.

    Raises:
        UserError: it is of another rltrain, or what it needs is not here.
    """
    try:
        config = RunConfig.model_validate(kept.head.config)
    except ValidationError as error:
        raise UserError(f"{kept.path}: its config is not one of this rltrain: {first_line(error)}") from None
    trainer, parts = config.trainer, config.actor_rollout_ref
    count = max((trainer.n_gpus_per_node or 1) * trainer.nnodes, parts.rollout.num_replicas or 1)
    if trainer.device == "cpu" and count > MOST_CPU_RANKS:
        raise UserError(f"{kept.path}: {count} ranks or engines on a CPU; at most {MOST_CPU_RANKS} are run again")
    dropped = {"ray_kwargs.ray_init": config.ray_kwargs.ray_init, "engine_kwargs": parts.rollout.engine_kwargs}
    notes += [f"left out of the config: {key} ({', '.join(value)})" for key, value in dropped.items() if value]
    place, whole = _model(kept, config, directory, checkpoint), kept.head.tensors == "all"
    tokenizer = kept.path / "tokenizer"

    def here(model: ModelConfig, place: Path) -> ModelConfig:
        return replaced(
            model,
            path=str(place),
            tokenizer_path=str(tokenizer if tokenizer.is_dir() else place),
            trust_remote_code=False,
            override_config={} if whole else model.override_config,
            custom_chat_template=None,
        )

    own = Path(config.critic.model.path or "")
    is_own = not whole and (own / "config.json").is_file()
    return replaced(
        config,
        actor_rollout_ref=replaced(
            parts,
            model=here(parts.model, place),
            rollout=replaced(parts.rollout, engine_kwargs={}),
        ),
        critic=replaced(config.critic, model=here(config.critic.model, own if is_own else place)),
        reward_model=replaced(config.reward_model, enable=False),
        trainer=replaced(trainer, verify_weight_sync=False, capsule_steps=(kept.head.step,)),
        ray_kwargs=RayKwargsConfig(),
        toy=None,
    )


def _model(kept: Kept, config: RunConfig, directory: Path, checkpoint: Path | None) -> Path:
    """The directory of the actor's model."""
    if kept.head.tensors == "all":
        place = directory / "model"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir(parents=True)
        (place / "config.json").write_text(json.dumps(kept.head.model_config), encoding="utf-8")
        weights = {
            name.partition("/")[2]: one for name, one in kept.weights.items() if name.startswith("actor.before/")
        }
        save_file(weights, place / "model.safetensors", metadata={"format": "pt"})
        return place
    before = f"--checkpoint RUN_DIR/checkpoints/global_step_{kept.head.step - 1}"
    if checkpoint is None:
        raise UserError(
            f"{kept.path} holds {kept.head.tensors} tensor: give what the step began with, {before}; before the first "
            "step, the model's directory"
        )
    if not (checkpoint / FACTS).is_file():
        if any(minis[0].adam_steps for minis in (kept.head.actor, kept.head.critic) if minis):
            raise UserError(f"{checkpoint} holds no moments, with which step {kept.head.step} began: give {before}")
        return checkpoint
    path = config.actor_rollout_ref.model.path
    if path is None or not (Path(path) / "config.json").is_file():
        raise UserError(
            f"actor_rollout_ref.model.path={path} of the capsule is not here: its architecture is read there"
        )
    return Path(path)


def start(
    config: RunConfig, kept: Kept, runtime: Runtime, clock: Clock, stages: Stages, worker: type[ReplayTrainWorker]
) -> Crew:
    """Everybody who works for the step; engines where their packages are here.

    Raises:
        UserError: too few devices, or a model that cannot be loaded.
        RunFailure: a process died or did not come up in time.
    """
    total, tokenizer = kept.head.total_steps, tokenizer_of(config)
    packages = versions().keys()
    if any(package in packages for package in ENGINES[config.actor_rollout_ref.rollout.name].packages):
        return start_crew(Inputs(config, tokenizer), runtime, clock, stages, total, worker)
    placement = plan(config, runtime.nodes)
    return training_alone(
        config, placement.train, train_args(config, placement, runtime), total, runtime, stages, worker
    )


def training_alone(
    config: RunConfig,
    slots: tuple[Slot, ...],
    args: list[tuple[RunConfig, RankInfo]],
    total_steps: int,
    runtime: Runtime,
    stages: Stages,
    worker: type[ReplayTrainWorker],
) -> Crew:
    """Training ranks in SLOTS, without engines."""
    environ, limit_s = rank_environ(config, os.environ), config.actor_rollout_ref.rollout.start_timeout_s
    with stages.stage(f"starting {len(slots)} training rank{'s' * (len(slots) > 1)}"):
        ranks = WorkerGroup.open(runtime, worker, slots, args, deadline_s=START_S, environ=environ)
        gather(runtime, [ranks.begin_build()], START_S, "making the workers")
    group, nothing = TrainGroup(ranks, config), NoEngines()
    with stages.stage("loading the models"):
        [facts] = gather(runtime, [group.begin_setup(total_steps)], limit_s, "loading the models")
    engines = {"training": facts, "engines": []}
    return Crew(group, cast("EngineGroup", nothing), cast("Rollout", nothing), engines)


def restore(crew: Crew, kept: Kept, checkpoint: Path | None) -> None:
    """Put the ranks of CREW where the step began.

    Raises:
        UserError: weights or moments are missing.
    """
    head, group = kept.head, crew.train_group
    counts: dict[str, Counts] = {
        "actor": _counts(head.actor, head.step - max(int(head.config["trainer"].get("critic_warmup") or 0), 1)),
        "critic": _counts(head.critic, head.step - 1),
    }
    if head.tensors == "all":
        group.call("restore", str(kept.path / WEIGHTS), counts, doing="taking the capsule's weights")
    elif checkpoint is not None and (checkpoint / FACTS).is_file():
        group.load(checkpoint, head.policy_version)
    else:
        group.call("count", counts, doing="taking the capsule's counts")
    group.policy_version = head.policy_version


def _counts(minis: tuple[MiniRecord, ...], updates: int) -> Counts:
    """Of a role that had learnt in so many UPDATES before the step."""
    return (minis[0].optimizer_steps, minis[0].adam_steps, max(updates, 0)) if minis else (0, None, 0)


def has_engines(crew: Crew) -> bool:
    """Whether CREW can generate."""
    return not isinstance(cast("Any", crew.engine_group), NoEngines)
