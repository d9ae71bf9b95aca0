"""What these tests need of the machine; nothing is installed here, a test that lacks something says what to install."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess

import pytest

PACKAGES = {
    "ip": "iproute2",
    "iptables": "iptables",
    "redis-server": "redis-server",
    "sshd": "openssh-server",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "srun": "slurm-client",
    "sinfo": "slurm-client",
    "salloc": "slurm-client",
    "sbatch": "slurm-client",
    "scontrol": "slurm-client",
    "munged": "munge",
}
# Debian keeps servers where only root's PATH looks.
_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"))


def find(tool: str) -> str | None:
    """Where the tool is; None without it."""
    return shutil.which(tool, path=_PATH)


def require(*tools: str) -> tuple[str, ...]:
    """The paths of the tools; skips the test, naming the Debian packages, if one is missing."""
    missing = sorted({PACKAGES[tool] for tool in tools if not find(tool)})
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (apt-get install {' '.join(missing)})")
    return tuple(str(find(tool)) for tool in tools)


@functools.cache
def why_no_namespaces() -> str:
    """Why this process cannot make network namespaces; "" if it can."""
    if not (find("ip") and shutil.which("unshare") and shutil.which("nsenter")):
        return "needs ip, unshare and nsenter (apt-get install iproute2 util-linux)"
    script = "ip link add probe0 type veth peer name probe1 && mount -t tmpfs none /mnt"
    command = ["unshare", "--fork", "--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc", "sh", "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return "" if done.returncode == 0 else f"cannot make network namespaces here: {done.stderr.strip()}"


@functools.cache
def why_no_firewall() -> str:
    """Why iptables does not work in a namespace; "" if it does."""
    if not find("iptables"):
        return "needs iptables (apt-get install iptables)"
    command = ["unshare", "--net", str(find("iptables")), "-A", "INPUT", "-p", "tcp", "--dport", "1", "-j", "DROP"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    return "" if done.returncode == 0 else f"iptables does not work here: {done.stderr.strip()}"


def require_firewall() -> None:
    """Skip the test where no firewall rule can be set."""
    if why_no_firewall():
        pytest.skip(why_no_firewall())
