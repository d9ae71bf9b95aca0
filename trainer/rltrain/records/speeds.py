"""Answer lengths and speeds of an earlier run, from its `run.json`, `metrics.jsonl` and `clock.jsonl`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from random import Random
from typing import Any

import msgspec

from rlcheck.measure.slow.clock import Round, Step
from rltrain.core.errors import UserError
from rltrain.records.run_dir import RunDir, read_steps

_WARM_UP, _FEWEST = 2, 3
_ELSEWHERE = ("gen", "update_weights", "testing", "save_checkpoint", "audit", "capsule")
"""Stages that are no work of the training ranks for a step; all else of its time is."""


@dataclass(frozen=True)
class Quantiles:
    """Lengths of one round of answers: at each twentieth, shortest first, and their mean."""

    values: tuple[float, ...]
    mean: float

    def at(self, share: float) -> float:
        """The length that SHARE of the answers do not exceed.

        A straight line between two values, but between the last two, where a tail is: a curve that gives the mean.
        """
        parts = len(self.values) - 1
        place = min(int(share * parts), parts - 1)
        low, high, within = self.values[place], self.values[place + 1], share * parts - place
        if place < parts - 1 or high <= low:
            return low + (high - low) * within
        others = sum((a + b) / 2 for a, b in pairwise(self.values[:-1]))
        least = low + (high - low) / 20
        tail = min(max(self.mean * parts - others, least), (low + high) / 2)
        return low + (high - low) * within ** ((high - low) / (tail - low) - 1)


@dataclass(frozen=True)
class Speeds:
    """What was measured: medians over steps."""

    rounds: tuple[Quantiles, ...]
    prompt: float
    """Tokens of a prompt, mean."""
    paces: tuple[tuple[float, float], ...]
    """Answers in an engine, ascending, and seconds of a pass with so many."""
    prefill_s: float
    """Of an engine, for a token that it reads."""
    train_s: float
    """Of a rank, for a token that is learnt from: all but rollout, weights, validation and files, times the ranks."""
    sync_s: float
    """Until the engines have new weights."""
    steps: int = 0
    """Of how many."""

    def draw(self, random: Random) -> int:
        """Length of an answer, at least 1."""
        return max(round(random.choice(self.rounds).at(random.random())), 1)

    def part(self, of: int) -> Speeds:
        """One of OF parts of each engine and rank: as quick with a part of the work."""
        paces = tuple((ran / of, seconds) for ran, seconds in self.paces)
        return replace(self, paces=paces, prefill_s=self.prefill_s * of, train_s=self.train_s * of)

    def pass_s(self, running: int) -> float:
        """Seconds of a pass with RUNNING answers: straight lines between what was measured, and on after it.

        Where one number of answers alone was measured, more of them are taken to gain nothing.
        """
        ran, seconds = self.paces[0]
        if running <= ran or len(self.paces) == 1:
            return seconds * max(running / ran, 1.0)
        pairs = list(pairwise(self.paces))
        (low, less), (high, more) = next((pair for pair in pairs if running <= pair[1][0]), pairs[-1])
        return less + (more - less) / (high - low) * (running - low)


def read_speeds(path: Path, tensor_parallel: int, model: object) -> Speeds:
    """Of the run in PATH, for engines of TENSOR_PARALLEL devices each and for MODEL: a path, or of a toy its settings.

    Raises:
        UserError: it has no such records, or they are of another model, of other engines or of parts of answers.
    """
    directory = RunDir(path)
    for file in (directory.record, directory.metrics, directory.clock):
        if not file.is_file():
            raise UserError(f"{file} is missing: speeds are read from a run's run.json, metrics.jsonl and clock.jsonl")
    config = _config(directory.record)
    rollout, theirs = config.actor_rollout_ref.rollout, config.actor_rollout_ref.model.path
    if rollout.tensor_model_parallel_size != tensor_parallel:
        raise UserError(
            f"{path}: its engines have {rollout.tensor_model_parallel_size} devices each (tensor_model_parallel_size), "
            f"yours {tensor_parallel}: give a run with {tensor_parallel}"
        )
    if (theirs or (config.toy or _Toy()).model) != model:
        raise UserError(f"{path}: its model is {theirs or 'another toy'}, and not yours: give a run of the same model")
    if config.algorithm.max_staleness > 1:
        raise UserError(
            f"{path}: with algorithm.max_staleness above 1 engines count parts of answers; give a run with 0 or 1"
        )
    ranks = config.trainer.nnodes * (config.trainer.n_gpus_per_node or 1)
    return _measured(directory, config.data.train_batch_size * rollout.n, ranks)


class _Rollout(msgspec.Struct):
    n: int
    tensor_model_parallel_size: int


class _Model(msgspec.Struct):
    path: str | None


class _Parts(msgspec.Struct):
    rollout: _Rollout
    model: _Model


class _Algorithm(msgspec.Struct):
    max_staleness: int = 0


class _Data(msgspec.Struct):
    train_batch_size: int


class _Trainer(msgspec.Struct):
    nnodes: int
    n_gpus_per_node: int | None


class _Toy(msgspec.Struct):
    model: dict[str, Any] = {}


class _Config(msgspec.Struct):
    """What of a run's config says whose speeds these are."""

    actor_rollout_ref: _Parts
    algorithm: _Algorithm
    data: _Data
    trainer: _Trainer
    toy: _Toy | None = None


class _Record(msgspec.Struct):
    config: _Config


def _config(record: Path) -> _Config:
    try:
        return msgspec.json.decode(record.read_bytes(), type=_Record).config
    except (OSError, UnicodeDecodeError, msgspec.DecodeError):
        raise UserError(f"{record} holds no config of rltrain run; name the directory of a training run") from None


def _measured(directory: RunDir, answers: int, ranks: int) -> Speeds:
    """Medians over the steps of which both files know, and in whose line of the clock are ANSWERS requests."""
    times = {record.get("step"): record for record in read_steps(directory.metrics) if record.get("timing_s/step")}
    rounds: dict[int, list[Round]] = {}
    for line in directory.clock.read_bytes().splitlines():
        with suppress(msgspec.DecodeError, UnicodeDecodeError):  # cut off, as by a crash
            step = msgspec.json.decode(line, type=Step)
            # The rounds of a validation are in the line of a step, too: such a step does not count.
            found = [one for one in step.rounds if one.lengths and one.paces]
            if step.step in times and sum(one.requests for one in found) == answers:
                rounds[step.step] = found
    steps = sorted(rounds)
    steps = steps if len(steps) < _WARM_UP + _FEWEST else steps[_WARM_UP:]
    if not steps:
        raise UserError(
            f"{directory.clock}: no step has a round of {answers} answers and nothing else; give a run of a step or "
            "more without validation (trainer.test_freq=-1)"
        )
    every = [one for step in steps for one in rounds[step]]
    paces = _paces(every, directory.clock)
    learnt = [times[step] for step in steps]
    return Speeds(
        rounds=tuple(Quantiles(one.lengths, one.tokens / one.requests) for one in every),
        prompt=sum(one.prompt_tokens for one in every) / answers / len(steps),
        paces=paces,
        prefill_s=statistics.median(_reading_s(one, paces) for one in every),
        train_s=statistics.median(_train_s(one) * ranks for one in learnt),
        sync_s=statistics.median(one.get("timing_s/update_weights") or 0.0 for one in learnt),
        steps=len(steps),
    )


def _train_s(step: Mapping[str, Any]) -> float:
    others = sum(step.get(f"timing_s/{stage}") or 0.0 for stage in _ELSEWHERE)
    return max(step["timing_s/step"] - others, 0.0) / max(step.get("perf/total_num_tokens") or 0.0, 1.0)


def _paces(rounds: Sequence[Round], clock: Path) -> tuple[tuple[float, float], ...]:
    """Over all ROUNDS, by powers of two of running requests; a fuller pass is never shorter."""
    sums: dict[int, list[float]] = {}
    for ran, passes, seconds in (pace for one in rounds for pace in one.paces):
        if ran >= 1 and passes >= 1 and seconds > 0:
            kept = sums.setdefault(int(ran).bit_length(), [0.0, 0.0, 0.0])
            for place, value in enumerate((ran * passes, passes, seconds)):
                kept[place] += value
    if not sums:
        raise UserError(f"{clock}: no pace of an engine is in it; give a run whose answers have several tokens")
    means = [(ran / passes, seconds / passes) for _, (ran, passes, seconds) in sorted(sums.items())]
    return tuple(zip((ran for ran, _ in means), accumulate((each for _, each in means), max), strict=True))


def _reading_s(one: Round, paces: Sequence[tuple[float, float]]) -> float:
    """Seconds for a token of the first pass, less those of a pass; of the prompts of the answers that ran at once."""
    read = one.prompt_tokens * min((one.most if one.most > 0 else one.requests) / one.requests, 1.0)
    return max(one.first_s - paces[-1][1], 0.0) / max(read, 1.0)
