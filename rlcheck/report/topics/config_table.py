"""The rows of the table that shows a run's config: models, machines, and the arithmetic of its batches."""

from __future__ import annotations

from rlcheck.facts.config import ConfigFacts, RoleSpec
from rlcheck.measure.config.arithmetic import data_parallel, roles, samples_per_step, world_size
from rlcheck.text import counted


def rows_of(run: ConfigFacts) -> tuple[tuple[str, str], ...]:
    """Two columns: what, and how much of it."""
    return (*_setting(run), *(_batches(run, role) for role in roles(run)), _rollout(run))


def _setting(run: ConfigFacts) -> tuple[tuple[str, str], ...]:
    spec, framework = run.spec, " ".join(filter(None, (run.framework, run.version)))
    placed = f"{counted(world_size(run), 'GPU')} ({spec.nodes} × {spec.gpus_per_node})"
    if not spec.colocated:
        nodes = f"{spec.rollout_nodes} × " if spec.rollout_nodes else ""
        placed += f", {nodes}{spec.rollout_gpus_per_node} for rollout"
    critic = ", ".join(role.name for role in roles(run))
    step = f"{spec.data.train_batch_size} prompts × n={spec.rollout.n} = {samples_per_step(run)} samples"
    lengths = f"{spec.data.max_prompt_length} + {spec.data.max_response_length} tokens"
    return (
        ("framework", framework),
        ("estimator", spec.algorithm.adv_estimator),
        ("models", f"{model_name(spec.actor) or '-'} ({critic})"),
        ("placement", placed if spec.device == "cuda" else f"{spec.device}, {counted(world_size(run), 'rank')}"),
        ("a step", f"{step}, {lengths}"),
    )


def _batches(run: ConfigFacts, role: RoleSpec) -> tuple[str, str]:
    ranks = data_parallel(run, role)
    parts = [f"{role.sharding.strategy} on {counted(ranks, 'data-parallel rank')}"]
    if role.sharding.sequence_parallel > 1:
        parts.append(f"sequence parallel {role.sharding.sequence_parallel}")
    if not role.trained:
        return role.name, ", ".join([*parts, _passes(role, trained=False)])
    prompts, n = run.spec.data.train_batch_size, max(1, run.spec.rollout.n)
    if role.mini_batch_size:
        updates = -(-prompts // role.mini_batch_size) * role.epochs
        part = role.mini_batch_size * n // ranks
        parts.append(f"{updates} × {role.mini_batch_size} prompts, {part} samples a rank")
    return role.name, ", ".join([*parts, _passes(role, trained=True)])


def _passes(role: RoleSpec, *, trained: bool) -> str:
    dynamic = role.dynamic_batch if trained else role.infer_dynamic_batch
    if dynamic:
        return f"up to {role.max_tokens if trained else role.infer_max_tokens} tokens a pass"
    size = role.micro_batch_size if trained else role.infer_micro_batch_size
    return f"{counted(size, 'sample')} a pass" if size else "samples a pass not given"


def _rollout(run: ConfigFacts) -> tuple[str, str]:
    rollout, spec = run.spec.rollout, run.spec
    engine = max(1, rollout.tensor_parallel) * max(1, rollout.data_parallel) * max(1, rollout.pipeline_parallel)
    gpus = world_size(run) if spec.colocated else max(1, spec.rollout_nodes or spec.nodes) * spec.rollout_gpus_per_node
    many = f"{counted(gpus // engine, 'engine')} of {counted(engine, 'GPU')}" if spec.device == "cuda" else "on CPUs"
    room = f", {rollout.memory_utilization:g} of the memory" if spec.device == "cuda" else ""
    return "rollout", f"{rollout.name or 'no engine named'}, {many}{room}"


def model_name(role: RoleSpec) -> str:
    """The model's name: the last part of a path, the whole of a name on the hub."""
    path = role.model.path or ""
    return path.rstrip("/").rsplit("/", 1)[-1] if path.startswith(("/", "~", ".")) else path
