"""Made-up machines: a directory tree with the files of /proc, /sys and /etc that the probes read."""

from __future__ import annotations

from pathlib import Path

LIMITS = """\
Limit                     Soft Limit           Hard Limit           Units
Max stack size            8388608              unlimited            bytes
Max core file size        0                    unlimited            bytes
Max processes             4096                 8192                 processes
Max open files            1024                 524288               files
Max locked memory         8388608              8388608              bytes
Max address space         unlimited            unlimited            bytes
Max file size             unlimited            unlimited            bytes
"""
STATUS = """\
Name:\tpython
Umask:\t0077
Uid:\t1000\t1000\t1000\t1000
Gid:\t1000\t1000\t1000\t1000
Groups:\t44 109 1000
CapEff:\t0000000000084000
NoNewPrivs:\t1
Seccomp:\t2
Cpus_allowed_list:\t0-3,56
"""
MEMINFO = """\
MemTotal:       1000000 kB
MemFree:         300000 kB
MemAvailable:    800000 kB
SwapTotal:       200000 kB
SwapFree:        150000 kB
CommitLimit:     700000 kB
Committed_AS:    100000 kB
HugePages_Total:      4
Hugepagesize:      2048 kB
"""
MOUNTS = """\
overlay / overlay rw,relatime 0 0
proc /proc proc rw 0 0
cgroup2 /sys/fs/cgroup cgroup2 rw 0 0
tmpfs /dev/shm tmpfs rw,nosuid,nodev,size=65536k 0 0
/dev/sdb1 /mnt/with\\040space ext4 rw,noexec 0 0
server:/export /nfs nfs4 rw,relatime 0 0
"""
FIB = """\
Main:
  +-- 0.0.0.0/0 3 0 5
        |-- 127.0.0.1
           /32 host LOCAL
        |-- 192.0.2.7
           /32 host LOCAL
        |-- 192.0.2.255
           /32 link BROADCAST
"""

FILES = {
    "/proc/self/limits": LIMITS,
    "/proc/self/status": STATUS,
    "/proc/self/mounts": MOUNTS,
    "/proc/self/cgroup": "0::/job/step\n",
    "/proc/self/uid_map": "         0     100000      65536\n",
    "/proc/meminfo": MEMINFO,
    "/proc/net/fib_trie": FIB,
    "/proc/sys/vm/swappiness": "60\n",
    "/proc/sys/vm/overcommit_memory": "2\n",
    "/proc/sys/vm/max_map_count": "65530\n",
    "/proc/sys/kernel/osrelease": "6.8.0-40-generic\n",
    "/proc/sys/kernel/core_pattern": "|/usr/share/apport/apport %p\n",
    "/proc/sys/kernel/pid_max": "4194304\n",
    "/proc/sys/kernel/threads-max": "8000\n",
    "/proc/sys/kernel/numa_balancing": "1\n",
    "/proc/sys/kernel/yama/ptrace_scope": "1\n",
    "/sys/devices/system/cpu/online": "0-111\n",
    "/sys/devices/system/node/node0/cpulist": "0-55\n",
    "/sys/devices/system/node/node0/meminfo": "Node 0 MemTotal:       500000 kB\n",
    "/sys/devices/system/node/node1/cpulist": "56-111\n",
    "/sys/devices/system/node/node1/meminfo": "Node 1 MemTotal:       500000 kB\n",
    "/sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never\n",
    "/sys/fs/cgroup/job/step/memory.max": "max\n",
    "/sys/fs/cgroup/job/step/memory.events": "low 0\noom 2\noom_kill 1\n",
    "/sys/fs/cgroup/job/step/cpu.max": "800000 100000\n",
    "/sys/fs/cgroup/job/memory.max": "536870912\n",
    "/sys/fs/cgroup/job/memory.current": "400000000\n",
    "/sys/fs/cgroup/job/memory.stat": "anon 100\ninactive_file 300000000\n",
    "/sys/fs/cgroup/job/memory.events": "oom_kill 5\n",
    "/sys/fs/cgroup/job/cpu.max": "max 100000\n",
    "/sys/fs/cgroup/job/pids.max": "1024\n",
    "/sys/fs/cgroup/job/pids.current": "77\n",
    "/etc/passwd": "root:x:0:0:root:/root:/bin/sh\nalice:x:1000:1000::/home/alice:/bin/sh\n",
    "/etc/group": "render:x:109:\nvideo:x:44:\n",
    "/etc/nsswitch.conf": "passwd: files systemd\n",
    "/lib/modules/6.8.0-45-generic/modules.dep": "",
    "/run/reboot-required": "",
    "/run/reboot-required.pkgs": "linux-image-6.8.0-45-generic\nlinux-base\n",
}


def tree(root: Path, *others: dict[str, str | bytes]) -> Path:
    """Write the files below `root`."""
    for files in others:
        for path, content in files.items():
            file = root / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return root
