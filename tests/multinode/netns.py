"""Machines in a network of their own, on this one machine.

Every node is a set of Linux namespaces (network, mounts, host name, processes) that one process holds open: its own
addresses, host name, boot id, /dev/shm, /tmp/ray and process table. A further holder has the bridge that joins them, so
that nothing is seen of it in this machine's own network and addresses cannot collide. A holder reads from a pipe of the
test process: when that ends, in whatever way, every namespace ends with all that runs in it.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.conftest import ROOT, Done
from tests.multinode.debs import find

SUBNET = "10.77"
_GATEWAY = f"{SUBNET}.255.254"
# All namespaces share the kernel's table of neighbours, which overflows at 1024 entries: in a larger network everybody
# is told beforehand where the others are, since permanent entries do not count.
_MANY = 24
# $1 directory, $2 host name. The last two lines wait for the test process to close the pipe, reaping what is orphaned.
_HOLDER = """set -e
hostname "$2"
mkdir -p "$1/cgroup" /tmp/ray
mount --rbind /sys/fs/cgroup "$1/cgroup"
mount -t sysfs sysfs /sys
mount --rbind "$1/cgroup" /sys/fs/cgroup || true
mount -t tmpfs -o size=1g,mode=1777 tmpfs /dev/shm
mount -t tmpfs -o size=2g,mode=1777 tmpfs /tmp/ray
mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
mount --bind "$1/hosts" /etc/hosts
mount --bind "$1/resolv.conf" /etc/resolv.conf || true
echo ready
exec 3<&0
cat <&3 >/dev/null &
wait
"""
# What a node's commands see of this process's environment.
_KEPT = ("LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV", "SSL_CERT_FILE", "COVERAGE_PROCESS_START")


@dataclass
class Node:
    """A machine of the network. `environ` are variables that all of its commands get."""

    name: str
    address: str
    directory: Path
    holder: subprocess.Popen[str]
    pid: int
    environ: dict[str, str] = field(default_factory=dict)

    def command(self, command: Sequence[str | Path]) -> list[str]:
        """The command line that runs `command` inside."""
        enter = ["nsenter", "--target", str(self.pid), "--net", "--mount", "--uts", "--ipc", "--pid", "--"]
        return [*enter, *map(str, command)]

    def full_environ(self, extra: Mapping[str, str | None] | None = None) -> dict[str, str]:
        """A plain environment with a home of its own; None in `extra` removes a variable."""
        path = [str(self.directory / "bin"), str(Path(sys.executable).parent), "/usr/sbin:/usr/bin:/sbin:/bin"]
        environ = {name: os.environ[name] for name in _KEPT if name in os.environ}
        environ |= {
            "HOME": str(self.directory),
            "PATH": ":".join(path),
            "PYTHONPATH": f"{ROOT}:{ROOT / 'trainer'}",
            "OMP_NUM_THREADS": "1",
        }
        changes: dict[str, str | None] = {**self.environ, **(extra or {})}
        environ |= {name: value for name, value in changes.items() if value is not None}
        return {name: value for name, value in environ.items() if changes.get(name, "") is not None}

    def popen(
        self, command: Sequence[str | Path], env: Mapping[str, str | None] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Start a command. Signals to it go through `send`: what Popen knows is nsenter, its parent."""
        options = {"text": True, "cwd": self.directory} | options
        return subprocess.Popen(self.command(command), env=self.full_environ(env), **options)

    def run(
        self,
        command: Sequence[str | Path],
        env: Mapping[str, str | None] | None = None,
        timeout: float = 60,
        check: bool = True,
        stdin: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run a command and wait for it."""
        done = subprocess.run(
            self.command(command),
            env=self.full_environ(env),
            cwd=self.directory,
            capture_output=True,
            text=True,
            input=stdin,
            timeout=timeout,
            check=False,
        )
        assert done.returncode == 0 or not check, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done

    def python(
        self, *arguments: str | Path, python: str = sys.executable, **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run this Python (or another) inside."""
        return self.run([python, *arguments], **options)

    def rlcheck(self, *arguments: str | Path, env: Mapping[str, str | None] | None = None, timeout: float = 60) -> Done:
        """Run the command inside, as a user of that machine would."""
        started = time.monotonic()
        done = self.run([sys.executable, "-m", "rlcheck", *arguments], env=env, timeout=timeout, check=False)
        assert "Traceback" not in done.stderr, done.stderr
        return Done(done.returncode, done.stdout, done.stderr, time.monotonic() - started)

    def pids(self, *words: str) -> list[int]:
        """Processes of the node whose command line has all of the words, as this machine numbers them, oldest first."""
        return [pid for pid in _pids_of(self.pid) if all(word in _command_line(pid) for word in words)]

    def kill(self, number: signal.Signals, *words: str) -> list[int]:
        """Send a signal to the node's processes whose command line has all of the words."""
        found = self.pids(*words)
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, number)
        return found

    def clear(self) -> None:
        """Kill everything that runs on the node."""
        while running := self.pids():
            for pid in running:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def _rule(self, *rule: str) -> ExitStack:
        iptables = [str(find("iptables")), "-w"]
        self.run([*iptables, "-I", *rule])
        undo = ExitStack()
        undo.callback(self.run, [*iptables, "-D", *rule])
        return undo

    def drop(self, ports: int | str, source: Node | None = None) -> ExitStack:
        """Swallow what comes for a port or `low:high` (from one node only, if `source` is given) until closed."""
        return self._rule("INPUT", *_from(source), "-p", "tcp", "--dport", str(ports), "-j", "DROP")

    def reject(self, ports: int | str, source: Node | None = None) -> ExitStack:
        """Refuse what comes for a port, as a closed port would."""
        return self._rule(
            "INPUT", *_from(source), "-p", "tcp", "--dport", str(ports), "-j", "REJECT", "--reject-with", "tcp-reset"
        )

    def refuse_connections_of(self, source: Node) -> ExitStack:
        """`source` can open no connection to this node; the other direction stays open."""
        return self._rule("INPUT", *_from(source), "-p", "tcp", "--syn", "-j", "DROP")

    def lose_large(self, source: Node | None = None) -> ExitStack:
        """Swallow packets of 1300 bytes and more, as a tunnel on the way does that sends no ICMP."""
        return self._rule("INPUT", *_from(source), "-p", "tcp", "-m", "length", "--length", "1300:", "-j", "DROP")

    def throttle(self, source: Node, megabytes_per_s: int) -> ExitStack:
        """Lose what `source` sends to this node above a rate, as a bad link does."""
        limit = ["--hashlimit-above", f"{megabytes_per_s}mb/s", "--hashlimit-burst", f"{2 * megabytes_per_s}mb"]
        mode = ["--hashlimit-mode", "srcip", "--hashlimit-name", f"from-{source.name}"]
        return self._rule("INPUT", *_from(source), "-m", "hashlimit", *limit, *mode, "-j", "DROP")

    def link_down(self) -> ExitStack:
        """Pull the node's cable."""
        self.run(["ip", "link", "set", "eth0", "down"])
        undo = ExitStack()
        undo.callback(
            self.run, ["ip", "-batch", "-"], stdin=f"link set eth0 up\nroute replace default via {_GATEWAY}\n"
        )
        return undo

    def add_bridge(self, name: str = "docker0", address: str = "172.17.0.1") -> ExitStack:
        """A bridge as Docker makes on every machine, with the same address on each of them."""
        batch = f"link add {name} type bridge\naddr add {address}/16 dev {name}\nlink set {name} up\n"
        self.run(["ip", "-batch", "-"], stdin=batch)
        undo = ExitStack()
        undo.callback(self.run, ["ip", "link", "del", name])
        return undo


def _from(source: Node | None) -> list[str]:
    return ["-s", source.address] if source else []


@contextmanager
def network(num_nodes: int, prefix: str = "node") -> Iterator[tuple[Node, ...]]:
    """So many machines, joined by a bridge; names are node1, node2, …"""
    root = Path(tempfile.mkdtemp(prefix="net"))
    names = [f"{prefix}{i + 1}" for i in range(num_nodes)]
    addresses = [f"{SUBNET}.{i // 250}.{i % 250 + 1}" for i in range(num_nodes)]
    hosts = "127.0.0.1 localhost\n" + "".join(f"{a} {n}\n" for a, n in zip(addresses, names, strict=True))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, root, ignore_errors=True)
        holders = [_start_holder(root / name, name, hosts, stack) for name in ["switch", *names]]
        pids = [_wait_ready(holder) for holder in holders]
        _join(pids[0], pids[1:], addresses)
        made = zip(names, addresses, holders[1:], pids[1:], strict=True)
        yield tuple(Node(name, address, root / name, holder, pid) for name, address, holder, pid in made)


def _start_holder(directory: Path, name: str, hosts: str, stack: ExitStack) -> subprocess.Popen[str]:
    directory.mkdir()
    (directory / "boot_id").write_text(f"{uuid.uuid4()}\n")
    (directory / "hosts").write_text(hosts)
    (directory / "resolv.conf").write_text("")
    kinds = ["--net", "--mount", "--uts", "--ipc", "--pid", "--mount-proc", "--kill-child"]
    command = ["unshare", "--fork", *kinds, "sh", "-c", _HOLDER, "holder", str(directory), name]
    pipe = subprocess.PIPE
    holder = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
    stack.callback(_end, holder)
    return holder


def _end(holder: subprocess.Popen[str]) -> None:
    holder.kill()  # --kill-child: the namespace's first process goes with it, and with that one all others
    holder.wait(20)
    for stream in (holder.stdin, holder.stdout):
        if stream:
            stream.close()


def _wait_ready(holder: subprocess.Popen[str]) -> int:
    """The pid of the namespace's first process."""
    assert holder.stdout
    said = ""
    for line in holder.stdout:
        if line == "ready\n":
            children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
            return int(children[0])
        said += line
    raise RuntimeError(f"a namespace did not come up: {said}")


def _join(switch: int, pids: Sequence[int], addresses: Sequence[str]) -> None:
    macs = [f"02:00:00:00:{i // 256:02x}:{i % 256:02x}" for i in range(len(pids))]
    lines = ["link add br0 type bridge", f"addr add {_GATEWAY}/16 dev br0", "link set br0 up", "link set lo up"]
    for i, (pid, mac) in enumerate(zip(pids, macs, strict=True)):
        lines += [f"link add p{i} type veth peer name eth0 address {mac} netns {pid}", f"link set p{i} master br0 up"]
    _ip(switch, lines)
    known = [f"neigh add {ip} lladdr {mac} dev eth0 nud permanent" for ip, mac in zip(addresses, macs, strict=True)]
    for pid, address in zip(pids, addresses, strict=True):
        own = [f"addr add {address}/16 dev eth0", "link set eth0 up", f"route add default via {_GATEWAY}"]
        _ip(pid, ["link set lo up", *own, *(known if len(pids) > _MANY else [])])


def _ip(pid: int, lines: Sequence[str]) -> None:
    command = ["nsenter", "--target", str(pid), "--net", str(find("ip")), "-batch", "-"]
    subprocess.run(command, input="\n".join(lines) + "\n", text=True, check=True, timeout=60)


def child_of(process: subprocess.Popen[str]) -> int:
    """The pid, on this machine, of the command that `Node.popen` started."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        if children:
            return int(children[0])
        time.sleep(0.01)
    raise RuntimeError("the command did not start")


def send(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """A signal to a command that `Node.popen` started."""
    os.kill(child_of(process), number)


def _pids_of(first: int) -> list[int]:
    """Processes of the namespace whose first process is given, but for that one and the `cat` of its pipe."""
    space = os.readlink(f"/proc/{first}/ns/pid")
    keepers = {str(first), *Path(f"/proc/{first}/task/{first}/children").read_text().split()[:1]}
    found: list[int] = []
    for name in os.listdir("/proc"):
        try:
            if name.isdigit() and name not in keepers and os.readlink(f"/proc/{name}/ns/pid") == space:
                found.append(int(name))
        except OSError:  # it ended meanwhile
            continue
    return sorted(found)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""
