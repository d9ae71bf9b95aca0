"""What `rltrain run --dry-run` prints: the config in force, placement, course of a step, batch arithmetic, memory.

Plain text from plain arithmetic: needs no GPU, no Ray, no torch.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import yaml

from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MemoryProfile
from rlcheck.measure.memory.predict import Gpu, plan_of
from rlcheck.measure.memory.profile import profile
from rlcheck.measure.memory.roles import RoleMemory
from rlcheck.measure.memory.summary import gib, owner_name
from rlcheck.report.tables import table_lines
from rlcheck.report.topics import memory as memory_exhibits
from rlcheck.text import size_label
from rltrain.config.as_facts import facts_of
from rltrain.config.batch_plan import BatchPlan
from rltrain.config.memory_check import fullest, predicted, ram_bytes
from rltrain.config.schema import RunConfig
from rltrain.config.schema.sft import SftConfig
from rltrain.config.sft import as_run, batch_lines

WIDTH = 80


def config_yaml(config: RunConfig | SftConfig) -> str:
    """CONFIG as YAML, in the order of the schema."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def report(config: RunConfig, placement: Sequence[str], device: Gpu | None) -> list[str]:
    """The whole dry run.

    Args:
        config: resolved.
        placement: lines of the placement table.
        device: GPU that the run is for, or RAM for one on a CPU; None where that is not known.

    Raises:
        UserError: the model's `config.json` cannot be used.
    """
    batches = ["actor", *BatchPlan.of(config).lines()]
    if config.critic.enable and BatchPlan.of_critic(config) != BatchPlan.of(config):
        batches += ["critic", *BatchPlan.of_critic(config).lines()]
    sections = {
        "Config": config_yaml(config).splitlines(),
        "Placement": placement,
        "Steps": step_lines(config),
        "Batches": batches,
        "Memory": memory_lines(facts_of(config), device),
    }
    return [line for title, lines in sections.items() for line in (f"== {title} ==", *lines, "")]


def step_lines(config: RunConfig) -> list[str]:
    """What ranks and engines do in the two halves of a step, and whose devices are idle when."""
    on_gpu, shared = config.trainer.device == "cuda", config.actor_rollout_ref.hybrid_engine
    rests = "sleep" if on_gpu and shared and config.actor_rollout_ref.rollout.free_cache_engine else "wait"
    most = config.algorithm.max_staleness
    if most > 1:
        both = ["learn from groups as they finish", f"generate for up to {most + 1} steps at once"]
        rows, header = [["ranks", both[0]], ["engines", both[1]]], ["who", "all the while, but for weights"]
        idle = f"idle: ranks, while a group that is {most} steps old is unfinished; engines, when all are finished"
    elif most:
        both = ["learn from step k, then wait", "generate step k+1, then wait"]
        rows, header = [["ranks", both[0]], ["engines", both[1]]], ["who", "weights in, then both at once"]
        idle = "idle: whichever side is done first, until the other is"
    else:
        header = ["who", "first half", "second half"]
        rows = [["ranks", "wait", "learn from step k"], ["engines", "generate step k", rests]]
        idle = "idle: neither; ranks and engines take turns on the same devices"
        if not shared:
            idle = "idle: each side while the other works; algorithm.max_staleness=1 or more lets both work at once"
    return [*table_lines(header, rows, WIDTH), idle]


def sft_report(config: SftConfig, placement: Sequence[str], device: Gpu | None) -> list[str]:
    """The whole dry run of supervised training; as `report`. Of memory, what ranks hold of the model all the while.

    Raises:
        UserError: the model's `config.json` cannot be used.
    """
    run = facts_of(as_run(config))
    found = predicted(run, device or Gpu("GPU", 0))
    actor = run.models.get("actor")
    why = actor.missing.reason if actor is not None and actor.missing is not None else "no model is named"
    sections = {
        "Config": config_yaml(config).splitlines(),
        "Placement": placement,
        "Batches": batch_lines(config),
        "Memory": [f"unknown: {why}"] if found is None else [*_states(run, found), "beside: activations of a pass"],
    }
    return [line for title, lines in sections.items() for line in (f"== {title} ==", *lines, "")]


def memory_lines(run: ConfigFacts, device: Gpu | None) -> list[str]:
    """What RUN needs on DEVICE: every phase on a GPU; on a CPU, or where the GPU is not known, states and sums.

    Raises:
        UserError: the model's `config.json` cannot be used.
    """
    found = predicted(run, device or Gpu("GPU", 0))
    if found is None:
        actor = run.models.get("actor")
        why = actor.missing.reason if actor is not None and actor.missing is not None else "no model is named"
        return [f"unknown: {why}"]
    if device is None:
        return [*_states(run, found), "every phase and its limits: name the GPU by --gpu H200 or --gpu 80GiB"]
    if run.spec.device == "cpu":
        return [*_states(run, found), _host_line(found)]
    return [*_parameters(run, found), *_phases(run, device)]


def _parameters(run: ConfigFacts, found: MemoryProfile) -> Iterator[str]:
    about = "" if found.exact else "about "
    vocabulary = plan_of(run, Gpu("", 0)).policy.vocab
    yield f"{about}{found.parameters['actor']:,} parameters, vocabulary {vocabulary:,}"
    yield from found.notes


def _phases(run: ConfigFacts, gpu: Gpu) -> Iterator[str]:
    """What `rlcheck memory-profile` shows of the same config."""
    facts = Facts(config=known(run), memory=known(profile(run, gpu, ram_bytes())))
    yield memory_exhibits.headline(facts)
    for exhibit in memory_exhibits.exhibits(facts):
        yield from ("", exhibit.title)
        yield from (f"  {line}" for line in table_lines(exhibit.columns, exhibit.rows, WIDTH - 2))
        for note in exhibit.notes:
            yield from textwrap.wrap(note, WIDTH, initial_indent="  ", subsequent_indent="  ", break_on_hyphens=False)


def _states(run: ConfigFacts, found: MemoryProfile) -> Iterator[str]:
    """Each role's share of a rank."""
    yield from _parameters(run, found)
    rows: list[list[str]] = []
    for role in plan_of(run, Gpu("", 0)).roles:
        states = (role.weights, role.gradients, role.optimizer)
        rows.append([role.name, *map(size_label, (*states, sum(states))), _where(role)])
    yield from table_lines(("role", "weights", "gradients", "optimizer", "sum a rank", "where"), rows, 0)


def _where(role: RoleMemory) -> str:
    shards = role.spec.sharding
    if shards.offload_policy:
        return "host"
    states = (("weights", shards.param_offload), ("optimizer", shards.optimizer_offload and role.optimizer > 0))
    away = " and ".join(name for name, on in states if on)
    return f"device; {away} on the host while idle" if away else "device"


def _host_line(found: MemoryProfile) -> str:
    """RAM of the whole run at its fullest, and who has most of it."""
    phase = fullest(found)
    owners = sorted(phase.owners, key=lambda owner: owner.num_bytes, reverse=True)[:3]
    who = ", ".join(f"{'processes' if owner.kind == 'context' else owner_name(owner)} {size_label(owner.num_bytes)}"
                    for owner in owners)  # fmt: skip
    return f"RAM of a node in {phase.name}: about {gib(phase.num_bytes)} of {gib(found.host_bytes)} ({who})"
