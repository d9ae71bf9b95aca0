"""Processors: how many this process may use, and which."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, info, passed, skip, unknown, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import container, num_gpus, numa_nodes_of, system_of, usable_cpus, whole

_SEEN_BY_RAY = ("/sys/fs/cgroup", "/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct")


@check("SYS015", "Libraries count the processors that they may use", needs=("system.cpu.online", "system.cpu.allowed"),
       playbook="cpus-fewer-than-seen", caused_by=("SYS017",),
       problem="Libraries count processors that this job may not use")  # fmt: skip
def cpu_count(facts: Facts) -> Verdict:
    """Compares the processors that this process may use with those that the machine has.

    What it does:
        Takes the affinity mask and the control group's quota. Warns when they allow fewer processors than Ray counts:
        those online, or a container's quota at the root of the control groups. What Ray sees is only noted.

    Why it matters:
        Ray starts a worker for every processor that it counts. In a Slurm step with 4 of 112 processors that is 112
        workers on 4, and they give up with "Unable to register worker with raylet".
    """
    system = need(facts.system)
    online, allowed = need(system.cpu.online), need(system.cpu.allowed)
    usable = usable_cpus(facts) or float(len(allowed))
    proof = (
        evidence("system.cpu.online", online, "/sys/devices/system/cpu/online"),
        evidence("system.cpu.allowed", f"{len(allowed)} processors", "/proc/self/status"),
    )
    if usable >= 0.95 * online:
        return passed(f"all {online} processors may be used", evidence=proof)
    params = {"num_cpus": str(whole(usable))}
    cause = "affinity mask" if len(allowed) <= usable else "quota"
    counted = _counted_by_ray(facts, online, len(allowed))
    if whole(usable) >= 0.95 * counted:
        message = f"this container has {usable:g} of {online} processors; Ray sees that, other libraries may not"
        return info(message, evidence=proof, params=params)
    found = f"{usable:g} usable by the {cause}, and Ray counts {counted}"
    return warn("as many as Ray counts", found, evidence=proof, params=params)


def _counted_by_ray(facts: Facts, online: int, allowed: int) -> int:
    """Ray looks at the root of the control groups only: a quota there and, with version 1, a container's processors."""
    group = system_of(facts).cgroup.value
    if group is None:
        return online
    quota = group.cpus.value if group.cpus_at in _SEEN_BY_RAY else None
    has_cpuset = group.version == 1 and bool(container(facts))
    return min(online, allowed if has_cpuset else online, whole(quota) if quota else online)


@check("SYS016", "There are enough processors for the GPUs", needs=("system.cpu.allowed",),
       playbook="too-few-cpus", caused_by=("SYS017",),
       problem="There are too few processors for the GPUs")  # fmt: skip
def cpus_per_gpu(facts: Facts) -> Verdict:
    """Compares the processors that this process may use with its GPUs.

    What it does:
        Warns below two processors, or below three a GPU and one for the driver.

    Why it matters:
        Trainers on Ray reserve processors beside each GPU: with fewer of them the placement group waits forever,
        although all GPUs are free. And tokenizing, data loading and sampling starve the GPUs.
    """
    need(need(facts.system).cpu.allowed)
    usable, gpus = usable_cpus(facts), num_gpus(facts)
    if usable is None:
        return unknown("the processors were not counted")
    wanted = max(2, 3 * gpus + 1 if gpus else 0)
    proof = (evidence("system.cpu.allowed", f"{usable:g}", "/proc/self/status and the control group"),)
    if usable < wanted:
        beside = f" for {gpus} GPUs" if gpus else ""
        return warn(f"at least {wanted} processors{beside}", f"{usable:g}", evidence=proof)
    return passed(f"{usable:g} processors" + (f" for {gpus} GPUs" if gpus else ""), evidence=proof)


@check("SYS017", "The Slurm step has the processors of its task", needs=("environ", "system.cpu.allowed"),
       playbook="slurm-step-cpus")  # fmt: skip
def slurm_cpus(facts: Facts) -> Verdict:
    """Compares `SLURM_CPUS_PER_TASK` with the affinity mask of this process.

    What it does:
        Inside a Slurm job, warns when the mask has fewer processors than the task was given, or only one of several.

    Why it matters:
        In Slurm 22.05 and 23.02 `srun` does not take over the job's `--cpus-per-task`, so that a step runs on one
        processor while the job holds dozens: everything works, ten times slower, or Ray's workers time out.
    """
    variables = need(facts.environ)
    if not variables.get("SLURM_JOB_ID"):
        return skip("not in a Slurm job")
    allowed = len(need(system_of(facts).cpu.allowed))
    granted = variables.get("SLURM_CPUS_PER_TASK", "")
    on_node = variables.get("SLURM_CPUS_ON_NODE", "")
    proof = (evidence("environ.SLURM_CPUS_PER_TASK", granted or "not set", "environment"),)
    wanted = int(granted) if granted.isdecimal() and len(granted) < 9 else 0
    params = {"num_cpus": str(allowed)}
    if wanted > allowed:
        params["cpus_per_task"] = granted
        return warn(
            f"{wanted} processors for this task", f"{allowed} in its affinity mask", evidence=proof, params=params
        )
    if allowed == 1 and on_node.isdecimal() and len(on_node) < 9 and int(on_node) > 1:
        found = f"1 of the {on_node} that the job has on this node"
        if not granted:  # two different numbers in SLURM_ and SRUN_CPUS_PER_TASK stop srun
            params["cpus_per_task"] = on_node
        return warn("several processors for this step", found, evidence=proof, params=params)
    return passed(f"the step may use {allowed} processors", evidence=proof)


@check("SYS018", "The processors are near the GPUs", needs=("system.cpu.allowed",), playbook="numa-affinity",
       problem="The processors are on another memory node than the GPUs")  # fmt: skip
def numa_affinity(facts: Facts) -> Verdict:
    """Compares the memory nodes (NUMA) of the allowed processors with those of the GPUs.

    What it does:
        On a machine with several nodes, warns when no allowed processor is on the node of any GPU, and notes GPUs that
        are on a node without an allowed processor.

    Why it matters:
        Every copy between host and GPU then crosses the link between the sockets: loading, offloading and weight
        updates take about twice as long, and latency hurts decoding.
    """
    system = need(facts.system)
    allowed = need(system.cpu.allowed)
    with_cpus = {node.id for node in system.cpu.numa_nodes if node.cpus}
    if len(with_cpus) < 2:
        return skip("one memory node only")
    gpus = [item for item in system.devices.hardware if item.kind in ("nvidia", "amd") and item.numa_node in with_cpus]
    if not gpus:
        return skip("no GPU whose memory node is known")
    mine = numa_nodes_of(system.cpu, allowed)
    far = sorted({item.numa_node for item in gpus} - mine)
    proof = (evidence("system.cpu.allowed", f"memory nodes {sorted(mine)}", "/proc/self/status"),)
    params = {"numa_node": str(far[0] if far else gpus[0].numa_node)}
    if len(far) == len({item.numa_node for item in gpus}):
        found = f"processors of node {sorted(mine)}, GPUs on node {far}"
        return warn("processors on the memory node of a GPU", found, evidence=proof, params=params)
    if far:
        return info(f"no allowed processor on memory node {far}, where some GPUs are", evidence=proof, params=params)
    return passed("the allowed processors cover the GPUs' memory nodes", evidence=proof)
