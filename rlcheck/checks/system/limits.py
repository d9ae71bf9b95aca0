"""Resource limits of the process."""

from __future__ import annotations

from rlcheck.check import Evidence, Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import below, has_capability, limit_bytes, limit_text, num_gpus, ram_bytes, system_of
from rlcheck.facts.system import UNLIMITED, ProcessFacts
from rlcheck.text import GIB, KIB, MIB, size_text

_SOURCE = "/proc/self/limits"
_WANTED_FILES = 65536
_FEW_FILES = 8192
# More than NCCL registers; Ubuntu gives every login an eighth of the memory.
_PLENTY_BYTES = 64 * GIB
# Half of what a process can address on x86-64: a limit above it limits nothing.
_ALL_ADDRESSES = 1 << 46


@check("SYS002", "Locked memory is not limited", needs=("system.limits.memlock",), playbook="memlock-limited")
def memlock(facts: Facts) -> Verdict:
    """Looks at `ulimit -l` where there is an InfiniBand or RoCE adapter.

    What it does:
        RDMA pins the buffers that it sends from. A limit below 1 GiB fails where there are GPUs, device nodes of the
        adapter and an active InfiniBand port, unless NCCL_IB_DISABLE=1. Any other limit below 64 GiB and below the size
        of memory warns, and a higher one is noted. A process with the capability IPC_LOCK of the machine itself is not
        bound by the limit.

    Why it matters:
        The adapter cannot register NCCL's buffers: `ibv_reg_mr` fails with "Cannot allocate memory", and the first
        collective over the network stops the run.
    """
    system = need(facts.system)
    if not system.devices.infiniband:
        return skip("no InfiniBand or RoCE adapter")
    limit = need(need(system.limits).memlock)
    found = f"a limit of {limit_bytes(limit.soft)} (`ulimit -l`; hard limit {limit_bytes(limit.hard)})"
    proof = (evidence("system.limits.memlock.soft", limit_bytes(limit.soft), _SOURCE),)
    if limit.soft == UNLIMITED or has_capability(value_or(system.process, ProcessFacts()), "ipc_lock"):
        return passed(f"{limit_bytes(limit.soft)} may be locked", evidence=proof)
    can_be_used = any(node.path.startswith("/dev/infiniband/uverbs") for node in system.devices.nodes)
    if value_or(facts.environ, {}).get("NCCL_IB_DISABLE") == "1":
        return skip("NCCL_IB_DISABLE=1: RDMA is not used")
    # An Ethernet card that could do RoCE is in most servers, used or not; InfiniBand is there to be used.
    more = {"evidence": proof, "params": _raised(limit.hard, ram_bytes(facts), KIB)}
    if limit.soft < GIB and can_be_used and num_gpus(facts) and _has_infiniband(facts):
        return fail("unlimited locked memory for RDMA", found, **more)
    if not below(limit.soft, ram_bytes(facts)):
        return passed(f"{limit_bytes(limit.soft)} may be locked", evidence=proof)
    if limit.soft >= _PLENTY_BYTES:
        message = f"{limit_bytes(limit.soft)} may be locked: enough for NCCL, less than a cache of offloaded states"
        return info(message, evidence=proof)
    return warn("unlimited locked memory for RDMA", found, **more)


def _raised(hard: int, wanted: int, unit: int = 1) -> dict[str, str]:
    """The parameter `limit` of a `ulimit` that ends the fault; none where the hard limit does not allow it."""
    if hard == UNLIMITED:
        return {"limit": "unlimited"}
    return {} if below(hard, wanted) else {"limit": str(hard // unit)}


def _has_infiniband(facts: Facts) -> bool:
    devices = facts.network.value.rdma.value if facts.network.value is not None else None
    if devices is None:
        return True
    return any(port.link_layer == "InfiniBand" and port.state == "ACTIVE" for card in devices for port in card.ports)


@check("SYS003", "Enough files may be open", needs=("system.limits.nofile",), playbook="open-files-limit")
def open_files(facts: Facts) -> Verdict:
    """Compares `ulimit -n` with what Ray and a rollout server open.

    What it does:
        Ray's driver and vLLM's server raise their soft limit to 65,536 when the hard limit lets them; processes that
        `ray start` brings up keep the soft limit of the shell. Fails when even the hard limit is 1,024 or less, warns
        when either is below 8,192, and notes a hard limit below 65,536. Without GPUs a low soft limit under a high hard
        one, which is how every distribution comes, is only noted.

    Why it matters:
        Every worker holds connections to every other and to the store; past the limit comes "Too many open files",
        often hours into a run, and Ray loses workers.
    """
    limit = need(need(need(facts.system).limits).nofile)
    reachable = _WANTED_FILES if limit.hard == UNLIMITED else min(limit.hard, _WANTED_FILES)
    found = f"{limit_text(limit.soft)} (hard limit {limit_text(limit.hard)})"
    more = {
        "evidence": (evidence("system.limits.nofile.soft", limit_text(limit.soft), _SOURCE),),
        "params": {"nofile": str(reachable)},
    }
    if below(limit.hard, 1025):
        return fail(f"{_WANTED_FILES} open files (`ulimit -n`)", found, **more)
    if below(limit.soft, _FEW_FILES) and not below(limit.hard, _WANTED_FILES) and not num_gpus(facts):
        return info(f"{limit_text(limit.soft)} files may be open; `ulimit -n {reachable}` before `ray start`", **more)
    if below(limit.soft, _FEW_FILES) or below(limit.hard, _FEW_FILES):
        return warn(f"{_WANTED_FILES} open files (`ulimit -n`)", found, **more)
    if below(limit.hard, _WANTED_FILES):
        message = f"{limit_text(limit.hard)} files may be open; Ray and vLLM would raise that to {_WANTED_FILES}"
        return info(message, **more)
    return passed(f"{limit_text(limit.soft)} files may be open", **more)


@check(
    "SYS004", "Enough processes and threads may be started", needs=("system.limits.nproc",), playbook="process-limit"
)
def num_processes(facts: Facts) -> Verdict:
    """Compares `ulimit -u` with the number of threads that a node full of workers starts.

    What it does:
        Every Ray worker and every rank has dozens of threads, more with more processors. Warns below 4,096 or below 32
        a processor, fails below 512. The limit counts all processes of the user, and does not bind the machine's root.

    Why it matters:
        Starting a thread fails with "Resource temporarily unavailable" or "pthread_create failed", and workers die
        while they import their libraries.
    """
    system = need(facts.system)
    limit = need(need(system.limits).nproc)
    process = value_or(system.process, ProcessFacts(uid=-1))
    found = f"{limit_text(limit.soft)} (`ulimit -u`, hard limit {limit_text(limit.hard)})"
    proof = (evidence("system.limits.nproc.soft", limit_text(limit.soft), _SOURCE),)
    if limit.soft == UNLIMITED or (process.uid == 0 and not process.root_mapped):
        return passed("the number of processes is not limited", evidence=proof)
    return _judge_processes(facts, limit.soft, found, proof, limit.hard)


@check(
    "SYS005",
    "The control group allows enough processes",
    needs=("system.cgroup.pids_limit",),
    playbook="process-limit",
    problem="The control group allows too few processes",
)
def num_pids(facts: Facts) -> Verdict:
    """Compares the control group's `pids.max` with the number of threads that a node full of workers starts.

    What it does:
        Judges the tightest limit between this process's control group and the root, as for `ulimit -u`: threads count
        as processes. It binds root too.

    Why it matters:
        Kubernetes and some container services allow a pod a few thousand threads; a node with eight ranks, a rollout
        engine and Ray's workers needs more, and the one that is refused dies with "can't start new thread".
    """
    group = need(need(facts.system).cgroup)
    limit = need(group.pids_limit)
    used = value_or(group.pids_used, 0)
    found = f"{limit}, of which {used} are in use ({group.pids_limit_at})"
    proof = (evidence("system.cgroup.pids_limit", limit, group.pids_limit_at),)
    return _judge_processes(facts, limit, found, proof)


def _judge_processes(facts: Facts, limit: int, found: str, proof: tuple[Evidence, ...], hard: int = 0) -> Verdict:
    wanted = max(4096, 32 * value_or(system_of(facts).cpu.online, 0))
    more = {"evidence": proof, "params": {"processes": str(wanted), **_raised(hard, wanted)}}
    if limit < 512:
        return fail(f"room for {wanted} processes and threads", found, **more)
    if limit < wanted:
        return warn(f"room for {wanted} processes and threads", found, **more)
    return passed(f"{limit} processes and threads may run", **more)


@check("SYS006", "Core dumps do not fill the disk", needs=("system.limits.core",), playbook="core-dumps-fill-disk")
def core_dumps(facts: Facts) -> Verdict:
    """Looks for unlimited core files that are written as plain files.

    What it does:
        Warns when `ulimit -c` allows 1 GiB or more and `kernel.core_pattern` is the name of a file that is kept, not a
        program and not /dev/null.

    Why it matters:
        A rank that crashes writes all of its memory into the working directory. With offloaded optimizers that is
        hundreds of gigabytes a rank, for minutes, and the full disk then takes checkpoints and Ray down as well.
    """
    system = need(facts.system)
    limit = need(need(system.limits).core)
    pattern = need(system.kernel.core_pattern)
    proof = (
        evidence("system.limits.core.soft", limit_bytes(limit.soft), _SOURCE),
        evidence("system.kernel.core_pattern", pattern, "/proc/sys/kernel/core_pattern"),
    )
    if not below(limit.soft, GIB) and not pattern.startswith(("|", "/dev/null")):
        found = f"core files up to {limit_bytes(limit.soft)}, written as {pattern!r}"
        return warn("no core files, or ones that a program receives", found, evidence=proof)
    return passed("a crash does not write its memory to the disk", evidence=proof)


@check("SYS007", "The stack limit is an ordinary one", needs=("system.limits.stack",), playbook="stack-limit",
       problem="The stack limit is unusual")  # fmt: skip
def stack(facts: Facts) -> Verdict:
    """Looks at `ulimit -s`.

    What it does:
        8 MiB is usual. Warns below 2 MiB, and notes an unlimited stack or one of 1 GiB and more.

    Why it matters:
        The limit is also the stack size of every new thread: too small a one ends compilers and deep recursion with a
        segmentation fault, and "unlimited" makes glibc fall back to 2 MiB for threads, which is smaller than usual.
    """
    limit = need(need(need(facts.system).limits).stack)
    proof = (evidence("system.limits.stack.soft", limit_bytes(limit.soft), _SOURCE),)
    if below(limit.soft, 2 * MIB):
        return warn(f"a stack limit of {8192 * KIB // MIB} MiB (`ulimit -s`)", size_text(limit.soft), evidence=proof)
    if not below(limit.soft, GIB):
        return info(f"the stack limit is {limit_bytes(limit.soft)}; 8 MiB is usual", evidence=proof)
    return passed(f"the stack limit is {size_text(limit.soft)}", evidence=proof)


@check("SYS008", "Address space is not limited", needs=("system.limits.address_space",), playbook="stack-limit",
       problem="Address space is limited")  # fmt: skip
def address_space(facts: Facts) -> Verdict:
    """Looks at `ulimit -v`.

    What it does:
        Fails on a limit where there are GPUs, warns elsewhere.

    Why it matters:
        CUDA reserves address space for all memory of all GPUs and of the host at once, far more than is ever used;
        under a limit the driver cannot start and every rank reports out of memory, or no device.
    """
    limit = need(need(need(facts.system).limits).address_space)
    proof = (evidence("system.limits.address_space.soft", limit_bytes(limit.soft), _SOURCE),)
    if not below(limit.soft, _ALL_ADDRESSES):
        return passed("address space is not limited", evidence=proof)
    problem = fail if num_gpus(facts) else warn
    found = f"a limit of {size_text(limit.soft)} (hard limit {limit_bytes(limit.hard)})"
    return problem(
        "unlimited address space (`ulimit -v`)", found, evidence=proof, params=_raised(limit.hard, _ALL_ADDRESSES, KIB)
    )
