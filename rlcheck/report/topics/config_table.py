"""The rows of the table that shows a run's config: models, machines, and the arithmetic of its batches."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from rlcheck.facts.asking import asked
from rlcheck.facts.base import FactMissingError
from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.measure.config.arithmetic import data_parallel, roles, samples_per_step, world_size
from rlcheck.measure.config.trainers import titled
from rlcheck.text import counted


def rows_of(run: ConfigFacts) -> tuple[tuple[str, str], ...]:
    """Two columns: what, and how much of it; a row with something in it that the config does not say says so."""
    run = asked(run)
    rows: tuple[tuple[str, Callable[[], str]], ...] = (
        ("framework", lambda: framework_name(run)),
        ("estimator", lambda: run.spec.algorithm.adv_estimator),
        ("models", lambda: _models(run)),
        ("placement", lambda: _placement(run)),
        ("a step", lambda: _step(run)),
        *((role.name, partial(_batches, run, role)) for role in roles(run)),
        ("rollout", lambda: _rollout(run)),
    )
    return tuple((name, _said(say)) for name, say in rows)


def _said(say: Callable[[], str]) -> str:
    try:
        return say()
    except FactMissingError as error:
        return f"not known: {error.missing.reason}"


def framework_name(run: ConfigFacts) -> str:
    """The framework and its version."""
    return " ".join(filter(None, (titled(run.framework), run.version)))


def _models(run: ConfigFacts) -> str:
    return f"{model_name(run.spec.actor) or '-'} ({', '.join(role.name for role in roles(run))})"


def _placement(run: ConfigFacts) -> str:
    spec = run.spec
    if spec.device != "cuda":
        return f"{spec.device}, {counted(world_size(run), 'rank')}"
    placed = f"{counted(world_size(run), 'GPU')} ({spec.nodes} × {spec.gpus_per_node})"
    if not spec.colocated:
        nodes = f"{spec.rollout_nodes} × " if spec.rollout_nodes else ""
        placed += f", {nodes}{spec.rollout_gpus_per_node} for rollout"
    return placed


def _step(run: ConfigFacts) -> str:
    spec = run.spec
    step = f"{spec.data.train_batch_size} prompts × n={spec.rollout.n} = {samples_per_step(run)} samples"
    prompt = "?" if "data.max_prompt_length" in run.without else str(spec.data.max_prompt_length)
    response = "?" if "data.max_response_length" in run.without else str(spec.data.max_response_length)
    return f"{step}, {prompt} + {response} tokens"


def _batches(run: ConfigFacts, role: RoleSpec) -> str:
    ranks = data_parallel(run, role)
    parts = [f"{role.sharding.strategy} on {counted(ranks, 'data-parallel rank')}"]
    if role.sharding.sequence_parallel > 1:
        parts.append(f"sequence parallel {role.sharding.sequence_parallel}")
    if not role.trained:
        return ", ".join([*parts, _passes(role, trained=False)])
    prompts, n = run.spec.data.train_batch_size, max(1, run.spec.rollout.n)
    if role.mini_batch_size:
        updates = -(-prompts // role.mini_batch_size) * role.epochs
        part = role.mini_batch_size * n // ranks
        parts.append(f"{updates} × {role.mini_batch_size} prompts, {part} samples a rank")
    return ", ".join([*parts, _passes(role, trained=True)])


def _passes(role: RoleSpec, *, trained: bool) -> str:
    dynamic = role.dynamic_batch if trained else role.infer_dynamic_batch
    if dynamic:
        return f"up to {role.max_tokens if trained else role.infer_max_tokens} tokens a pass"
    size = role.micro_batch_size if trained else role.infer_micro_batch_size
    return f"{counted(size, 'sample')} a pass" if size else "samples a pass not given"


def _rollout(run: ConfigFacts) -> str:
    rollout, spec = run.spec.rollout, run.spec
    engine = max(1, rollout.tensor_parallel) * max(1, rollout.data_parallel) * max(1, rollout.pipeline_parallel)
    gpus = world_size(run) if spec.colocated else max(1, spec.rollout_nodes or spec.nodes) * spec.rollout_gpus_per_node
    many = f"{counted(gpus // engine, 'engine')} of {counted(engine, 'GPU')}" if spec.device == "cuda" else "on CPUs"
    room = f", {rollout.memory_utilization:g} of the memory" if spec.device == "cuda" else ""
    return f"{rollout.name or 'no engine named'}, {many}{room}"


def model_name(role: RoleSpec) -> str:
    """The model's name: the last part of a path, the whole of a name on the hub."""
    path = role.model.path or ""
    return path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", "~", ".")) else path
