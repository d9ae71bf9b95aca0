"""What a container or a job was given: capabilities, device nodes, groups."""

from __future__ import annotations

import re

from packaging.version import InvalidVersion, Version

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.facts.base import MissingKind, need, value_or, why_missing
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import below, container, distribution, has_capability, ram_bytes
from rlcheck.facts.system import Device, Limits, ProcessFacts
from rlcheck.text import listed

# What each is for, as far as training goes.
_CAPABILITIES = {
    "sys_ptrace": "py-spy and gdb cannot attach to another user's process",
    "sys_nice": "memory cannot be bound to a NUMA node (numactl --membind)",
}


@check("SYS032", "The container has the capabilities that a run uses", needs=("platform", "system.process"),
       playbook="container-capabilities", caused_by=("SYS002",))  # fmt: skip
def capabilities(facts: Facts) -> Verdict:
    """Lists what this container may not do that a run may want to.

    What it does:
        Inside a container only. Warns when RDMA would need the capability IPC_LOCK because locked memory is limited;
        notes a missing SYS_PTRACE and SYS_NICE. None of this needs `--privileged`.

    Why it matters:
        People start containers with `--privileged` because one of these was missing, and so give every process root on
        the host. Each need has an option of its own.
    """
    kind = container(facts)
    if not kind:
        return skip("not in a container")
    system = need(facts.system)
    process = need(system.process)
    held = need(process.capabilities)
    proof = (evidence("system.process.capabilities", " ".join(held) or "none", "/proc/self/status"),)
    # Without a seccomp filter nobody asks for SYS_NICE: it is the filter of container engines that guards mbind.
    unused = ("sys_nice",) if process.seccomp.value == 0 else ()
    missing = [f"{name.upper()}: {use}" for name, use in _CAPABILITIES.items() if name not in (*held, *unused)]
    limit = value_or(system.limits, Limits()).memlock.value
    if (
        system.devices.infiniband
        and limit
        and below(limit.soft, ram_bytes(facts))
        and not has_capability(process, "ipc_lock")
    ):
        found = f"a {kind} container without it"
        return warn("the capability IPC_LOCK, for RDMA", found, details=tuple(missing), evidence=proof)
    if missing:
        return info(f"this {kind} container lacks " + "; ".join(missing), evidence=proof)
    return passed(f"this {kind} container has the capabilities that a run may use", evidence=proof)


@check("SYS033", "This user may open NVIDIA's device nodes", needs=("system",), playbook="gpu-device-nodes",
       caused_by=("GPU002",),
       problem="NVIDIA's device nodes are closed to this user")  # fmt: skip
def nvidia_nodes(facts: Facts) -> Verdict:
    """Looks at the access rights of the device nodes that CUDA opens; whether they are there is GPU002's question.

    What it does:
        Where the NVIDIA driver is loaded: fails when this user may not read and write nvidiactl, nvidia-uvm or the node
        of any GPU. When some GPUs are open, the closed ones are only noted: batch systems give GPUs to users that way.

    Why it matters:
        CUDA opens nvidiactl, nvidia-uvm and one node a GPU. Without rights on one of them torch reports no GPU, or
        "CUDA unknown error", although nvidia-smi as root is fine.
    """
    devices = need(facts.system).devices
    if not devices.nvidia_driver:
        return skip("no NVIDIA driver is loaded")
    nodes = {node.path: node for node in devices.nodes}
    gpus = [node for path, node in nodes.items() if re.fullmatch(r"/dev/nvidia\d+", path)]
    if not gpus:
        return skip("no GPU device node")
    proof = (evidence("system.devices.nodes", f"{len(gpus)} GPUs", "/dev"),)
    closed = [node for node in [*gpus, *_named(nodes, "nvidiactl", "nvidia-uvm")] if not node.usable]
    if closed and any(node.usable for node in gpus) and all(node in gpus for node in closed):
        message = f"{len(gpus) - len(closed)} of {len(gpus)} GPUs may be opened; no access to {_list(closed)}"
        return info(message, evidence=proof)
    if closed:
        return fail("device nodes that this user may open", f"no access to {_list(closed)}", evidence=proof)
    return passed(f"device nodes of {len(gpus)} GPUs are usable", evidence=proof)


def _named(nodes: dict[str, Device], *names: str) -> list[Device]:
    return [nodes[f"/dev/{name}"] for name in names if f"/dev/{name}" in nodes]


def _list(nodes: list[Device]) -> str:
    return listed((f"{node.path} (mode {node.mode}, group {node.group or node.gid})" for node in nodes), 4)


@check("SYS035", "AMD's device nodes are usable", needs=("system",), playbook="amd-device-access")
def amd_nodes(facts: Facts) -> Verdict:
    """Looks for /dev/kfd and /dev/dri/renderD*, and at the groups that own them.

    What it does:
        Where the amdgpu driver is loaded: fails when a ROCm build of torch is installed and a node is missing or this
        user may not open it; warns when it is not known whether torch is a ROCm build; else (and without torch) skips,
        since a processor's own graphics use the same driver.

    Why it matters:
        The nodes belong to the groups render and video. In a container the groups' numbers are the host's: a user who
        is in a group of that name inside may still be refused, and torch sees no GPU.
    """
    system = need(facts.system)
    if not system.devices.amd_driver:
        return skip("no amdgpu compute driver is loaded")
    torch = facts.python.value.torch.value if facts.python.value else None
    if torch is None and distribution(facts, "torch") == "":
        return skip("torch is not installed")
    if torch is not None and not torch.hip:
        return skip("torch is not a ROCm build")
    problem = fail if torch is not None else warn
    nodes = [
        node for node in system.devices.nodes if node.path == "/dev/kfd" or node.path.startswith("/dev/dri/renderD")
    ]
    proof = (evidence("system.devices.nodes", ", ".join(node.path for node in nodes) or "none", "/dev"),)
    lacking = [] if any(node.path == "/dev/kfd" for node in nodes) else ["/dev/kfd"]
    lacking += [] if any(node.path != "/dev/kfd" for node in nodes) else ["/dev/dri/renderD*"]
    if lacking:
        return problem("AMD's device nodes", f"no {' and no '.join(lacking)}", evidence=proof)
    closed = [node for node in nodes if not node.usable]
    if closed:
        gid = str(max(0, closed[0].gid))
        found = f"no access to {_list(closed)}; this process is in groups {_groups(system.process.value)}"
        return problem("device nodes that this user may open", found, evidence=proof, params={"gid": gid})
    return passed(f"{len(nodes)} AMD device nodes are usable", evidence=proof)


def _groups(process: ProcessFacts | None) -> str:
    found = sorted({process.gid, *process.groups}) if process else []
    return ", ".join(str(gid) for gid in found[:8]) or "unknown"


@check("SYS036", "The number of this user has a name in the system", needs=("system.process",),
       playbook="user-without-name")  # fmt: skip
def user_name(facts: Facts) -> Verdict:
    """Looks at whether the number of this user has a name.

    What it does:
        Python takes the name from LOGNAME, USER, LNAME or USERNAME, else from /etc/passwd. When none has it: fails if
        the installed torch is older than 2.13, which cannot do without, and notes it otherwise.

    Why it matters:
        torch.compile names its cache after the user and vLLM compiles at start: both stop with "KeyError: getpwuid():
        uid not found" in a container that runs under a number of its own, as OpenShift and `docker run --user` do.
    """
    process = need(need(facts.system).process)
    reason = why_missing(process.user_name_from)
    if reason is None:
        source = process.user_name_from.value
        return passed(f"the user has a name (from {source})", evidence=(evidence("system.process.uid", process.uid),))
    if reason.kind is not MissingKind.ABSENT:
        return unknown(reason.reason)
    proof = (evidence("system.process.uid", process.uid, "/proc/self/status and /etc/passwd"),)
    found = f"none for user {process.uid}, in the environment or in /etc/passwd"
    if _torch_needs_a_name(facts):
        return fail("a user name, for torch before 2.13", found, evidence=proof)
    return info(f"user {process.uid} has no name; torch before 2.13 and some tools need one", evidence=proof)


def _torch_needs_a_name(facts: Facts) -> bool:
    version = distribution(facts, "torch")
    try:
        return bool(version) and Version(version or "0") < Version("2.13")
    except InvalidVersion:
        return False
