"""How far from exact: every operation of one sequence, as the engine and as the training ranks compute it."""

# Safetensors is typed in part.
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch
from safetensors import safe_open
from torch import Tensor

from rlcheck.facts.drift import OperationGap
from rltrain.config.schema import RunConfig
from rltrain.controller.crew import Crew
from rltrain.core.errors import UserError
from rltrain.tracing.names import expected, inputs, layer_of, ordered

NUM_SAMPLED = 16
"""Tokens that the engine samples after the prompt: one by one, as it does in a run."""
MOST_TOKENS = 128
"""Of the prompt: each operation's output is held for all of them."""
_FEWEST = 4


def operations(
    crew: Crew, config: RunConfig, token_ids: Sequence[int], directory: Path, notes: list[str] | None = None
) -> tuple[OperationGap, ...]:
    """Compare what each operation of the model gives on one sequence, in the order of computation.

    The engine reads TOKEN_IDS in one pass and samples `NUM_SAMPLED` tokens greedily, one pass each. The training ranks
    read the whole sequence, in one pass as for log-probabilities; then once more, each operation with the inputs that
    the engine's had, so that what an operation adds itself is seen apart from what it was handed. Nobody else may use
    the crew meanwhile; the engines sleep afterwards.

    Args:
        crew: of the run.
        config: resolved.
        token_ids: a prompt; what is beyond `MOST_TOKENS`, or beyond what the engine reads in one pass, is left out.
        directory: on a disk that the controller, the first engine and the first rank share. About a gigabyte is written
            there for a model of 1.5 billion parameters in bfloat16, and removed at the end.
        notes: gets a line on what could not be compared.

    Returns:
        One for each operation that both sides show.

    Raises:
        UserError: the engine cannot be listened to, the prompt is too short, or nothing could be compared.
        RunFailure: a process failed.
    """
    prompt = _prompt(config, token_ids)
    directory.mkdir(parents=True, exist_ok=True)
    engine, training, alone = (directory / f"{name}.safetensors" for name in ("engine", "training", "alone"))
    try:
        whole = _sampled(crew, prompt, engine, config.actor_rollout_ref.rollout.generate_timeout_s)
        crew.train_group.call("trace", whole, str(training), doing="tracing the training ranks")
        crew.train_group.call("trace", whole, str(alone), str(engine), doing="tracing with the engine's inputs")
        for file in (engine, training, alone):
            if not file.is_file():
                raise UserError(f"operations: {file} was not written: take a directory that all processes share")
        gaps, missing = compare(engine, training, alone)
    finally:
        for file in (engine, training, alone):
            file.unlink(missing_ok=True)
    if not gaps:
        raise UserError(
            "operations: engine and training share none that is known: this architecture cannot be compared"
        )
    if missing and notes is not None:
        shown = ", ".join(missing[:4]) + (", …" if len(missing) > 4 else "")
        notes.append(f"{len(missing)} operations were not compared, as one side or both do not show them: {shown}")
    return gaps


def _sampled(crew: Crew, prompt: Sequence[int], file: Path, limit_s: float) -> list[int]:
    """PROMPT and what the engine samples after it; the engines sleep again also where it cannot be listened to."""
    refusal: UserError | None = None
    whole: list[int] = []
    engines, asked = crew.engine_group.workers, (list(prompt), NUM_SAMPLED, str(file))
    with crew.rollout.phase():
        try:
            whole = engines.all("trace", *asked, deadline_s=limit_s, doing="tracing the engine")[0]
        except UserError as error:
            refusal = error
    if refusal is not None:
        raise refusal
    return whole


def _prompt(config: RunConfig, token_ids: Sequence[int]) -> list[int]:
    rollout = config.actor_rollout_ref.rollout
    assert rollout.max_model_len is not None
    most = min(MOST_TOKENS, rollout.max_num_batched_tokens, rollout.max_model_len - NUM_SAMPLED)
    prompt = list(token_ids)[:most]
    if len(prompt) < _FEWEST:
        raise UserError(
            f"operations: {len(prompt)} prompt tokens are too few to compare (at least {_FEWEST}, and "
            f"{NUM_SAMPLED} are sampled): raise actor_rollout_ref.rollout.max_model_len={rollout.max_model_len}"
        )
    return prompt


def compare(engine: Path, training: Path, alone: Path | None = None) -> tuple[tuple[OperationGap, ...], list[str]]:
    """Compare traces of the same tokens.

    Args:
        engine: the engine's.
        training: a training rank's.
        alone: that of a rank whose operations had the engine's inputs.

    Returns:
        Operations in the order of computation, and the names of operations that a decoder has but that
        are not in both traces, or not of one shape.

    Raises:
        UserError: a side computes what is not a number.
    """
    with (
        safe_open(engine, "pt") as theirs,
        safe_open(training, "pt") as ours,
        safe_open(alone or training, "pt") as own,
    ):
        both = set(theirs.keys()) & set(ours.keys())
        names = [name for name in ordered(both) if _shape(theirs, name) == _shape(ours, name)]
        num_layers = 1 + max((layer_of(name) for name in both), default=-1)
        equal: dict[str, bool] = {}
        gaps: list[OperationGap] = []
        for name in names:
            gap = _gap(name, theirs.get_tensor(name), ours.get_tensor(name))
            equal[name] = gap.equal
            more: dict[str, Any] = {"input_equal": all(equal[one] for one in inputs(name, equal, num_layers))}
            if alone is not None:
                added = _gap(name, theirs.get_tensor(name), own.get_tensor(name))
                more |= {"own_max_diff": added.max_diff, "own_mean_diff": added.mean_diff}
            gaps.append(msgspec.structs.replace(gap, **more))
    return tuple(gaps), [name for name in expected(num_layers, both) if name not in equal]


def _shape(trace: Any, name: str) -> list[int]:
    return trace.get_slice(name).get_shape()


def _gap(name: str, engine: Tensor, training: Tensor) -> OperationGap:
    """Of one operation. Values are compared in the finer of both dtypes, which holds those of the coarser exactly."""
    dtype = torch.promote_types(engine.dtype, training.dtype)
    engine, training = engine.to(dtype), training.to(dtype)
    difference = (engine.double() - training.double()).abs()
    largest, scale = float(difference.max()), float(training.double().abs().mean())
    if not torch.isfinite(difference).all():
        side = "the engine" if not torch.isfinite(engine).all() else "the training side"
        raise UserError(f"operations: {name} gives what is not a number on {side}: look at the weights of the model")
    return OperationGap(
        name=name.rpartition(".")[2],
        layer=layer_of(name),
        max_diff=largest,
        mean_diff=float(difference.mean()),
        scale=scale,
        equal=bool(torch.equal(engine, training)),
    )
