"""What a run needs on this machine, before it takes any device: the doctor's prediction, and whether it can fit."""

from __future__ import annotations

import psutil
from msgspec import structs

from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.memory import MemoryProfile, Phase
from rlcheck.measure.machine.local_gpus import local_gpu
from rlcheck.measure.memory.advice import changes
from rlcheck.measure.memory.asked import gpu_called
from rlcheck.measure.memory.gpus import GpuError
from rlcheck.measure.memory.on_cpu import predict_on_cpu, states_bytes
from rlcheck.measure.memory.predict import Gpu, UnknownModelError, plan_of, predict
from rlcheck.measure.memory.summary import gib, host_peak, owner_name
from rltrain.config.as_facts import facts_of
from rltrain.config.schema import RunConfig
from rltrain.core.errors import UserError

CHECK_ID = "MEM001"
"""To be waived with `--ignore`."""
_MAX_OWNERS = 3
ROOMY = 0.9
"""Share of the memory up to which more speed for more memory is offered; our choice."""


def device_here(device: str) -> Gpu | None:
    """This machine's smallest GPU, or its RAM where DEVICE is "cpu"; None where there is no such device."""
    if device == "cpu":
        return Gpu("CPU", ram_bytes())
    found = local_gpu()
    return None if found is None else Gpu(found.name, found.total_bytes)


def gpu_named(text: str) -> Gpu:
    """The GPU that TEXT says: a name (`H200`) or its memory (`80GiB`).

    Raises:
        UserError: it is neither.
    """
    try:
        return gpu_called(text)
    except GpuError as error:
        raise UserError(f"--gpu: {error}") from None


def ram_bytes() -> int:
    """RAM of this machine."""
    return int(psutil.virtual_memory().total)


def predicted(run: ConfigFacts, device: Gpu) -> MemoryProfile | None:
    """What RUN needs on DEVICE, in phases on the GPU or, on a CPU, on the host; None where its model is not known.

    Raises:
        UserError: the model's `config.json` holds sizes that are none.
    """
    try:
        if run.spec.device == "cpu":
            return predict_on_cpu(run, device.total_bytes)
        return predict(run, device, ram_bytes())
    except UnknownModelError as error:
        actor = run.models.get("actor")
        if actor is not None and actor.value is not None:
            raise UserError(str(error)) from None
        return None


def prediction_for(config: RunConfig) -> MemoryProfile | None:
    """What CONFIG (resolved, its models' directories made) needs on the devices of this machine; None: not known."""
    device = device_here(config.trainer.device)
    return None if device is None else predicted(facts_of(config), device)


def fullest(profile: MemoryProfile) -> Phase:
    """The phase that needs most: on the GPU, or on the host of a run without GPUs."""
    found = profile.peak or host_peak(profile)
    assert found is not None
    return found


def offer_for(config: RunConfig) -> str:
    """`faster` of CONFIG (resolved, its models' directories made) on the GPUs of this machine; "" on a CPU."""
    device = device_here(config.trainer.device) if config.trainer.device == "cuda" else None
    return "" if device is None else faster(facts_of(config), device)


def prediction_line(profile: MemoryProfile) -> str:
    """The prediction in a line."""
    phase = fullest(profile)
    where = f"of {gib(profile.usable_bytes)} on each {profile.gpu}" if profile.phases else "of RAM"
    return f"memory: at most {gib(phase.num_bytes)} {where} predicted, in {phase.name}"


def faster(run: ConfigFacts, device: Gpu) -> str:
    """What RUN could spend memory on that DEVICE has left, in one line; "" where nothing is known to fit.

    Without activation checkpointing no forward pass is made twice. It is offered where all phases then fit in
    `ROOMY` of the memory that a run has.
    """
    use = run.spec.actor.model
    if not use.gradient_checkpointing or any(model.value is None for model in run.models.values()):
        return ""
    actor = structs.replace(run.spec.actor, model=structs.replace(use, gradient_checkpointing=False))
    kept = predicted(structs.replace(run, spec=structs.replace(run.spec, actor=actor)), device)
    if kept is None or not kept.exact or not kept.phases:
        return ""
    phase = fullest(kept)
    if phase.num_bytes > ROOMY * kept.usable_bytes:
        return ""
    return (
        f"memory: without activation checkpointing at most {gib(phase.num_bytes)}, and updates that take about a tenth "
        "less time: actor_rollout_ref.model.enable_gradient_checkpointing=false"
    )


def complaint(run: ConfigFacts, device: Gpu | None) -> str | None:
    """Why RUN cannot fit on DEVICE, in one line; None where it may, or where nothing is known for certain.

    On a GPU every phase counts, without what the allocator gives back when it must; on a CPU the states alone.

    Raises:
        UserError: as `predicted`.
    """
    if device is None or any(model.value is None for model in run.models.values()):
        return None
    profile = predicted(run, device)
    if profile is None or not profile.exact:
        return None
    if run.spec.device == "cpu":
        return _too_large_for_the_host(run, device)
    phase = max(profile.phases, key=lambda one: one.needed_bytes)
    if phase.needed_bytes <= profile.usable_bytes:
        return None
    return (
        f"{CHECK_ID}: {phase.name} needs {gib(phase.needed_bytes)}, but each GPU ({device.name}) has "
        f"{gib(profile.usable_bytes)} ({_owners(phase)}): {_advice(run, device, profile)}"
    )


def _owners(phase: Phase) -> str:
    owners = sorted(phase.owners, key=lambda owner: owner.num_bytes, reverse=True)[:_MAX_OWNERS]
    return ", ".join(f"{owner_name(owner)} {gib(owner.num_bytes)}" for owner in owners)


def _advice(run: ConfigFacts, device: Gpu, profile: MemoryProfile) -> str:
    """The cheapest change that makes it fit, as overrides; what it moves to the host must have room there."""
    host = host_peak(profile)
    room = max(ram_bytes(), host.num_bytes if host is not None else 0)
    best = next((one for one in changes(run, device, 0) if one.fits and one.host_bytes <= room), None)
    if best is None:
        return "no change of this config makes it fit here: use more or larger GPUs, or a smaller model"
    return f"{' '.join(best.overrides)} would fit, with {gib(best.peak_bytes)}"


def _too_large_for_the_host(run: ConfigFacts, device: Gpu) -> str | None:
    ranks, roles = run.spec.gpus_per_node, plan_of(run, device).roles
    needed = sum(states_bytes(role, ranks) for role in roles)
    if needed <= device.total_bytes:
        return None
    who = ", ".join(f"{role.name} {gib(states_bytes(role, 1))}" for role in roles)
    return (
        f"{CHECK_ID}: weights, gradients and optimizer states need {gib(needed)}, but this machine has "
        f"{gib(device.total_bytes)} ({who} a rank): use a smaller model, or a machine with more memory"
    )
