"""Memory: how much there is for a run, and the kernel's settings for it."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import num_gpus, ram_bytes
from rlcheck.text import GIB, size_text

# Where Ray looks for a limit; one that is set further down in the tree is not seen by it.
_SEEN_BY_RAY = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
_USUAL_MAPS = 65530


@check(
    "SYS009",
    "The memory limit is the one that libraries see",
    needs=("system.memory", "system.cgroup.memory_limit_bytes"),
    playbook="cgroup-memory-limit",
)
def cgroup_memory(facts: Facts) -> Verdict:
    """Compares the control group's memory limit with the memory that the machine reports.

    What it does:
        Notes a limit below the machine's memory. Warns when Ray cannot see it, because it is set deeper in the tree
        than the file that Ray reads, as Slurm and systemd do.

    Why it matters:
        Programs that ask for the size of memory learn the machine's, not the limit. They then plan for memory that
        is not theirs, and the kernel kills a rank in the middle of a step without a traceback.
    """
    system = need(facts.system)
    total, group = need(system.memory).total_bytes, need(system.cgroup)
    limit = need(group.memory_limit_bytes)
    proof = (
        evidence("system.cgroup.memory_limit_bytes", limit, group.memory_limit_at),
        evidence("system.memory.total_bytes", total, "/proc/meminfo"),
    )
    if limit >= 0.95 * total:
        return passed(f"the control group allows {size_text(limit)} of {size_text(total)}", evidence=proof)
    if group.memory_limit_at in _SEEN_BY_RAY:
        return info(f"this container may use {size_text(limit)} of the machine's {size_text(total)}", evidence=proof)
    params = {"memory_bytes": str(int(limit * 0.7)), "object_store_bytes": str(int(limit * 0.2))}
    where = f"set in {group.memory_limit_at}, where Ray does not look"
    found = f"a limit of {size_text(limit)} on a machine of {size_text(total)}, {where}"
    return warn("a memory limit that Ray sees", found, evidence=proof, params=params)


@check("SYS010", "Enough memory is free for a run", needs=("system.memory",), playbook="host-memory-too-small",
       problem="Little memory is free")  # fmt: skip
def free_memory(facts: Facts) -> Verdict:
    """Looks at the memory that is available now, under the control group's limit.

    What it does:
        Warns below 4 GiB, or below 8 GiB a GPU where there are GPUs. Page cache counts as free.

    Why it matters:
        Every rank needs a few gigabytes on the host for libraries, pinned buffers and the loading of weights, and more
        with offloading; when it runs out the kernel kills a process, or everything swaps.
    """
    system = need(facts.system)
    available = need(system.memory).available_bytes
    group = system.cgroup.value
    limit = group.memory_limit_bytes.value if group else None
    if group and limit:
        charged = value_or(group.memory_used_bytes, 0) - value_or(group.memory_reclaimable_bytes, 0)
        available = max(0, min(available, limit - max(0, charged)))
    wanted = GIB * max(4, 8 * num_gpus(facts))
    proof = (evidence("system.memory.available_bytes", available, "/proc/meminfo and the control group"),)
    # The rule is rough: a machine of just that size, with what its system uses, is not short of memory.
    if available < 0.9 * wanted:
        return warn(
            f"at least {size_text(wanted)} of free memory",
            f"{size_text(available)} of {size_text(ram_bytes(facts))}",
            evidence=proof,
        )
    return passed(f"{size_text(available)} of memory are free", evidence=proof)


@check(
    "SYS011",
    "Nothing was killed for lack of memory",
    needs=("system.cgroup.oom_kills",),
    playbook="host-memory-too-small",
    problem="A process was killed for lack of memory",
)
def oom_kills(facts: Facts) -> Verdict:
    """Reads how many processes the kernel has killed in this control group.

    What it does:
        Warns when the counter is above 0 and the group has a memory limit; without a limit the count is only noted.
        The counter starts with the container or the job, and never goes down.

    Why it matters:
        A rank that died of signal 9 without a traceback was probably one of these, and it will happen again.
    """
    group = need(need(facts.system).cgroup)
    count = need(group.oom_kills)
    limit = group.memory_limit_bytes.value
    proof = (evidence("system.cgroup.oom_kills", count, "memory.events"),)
    if not count:
        return passed("the kernel has killed nothing here for lack of memory", evidence=proof)
    if limit is None:
        return info(f"the kernel killed {count} processes in this control group for lack of memory", evidence=proof)
    found = f"{count} killed under a limit of {size_text(limit)}"
    return warn("no process killed for lack of memory", found, evidence=proof)


@check("SYS012", "The machine is not swapping", needs=("system.memory",), playbook="host-memory-too-small",
       problem="The machine is swapping")  # fmt: skip
def swap(facts: Facts) -> Verdict:
    """Looks at how much is in swap.

    What it does:
        Warns when more than 1 GiB and more than 5 % of the size of memory is swapped out; without GPUs that is only
        noted, since desktops swap out what is idle. No swap at all is usual on GPU machines and is fine.

    Why it matters:
        Offloaded parameters and optimizer states that are swapped out come back page by page: a step takes minutes,
        collectives run into their timeouts, and it looks like a hang.
    """
    memory = need(need(facts.system).memory)
    used = max(0, memory.swap_total_bytes - memory.swap_free_bytes)
    proof = (evidence("system.memory.swap_free_bytes", memory.swap_free_bytes, "/proc/meminfo"),)
    if used > max(GIB, memory.total_bytes // 20):
        found = f"{size_text(used)} of {size_text(memory.swap_total_bytes)} of swap in use"
        if not num_gpus(facts):
            return info(found, evidence=proof)
        return warn("no memory of a training machine in swap", found, evidence=proof)
    return passed("no swap" if not memory.swap_total_bytes else f"{size_text(used)} of swap in use", evidence=proof)


@check("SYS013", "Memory may be overcommitted", needs=("system.memory.overcommit",), playbook="overcommit-strict")
def overcommit(facts: Facts) -> Verdict:
    """Looks for `vm.overcommit_memory=2`.

    What it does:
        Warns when the kernel promises no more memory than it has.

    Why it matters:
        Python, CUDA and Ray ask for far more memory than they touch, and a fork asks for the whole parent again: under
        strict accounting these requests fail with "Cannot allocate memory" while most of the memory is free.
    """
    memory = need(need(facts.system).memory)
    mode = need(memory.overcommit)
    proof = (evidence("system.memory.overcommit", mode, "/proc/sys/vm/overcommit_memory"),)
    if mode != 2:
        return passed(f"vm.overcommit_memory is {mode}", evidence=proof)
    found = f"2: {size_text(memory.committed_bytes)} promised of at most {size_text(memory.commit_limit_bytes)}"
    return warn("vm.overcommit_memory 0 or 1", found, evidence=proof)


@check("SYS014", "A process may have enough memory maps", needs=("system.memory.max_map_count",),
       playbook="max-map-count",
       problem="A process may have too few memory maps")  # fmt: skip
def max_maps(facts: Facts) -> Verdict:
    """Compares `vm.max_map_count` with the kernel's default.

    What it does:
        Warns when it was lowered below 65,530.

    Why it matters:
        Every tensor in shared memory, every mapped file and every expandable segment is a map; past the limit mmap
        fails with "Cannot allocate memory" although memory is free.
    """
    count = need(need(need(facts.system).memory).max_map_count)
    proof = (evidence("system.memory.max_map_count", count, "/proc/sys/vm/max_map_count"),)
    if count < 0:
        return skip("vm.max_map_count is not a count")
    if count < _USUAL_MAPS:
        return warn(f"vm.max_map_count of at least {_USUAL_MAPS}", str(count), evidence=proof)
    return passed(f"a process may have {count} memory maps", evidence=proof)
