"""The measuring plug-in `smoke`: one real training step of a config, on a batch cut down to what its rules allow."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

import rlcheck
import rltrain
from rlcheck.facts.rollout import Failure, StageTime
from rlcheck.facts.smoke import SmokeFacts
from rltrain.config import RunConfig, check, load, resolve
from rltrain.config.machine import this_machine
from rltrain.config.resolve import replaced
from rltrain.core.errors import UserError
from rltrain.measure.report import Tell

_STAGE = re.compile(r"(?P<name>\D[^:]{2,80}): (?P<seconds>\d+\.\d) s")
_MOST = 4096
"""Batches up to this size are tried; none that is smaller than its GPUs can be the smallest that fits them."""
_KEPT_LINES = 60
_MAX_ERROR = 600


def run(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Train one step.

    Args:
        request: `source` and `overrides` of an rltrain config; `directory`, an empty one for the run.
        tell: called with `{"stage": …}` at each sign of life, and with `{"partial": …}` when a stage has ended.

    Returns:
        `rlcheck.facts.smoke.SmokeFacts` as plain data; `failure.line`: what the run said when it failed.

    Raises:
        UserError: the config cannot be used, or no batch holds to its rules.
    """
    tell({"stage": "config"})
    source, overrides = request["source"], list(request["overrides"])
    directory = Path(request["directory"]) / "run"
    loaded = load(source, overrides)
    batch = smallest_batch(loaded)
    changed = _changes(resolve(loaded, this_machine()), batch, directory)
    begun = time.monotonic()
    stages, lines, status = _trained([source, *overrides, *changed], tell)
    metrics = _metrics(directory / "metrics.jsonl")
    error = "" if status == 0 else last_words(lines, status)
    if status == 0 and not metrics:
        error = "the run ended without a training step"
    finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
    last = stages[-1].name if stages else ""
    failure = Failure(stage=f"after {last}" if last else "run", kind="run", line=error) if error else None
    facts = SmokeFacts(
        stages=tuple(stages),
        train_batch_size=batch,
        overrides=tuple(changed),
        metrics=finite,
        not_finite=tuple(sorted(metrics.keys() - finite.keys())),
        seconds=round(time.monotonic() - begun, 1),
        failure=failure,
    )
    return msgspec.to_builtins(facts)


def smallest_batch(loaded: RunConfig) -> int:
    """The smallest batch of prompts that fills one micro batch on every GPU; a smaller one if there is none.

    Raises:
        UserError: no batch holds to the rules of this config.
    """
    machine = this_machine()
    config = resolve(loaded, machine)
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    assert config.trainer.n_gpus_per_node is not None
    world = config.trainer.nnodes * config.trainer.n_gpus_per_node
    largest = min(config.data.train_batch_size, _MOST)
    wanted = min(largest, -(-world * (actor.ppo_micro_batch_size_per_gpu or 1) // rollout.n))
    reason = ""
    for batch in (*range(wanted, largest + 1), *range(wanted - 1, 0, -1)):
        try:
            check(resolve(_with_batch(loaded, batch), machine))
        except UserError as error:
            reason = reason or str(error).splitlines()[0]
            continue
        return batch
    raise UserError(f"no batch of at most {largest} prompts holds to the rules of this config: {reason}")


def _with_batch(config: RunConfig, batch: int) -> RunConfig:
    parts, critic = config.actor_rollout_ref, config.critic
    return replaced(
        config,
        data=replaced(config.data, train_batch_size=batch),
        actor_rollout_ref=replaced(parts, actor=replaced(parts.actor, ppo_mini_batch_size=batch)),
        critic=critic if critic.ppo_mini_batch_size is None else replaced(critic, ppo_mini_batch_size=batch),
    )


def _changes(config: RunConfig, batch: int, directory: Path) -> list[str]:
    rows = [limit for limit in (config.data.train_max_samples, 16 * batch) if limit > 0]
    return [
        f"data.train_batch_size={batch}",
        f"actor_rollout_ref.actor.ppo_mini_batch_size={batch}",
        *([f"critic.ppo_mini_batch_size={batch}"] if config.critic.enable else []),
        f"data.train_max_samples={min(rows)}",
        "data.val_max_samples=8",
        "sft_warmup.steps=0",
        "trainer.total_training_steps=1",
        "trainer.critic_warmup=0",
        # The first update of a warm-up has a rate of 0.
        "actor_rollout_ref.actor.optim.lr_warmup_steps=-1",
        "critic.optim.lr_warmup_steps=-1",
        "trainer.val_before_train=false",
        "trainer.test_freq=1",
        "trainer.save_freq=1",
        "trainer.logger=[console]",
        "trainer.resume_mode=disable",
        "trainer.resume_from_path=null",
        f"trainer.default_local_dir={directory}",
    ]


def _trained(words: Sequence[str], tell: Tell) -> tuple[list[StageTime], list[str], int]:
    """Run it in a process of its own; stages, last lines, exit status."""
    roots = dict.fromkeys(str(Path(str(package.__file__)).resolve().parents[1]) for package in (rltrain, rlcheck))
    paths = os.pathsep.join([*roots, *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [sys.executable, "-m", "rltrain.measure.smoke.one_step", *words],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "NO_COLOR": "1", "TERM": "dumb"},
        text=True,
        errors="replace",
    )
    assert process.stdout is not None
    stages: list[StageTime] = []
    lines: deque[str] = deque(maxlen=_KEPT_LINES)
    tell({"stage": "run"})
    for line in process.stdout:
        sys.stderr.write(line)
        lines.append(line.rstrip())
        tell({"stage": f"run, after '{' '.join(line.split())[:60]}'"})
        if ended := _STAGE.fullmatch(line.strip()):
            stages.append(StageTime(name=ended["name"], seconds=float(ended["seconds"])))
            tell({"partial": {"stages": msgspec.to_builtins(stages)}})
    return stages, list(lines), process.wait()


def last_words(lines: Sequence[str], status: int) -> str:
    """What rltrain said last of its own, with what it added about the cause."""
    said = [number for number, line in enumerate(lines) if line.startswith("rltrain: ")]
    words = lines[said[-1] :] if said else lines[-3:]
    text = " ".join(" ".join(words).removeprefix("rltrain: ").split())
    return (text or f"the run ended with status {status}")[:_MAX_ERROR]


def _metrics(path: Path) -> dict[str, float]:
    """Those of the last step that trained; NaN and infinities stay what they are."""
    try:
        steps = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError):
        return {}
    trained = [step for step in steps if step.get("step", 0) > 0]
    last: dict[str, Any] = trained[-1] if trained else {}
    return {name: float("nan") if value is None else float(value) for name, value in last.items()
            if value is None or isinstance(value, int | float)}  # fmt: skip
