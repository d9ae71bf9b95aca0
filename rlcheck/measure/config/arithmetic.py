"""The arithmetic of a run that several checks of this family share, and which code of verl will run it."""

from __future__ import annotations

from typing import Any, Literal

from rlcheck.facts.config import ConfigFacts, Place, RoleSpec
from rlcheck.measure.config.trainers import titled, trainer_of


def is_verl(run: ConfigFacts) -> bool:
    """Whether verl runs this config."""
    return run.framework == "verl"


def is_other(run: ConfigFacts) -> bool:
    """Whether another trainer than rltrain and verl runs this config."""
    return trainer_of(run.framework) is not None


def stops(run: ConfigFacts, check: str) -> Literal["fail", "warn"]:
    """How grave a rule of CHECK is that verl asserts: a warning for trainers that are not known to assert it."""
    trainer = trainer_of(run.framework)
    return "fail" if trainer is None or check in trainer.asserts else "warn"


def is_legacy(run: ConfigFacts) -> bool:
    """Whether verl's first workers (fsdp_workers.py, gone in 0.8) train: they round mini batches down."""
    chosen = value(run, "trainer.use_legacy_worker_impl", "auto")
    return is_verl(run) and run.version.startswith("0.7") and chosen != "disable"


def is_v1(run: ConfigFacts) -> bool:
    """Whether verl's newer trainer (0.9) drives the run: it pads a step's samples up to whole mini batches."""
    return is_verl(run) and bool(value(run, "trainer.use_v1", False))


def who(run: ConfigFacts) -> str:
    """Who refuses, for a sentence: verl 0.9.1, rltrain, the run."""
    return {"spec": "the run"}.get(run.framework) or " ".join(filter(None, (titled(run.framework), run.version)))


def value(run: ConfigFacts, key: str, default: Any = None) -> Any:
    """The value of a key of the framework; DEFAULT where there is no such key or it is null."""
    found = run.values.get(key)
    return default if found is None else found


def whole(run: ConfigFacts, key: str, default: int = 0) -> int:
    """The value of a key as a whole number; DEFAULT where it is none."""
    found = run.values.get(key)
    return found if isinstance(found, int) and not isinstance(found, bool) else default


def roles(run: ConfigFacts) -> tuple[RoleSpec, ...]:
    """The roles that hold a model on the training GPUs, the actor first."""
    spec = run.spec
    return tuple(role for role in (spec.actor, spec.ref, spec.critic) if role is not None)


def trained(run: ConfigFacts) -> tuple[RoleSpec, ...]:
    """The actor, and the critic if there is one."""
    return tuple(role for role in (run.spec.actor, run.spec.critic) if role is not None)


def world_size(run: ConfigFacts) -> int:
    """GPUs that train; 1 where the config says nothing sensible."""
    return max(1, run.spec.nodes) * max(1, run.spec.gpus_per_node)


def data_parallel(run: ConfigFacts, role: RoleSpec) -> int:
    """Groups of ranks that see different samples: what is left of the GPUs after every other kind of parallelism."""
    sharding = role.sharding
    group = sharding.sequence_parallel * sharding.tensor_parallel * sharding.pipeline_parallel
    return max(1, world_size(run) // max(1, group * sharding.context_parallel))


def is_fsdp(role: RoleSpec) -> bool:
    """Whether FSDP of either kind shards this role."""
    return role.sharding.strategy in ("fsdp", "fsdp2")


def samples_per_step(run: ConfigFacts) -> int:
    """Prompts of a step times responses to each; 0 where the data is taken one by one (train_batch_size=0)."""
    return max(0, run.spec.data.train_batch_size) * max(1, run.spec.rollout.n)


_MOST_DIVISORS = 1 << 20


def nearest_divisor(number: int, wanted: int) -> int:
    """The largest divisor of NUMBER that is not more than WANTED, at least 1; of what is beyond any run, 1."""
    most = min(number, wanted)
    if most > _MOST_DIVISORS:
        return 1
    return next((divisor for divisor in range(most, 0, -1) if number % divisor == 0), 1)


def next_multiple(number: int, step: int) -> int:
    """The smallest multiple of STEP that is not less than NUMBER."""
    return -(-number // step) * step


def at(place: Place) -> str:
    """A place in words: `run.yaml:12:5`, `override a=b`, `default`."""
    if place.text and not place.file:
        return f"override {place.text}"
    return f"{place.file}:{place.line}:{place.column}" if place.file else "default"
