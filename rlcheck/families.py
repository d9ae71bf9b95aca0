"""The one table of topics: each family of checks, the facts sections that it is about, and who measures them.

A topic has one word: the package of its checks (`rlcheck.checks.<topic>`), its part of the report
(`rlcheck.report.topics.<topic>`, where it has one), its facts and the package that measures them bear it.
"""

from __future__ import annotations

import msgspec


class Section(msgspec.Struct, frozen=True):
    """A section of the facts document and how it comes about.

    name: the field of `Facts`.
    command: the rlcheck command that measures it; "env": the probe of that name in `rlcheck.measure.machine`.
    deadline_s, deep_deadline_s: seconds that the probe may take as a whole, the second with `--deep`.
    """

    name: str
    command: str = "env"
    deadline_s: float = 10.0
    deep_deadline_s: float = 30.0


class Family(msgspec.Struct, frozen=True):
    """A family of checks.

    id: the three letters that its checks' IDs begin with.
    topic: its word on every floor; `rlcheck.checks.<topic>` is a module, or a package of them.
    title: what it looks at, for headings.
    link: the link of `rlcheck preflight` that runs its checks; "": none.
    sections: what its checks are about.
    shown_by: the modules of `rlcheck.report.topics` that show it: their `headline` and `exhibits`, where they have one.
    also_in: commands that judge it, besides those that measure its sections.
    about: what it looks at, for README's table; "": its title.
    """

    id: str
    topic: str
    title: str
    link: str
    sections: tuple[Section, ...]
    shown_by: tuple[str, ...] = ()
    also_in: tuple[str, ...] = ()
    about: str = ""


_TABLE = (
    Family("SYS", "system", "System", "machine", (Section("platform"), Section("environ"), Section("system")),
           shown_by=("system",),
           about="shared memory, limits, cgroups, CPUs, disks, clock, container, compiler tool chain"),
    Family("ENV", "python", "Python and packages", "machine", (Section("python", "env", 30.0, 900.0),),
           shown_by=("python",),
           about="Python, declared requirements of every RL package, CUDA and ABI of compiled extensions, "
                 "doubles and leftovers"),
    Family("GPU", "gpu", "GPUs and driver", "machine", (Section("nvidia"), Section("rocm")), shown_by=("gpu",),
           about="driver and CUDA, every device's health, visible devices; ROCm"),
    Family("NET", "network", "Network", "network", (Section("network"),), shown_by=("network",),
           also_in=("nccl",),
           about="interfaces, InfiniBand and RoCE ports, GPUDirect, names and routes"),
    Family("NCL", "collectives", "NCCL settings", "network", (Section("nccl"), Section("collectives", "nccl")),
           shown_by=("collectives",),
           about="the NCCL that would be loaded, every `NCCL_*` variable, hidden settings; by `rlcheck nccl` "
                 "real collectives: hangs, dead ranks, sums, bandwidth, what NCCL used"),
    Family("RAY", "cluster", "Ray", "network", (Section("ray"), Section("reach", "ray"), Section("cluster", "ray")),
           shown_by=("cluster",),
           about="versions, variables, stale and foreign sessions; by `rlcheck ray` the way to the head, and "
                 "every node: versions, clocks, GPUs, room, who reaches whom"),
    Family("HFC", "hub", "Hugging Face cache", "data", (Section("hub"),), shown_by=("hub",),
           about="the Hugging Face cache: owner, locks, space, offline flags, leftovers"),
    Family("CFG", "config", "Run config", "config", (Section("config", "config"),), shown_by=("config",),
           about="a run's config: keys, batch arithmetic, parallel sizes, models and tokenizers, LoRA, rates, "
                 "KL, paths, loggers"),
    Family("DAT", "data", "Data", "data", (Section("data", "data"),), shown_by=("data",),
           about="its data: lines, types, prompts, lengths, ground truths, duplicates, leaks"),
    Family("MEM", "memory", "Memory", "memory", (Section("memory", "memory-profile"),), shown_by=("memory",),
           about="its memory on GPUs and hosts"),
    Family("ROL", "rollout", "Rollout engine", "rollout", (Section("rollout", "rollout"),), shown_by=("rollout",),
           about="its rollout engine, or a server: answers, log-probabilities, ends, lengths, sleep"),
    Family("RWD", "reward", "Reward function", "", (Section("reward", "reward"),), shown_by=("reward",),
           about="a reward function of your own, called: sign, ground truth, shortcuts, odd answers, time, threads"),
    Family("DRF", "drift", "Rollout against training", "", (Section("drift", "drift"),), shown_by=("drift",),
           also_in=("run",),
           about="what the engine computes against what training computes"),
    Family("CAN", "canary", "Server against checkpoint", "", (Section("canary", "canary"),), shown_by=("canary",),
           about="a live server against a saved checkpoint: weights, single tensors, LoRA, prefix cache, tokenizer"),
    Family("STP", "step", "One step, proven", "smoke", (Section("step", "step"),), shown_by=("step",),
           also_in=("run",),
           about="one training step, recomputed from its capsule: prompts, answers, log-probabilities, rewards, "
                 "advantages, loss, gradient, optimizer, weights in the engine"),
    Family("RUN", "run", "Health of a run", "smoke",
           (Section("smoke", "preflight --smoke"), Section("run", "run")), shown_by=("smoke", "run"),
           about="one real training step; the health of a run from its curves"),
    Family("HNG", "hang", "A job that stands still", "", (Section("hang", "hang"),), shown_by=("hang",),
           about="by `rlcheck hang`, who all others of a running job wait for: rank or role, and its call"),
    Family("RES", "resume", "Resume", "",
           (Section("resume", "resume"), Section("rehearsal", "preflight --rehearse")),
           shown_by=("resume", "rehearsal"),
           about="a run's checkpoints: whole or not, from which step and on how many ranks it resumes, what is lost; "
                 "by `rlcheck preflight --rehearse`, a kill and a resume"),
    Family("SLO", "slow", "Time of a step", "", (Section("slow", "slow"),), shown_by=("slow",),
           about="where a step's time goes against a floor: tail, engine, passes, data, a slow rank, network"),
)  # fmt: skip

FAMILIES: dict[str, Family] = {family.id: family for family in _TABLE}

SECTIONS: dict[str, Section] = {section.name: section for family in _TABLE for section in family.sections}

MEASURED: dict[str, str] = {name: section.command for name, section in SECTIONS.items() if section.command != "env"}
"""Sections that no probe of `rlcheck env` collects, and the command that measures them."""

OF_MACHINES: tuple[str, ...] = tuple(
    family.id for family in _TABLE if any(section.command == "env" for section in family.sections)
)
"""Families about a machine itself, which `rlcheck env` examines."""


def judged_by(command: str) -> tuple[str, ...]:
    """Return the families that COMMAND judges when nothing is selected; none where it judges all, as `rlcheck env`."""
    return tuple(
        family.id
        for family in _TABLE
        if command in family.also_in or any(MEASURED.get(section.name) == command for section in family.sections)
    )
