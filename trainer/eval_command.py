"""`rltrain eval`: how good a checkpoint is on validation prompts, with how sure that is."""

from __future__ import annotations

import math
import sys
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from rich.console import Console

from trainer.clock import Clock
from trainer.cluster.runtime import connect
from trainer.cluster.teardown import EXIT_CODE, Interrupted, StopSignals
from trainer.config import RunConfig, check, resolve
from trainer.crew import start_crew
from trainer.errors import UserError
from trainer.evaluate import Evaluator
from trainer.from_run import config_of, run_of
from trainer.machine import this_machine
from trainer.prepare import prepare
from trainer.progress import Stages
from trainer.rewards.pool import RewardPool
from trainer.roles import RewardModelRole
from trainer.run_dir import RunDir
from trainer.scoring import Scorer

Z_95 = 1.959963984540054
"""Quantile of the standard normal distribution for a two-sided interval of 95 %."""


def evaluate_checkpoint(checkpoint: Path, overrides: Sequence[str], n: int, ks: Sequence[int], passing: float) -> int:
    """Answer each validation prompt of the run N times with CHECKPOINT, and print what that scores.

    Args:
        checkpoint: a `global_step_N` directory of a run.
        overrides: config values other than the run's.
        n: answers per prompt; 1 is greedy unless `val_kwargs.do_sample`.
        ks: for which k to print pass@k.
        passing: the least reward that counts as right.

    Raises:
        UserError: the checkpoint or an override cannot be used.
    """
    if wrong := [k for k in ks if not 1 <= k <= n]:
        raise UserError(f"--k {wrong[0]}: must be from 1 to --n, which is {n}")
    found, directory = run_of(checkpoint)
    values = [f"actor_rollout_ref.rollout.val_kwargs.n={n}", "trainer.logger=[console]"]
    if n > 1:
        values += [
            "actor_rollout_ref.rollout.val_kwargs.do_sample=true",
            "actor_rollout_ref.rollout.val_kwargs.temperature=1.0",
        ]
    with tempfile.TemporaryDirectory() as scratch:
        config = resolve(config_of(directory, [*values, *overrides], Path(scratch)), this_machine())
        check(config)
        logs = Path(scratch) / "logs"
        logs.mkdir()
        try:
            groups = _rewards(config, directory, found.path, logs)
        except (Interrupted, KeyboardInterrupt) as stop:
            print(f"rltrain: {stop or 'stopped by a signal'}", file=sys.stderr)  # noqa: T201
            return EXIT_CODE
    for line in summary(groups, ks, passing):
        print(line)  # noqa: T201
    return 0


def _rewards(config: RunConfig, directory: RunDir, checkpoint: Path, logs: Path) -> list[list[float]]:
    """Rewards of each prompt's answers."""
    stages, clock = Stages(Console(highlight=False, soft_wrap=True)), Clock()
    prepared = prepare(config, directory, stages.say)
    if prepared.val is None:
        raise UserError("the run has no validation data: give data.val_files=FILE")
    config = prepared.config
    with ExitStack() as stack:
        pool = stack.enter_context(RewardPool(config))
        pool.check()
        runtime = stack.enter_context(connect(config, logs, stages.say, stages.still))
        stack.enter_context(StopSignals(runtime.waits, runtime.end_now, stages.say))
        crew = start_crew(prepared, runtime, clock, stages, 1)
        crew.trainers.load(checkpoint)
        role = RewardModelRole(crew.trainers, config, clock) if config.reward_model.enable else None
        scorer = Scorer(config, pool, role.scores if role else None, clock)
        with stages.stage("answering"):
            answered = Evaluator(config, crew.hybrid, scorer, prepared.val, clock).answer()
        groups: dict[int, list[float]] = defaultdict(list)
        for sample, reward in zip(answered, scorer.rewards(answered), strict=True):
            groups[sample.index].append(reward)
        crew.close()
    return list(groups.values())


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
