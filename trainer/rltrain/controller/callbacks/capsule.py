"""Keeps capsules of steps: all that `rlcheck step` needs to recompute them elsewhere."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor

import rltrain
from rlcheck.facts.capsule import SCHEMA, Capsule, CapsuleRow, EngineRecord, MiniRecord, Sampled
from rltrain.cluster.teardown import Interrupted
from rltrain.cluster.waits import Say
from rltrain.config.schema import ModelConfig
from rltrain.controller.algorithm import group_ids
from rltrain.controller.callbacks.base import Callback, RunInfo, StepRecord
from rltrain.controller.crew import Crew
from rltrain.controller.prepare import Prepared
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.witness import Witness
from rltrain.core.batch import Batch
from rltrain.core.clock import Clock
from rltrain.core.errors import RunFailure, UserError, kind_and_line
from rltrain.core.tensors import floats, ints
from rltrain.records import capsule as files
from rltrain.records import run_record
from rltrain.records.redaction import redacted
from rltrain.workers.fsdp.capture import Captured, finite
from rltrain.workers.sync.checksum import combined

WHOLE_NUMBERS = 10_000_000
"""A model is kept whole where its states and gradients are no more numbers than this (40 MB)."""
STATES = 7
"""Weights, two moments, before and after, and the gradient."""
ELEMENTS = 4096
"""Of each tensor of a larger model, its first numbers."""
BATCH_BYTES = 40 << 20
"""Rows are left out of a larger batch, prompt by prompt."""
CHECKED_NUMBERS = 16_000_000
"""Of a larger model, tensors of so many numbers are read back from the engines."""


class Capsules(Callback):
    """Writes `capsules/step_N` for the steps of `trainer.capsule_steps`, and for the first that is not finite."""

    def __init__(self, prepared: Prepared, crew: Crew, reward_manager: RewardManager, clock: Clock, say: Say) -> None:
        self._prepared, self._crew, self._reward_manager, self._clock = prepared, crew, reward_manager, clock
        self._say = say
        self._wanted = prepared.config.trainer.capsule_steps
        sizes: dict[str, int] = crew.facts["training"][0]["num_parameters"]
        self._elements = None if sum(sizes.values()) * STATES <= WHOLE_NUMBERS else ELEMENTS
        self._witness: Witness | None = None
        self._engines: list[EngineRecord] = []
        self._names: list[str] = []
        self._steps: set[int] = set()
        self._total, self._directory, self._broken = 0, Path(), False
        self._policy_version = 0

    def on_run_start(self, run: RunInfo) -> None:
        """Note which steps, and where."""
        small = (run.start_step + 1,) if self._elements is None else ()
        self._steps = set(small if self._wanted is None else self._wanted)
        self._total, self._directory = run.total_steps, run.directory.capsules

    def on_step_begin(self, step: int) -> None:
        """Begin to watch, if STEP is one of them."""
        if step in self._steps:
            with self._clock.apart("capsule"), self._no_end_of_the_run(step):
                self._watch()

    def on_step_end(self, record: StepRecord) -> None:
        """Write the capsule of this step, if it was watched or its gradients are the first that are not finite."""
        if record.batch is None:
            return
        skipped = record.metrics.get("actor/skipped_steps", 0) + record.metrics.get("critic/skipped_steps", 0)
        if self._witness is None and (not skipped or self._broken or self._wanted == ()):
            return
        self._broken = self._broken or bool(skipped)
        with self._clock.apart("capsule"), self._no_end_of_the_run(record.step):
            self._keep(record, record.batch)

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
            self._crew.rollout.witness = self._crew.rollout.on_weights = None
            self._reward_manager.witness = self._witness = None
            self._say(f"note: the capsule of step {step} could not be kept: {kind_and_line(error)}")

    # Watching

    def _watch(self) -> None:
        group, self._engines = self._crew.train_group, []
        self._policy_version = group.policy_version
        group.call("begin_capture", self._elements, doing="keeping the state before the step")
        self._names = self._checked_names()
        self._witness = self._crew.rollout.witness = self._reward_manager.witness = Witness()
        self._crew.rollout.on_weights = lambda: self._engines.extend(self._read_back("before"))

    def _checked_names(self) -> list[str]:
        """Weights that are read back from the engines: of a large model some, drawn by their names."""
        manifest = self._crew.train_group.call("weight_manifest", doing="asking for the weights' names")[0]
        names, room = list[str](), CHECKED_NUMBERS if self._elements else float("inf")
        for name, shape, _ in sorted(manifest, key=lambda entry: hashlib.sha256(entry[0].encode()).digest()):
            if (size := torch.Size(shape).numel()) <= room:
                names.append(name)
                room -= size
        return sorted(names)

    def _read_back(self, when: str) -> list[EngineRecord]:
        self._crew.rollout.on_weights = None
        dtype = self._prepared.config.actor_rollout_ref.rollout.dtype
        try:
            held = self._crew.engine_group.checksums(self._names)
        except (RunFailure, UserError) as error:
            return [EngineRecord(engine=0, when=when, missing=str(error))]
        # Not by what the sync gathers: each rank sums up its own shards.
        whole = combined(self._crew.train_group.call("weight_pieces", doing="adding up the weights"))
        actor = {name: whole[name] for name in self._names}
        return [EngineRecord(engine=n, when=when, dtype=dtype, held=one, actor=actor) for n, one in enumerate(held)]

    # Keeping

    def _keep(self, record: StepRecord, batch: Batch) -> None:
        witness, missing = self._witness or Witness(), list[str]()
        captured: list[dict[str, Captured]] = []
        if self._witness is None:
            missing.append("weights and what updates did: nobody knew that this step would be kept when it began")
        else:
            self._crew.rollout.witness = self._reward_manager.witness = self._witness = None
            captured = self._crew.train_group.call("end_capture", doing="keeping the state after the step")
            with self._crew.rollout.weights_awake():
                self._engines += self._read_back("after")
        fields = dict(batch.only(batch.names - {"prompts"}).bare())
        for role in captured[0] if captured else ():
            fields |= _readings(role, [one[role] for one in captured], len(batch), batch["response_mask"].shape[1])
        kept = _rows_that_fit(batch, fields)
        if kept is not None:
            batch, fields = batch.select(kept), {name: field[torch.tensor(kept)] for name, field in fields.items()}
        head = self._head(record, captured, witness, kept)
        head = msgspec.structs.replace(head, missing=tuple(missing))
        place = self._directory / f"step_{record.step}"
        files.write(place, head, _rows(batch, witness), fields, self._weights(captured), self._save_tokenizer)

    def _weights(self, captured: Sequence[Mapping[str, Captured]]) -> dict[str, Tensor]:
        found: dict[str, Tensor] = {}
        for role, one in captured[0].items() if captured else ():
            found |= {f"{role}.{name}": tensor for name, tensor in one.weights.items()}
        if captured and self._elements is None and self._prepared.config.needs_reference:
            whole = self._crew.train_group.call("reference_weights", doing="keeping the reference")[0]
            found |= {f"reference/{name}": tensor for name, tensor in whole.items()}
        return found

    def _head(
        self,
        record: StepRecord,
        captured: Sequence[Mapping[str, Captured]],
        witness: Witness,
        kept: Sequence[int] | None,
    ) -> Capsule:
        config, facts = self._prepared.config, self._crew.facts["training"]
        assert record.batch is not None
        return Capsule(
            schema=SCHEMA,
            trainer="rltrain",
            trainer_version=rltrain.__version__,
            step=record.step,
            total_steps=self._total,
            seed=config.trainer.seed,
            world_size=len(facts),
            config=redacted(config.model_dump(mode="json")),
            versions=run_record.versions(),
            machine={key: str(facts[0][key]) for key in ("device", "device_name", "backend") if key in facts[0]},
            data_rows=len(self._prepared.train),
            rows=len(record.batch),
            kept_rows=None if kept is None else tuple(kept),
            tensors="all" if self._elements is None else f"the first {self._elements} numbers of each",
            model_config=_model_config(config.actor_rollout_ref.model),
            files={file.path: file.sha256 for file in self._prepared.train.files},
            sampled=None if witness.sampling is None else Sampled(**asdict(witness.sampling)),
            kl_coef=record.metrics.get("actor/reward_kl_penalty_coeff"),
            policy_version=self._policy_version,
            actor=_minis("actor", captured),
            critic=_minis("critic", captured),
            engines=tuple(self._engines),
            metrics={name: value for name, value in record.metrics.items() if math.isfinite(value)},
        )

    def _save_tokenizer(self, directory: Path) -> object:
        return self._prepared.tokenizer.save_pretrained(str(directory))  # pyright: ignore[reportUnknownMemberType]


def _rows_that_fit(batch: Batch, fields: Mapping[str, Tensor]) -> list[int] | None:
    """Rows of the first prompts whose fields fit; None: all do."""
    row_bytes = sum(field[0].nbytes for field in fields.values() if len(field))
    if row_bytes * len(batch) <= BATCH_BYTES:
        return None
    numbers = ints(group_ids(batch))
    most = max(BATCH_BYTES // row_bytes // max(numbers.count(0), 1), 1)
    return [row for row, number in enumerate(numbers) if number < most]


def _minis(role: str, captured: Sequence[Mapping[str, Captured]]) -> tuple[MiniRecord, ...]:
    """The optimizer steps of ROLE, ranks put together."""
    by_rank = [one[role].minis for one in captured if role in one]
    found: list[MiniRecord] = []
    for ranks in zip(*by_rank, strict=True):
        first, result = ranks[0], ranks[0].result
        assert result is not None
        found.append(
            MiniRecord(
                rows=tuple(mini.rows for mini in ranks),
                micro_batches=tuple(micro for mini in ranks for micro in mini.micro_batches),
                grad_norm=finite(result.grad_norm),
                applied=result.applied,
                lr=result.lr,
                optimizer_steps=first.optimizer_steps,
                adam_steps=first.adam_steps,
            )
        )
    return tuple(found)


def _readings(role: str, ranks: Sequence[Captured], num_rows: int, width: int) -> dict[str, Tensor]:
    """What updates read and computed of each token, `[B, R]` in the order of the batch; only what every rank kept."""
    found: dict[str, Tensor] = {}
    for key in ranks[0].readings:
        number = int(key.partition("/")[0])
        value = ranks[0].readings[key]
        found[f"{role}.{key}"] = whole = torch.zeros((num_rows, width), dtype=value.dtype)
        for rank in ranks:
            if key in rank.readings:
                piece = rank.readings[key]
                whole[torch.tensor(rank.rows_of[number])[:, None], torch.arange(piece.shape[1])] = piece
    return found


def _rows(batch: Batch, witness: Witness) -> list[CapsuleRow]:
    scores, versions = floats(batch["token_level_scores"].sum(-1)), ints(batch["policy_version"])
    found: list[CapsuleRow] = []
    for number, sample in enumerate(batch.samples):
        key = (sample.uid, sample.sample)
        request, answer = witness.requests.get(key), witness.completions.get(key)
        row = CapsuleRow(
            uid=sample.uid,
            index=sample.index,
            sample=sample.sample,
            data_source=sample.data_source,
            messages=sample.messages,
            prompt_text=sample.prompt_text,
            prompt_ids=request.prompt_ids if request else sample.prompt_ids,
            text=witness.texts.get(key, sample.response_text),
            ground_truth=sample.ground_truth,
            extra_info=dict(sample.extra_info),
            reward_parts=dict(sample.reward_parts),
            score=scores[number],
            seed=request.seed if request else None,
            response_ids=answer.token_ids if answer else None,
            log_probs=tuple(map(finite, answer.log_probs)) if answer else None,
            finish_reason=answer.finish_reason if answer else "",
            versions=((0, versions[number]),),
        )
        found.append(row)
    return found


def _model_config(model: ModelConfig) -> dict[str, Any]:
    """The model's `config.json`, with what the run's config lays over it; empty where it cannot be read."""
    try:
        found = json.loads((Path(model.path or "") / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found | model.override_config
