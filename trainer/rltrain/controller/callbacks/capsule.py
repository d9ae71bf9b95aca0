"""Keeps capsules of steps: all that `rlcheck step` needs to recompute them elsewhere."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from pathlib import Path

import msgspec
import torch
from torch import Tensor

import rltrain
from rlcheck.facts.capsule import SCHEMA, Capsule, EngineRecord, Origin
from rltrain.cluster.teardown import Interrupted
from rltrain.cluster.waits import Say
from rltrain.config.schema import FsdpConfig, ModelConfig
from rltrain.controller import kept, origins
from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.controller.callbacks.capsule_writer import CapsuleWriter, Unwritten
from rltrain.controller.crew import Crew
from rltrain.controller.prepare import Prepared
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.witness import Witness
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock
from rltrain.core.errors import RunFailure, UserError, kind_and_line
from rltrain.records import capsule as files
from rltrain.records import run_record
from rltrain.records.redaction import redacted
from rltrain.workers.fsdp.capture import Captured
from rltrain.workers.fsdp.parts import joined
from rltrain.workers.fsdp.precision import to_dtype
from rltrain.workers.sync.checksum import combined

WHOLE_NUMBERS = 10_000_000
"""A model is kept whole where its states and gradients are no more numbers than this (40 MB)."""
LOG_PROBS_OF = 4
"""Of a model that is kept whole, engines are asked for log-probabilities of one answer in so many: they cost time."""
STATES = 7
"""Weights, two moments, before and after, and the gradient."""
ELEMENTS = 4096
"""Of each tensor of a larger model, its first numbers."""
CHECKED_NUMBERS, CHECKED_TENSORS = 16_000_000, 64
"""Of a larger model, at most so many tensors with so many numbers are read back from the engines."""

MACHINE = ("device", "device_name", "backend", "cpu", "threads", "cuda", "driver")
"""What bits depend on, beside versions."""


@dataclass(frozen=True)
class Unsynced:
    """A capsule whose engines have not taken the step's weights yet. `actor`: checksums of the weights to take."""

    place: Path
    step: int
    actor: dict[str, str]


class Capsules(Callback):
    """Writes `capsules/step_N` for the steps of `trainer.capsule_steps`, and for the first that is not finite.

    What engines hold after the step is read when they next take weights, and added then: no sync is made for it.
    """

    def __init__(
        self,
        prepared: Prepared,
        crew: Crew,
        reward_manager: RewardManager,
        clock: Clock,
        say: Say,
        checkpoint: Path | None,
    ) -> None:
        """CHECKPOINT: that the run goes on from."""
        self._prepared, self._crew, self._reward_manager, self._clock = prepared, crew, reward_manager, clock
        self._say, self._checkpoint = say, checkpoint
        self._wanted = prepared.config.trainer.capsule_steps
        sizes: dict[str, int] = crew.facts["training"][0]["num_parameters"]
        self._elements = None if sum(sizes.values()) * STATES <= WHOLE_NUMBERS else ELEMENTS
        self._writer = CapsuleWriter(prepared.tokenizer)
        self._witness: Witness | None = None
        self._unsynced: Unsynced | None = None
        self._engines: list[EngineRecord] = []
        self._actor: dict[str, str] = {}
        self._names: list[str] | None = None
        self._num_tensors = 0
        self._steps: set[int] = set()
        self._run: RunInfo | None = None
        self._begun, self._broken, self._policy_version = "", False, 0
        self._origins: dict[str, Origin] = {}
        self._start_steps: dict[str, int] = {}

    def on_run_start(self, run: RunInfo) -> None:
        """Note which steps, and what the run begins with."""
        small = (run.start_step + 1,) if self._elements is None else ()
        self._steps = set(small if self._wanted is None else self._wanted)
        self._run, self._begun = run, datetime.now().isoformat(timespec="seconds")
        if self._wanted != ():
            with self._no_end_of_the_run(run.start_step + 1):
                if run.start_step:
                    self._start_steps = self._crew.train_group.call("steps_by_role", doing="counting optimizer steps")[
                        0
                    ]
                if self._steps or self._warmed_up():
                    self._origins = self._read_origins(run.start_step)
                if self._steps:
                    self._writer.save_tokenizer()

    def on_step_begin(self, step: int) -> None:
        """Begin to watch, if STEP is one of them."""
        if step in self._steps:
            with self._clock.apart("capsule"), self._no_end_of_the_run(step):
                self._watch()

    def on_step_end(self, record: StepRecord) -> None:
        """Write the capsule of this step, if it was watched or its gradients are the first that are not finite."""
        if record.batch is None or record.stopped:
            return
        skipped = record.metrics.get("actor/skipped_steps", 0) + record.metrics.get("critic/skipped_steps", 0)
        if self._witness is None and (not skipped or self._broken or self._wanted == ()):
            return
        self._broken = self._broken or bool(skipped)
        with self._clock.apart("capsule"), self._no_end_of_the_run(record.step):
            self._keep(record, record.batch)

    def on_run_end(self, outcome: str) -> None:
        """Let engines take the last weights, where a capsule waits for that."""
        try:
            if self._unsynced is not None and outcome == "finished":
                with self._no_end_of_the_run(self._unsynced.step), self._crew.rollout.weights_awake():
                    pass
        finally:
            self.close()

    def close(self) -> None:
        """Wait until the last capsule is written."""
        self._tell(self._writer.close())

    @contextmanager
    def _no_end_of_the_run(self, step: int) -> Generator[None]:
        """In the block, an error of the capsule's own (a full disk, tensors that cannot be kept) is told, and no more.

        Raises:
            RunFailure, UserError, Interrupted: what ends a run anyway.
        """
        try:
            yield
        except (RunFailure, UserError, Interrupted):
            raise
        except Exception as error:
            self._crew.rollout.witness = self._crew.rollout.on_weights = self._unsynced = None
            self._reward_manager.witness = self._witness = None
            self._tell([Unwritten(step, error)])

    def _tell(self, unwritten: Sequence[Unwritten]) -> None:
        for one in unwritten:
            self._say(f"note: the capsule of step {one.step} could not be kept: {kind_and_line(one.error)[:300]}")

    # Where weights come from

    def _warmed_up(self) -> bool:
        return bool(self._prepared.config.sft_warmup.steps) and self._checkpoint is None

    def _read_origins(self, start_step: int) -> dict[str, Origin]:
        """By role; of the actor and the critic as they are at START_STEP."""
        config, found = self._prepared.config, dict[str, Origin]()
        sections: dict[str, tuple[ModelConfig, FsdpConfig]] = {
            "actor": (config.actor_rollout_ref.model, config.actor_rollout_ref.actor.fsdp_config)
        }
        if config.critic.enable:
            sections["critic"] = (config.critic.model, config.critic.fsdp_config)
        if config.needs_reference:
            sections["reference"] = (config.actor_rollout_ref.model, config.actor_rollout_ref.ref.fsdp_config)
        for role, (model, fsdp) in sections.items():
            dtype, saved = to_dtype(fsdp.model_dtype), {"reference": "ref"}.get(role, role)
            if self._checkpoint is not None and (self._checkpoint / saved).is_dir():
                whole = self._elements is None
                found[role] = (
                    origins.of_checkpoint(role, self._checkpoint / saved, dtype)
                    if whole
                    else Origin(role, "checkpoint", missing="the checkpoint of a larger model is not read")
                )
            elif role == "reference" and self._warmed_up():
                found[role] = origins.of_tensors(role, "warm-up", self._actor_now(), dtype)
            elif role == "actor" and self._warmed_up():
                found[role] = Origin(role, "warm-up", missing="the supervised warm-up of this run made them")
            elif role != "reference" and start_step and self._checkpoint is None:
                found[role] = Origin(role, missing=f"those of step {start_step}")
            else:
                found[role] = origins.of_files(role, model.path, dtype, self._elements)
        return found

    def _actor_now(self) -> dict[str, Tensor]:
        ranks = self._ended((), None)[0]
        whole = joined([one["actor"].states[0] for one in ranks], self._elements)
        return {name.partition("/")[2]: tensor for name, tensor in whole.items() if name.startswith("after/")}

    # Watching

    def _watch(self) -> None:
        group, self._engines = self._crew.train_group, []
        self._policy_version, names = group.policy_version, self._checked_names()
        pieces = group.call("begin_capture", self._elements, names, doing="keeping the state before the step")
        self._actor = combined(pieces)
        self._witness = self._crew.rollout.witness = self._reward_manager.witness = Witness(
            log_probs_of=LOG_PROBS_OF if self._elements is None else 0
        )
        self._crew.rollout.on_weights = self._read_back

    def _checked_names(self) -> list[str]:
        """Weights that are read back from the engines: of a large model some, drawn by their names."""
        if self._names is None:
            manifest = self._crew.train_group.call("weight_manifest", doing="asking for the weights' names")[0]
            names, room = list[str](), CHECKED_NUMBERS if self._elements else math.inf
            for name, shape, _ in sorted(manifest, key=lambda entry: hashlib.sha256(entry[0].encode()).digest()):
                if self._elements and len(names) == CHECKED_TENSORS:
                    break
                if (size := torch.Size(shape).numel()) <= room:
                    names.append(name)
                    room -= size
            self._names, self._num_tensors = sorted(names), len(manifest)
        return self._names

    def _read_back(self) -> None:
        """Engines have just taken weights: those after the last capsule's step, and before that of the next."""
        self._crew.rollout.on_weights = None
        unsynced, self._unsynced = self._unsynced, None
        step = unsynced.step if unsynced else 0
        with self._clock.stage("capsule"), self._no_end_of_the_run(step):
            names, missing, held = self._checked_names(), "", list[dict[str, str]]()
            try:
                held = self._crew.engine_group.checksums(names)
            except (RunFailure, UserError) as error:
                missing = str(error)
            if self._witness is not None:
                self._engines = self._engine_records("before", held, self._actor, missing)
            if unsynced is not None:
                after = self._engine_records("after", held, unsynced.actor, missing)
                self._writer.add_engines(unsynced.place, after)

    def _engine_records(
        self, when: str, held: Sequence[dict[str, str]], actor: dict[str, str], missing: str
    ) -> list[EngineRecord]:
        if missing:
            return [EngineRecord(engine=0, when=when, missing=missing)]
        dtype, count = self._prepared.config.actor_rollout_ref.rollout.dtype, self._num_tensors
        return [EngineRecord(n, when, dtype, one, actor, tensors=count) for n, one in enumerate(held)]

    # Keeping

    def _keep(self, record: StepRecord, batch: Batch) -> None:
        witness, missing = self._witness or Witness(), list[str]()
        watched = self._witness is not None
        fields = dict(batch.only(batch.names - {"prompts"}).bare())
        fields["responses"] = fields["responses"].clone(memory_format=torch.contiguous_format)
        rows = kept.rows_that_fit(batch, fields, self._prepared.config, watched)
        names = self._checked_names() if watched else []
        ranks, weights, actor = self._ended(names, rows)
        missing += kept.left_out(ranks)
        if not watched:
            missing.append("what updates read and did: it was not known that this step would be kept when it began")
            weights |= not_moved(weights, record.metrics)
            self._engines, self._policy_version = [], int(batch["policy_version"].max())
            self._origins = self._origins or self._read_origins(self._run.start_step if self._run else 0)
        self._crew.rollout.witness = self._reward_manager.witness = self._witness = None
        if rows is not None:
            batch, fields = batch.select(rows), {name: field[torch.tensor(rows)] for name, field in fields.items()}
        chosen, width = range(len(batch)) if rows is None else rows, batch["response_mask"].shape[1]
        for role in ranks[0]:
            fields |= kept.readings(ranks, role, chosen, width)
        self._hear_engines(witness)
        head = self._head(record, ranks, witness, rows, tuple(missing))
        assert self._run is not None
        place = self._run.directory.capsules / f"step_{record.step}"
        self._tell(self._writer.settled())
        self._writer.write(
            place, record.step, lambda save: files.write(place, head, kept.rows(batch, witness), fields, weights, save)
        )
        if watched:
            self._unsynced = Unsynced(place, record.step, actor)
            self._crew.rollout.on_weights = self._read_back

    def _ended(
        self, names: Sequence[str], rows: Sequence[int] | None
    ) -> tuple[list[dict[str, Captured]], dict[str, Tensor], dict[str, str]]:
        """By rank what was kept, all weights and states together, and the actor's checksums of NAMES."""
        found = self._crew.train_group.call(
            "end_capture", self._elements, names, rows, doing="keeping the state after the step"
        )
        ranks = [captured for captured, _, _ in found]
        weights = kept.states(ranks, self._elements)
        references = [reference for _, reference, _ in found if reference is not None]
        if references:
            weights |= joined(references, self._elements)
        return ranks, weights, combined([pieces for _, _, pieces in found])

    def _hear_engines(self, witness: Witness) -> None:
        """Add to the engines' records what they made of the sampling that they were asked for."""
        if witness.sampling is not None:
            try:
                said = self._crew.engine_group.sampled(witness.sampling)
            except RunFailure:  # an engine that died is started again when it is next needed, or ends the run there
                return
            self._engines = [
                msgspec.structs.replace(one, sampling=said[one.engine] if one.engine < len(said) else {})
                for one in self._engines
            ]

    @cached_property
    def _versions(self) -> dict[str, str]:
        return run_record.versions()

    def _head(
        self,
        record: StepRecord,
        ranks: Sequence[Mapping[str, Captured]],
        witness: Witness,
        rows: Sequence[int] | None,
        missing: tuple[str, ...],
    ) -> Capsule:
        config, facts, run = self._prepared.config, self._crew.facts["training"], self._run
        assert record.batch is not None
        assert run is not None
        models = config.actor_rollout_ref.model, config.critic.model
        critic = kept.model_config(models[1]) if config.critic.enable else {}
        first = record.step == run.start_step + 1
        return Capsule(
            schema=SCHEMA,
            trainer="rltrain",
            trainer_version=rltrain.__version__,
            step=record.step,
            total_steps=run.total_steps,
            seed=config.trainer.seed,
            world_size=len(facts),
            config=redacted(config.model_dump(mode="json")),
            versions=self._versions,
            machine={key: str(facts[0][key]) for key in MACHINE if key in facts[0]},
            data_rows=len(self._prepared.train),
            rows=len(record.batch),
            kept_rows=None if rows is None else tuple(rows),
            tensors="all" if self._elements is None else f"the first {self._elements} numbers of each",
            model_config=(actor := kept.model_config(models[0])),
            critic_config={} if critic == actor else critic,
            generation_config=kept.model_config(models[0], "generation_config.json"),
            files={file.path: file.sha256 for file in self._prepared.train.files},
            origins=tuple(one for role, one in self._origins.items() if first or role == "reference"),
            begun=self._begun,
            start_step=run.start_step,
            start_optimizer_steps=self._start_steps,
            sampled=kept.sampled(witness),
            kl_coef=record.metrics.get("actor/reward_kl_penalty_coeff"),
            policy_version=self._policy_version,
            actor=kept.minis("actor", ranks),
            critic=kept.minis("critic", ranks),
            engines=tuple(self._engines),
            outputs=kept.outputs(ranks),
            metrics={name: value for name, value in record.metrics.items() if math.isfinite(value)},
            missing=missing,
            not_finite=kept.not_finite(ranks),
        )


def not_moved(weights: Mapping[str, Tensor], metrics: Mapping[str, float]) -> dict[str, Tensor]:
    """The states before an update that was not watched: those after it, of roles whose every step was skipped."""
    still = {role for role in ("actor", "critic") if not metrics.get(f"{role}/optimizer_steps", 0)}
    return {
        name.replace("after/", "before/", 1): tensor.clone()  # what is written may share no memory
        for name, tensor in weights.items()
        if name.partition(".")[0] in still
    }
