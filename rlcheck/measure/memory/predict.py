"""Memory of a run before it is launched: every phase and owner, on the fullest GPU and on a host. Arithmetic only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec

from rlcheck.facts.config import ConfigFacts, RoleSpec, RunSpec
from rlcheck.facts.memory import MemoryProfile, Owner, Phase
from rlcheck.measure.config.arithmetic import is_other, who
from rlcheck.measure.memory import host
from rlcheck.measure.memory.constants import CONSTANTS
from rlcheck.measure.memory.engine import EngineMemory, engine_memory
from rlcheck.measure.memory.roles import MEGATRON, RoleMemory, pass_of, role_memory, step_bytes
from rlcheck.measure.memory.shapes import Shape, ShapeError, shape_of
from rlcheck.measure.memory.transient import BYTES, inference, training

_UPDATES = {"actor": "actor", "critic": "critic"}
_SLEEPING = ("kv_cache", "graphs")
READS = {"actor": "log-probs", "ref": "ref log-probs", "critic": "values", "reward_model": "reward"}
"""What a role reads of the answers, as its phase is called."""


class UnknownModelError(Exception):
    """The sizes of a model are not known. One line: which, and what to give."""


@dataclass(frozen=True)
class Gpu:
    """A kind of GPU: memory as the driver reports it, in bytes."""

    name: str
    total_bytes: int


@dataclass(frozen=True)
class Plan:
    """A run on one kind of GPU, worked out as far as its phases need it."""

    run: RunSpec
    framework: str
    gpu: Gpu
    roles: tuple[RoleMemory, ...]
    engine: EngineMemory
    policy: Shape
    notes: list[str] = field(default_factory=list[str])

    own: Mapping[str, tuple[RoleMemory, ...]] = field(default_factory=dict[str, tuple[RoleMemory, ...]])
    """Roles on GPUs of their own, by whose these are."""

    @property
    def num_gpus(self) -> int:
        """Training GPUs."""
        return self.run.nodes * self.run.gpus_per_node

    @property
    def everybody(self) -> tuple[RoleMemory, ...]:
        """Roles wherever they are."""
        return (*self.roles, *(role for roles in self.own.values() for role in roles))


def predict(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> MemoryProfile:
    """The prediction for RUN on GPU, limits and changes left out.

    Args:
        run: the config that was read.
        gpu: of all of its nodes.
        host_bytes: RAM of a node; 0: not known.

    Raises:
        UnknownModelError: the actor's sizes are not known.
    """
    plan = plan_of(run, gpu)
    phases = [*_train_phases(plan), *_own_phases(plan), *_rollout_phases(plan)]
    shapes = {role.shape for role in plan.everybody}
    return MemoryProfile(
        gpu=gpu.name,
        gpu_bytes=gpu.total_bytes,
        usable_bytes=gpu.total_bytes - CONSTANTS.driver_bytes,
        host_bytes=host_bytes,
        num_nodes=plan.run.nodes,
        gpus_per_node=plan.run.gpus_per_node,
        parameters={role.name: role.parameters for role in plan.everybody},
        exact=all(shape.exact for shape in shapes),
        architecture=plan.policy.kind,
        not_measured=who(run) if is_other(run) else "",
        phases=tuple(phases),
        host_phases=tuple(host.phases(plan.run, plan.roles, plan.engine)),
        notes=tuple(plan.notes),
    )


def plan_of(run: ConfigFacts, gpu: Gpu) -> Plan:
    """RUN's roles and engine on GPU.

    Raises:
        UnknownModelError: the actor's sizes are not known.
    """
    spec, notes = run.spec, list[str]()
    policy = _shape(run, spec.actor)
    specs = [role for role in (spec.actor, spec.ref, spec.critic, spec.reward_model) if role is not None]
    roles: list[RoleMemory] = []
    own: dict[str, list[RoleMemory]] = {}
    pools = {role.name: role.own_gpus for role in specs if role.own_gpus}
    for role in specs:
        # LoRA's reference is its own base model, with the adapters switched off.
        if role.name == "ref" and (role.shares_actor or (spec.actor.model.lora_rank and run.framework == "verl")):
            notes.append("the reference is the actor without its adapters: it needs no weights of its own")
            continue
        if role.engine is not None and role.own_gpus:
            notes.append(f"the {role.name} is served on {role.own_gpus} GPUs of its own: its memory is not predicted")
            continue
        try:
            shape = _shape(run, role)
        except UnknownModelError as error:
            notes.append(f"{error}: counted as the actor's")
            shape = policy
        pool = role.beside or role.name
        if pool in pools:
            own.setdefault(pool, []).append(role_memory(role, shape, pools[pool]))
        else:
            roles.append(role_memory(role, shape, spec.nodes * spec.gpus_per_node))
    if own:
        notes.append(f"on GPUs of their own: {', '.join(own)}; what they keep on the host is not counted")
    actor = run.models["actor"].value
    if actor is not None and actor.lacking is not None:
        notes.append(f"the sizes of {actor.path} are those of {actor.source}; --model-shape gives others")
    if spec.actor.sharding.strategy in MEGATRON:
        notes.append("Megatron's memory is counted from its documentation, and held against no measurement")
    if is_other(run):
        notes.append(f"not measured: {who(run)}'s memory is counted from its sources, and held against no run of it")
    if not policy.exact:
        notes.append(f"architecture {policy.kind or 'unnamed'} is not known: counted as Llama by its declared sizes")
    return Plan(
        spec,
        run.framework,
        gpu,
        tuple(roles),
        engine_memory(spec, policy, gpu.total_bytes - CONSTANTS.driver_bytes),
        policy,
        notes,
        {name: tuple(members) for name, members in own.items()},
    )


def _shape(run: ConfigFacts, role: RoleSpec) -> Shape:
    fact = run.models.get(role.name)
    if fact is None or fact.value is None:
        reason = fact.missing.reason if fact is not None and fact.missing is not None else "not given"
        raise UnknownModelError(f"the sizes of the {role.name}'s model are not known ({reason})")
    try:
        return shape_of(fact.value.sizes)
    except ShapeError as error:
        raise UnknownModelError(f"{fact.value.source or role.name}: {error}") from None


def _base(plan: Plan) -> list[Owner]:
    """What a training rank and a sleeping engine hold whatever happens."""
    peers = CONSTANTS.context_per_peer_bytes if plan.num_gpus > 1 else 0
    owners = [Owner(kind="context", num_bytes=CONSTANTS.context_bytes + CONSTANTS.workspace_bytes + peers)]
    return [*owners, *plan.engine.resting()] if plan.run.colocated else owners


def _train_phases(plan: Plan) -> list[Phase]:
    base = _base(plan)
    # No optimizer has its state before the first step.
    loaded = [owner for owner in _idle(plan, None) if owner.kind != "optimizer"]
    early = Owner(kind="context", num_bytes=CONSTANTS.loading_context_bytes)
    found = [Phase(name="load", owners=(*loaded, early, *base[1:]))]
    for role in plan.roles:
        found.append(_read(plan, role, base))
    for name in ("critic", "actor"):
        role = next((one for one in plan.roles if one.name == name and one.spec.trained), None)
        if role is not None:
            found += _updates(plan, role, base)
    found.append(Phase(name="checkpoint", owners=(*_idle(plan, None), *base)))
    largest = plan.policy.largest_tensor * BYTES.get(plan.run.actor.sharding.model_dtype, 4)
    whole = Owner(kind="buffers", role="actor", num_bytes=largest)
    found.append(Phase(name="export", owners=(*_idle(plan, None), whole, *base)))
    return found


def _own_phases(plan: Plan) -> list[Phase]:
    """The work of roles on GPUs of their own, each beside those that share these."""
    found: list[Phase] = []
    for pool, roles in plan.own.items():
        alone = replace(plan, roles=roles)
        base = _base(alone)[:1]
        for role in roles:
            made = [_read(alone, role, base), *(_updates(alone, role, base) if role.spec.trained else [])]
            found += [msgspec.structs.replace(phase, pool=pool) for phase in made]
    return found


def _idle(plan: Plan, working: RoleMemory | None) -> list[Owner]:
    return [owner for role in plan.roles if role is not working for owner in role.idle()]


def _read(plan: Plan, role: RoleMemory, base: list[Owner]) -> Phase:
    step = pass_of(plan.run, role, True, plan.framework)
    owners = [*_idle(plan, role), *role.working(False), *_of(role, inference(step))]
    slack = _slack(plan, owners, CONSTANTS.slack_idle_bytes)
    return Phase(name=READS.get(role.name, role.name), owners=(*owners, slack, *base))


def _updates(plan: Plan, role: RoleMemory, base: list[Owner]) -> list[Phase]:
    step = pass_of(plan.run, role, False, plan.framework)
    state = [*_idle(plan, role), *role.working(True)]
    owners = [*state, *_of(role, training(step))]
    root = step.root_bytes // step.computed * 4 if not step.adapters else CONSTANTS.slack_idle_bytes
    slack = _slack(plan, owners, int(CONSTANTS.slack_per_root * root))
    held = (slack, *base)
    stepping = Owner(kind="buffers", num_bytes=step_bytes(role, plan.framework))
    name = _UPDATES[role.name]
    return [
        Phase(name=f"{name} update", owners=(*owners, *held)),
        Phase(name=f"{name} step", owners=(*state, *_of(role, [stepping]), *held)),
    ]


def _of(role: RoleMemory, owners: list[Owner]) -> list[Owner]:
    return [Owner(kind=one.kind, num_bytes=one.num_bytes, role=role.name) for one in owners if one.num_bytes]


def _slack(plan: Plan, owners: list[Owner], growing: int) -> Owner:
    """What the allocator holds for nobody: GROWING where segments grow, as in rltrain.

    Segments of fixed size (torch's own way, and verl's) are left in pieces, a share of all, that no other tensor can
    use.
    """
    if plan.framework == "verl" or not plan.run.expandable_segments:
        held = sum(owner.num_bytes for owner in owners)
        return Owner(kind="fragments", num_bytes=int(CONSTANTS.fixed_segments_slack * held))
    return Owner(kind="slack", num_bytes=growing)


def _rollout_phases(plan: Plan) -> list[Phase]:
    rollout = plan.run.rollout
    if rollout.in_process and not plan.engine.wanted_bytes:
        return [Phase(name="rollout", owners=(*_idle(plan, None), *_base(plan)[:1], *plan.engine.awake()))]
    awake, size = plan.engine.awake(), BYTES.get(rollout.dtype, 2)
    largest = plan.policy.largest_tensor * size
    bucket = max(min(rollout.sync_bucket_bytes, plan.policy.parameters * size), largest)
    staging = [Owner(kind="buffers", num_bytes=bucket), Owner(kind="buffers", role="actor", num_bytes=largest)]
    if not plan.run.colocated:
        receiving = Owner(kind="buffers", role="rollout", num_bytes=bucket)
        # Activations are those of its largest batch, and nothing is generated now; the cache leaves where it sleeps.
        kept = [one for one in awake if one.kind != "activations" and not (rollout.sleeps and one.kind in _SLEEPING)]
        train = Phase(name="weight sync", owners=(*_idle(plan, None), *staging, *_base(plan)))
        return [
            train,
            Phase(name="weight sync", owners=(*kept, receiving), pool="rollout"),
            Phase(name="rollout", owners=tuple(awake), pool="rollout"),
        ]
    context = _base(plan)[0]
    beside = (*_idle(plan, None), context)
    # The engine wakes its weights for the sync, and its cache after it; one that never sleeps has both all the time.
    during = plan.engine.resting() if not rollout.sleeps else [awake[0], awake[3], awake[4]]
    moments = [(*beside, *staging, *during), (*beside, *_summoned(plan), *plan.engine.resting())]
    return [
        Phase(name="weight sync", owners=max(moments, key=lambda owners: sum(one.num_bytes for one in owners))),
        Phase(name="rollout", owners=(*beside, *awake)),
    ]


def _summoned(plan: Plan) -> list[Owner]:
    """What verl gathers for the adapters that it sends: with FSDP 1 the whole model, as it is kept, on every GPU.

    collect_lora_params (verl/utils/fsdp_utils.py@v0.7.1 to v0.9.0), unless `layered_summon` takes it layer by layer.
    """
    actor = next((role for role in plan.roles if role.name == "actor"), None)
    if actor is None or plan.framework != "verl" or plan.run.rollout.layered_summon:
        return []
    shards = actor.spec.sharding
    if shards.strategy != "fsdp" or actor.world < 2 or not actor.spec.model.lora_rank:
        return []
    loaded = [Owner(kind="weights", role="actor", num_bytes=actor.weights)] if shards.param_offload else []
    return [*loaded, Owner(kind="unsharded", role="actor", num_bytes=actor.weights * actor.world)]
