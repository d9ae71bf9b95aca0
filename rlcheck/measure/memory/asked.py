"""A prediction as somebody asks for it: the GPU that is named, and numbers of a config that no arithmetic can use."""

from __future__ import annotations

import difflib
from contextlib import suppress

from rlcheck.errors import UserError
from rlcheck.facts.base import why_missing
from rlcheck.facts.config import ConfigFacts, RunSpec
from rlcheck.facts.memory import MemoryProfile
from rlcheck.measure.config import fields
from rlcheck.measure.config.engines import names
from rlcheck.measure.memory.gpus import GpuError, by_name, parse_memory
from rlcheck.measure.memory.predict import Gpu, UnknownModelError
from rlcheck.measure.memory.profile import profile
from rlcheck.measure.memory.unsaid import settled

_LEAST_ONE = (
    "nodes", "gpus_per_node", "data.max_prompt_length", "data.max_response_length", "data.train_batch_size",
    "rollout.n", "rollout.tensor_parallel", "rollout.max_seqs", "rollout.max_batched_tokens", "rollout.max_model_len",
    "actor.micro_batch_size", "actor.infer_micro_batch_size",
    "actor.max_tokens", "actor.sharding.sequence_parallel", "critic.micro_batch_size", "critic.max_tokens",
)  # fmt: skip
"""Numbers that mean nothing below 1."""


class AskedError(UserError):
    """A config for which there is no prediction. One line for the user."""


def gpu_called(text: str) -> Gpu:
    """The GPU that TEXT says: a name (`H200`) or its memory (`80GiB`).

    Raises:
        GpuError: it is neither.
    """
    with suppress(GpuError):
        return Gpu("GPU", parse_memory(text))
    found = by_name(text)
    return Gpu(found.name, found.total_bytes)


def gpu_named(name: str, memory: str) -> Gpu | None:
    """The GPU of `--gpu` and `--gpu-mem`; None where neither was given.

    Raises:
        GpuError: a name or size that says no GPU.
    """
    if not name or not memory:
        return gpu_called(name) if name else Gpu("GPU", parse_memory(memory)) if memory else None
    return Gpu(by_name(name).name, parse_memory(memory))


def ram_bytes() -> int:
    """Memory of this machine."""
    import psutil

    return int(psutil.virtual_memory().total)


def why_no_sizes(run: ConfigFacts) -> str:
    """Why the sizes of the actor's model are not known, in one line; "" where they are."""
    model = run.models.get("actor")
    reason = why_missing(model) if model is not None else None
    if model is not None and reason is None:
        return ""
    path = run.spec.actor.model.path or "(none is named)"
    why = f": {reason.reason}" if reason is not None else ""
    how = "" if "--model-shape" in why else "; give its config.json with --model-shape FILE"
    return f"{run.source}: the sizes of the actor's model {path} are not known{why}{how}"


def why_no_engine(run: ConfigFacts) -> str:
    """Why the memory of the rollout engine is not known, in one line; "" where it is."""
    name, field = run.spec.rollout.name, "rollout.name"
    known = names(run.framework)
    if name in known:
        return ""
    key, near = fields.key_of(run, field) or field, (difflib.get_close_matches(name, known, 1) or known)[0]
    said = (
        f"{fields.place_of(run, field)}: no rollout engine {name} is known"
        if name
        else f"{run.source}: {key} has no value"
    )
    return f"{said}, and so its memory is not; to plan with one: {key}={near} (known: {', '.join(known)})"


def profile_of(run: ConfigFacts, gpu: Gpu, host_bytes: int) -> MemoryProfile:
    """The whole prediction.

    Raises:
        AskedError: a number of the config is out of all bounds, or engine or model are not known.
    """
    try:
        run = settled(run, gpu)
    except UnknownModelError as error:
        raise AskedError(f"{run.source}: {error}") from None
    if why := why_no_engine(run):
        raise AskedError(why)
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
    # Where its own GPUs are is not always said: OpenRLHF's engines beside an actor of several nodes.
    placed = run.spec.colocated or not {"rollout_nodes", "rollout_gpus_per_node"} & run.without.keys()
    if placed and size > gpus:
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


def _beyond(run: ConfigFacts, field: str, value: float, why: str) -> str:
    return f"{fields.place_of(run, field)}: {fields.key_of(run, field) or field} is {value:g}; {why}"
