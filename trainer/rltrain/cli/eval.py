"""`rltrain eval`: how good a checkpoint is on validation prompts, with how sure that is."""

from __future__ import annotations

import math
import os
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import torch

from rltrain.cli.diagnosis import diagnose, failure_words
from rltrain.cli.from_run import actor_alone, config_of, refuse_hidden, refuse_sft, run_of
from rltrain.cli.requests import EvalRequest
from rltrain.cluster.runtime import connect
from rltrain.cluster.teardown import EXIT_CODE, Interrupted, StopSignals
from rltrain.config import RunConfig, check, resolve
from rltrain.config.machine import this_machine
from rltrain.config.resolve import replaced
from rltrain.controller.apart import Answering, start_engines
from rltrain.controller.crew import Crew, start_crew
from rltrain.controller.evaluate import Evaluator
from rltrain.controller.prepare import prepare_validation
from rltrain.controller.reward_manager import RewardManager
from rltrain.controller.roles import RewardModelRole
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError
from rltrain.core.progress import Stages, screen
from rltrain.records.run_dir import RunDir
from rltrain.rewards.pool import RewardPool
from rltrain.toy.make import is_made
from rltrain.workers.fsdp.export import export_saved

FAILED = 1
Z_95 = 1.959963984540054
"""Quantile of the standard normal distribution for a two-sided interval of 95 %."""


def run(request: EvalRequest) -> int:
    """Answer each validation prompt of the checkpoint's run, and print what that scores; returns the exit code.

    An override of `val_kwargs.do_sample` wins over `--n`.

    Raises:
        UserError: the checkpoint or an override cannot be used.
    """
    n, ks, passing = request.n, request.ks or (1,), request.passing
    if wrong := [k for k in ks if not 1 <= k <= n]:
        raise UserError(f"--k {wrong[0]}: must be from 1 to --n, which is {n}")
    if math.isnan(passing):
        raise UserError("--pass nan: must be a number, no reward is above it or below")
    found, directory = run_of(request.checkpoint)
    refuse_sft(found, directory)
    begin = time.time()
    with tempfile.TemporaryDirectory() as scratch:
        config = _validation_only(resolve(config_for(directory, request.overrides, n, Path(scratch)), this_machine()))
        refuse_hidden(config, directory)
        check(config)
        if max(ks) > (answers := config.actor_rollout_ref.rollout.val_kwargs.n):
            raise UserError(f"--k {max(ks)}: an override of val_kwargs.n leaves {answers} answers a prompt")
        logs = _logs(directory)
        # With another toy than the run's: the run's own stays as it is.
        home = directory if config.toy is None or is_made(config, directory.toy) else RunDir(Path(scratch))
        try:
            groups = _rewards(config, home, found.path, logs)
        except (Interrupted, KeyboardInterrupt) as stop:
            return _failed(f"{str(stop) or 'stopped by a signal'}", EXIT_CODE)
        except UserError:
            raise
        # The border of the program, as in `rltrain run`.
        except Exception as error:
            words = failure_words(error, logs)
            return _failed("\n".join([words, *diagnose(logs, begin, words), f"Logs: {logs}"]), FAILED)
    for line in summary(groups, ks, passing):
        print(line)  # noqa: T201
    return 0


def config_for(directory: RunDir, overrides: Sequence[str], n: int, scratch: Path) -> RunConfig:
    """The config of the run in DIRECTORY, with N answers a prompt; OVERRIDES win.

    Raises:
        UserError: as `config_of`.
    """
    section = "actor_rollout_ref.rollout.val_kwargs"
    values = [f"{section}.n={n}", f"{section}.do_sample={str(n > 1).lower()}", "trainer.logger=[console]"]
    own = config_of(directory, (), scratch).actor_rollout_ref.rollout.val_kwargs
    if n > 1 and own.temperature == 0:  # n equal answers otherwise
        values.append(f"{section}.temperature=1.0")
    return config_of(directory, [*values, *overrides], scratch)


def _validation_only(config: RunConfig) -> RunConfig:
    """CONFIG without what only training reads: it may be gone by now."""
    data, trainer, warmup = config.data, config.trainer, config.sft_warmup
    return replaced(
        actor_alone(config),
        data=replaced(data, train_files=data.val_files or data.train_files),
        sft_warmup=replaced(warmup, steps=0, files=None),
        trainer=replaced(trainer, resume_mode="disable", resume_from_path=None, critic_warmup=0, wandb_proxy=None),
    )


def _logs(directory: RunDir) -> Path:
    """Where the processes write; for who may only read the run, a directory elsewhere. It stays: errors name it."""
    place = directory.logs / "eval"
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="rltrain-eval-"))
    return place if os.access(place, os.W_OK) else Path(tempfile.mkdtemp(prefix="rltrain-eval-"))


def _failed(message: str, code: int) -> int:
    print(f"rltrain: {message}", file=sys.stderr)  # noqa: T201
    return code


def _rewards(config: RunConfig, directory: RunDir, checkpoint: Path, logs: Path) -> list[list[float]]:
    """Rewards of each prompt's answers."""
    stages, clock = Stages(screen()), Clock()
    prepared = prepare_validation(config, directory, stages.say)
    config = prepared.config
    with ExitStack() as stack:
        pool = stack.enter_context(RewardPool(config))
        pool.check()
        if not config.reward_model.enable:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="weights-", dir=logs)))
            prepared = replace(prepared, config=_with_saved_weights(config, checkpoint, scratch, stages))
        runtime = stack.enter_context(connect(config, logs, stages.say, stages.still))
        stack.enter_context(StopSignals(runtime.waits, runtime.end_now, stages.say))
        started: Crew | Answering
        if config.reward_model.enable:  # it is hosted by training ranks, which bring the actor to the engines, too
            started = start_crew(prepared, runtime, clock, stages, 1)
            started.train_group.load_actor(checkpoint)
            scores = RewardModelRole(started.train_group, config, clock).scores
        else:
            started, scores = start_engines(prepared, runtime, clock, stages), None
        reward_manager = RewardManager(config, pool, scores, clock)
        with stages.stage("answering"):
            answered = Evaluator(config, started.rollout, reward_manager, prepared.val, clock).answer()
        groups: dict[int, list[float]] = defaultdict(list)
        for sample, reward in zip(answered, reward_manager.rewards(answered), strict=True):
            groups[sample.index].append(reward)
        started.close()
    return list(groups.values())


def _with_saved_weights(config: RunConfig, checkpoint: Path, scratch: Path, stages: Stages) -> RunConfig:
    """CONFIG for engines that answer alone: its model is SCRATCH, with CHECKPOINT's weights as engines hold them."""
    parts = config.actor_rollout_ref
    with stages.stage("reading the checkpoint"):
        dtype: torch.dtype = getattr(torch, parts.rollout.dtype)
        export_saved(checkpoint / "actor", scratch, parts.model, dtype)
    # The directory's config holds what the run's laid over it, and its tokenizer is the run's.
    model = replaced(parts.model, path=str(scratch), tokenizer_path=str(scratch), override_config={})
    rollout = replaced(parts.rollout, free_cache_engine=False)  # who has the devices alone never sleeps
    return replaced(config, actor_rollout_ref=replaced(parts, model=model, rollout=rollout))


def summary(groups: Sequence[Sequence[float]], ks: Sequence[int], passing: float) -> list[str]:
    """Lines about the rewards of each prompt's answers: mean reward with its interval, and pass@k."""
    mean, half = mean_and_interval([math.fsum(group) / len(group) for group in groups])
    lines = [f"mean reward  {mean:.4f}  (95 % interval {mean - half:.4f} to {mean + half:.4f}, {len(groups)} prompts)"]
    for k in ks:
        shares = [pass_at_k(len(group), sum(reward >= passing for reward in group), k) for group in groups]
        share, half = mean_and_interval(shares)
        lines.append(f"pass@{k:<7} {share:.4f}  (95 % interval {share - half:.4f} to {share + half:.4f})")
    return lines


def pass_at_k(n: int, right: int, k: int) -> float:
    """Chance that at least one of K answers, drawn from N of which RIGHT are right, is right.

    1 - C(n - c, k) / C(n, k): unbiased (Chen et al. 2021, arXiv:2107.03374, equation 1).
    """
    return 1.0 - math.comb(n - right, k) / math.comb(n, k)


def mean_and_interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean of VALUES (one for each prompt), and half the width of its 95 % interval by the central limit theorem."""
    mean = math.fsum(values) / len(values)
    if len(values) < 2:
        return mean, math.inf
    variance = math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1)
    return mean, Z_95 * math.sqrt(variance / len(values))
