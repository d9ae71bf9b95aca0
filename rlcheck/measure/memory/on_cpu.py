"""A run whose training ranks are on the CPU: everything is in the RAM of its node, and nothing sleeps."""

from __future__ import annotations

from rlcheck.facts.config import ConfigFacts, RunSpec
from rlcheck.facts.memory import MemoryProfile, Owner, Phase
from rlcheck.measure.config.engines import resident_bytes
from rlcheck.measure.memory.predict import READS, Gpu, Plan, plan_of
from rlcheck.measure.memory.roles import RoleMemory, pass_of
from rlcheck.measure.memory.transient import BYTES, inference, training

# Resident sizes of processes that have imported everything and hold a model of no size, as Linux on x86-64 showed them
# with torch 2.13.0+cpu, transformers 5.17 and vLLM's CPU build 0.32.0. Pages of shared libraries count in each.
RANK_BYTES = 500_000_000
CONTROLLER_BYTES = 540_000_000


def predict_on_cpu(run: ConfigFacts, host_bytes: int) -> MemoryProfile:
    """The prediction for the node of RUN, phase by phase, in `host_phases`; there are no others.

    Args:
        run: the config that was read; `spec.gpus_per_node` counts its ranks.
        host_bytes: RAM of a node; 0: not known.

    Raises:
        UnknownModelError: the actor's sizes are not known.
    """
    plan = plan_of(run, Gpu("CPU", host_bytes))
    return MemoryProfile(
        gpu="CPU",
        host_bytes=host_bytes,
        num_nodes=plan.run.nodes,
        gpus_per_node=plan.run.gpus_per_node,
        parameters={role.name: role.parameters for role in plan.roles},
        exact=all(role.shape.exact for role in plan.roles),
        architecture=plan.policy.kind,
        host_phases=tuple(_phases(plan)),
        notes=tuple(plan.notes),
    )


def states_bytes(role: RoleMemory, ranks: int) -> int:
    """Weights, gradients and optimizer of ROLE on RANKS ranks of a node."""
    return ranks * (role.weights + role.gradients + role.optimizer)


def _phases(plan: Plan) -> list[Phase]:
    ranks = plan.run.gpus_per_node
    always = [*_processes(plan.run), *_engine(plan)]
    whole = max(role.parameters * BYTES.get(role.spec.sharding.model_dtype, 4) for role in plan.roles)
    loaded = [_owner("weights", role, role.weights * ranks) for role in plan.roles]
    found = [_phase("load", [*always, *loaded, Owner(kind="buffers", num_bytes=whole)])]
    states = [*loaded, *(_owner("optimizer", role, role.optimizer * ranks) for role in plan.roles)]
    bucket = min(plan.run.rollout.sync_bucket_bytes, whole)
    found.append(_phase("rollout", [*always, *states, Owner(kind="buffers", num_bytes=bucket)]))
    for role in plan.roles:
        made = inference(pass_of(plan.run, role, True, plan.framework))
        found.append(_phase(READS.get(role.name, role.name), [*always, *states, *_of(role, made, ranks)]))
    for role in plan.roles:
        if role.spec.trained:
            made = training(pass_of(plan.run, role, False, plan.framework))
            gradients = _owner("gradients", role, role.gradients * ranks)
            found.append(_phase(f"{role.name} update", [*always, *states, gradients, *_of(role, made, ranks)]))
    return found


def _processes(run: RunSpec) -> list[Owner]:
    return [
        Owner(
            kind="context",
            num_bytes=CONTROLLER_BYTES + run.gpus_per_node * RANK_BYTES + resident_bytes(run.rollout.name),
        )
    ]


def _engine(plan: Plan) -> list[Owner]:
    """One engine serves a node: its weights, and the cache of all samples that it works on at a time."""
    run, data, shape = plan.run, plan.run.data, plan.policy
    size = BYTES.get(run.rollout.dtype, 4)
    samples = min(data.train_batch_size * run.rollout.n, run.rollout.max_seqs)
    cache = shape.kv_per_token * size * samples * (data.max_prompt_length + data.max_response_length)
    return [
        Owner(kind="weights", role="rollout", num_bytes=shape.parameters * size),
        Owner(kind="kv_cache", role="rollout", num_bytes=int(cache)),
    ]


def _of(role: RoleMemory, owners: list[Owner], ranks: int) -> list[Owner]:
    return [_owner(owner.kind, role, owner.num_bytes * ranks) for owner in owners]


def _owner(kind: str, role: RoleMemory, num_bytes: int) -> Owner:
    return Owner(kind=kind, role=role.name, num_bytes=num_bytes)


def _phase(name: str, owners: list[Owner]) -> Phase:
    return Phase(name=name, owners=tuple(owner for owner in owners if owner.num_bytes), pool="host")
