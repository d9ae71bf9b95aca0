"""Keeps capsules of TRL's GRPOTrainer, for `rlcheck step`: one line in the user's script.

    from rlcheck.capsules.trl import CapsuleCallback
    trainer.add_callback(CapsuleCallback(trainer, steps=(1, 50)))

Read in TRL 1.14.2, 1.15.0 and 1.16.0 (`trl/trainer/grpo_trainer.py`) and transformers 5.19 (`trainer.py`). Nothing of
torch, transformers or TRL is imported: what is called are methods of objects that the trainer has.
"""

# What trainers have is typed by nothing that is imported here.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from rlcheck.capsules.trl_record import Record, array_of
from rlcheck.capsules.write import write
from rlcheck.errors import UserError
from rlcheck.facts.capsule import SCHEMA, Capsule, EngineRecord, MicroRecord, MiniRecord, Sampled

_LOG = logging.getLogger(__name__)
_PACKAGES = ("trl", "transformers", "torch", "accelerate", "vllm", "peft")
_WATCHED = ("_generate_and_score_completions", "_calculate_rewards", "_get_per_token_logps_and_entropies",
            "compute_loss", "training_step")  # fmt: skip


class CapsuleCallback:
    """A callback of TRL's `GRPOTrainer` that keeps a capsule of each of some steps in DIRECTORY/step_N.

    It looks at what the trainer's own methods take and give, and changes none of it. A capsule is of one generation and
    the optimizer steps that learn from it; it is named after the first of them.

    Args:
        trainer: the `GRPOTrainer` that it is added to.
        directory: default `capsules` in the trainer's `output_dir`.
        steps: optimizer steps, from 1.

    Raises:
        UserError: the trainer is none that it knows.
    """

    def __init__(self, trainer: Any, directory: str | Path | None = None, steps: Sequence[int] = (1,)) -> None:
        missing = [name for name in _WATCHED if not callable(getattr(trainer, name, None))]
        if missing:
            raise UserError(
                f"{type(trainer).__name__} has no method {missing[0]}; capsules are of TRL's GRPOTrainer, 1.14 or later"
            )
        self.trainer, self.steps = trainer, {int(step) for step in steps}
        self.directory = Path(directory) if directory is not None else Path(trainer.args.output_dir) / "capsules"
        self._record: Record | None = None
        self._inside = False
        hooks: dict[str, Callable[..., Any]] = {
            "_generate_and_score_completions": self._generating,
            "_calculate_rewards": self._scoring,
            "_get_per_token_logps_and_entropies": self._reading,
            "compute_loss": self._learning,
            "training_step": self._stepping,
        }
        for name, hook in hooks.items():
            _watch(trainer, name, hook)
        _watch(trainer.accelerator, "clip_grad_norm_", self._clipping)

    def __getattr__(self, name: str) -> Any:
        """Events that are not of interest: transformers calls every `on_…` of each callback."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)

    # What the trainer's methods take and give

    def _generating(self, call: Callable[..., Any], inputs: Any, *args: Any, **kwargs: Any) -> Any:
        trainer = self.trainer
        if not trainer.model.training or not self._wanted():
            return call(inputs, *args, **kwargs)
        if self._record is None:
            self._quietly(self._begin)
        output = call(inputs, *args, **kwargs)
        self._quietly(self._number, output)
        return output

    def _begin(self) -> None:
        self._record = Record(self.trainer)

    def _number(self, output: Any) -> None:
        if self._record is not None:
            first, like = self._record.generated(output), output["completion_ids"]
            # Rides along with the rows, through TRL's shuffle and split.
            output["rlcheck_rows"] = like.new_tensor([*range(first, first + len(like))])

    def _quietly(self, note: Callable[..., None], *args: Any) -> None:
        """NOTE something; what cannot be noted ends the capsule, not the run."""
        try:
            note(*args)
        except Exception as error:
            step, self._record = self._record.step if self._record else 0, None
            words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            _LOG.warning("rlcheck: no capsule of step %d: %s", step, words)

    def _wanted(self) -> bool:
        args, done = self.trainer.args, int(self.trainer.state.global_step)
        if self._record is not None:
            return True
        every = int(args.steps_per_generation) * int(self.trainer.num_iterations)
        last = done + max(every // int(args.gradient_accumulation_steps), 1)
        return bool(self.steps & set(range(done + 1, last + 1))) and self.trainer.accelerator.is_main_process

    def _scoring(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = call(*args, **kwargs)
        if self._record is not None and len(args) == 4:
            self._quietly(self._record.scored, *args, found)
        return found

    def _reading(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = call(*args, **kwargs)
        if self._record is not None and self._inside:
            self._quietly(self._record.read, found[0], found[1])
        return found

    def _learning(self, call: Callable[..., Any], model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        record = self._record
        if record is None or not isinstance(inputs, Mapping) or "rlcheck_rows" not in inputs:
            return call(model, inputs, *args, **kwargs)
        self._quietly(record.pass_begins, inputs)
        self._inside = True
        try:
            loss = call(model, inputs, *args, **kwargs)
        finally:
            self._inside = False
        self._quietly(record.pass_ends, loss)
        return loss

    def _stepping(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        found = call(*args, **kwargs)
        if self._record is not None and self.trainer.accelerator.sync_gradients:
            self._quietly(self._record.gradient_ready)
        return found

    def _clipping(self, call: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        norm = call(*args, **kwargs)
        if self._record is not None and norm is not None:
            self._record.grad_norm = float(norm)
        return norm

    # Events of transformers

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the learning rate and Adam's count before the step."""
        if self._record is not None:
            self._quietly(self._record.before_optimizer, kwargs["optimizer"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Close the mini batch; write the capsule after the last one of its generation."""
        if self._record is not None:
            self._quietly(self._step_ended, self._record, args, kwargs["optimizer"])

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Say that the run ended before the capsule did."""
        if self._record is not None:
            step, self._record = self._record.step, None
            _LOG.warning("rlcheck: no capsule of step %d: the run ended before all of its updates", step)

    def _step_ended(self, record: Record, args: Any, optimizer: Any) -> None:
        record.mini_ends(bool(self.trainer.accelerator.optimizer_step_was_skipped))
        every = int(args.steps_per_generation) * int(self.trainer.num_iterations)
        if len(record.minis) < max(every // int(args.gradient_accumulation_steps), 1):
            return
        record.ends(optimizer)
        place = self.directory / f"step_{record.step}"
        self._write(record, place)
        self._record = None
        _LOG.warning("rlcheck: kept %s; read it with: rlcheck step %s", place, place)

    def _write(self, record: Record, place: Path) -> None:
        rows, batch = record.rows_and_batch()
        weights = {name: array_of(tensor) for name, tensor in record.weights.items()}
        write(place, self._head(record, len(rows)), rows, batch, weights, self.trainer.processing_class.save_pretrained)

    def _head(self, record: Record, rows: int) -> Capsule:
        trainer, args = self.trainer, self.trainer.args
        vllm = bool(getattr(trainer, "use_vllm", False))
        why = "weights in vLLM were not read" if vllm else "TRL generates with the trained model itself: no engine"
        config = {**_plain(args.to_dict()), "reward_funcs": list(trainer.reward_func_names),
                  "num_iterations": int(trainer.num_iterations)}  # fmt: skip
        template = getattr(trainer, "chat_template", None)
        return Capsule(
            schema=SCHEMA,
            trainer="trl",
            trainer_version=_versions().get("trl", ""),
            step=record.step,
            total_steps=int(trainer.state.max_steps),
            seed=int(args.seed),
            world_size=int(trainer.accelerator.num_processes),
            config={"trl": config, "chat_template": template if isinstance(template, str) else None},
            versions=_versions(),
            machine={"device": str(trainer.accelerator.device)},
            rows=rows,
            tensors=record.tensors,
            model_config=_plain(trainer.accelerator.unwrap_model(trainer.model).config.to_dict()),
            sampled=_sampled(trainer),
            policy_version=record.step - 1,
            actor=tuple(
                MiniRecord(
                    rows=(tuple(sorted({row for one in mini.passes for row in one.rows})),),
                    micro_batches=tuple(
                        MicroRecord(rank=0, rows=tuple(one.rows), terms={"loss": _finite(one.loss)})
                        for one in mini.passes
                    ),
                    grad_norm=_finite(mini.grad_norm),
                    applied=mini.applied,
                    lr=mini.lr,
                    optimizer_steps=record.step - 1 + number,
                    adam_steps=mini.adam_steps,
                )
                for number, mini in enumerate(record.minis)
            ),
            engines=tuple(EngineRecord(engine=0, when=when, missing=why) for when in ("before", "after")),
            metrics={key: value for key, value in record.metrics.items() if value is not None},
            missing=tuple(record.missing),
        )


def _watch(owner: Any, name: str, hook: Callable[..., Any]) -> None:
    call = getattr(owner, name)

    def watched(*args: Any, **kwargs: Any) -> Any:
        return hook(call, *args, **kwargs)

    setattr(owner, name, watched)


def _nothing(*args: Any, **kwargs: Any) -> None:
    return None


def _finite(value: float | None) -> float | None:
    return value if value is not None and value - value == 0 else None


def _plain(value: Any) -> Any:
    """VALUE as JSON has it; what it has no form for as text."""
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, float):
        return _finite(value)
    return value if value is None or isinstance(value, (bool, int, str)) else str(value)


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in _PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _sampled(trainer: Any) -> Sampled | None:
    """What transformers' `generate` is asked for; None with vLLM, whose parameters are made in each call."""
    config = getattr(trainer, "generation_config", None)
    if config is None or bool(getattr(trainer, "use_vllm", False)):
        return None
    return Sampled(
        temperature=float(config.temperature if config.temperature is not None else 1.0),
        top_p=float(config.top_p if config.top_p is not None else 1.0),
        top_k=int(config.top_k or 0),
        min_tokens=int(getattr(config, "min_new_tokens", None) or 0),
        max_tokens=int(config.max_new_tokens or 0),
    )
