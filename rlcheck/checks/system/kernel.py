"""Settings of the kernel, and its clock."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.facts.base import need, value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.resources import container, num_gpus
from rlcheck.facts.system import ProcessFacts

# The kernel lets the estimate grow by half a second in a thousand seconds without an answer of a time source.
_ERROR_US = 500_000


@check(
    "SYS019",
    "Transparent huge pages are not switched off",
    needs=("system.cpu.thp",),
    playbook="thp-never",
)
def huge_pages(facts: Facts) -> Verdict:
    """Reads the setting of transparent huge pages.

    What it does:
        `always` and `madvise` are fine. `never` is noted.

    Why it matters:
        Without huge pages the kernel maps large host buffers 4 KiB at a time, so pinning and loading big models takes
        longer. Nothing breaks.
    """
    setting = need(need(facts.system).cpu.thp)
    proof = (evidence("system.cpu.thp", setting, "/sys/kernel/mm/transparent_hugepage/enabled"),)
    if setting == "never":
        return info(
            "transparent huge pages are switched off; large host buffers are mapped more slowly", evidence=proof
        )
    return passed(f"transparent huge pages: {setting}", evidence=proof)


@check("SYS020", "The kernel does not move memory between nodes", needs=("system.cpu.numa_balancing",),
       playbook="numa-affinity",
       problem="Automatic NUMA balancing is on")  # fmt: skip
def numa_balancing(facts: Facts) -> Verdict:
    """Looks for automatic NUMA balancing on a GPU machine with several memory nodes.

    What it does:
        Warns where there are AMD GPUs, whose maker asks for it to be off; notes it beside other GPUs.

    Why it matters:
        Balancing unmaps pages now and then to see who uses them. Processes that feed GPUs stall for that time, all at
        different moments, and a collective waits for the slowest.
    """
    system = need(facts.system)
    value = need(system.cpu.numa_balancing)
    proof = (evidence("system.cpu.numa_balancing", value, "/proc/sys/kernel/numa_balancing"),)
    if not num_gpus(facts) or sum(1 for node in system.cpu.numa_nodes if node.cpus) < 2:
        return skip("only of interest with GPUs and several memory nodes")
    if value == 0:
        return passed("automatic NUMA balancing is off", evidence=proof)
    if any(item.path == "/dev/kfd" for item in system.devices.nodes):
        return warn("kernel.numa_balancing 0", str(value), evidence=proof)
    return info("automatic NUMA balancing is on (kernel.numa_balancing); it costs GPU jobs a little", evidence=proof)


@check("SYS021", "The clock is synchronised", needs=("system.clock",), playbook="clock-not-synchronised")
def clock(facts: Facts) -> Verdict:
    """Asks the kernel whether a time source disciplines its clock.

    What it does:
        Warns on a machine that is probably one of several (GPUs, an RDMA adapter, a Slurm job or a pod); notes it
        elsewhere. A small error estimate counts as well as the flag, which chrony sets only with `rtcsync`. Inside a
        container it is the host's clock.

    Why it matters:
        With clocks apart, the first failure is blamed on the wrong rank, logs of nodes cannot be compared, and TLS
        certificates and signed storage requests are refused.
    """
    system = need(facts.system)
    state = need(system.clock)
    proof = (evidence("system.clock.synchronized", state.synchronized, state.source),)
    if state.synchronized or 0 < state.max_error_us < _ERROR_US:
        return passed("the clock is synchronised", evidence=proof)
    platform = facts.platform.value
    one_of_many = num_gpus(facts) or system.devices.infiniband or (platform and platform.slurm_job)
    if one_of_many or container(facts) == "kubernetes":
        return warn("a clock that a time source disciplines", "one that runs free", evidence=proof)
    return info("the clock is not synchronised; on a single machine that seldom matters", evidence=proof)


@check("SYS022", "The running kernel is the installed one", needs=("system",), playbook="kernel-needs-reboot")
def running_kernel(facts: Facts) -> Verdict:
    """Looks for an upgrade that waits for a reboot.

    What it does:
        Outside containers: warns when the modules of the running kernel are gone from /lib/modules, or when the
        distribution asks for a reboot after an upgrade of kernel or driver. Fails when besides there are NVIDIA GPUs
        without a loaded driver: it cannot be loaded until the reboot.

    Why it matters:
        After an upgrade in place the running kernel has no modules to load and the driver's libraries no longer match
        its kernel part: nvidia-smi reports "Driver/library version mismatch" and CUDA finds no device.
    """
    if container(facts):
        return skip("the kernel is the container host's")
    if facts.platform.value and facts.platform.value.wsl:
        return skip("the kernel is the one of Windows' subsystem for Linux")
    system = need(facts.system)
    kernel = system.kernel
    gone = kernel.modules_present.value is False
    packages = kernel.reboot_required.value
    proof = (evidence("system.kernel.release", kernel.release, "/proc/sys/kernel/osrelease"),)
    installed = ", ".join(kernel.other_releases) or "none"
    without_driver = any(item.kind == "nvidia" for item in system.devices.hardware) and not system.devices.nvidia_driver
    if gone:
        problem = fail if without_driver else warn
        found = f"modules of {installed} only"
        return problem(f"modules of the running kernel {kernel.release} in /lib/modules", found, evidence=proof)
    if packages is not None and any(word in name for name in packages for word in ("linux-", "nvidia", "kernel")):
        return warn("no pending reboot", "one asked for by " + ", ".join(packages[:5]), evidence=proof)
    if packages is not None:
        return info(
            "the distribution asks for a reboot: " + (", ".join(packages[:5]) or "no reason given"), evidence=proof
        )
    return passed(f"kernel {kernel.release or 'unknown'} runs and nothing asks for a reboot", evidence=proof)


@check(
    "SYS023", "The page size is one that wheels expect", needs=("system.cpu.page_size_bytes",), playbook="page-size-64k"
)
def page_size(facts: Facts) -> Verdict:
    """Reads the size of a memory page.

    What it does:
        Notes pages larger than 4 KiB, which some aarch64 servers use on purpose.

    Why it matters:
        A program whose memory allocator was built for 4 KiB pages ends at once with "Unsupported system page size".
        The usual training packages run with 64 KiB pages, but a helper such as Redis may not.
    """
    size = need(need(facts.system).cpu.page_size_bytes)
    proof = (evidence("system.cpu.page_size_bytes", size, "sysconf(SC_PAGE_SIZE)"),)
    if size > 4096:
        return info(
            f"memory pages are {size // 1024} KiB; binaries built for 4 KiB pages may refuse to start", evidence=proof
        )
    return passed("memory pages are 4 KiB", evidence=proof)


@check("SYS024", "A hung process can be examined", needs=("system.kernel.ptrace_scope", "system.process"),
       playbook="ptrace-forbidden")  # fmt: skip
def ptrace(facts: Facts) -> Verdict:
    """Looks at whether py-spy and gdb may attach to a running process.

    What it does:
        Notes a `kernel.yama.ptrace_scope` above 0 when this user has no right around it.

    Why it matters:
        When a run hangs, the quickest answer is the stack of every rank (`py-spy dump --pid`), and the kernel refuses
        it to ordinary users unless this is 0.
    """
    system = need(facts.system)
    scope = need(system.kernel.ptrace_scope)
    process = value_or(system.process, ProcessFacts())
    proof = (evidence("system.kernel.ptrace_scope", scope, "/proc/sys/kernel/yama/ptrace_scope"),)
    if process.capabilities.value is None:
        return unknown("the capabilities of this process are not known")
    if scope >= 3:
        return info("no process may be traced on this machine (ptrace_scope 3), not even by root", evidence=proof)
    if scope > 0 and "sys_ptrace" not in process.capabilities.value:
        return info(f"py-spy and gdb need sudo or SYS_PTRACE here (ptrace_scope {scope})", evidence=proof)
    return passed("py-spy and gdb may attach to running processes", evidence=proof)
