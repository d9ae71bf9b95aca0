"""Every check fires on its case, says the right thing with the numbers in it, and stays quiet on its other case."""

from __future__ import annotations

import re

import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.facts.base import MissingKind, missing
from rlcheck.facts.document import Facts
from rlcheck.finding import Finding
from rlcheck.playbook import Library
from tests.checks.system.cases import CASES, OTHER_FIRES

CHECKS = family_checks("SYS")

LIBRARY = Library()
BY_ID = {check.id: check for check in CHECKS}

# What the finding on the loud case must say. F07 compiler, F15 memory limit, F52 processors, F54/F56 shared memory and
# devices, F71 proxies, F72 AMD groups.
SAYS = {
    "SYS001": ("fail", "expected at least 16 GiB of shared memory, found 64 MiB free of 64 MiB for 8 GPUs"),
    "SYS002": ("fail", "found a limit of 8 MiB"),
    "SYS003": ("warn", "expected 65536 open files (`ulimit -n`), found 1024 (hard limit 1048576)"),
    "SYS004": ("warn", "expected room for 4096 processes and threads, found 2000"),
    "SYS005": ("warn", "found 1024, of which 0 are in use (/sys/fs/cgroup/pids.max)"),
    "SYS006": ("warn", "found core files up to unlimited, written as 'core'"),
    "SYS007": ("warn", "expected a stack limit of 8 MiB (`ulimit -s`), found 1 MiB"),
    "SYS008": ("fail", "expected unlimited address space (`ulimit -v`), found a limit of 64 GiB"),
    "SYS009": ("warn", "found a limit of 64 GiB on a machine of 512 GiB, set in /sys/fs/cgroup/job_1/memory.max"),
    "SYS010": ("warn", "expected at least 64 GiB of free memory, found 8 GiB of 512 GiB"),
    "SYS011": ("warn", "found 3 killed under a limit of 64 GiB"),
    "SYS012": ("warn", "found 62 GiB of 64 GiB of swap in use"),
    "SYS013": ("warn", "expected vm.overcommit_memory 0 or 1, found 2"),
    "SYS014": ("warn", "expected vm.max_map_count of at least 65530, found 4096"),
    "SYS015": ("warn", "expected as many as Ray counts, found 4 usable by the affinity mask, and Ray counts 128"),
    "SYS016": ("warn", "expected at least 25 processors for 8 GPUs, found 8"),
    "SYS017": ("warn", "expected 16 processors for this task, found 1 in its affinity mask"),
    "SYS018": ("warn", "found processors of node [0], GPUs on node [1]"),
    "SYS019": ("info", "transparent huge pages are switched off"),
    "SYS020": ("warn", "expected kernel.numa_balancing 0, found 1"),
    "SYS021": ("warn", "expected a clock that a time source disciplines, found one that runs free"),
    "SYS022": ("warn", "expected modules of the running kernel 6.8.0-40-generic in /lib/modules"),
    "SYS023": ("info", "memory pages are 64 KiB"),
    "SYS024": ("info", "py-spy and gdb need sudo or SYS_PTRACE here (ptrace_scope 1)"),
    "SYS025": ("warn", "98.5% in use, 3 GiB free, in /tmp"),
    "SYS026": ("warn", "expected at least 10000 free inodes, found 400 on the disk of /home/u"),
    "SYS027": ("fail", "found 111 bytes below /net/scratch/slurm_jobdir/1355700/tmp.t0016/ray (from TMPDIR)"),
    "SYS028": ("fail", "found /scratch/tmp (from TMPDIR) cannot be written"),
    "SYS029": ("warn", "expected at least 2 GiB for compiled kernels, found 300 MiB for /home/u/.cache/vllm"),
    "SYS030": ("warn", "found /nfs/u/.triton/cache on nfs4"),
    "SYS031": ("warn", "found /, which cannot be written"),
    "SYS032": ("warn", "expected the capability IPC_LOCK, for RDMA, found a docker container without it"),
    "SYS033": ("fail", "no access to /dev/nvidiactl"),
    "SYS035": ("fail", "no access to /dev/kfd (mode 660, group render)"),
    "SYS036": ("fail", "found none for user 1002700000"),
    "SYS037": ("fail", "expected gcc or clang for Triton, found neither on PATH, only cc"),
    "SYS038": ("fail", "expected Python.h for Triton, found none in /usr/include/python3.12"),
    "SYS039": ("warn", "expected libcuda.so.1 where the linker looks, found none"),
    "SYS040": ("warn", "localhost, 127.0.0.1, 192.0.2.7 not in no_proxy"),
    "SYS041": ("warn", "'192.0.2.0/24': an address range is not understood"),
    "SYS042": ("warn", "found zh_CN.GBK, whose encoding is gbk"),
    "SYS034": ("info", "umask 077"),
}


def judge(check_id: str, facts: Facts) -> Finding:
    return judging.judge(facts, (BY_ID[check_id],), LIBRARY)[0]


@pytest.mark.parametrize(
    ("check_id", "other", "commands"),
    [
        ("SYS002", False, ()),
        ("SYS002", True, ("ulimit -l unlimited",)),
        ("SYS004", False, ()),
        ("SYS004", True, ("ulimit -u 1048576",)),
        ("SYS008", False, ("ulimit -v unlimited",)),
        ("SYS008", True, ()),
        ("SYS026", False, ("df -i /home/u",)),
    ],
)
def test_a_fix_is_one_that_this_machine_allows(check_id: str, other: bool, commands: tuple[str, ...]) -> None:
    fixes = judge(check_id, OTHER_FIRES[check_id][0] if other else CASES[check_id][0]).fixes
    assert tuple(fix.command for fix in fixes if re.match("ulimit|d[fu] ", fix.command)) == commands


def test_fixes_are_for_what_is_wrong_with_the_directory() -> None:
    closed, noexec = judge("SYS028", CASES["SYS028"][0]), judge("SYS028", OTHER_FIRES["SYS028"][0])
    words = [" ".join(fix.title for fix in finding.fixes) for finding in (closed, noexec)]
    assert ["without noexec" in text for text in words] == [False, True]
    assert ["Make room" in text for text in words] == [True, False]
    assert not any("No usable temporary" in text for text in words)


@pytest.mark.parametrize("check_id", sorted(BY_ID))
def test_fires_with_the_numbers(check_id: str) -> None:
    status, text = SAYS[check_id]
    finding = judge(check_id, CASES[check_id][0])
    assert (finding.status, text in finding.message) == (status, True), finding.message
    assert finding.fixes or status == "info"  # what is only noted needs no mending
    assert finding.why
    assert finding.evidence


@pytest.mark.parametrize("check_id", sorted(BY_ID))
def test_stays_quiet(check_id: str) -> None:
    finding = judge(check_id, CASES[check_id][1])
    assert finding.status in ("pass", "skip"), finding.message


@pytest.mark.parametrize("check_id", sorted(BY_ID))
def test_without_the_section_nothing_passes(check_id: str) -> None:
    finding = judge(check_id, Facts(system=missing(MissingKind.TIMEOUT, "the probe did not finish")))
    assert finding.status == "unknown"


def test_every_id_is_here_once() -> None:
    assert set(SAYS) == set(BY_ID) == set(CASES)
    assert sorted(BY_ID) == [f"SYS{number:03d}" for number in range(1, len(BY_ID) + 1)]
