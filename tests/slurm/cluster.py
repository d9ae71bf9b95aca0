"""A real Slurm over machines of `tests.multinode.netns`: munged, slurmctld and slurmd, no service manager."""

from __future__ import annotations

import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import Done
from tests.multinode.debs import find
from tests.multinode.netns import Node

# One munged serves both nodes: its socket is a file, and the nodes share the file system. No cgroups: what
# task/affinity sets is the affinity mask of a job's processes, which is what the doctor has to see.
_CONF = """ClusterName=tests
SlurmctldHost={head}({head_address})
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool/%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/affinity
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerType=sched/builtin
SchedulerParameters=sched_min_interval=0,batch_sched_delay=0
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
InactiveLimit=0
KillWait=3
UnkillableStepTimeout=10
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=10:00 State=UP OverSubscribe=YES
"""


@dataclass
class Slurm:
    """Machines on which Slurm runs; commands run on the first."""

    nodes: tuple[Node, ...]
    root: Path

    def run(self, *command: str | Path, timeout: float = 60, env: dict[str, str] | None = None) -> Done:
        """Run a command on the first machine, as a user of the cluster would; never raises for its exit code."""
        started = time.monotonic()
        done = self.nodes[0].run(command, env=env, timeout=timeout, check=False)
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - started)

    def logs(self) -> str:
        """The ends of what the daemons wrote."""
        ends = (
            f"== {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in sorted(self.root.glob("*.log"))
        )
        return "\n".join(ends)


@contextmanager
def slurm(nodes: Sequence[Node], root: Path) -> Iterator[Slurm]:
    """Slurm over the nodes, ready for jobs.

    Raises:
        RuntimeError: it did not come up; the message holds the daemons' logs.
    """
    cluster = Slurm(tuple(nodes), root)
    _configure(cluster)
    for node in nodes:
        node.environ["SLURM_CONF"] = str(root / "slurm.conf")
    head = nodes[0]
    munge = root / "munge"
    files = [f"--{name}-file={munge / name}" for name in ("key", "seed", "pid", "log")]
    files.append(f"--socket={munge / 'socket'}")
    daemons = [_start(head, root / "munged.log", "munged", "--foreground", "--force", *files)]
    try:
        _wait(cluster, (munge / "socket").exists, "munged made no socket")
        daemons.append(_start(head, root / "ctld-start.log", "slurmctld", "-D"))
        daemons += [_start(node, root / f"start-{node.name}.log", "slurmd", "-D", "-N", node.name) for node in nodes]
        _wait(cluster, lambda: _num_idle(cluster) == len(nodes), "the nodes did not become idle")
        yield cluster
    finally:
        for node in nodes:
            node.clear()
        for daemon in daemons:
            daemon.wait(10)


def _configure(cluster: Slurm) -> None:
    root, head = cluster.root, cluster.nodes[0]
    for name in ("munge", "state", "spool"):
        (root / name).mkdir(mode=0o755)
    root.chmod(0o755)
    key = root / "munge" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o400)
    cpus = os.cpu_count() or 1
    lines = [f"NodeName={n.name} NodeAddr={n.address} CPUs={cpus} RealMemory=4000 State=UNKNOWN" for n in cluster.nodes]
    text = _CONF.format(head=head.name, head_address=head.address, root=root, nodes="\n".join(lines))
    (root / "slurm.conf").write_text(text)


def _start(node: Node, log: Path, daemon: str, *options: str) -> subprocess.Popen[str]:
    with log.open("w") as stream:
        return node.popen(
            [str(find(daemon)), *options], stdout=stream, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL
        )


def _num_idle(cluster: Slurm) -> int:
    done = cluster.run(str(find("sinfo")), "--noheader", "--Node", "--format=%N %T", timeout=20)
    return sum(line.endswith(" idle") for line in done.out.splitlines())


def _wait(cluster: Slurm, ready: object, what: str, timeout: float = 30) -> None:
    assert callable(ready)
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Slurm: {what} in {timeout:.0f} s\n{cluster.logs()}")
        time.sleep(0.1)
