"""A prediction as somebody asks for it: the GPU that is named, and numbers of a config that no arithmetic can use."""

from __future__ import annotations

from rlcheck.facts.base import why_missing
from rlcheck.facts.memory import MemoryProfile
from rlcheck.facts.run import RunFacts, RunSpec
from rlcheck.memory.gpus import by_name, parse_memory
from rlcheck.memory.predict import Gpu, UnknownModelError
from rlcheck.memory.profile import profile
from rlcheck.runs import fields

_LEAST_ONE = (
    "nodes", "gpus_per_node", "data.max_prompt_length", "data.max_response_length", "data.train_batch_size",
    "rollout.n", "rollout.tensor_parallel", "rollout.max_seqs", "rollout.max_batched_tokens", "rollout.max_model_len",
    "actor.micro_batch_size", "actor.infer_micro_batch_size",
    "actor.max_tokens", "actor.sharding.sequence_parallel", "critic.micro_batch_size", "critic.max_tokens",
)  # fmt: skip
"""Numbers that mean nothing below 1."""


class AskedError(Exception):
    """A config for which there is no prediction. One line for the user."""


def gpu_named(name: str, memory: str) -> Gpu | None:
    """The GPU of `--gpu` and `--gpu-mem`; None where neither was given.

    Raises:
        GpuError: a name or size that says no GPU.
    """
    if name:
        found = by_name(name)
        return Gpu(found.name, parse_memory(memory) if memory else found.total_bytes)
    return Gpu("GPU", parse_memory(memory)) if memory else None


def ram_bytes() -> int:
    """Memory of this machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def why_no_sizes(run: RunFacts) -> str:
    """Why the sizes of the actor's model are not known, in one line; "" where they are."""
    model = run.models.get("actor")
    reason = why_missing(model) if model is not None else None
    if model is not None and reason is None:
        return ""
    path = run.spec.actor.model.path or "(none is named)"
    why = f": {reason.reason}" if reason is not None else ""
    how = "" if "--model-shape" in why else "; give its config.json with --model-shape FILE"
    return f"{run.source}: the sizes of the actor's model {path} are not known{why}{how}"


def profile_of(run: RunFacts, gpu: Gpu, host_bytes: int) -> MemoryProfile:
    """The whole prediction.

    Raises:
        AskedError: a number of the config is out of all bounds, or the model is not known.
    """
    for field in _LEAST_ONE:
        role, value = field.partition(".")[0], None
        if fields.actual(run, role) is not None:
            value = fields.actual(run, field)
        if value is not None and value < 1:
            raise AskedError(_beyond(run, field, value, "it must be at least 1"))
    share = run.spec.rollout.memory_utilization
    if not 0 < share <= 1:
        raise AskedError(_beyond(run, "rollout.memory_utilization", share, "it is a share of the GPU, from 0 to 1"))
    rank = run.spec.actor.model.lora_rank
    if rank < 0:
        raise AskedError(_beyond(run, "actor.model.lora_rank", rank, "it must be at least 0"))
    gpus, size = _engine_gpus(run.spec), run.spec.rollout.tensor_parallel
    if size > gpus:
        why = f"it must be at most {gpus}, the GPUs that there are for the engine"
        raise AskedError(_beyond(run, "rollout.tensor_parallel", size, why))
    try:
        return profile(run, gpu, host_bytes)
    except UnknownModelError as error:
        raise AskedError(f"{run.source}: {error}") from None


def _engine_gpus(spec: RunSpec) -> int:
    if spec.colocated:
        return spec.nodes * spec.gpus_per_node
    return max(spec.rollout_nodes or spec.nodes, 1) * max(spec.rollout_gpus_per_node, 1)


def _beyond(run: RunFacts, field: str, value: float, why: str) -> str:
    return f"{fields.place_of(run, field)}: {fields.key_of(run, field) or field} is {value:g}; {why}"
