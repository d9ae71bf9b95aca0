"""A real sshd on nodes, and a user on one of them whose key the others know."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.conftest import write_command
from tests.multinode.debs import find
from tests.multinode.netns import Node

_SERVER = """Port 22
HostKey {root}/host_key
AuthorizedKeysFile {authorized}
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 200
SetEnv {variables}
"""
_CLIENT = """Host *
  IdentityFile {root}/user_key
  IdentitiesOnly yes
  UserKnownHostsFile {root}/known_hosts
  GlobalKnownHostsFile /dev/null
"""


@dataclass
class Ssh:
    """The user's side: `client` is the node where the keys are; on its PATH, `ssh` uses them."""

    client: Node
    root: Path

    def hosts_file(self, nodes: Sequence[Node], name: str = "hosts") -> Path:
        """A file with the addresses of the nodes, one a line."""
        path = self.client.directory / name
        path.write_text("# the cluster\n" + "".join(f"{node.address}\n" for node in nodes))
        return path


@contextmanager
def sshd(client: Node, servers: Sequence[Node], root: Path, *, refusing: Sequence[Node] = ()) -> Iterator[Ssh]:
    """An sshd on every server; those of `refusing` know no key. All share one host key, which the client knows."""
    for name in ("host_key", "user_key"):
        command = [str(find("ssh-keygen")), "-q", "-t", "ed25519", "-N", "", "-C", "test", "-f", str(root / name)]
        subprocess.run(command, check=True, timeout=30)
    (root / "authorized_keys").write_text((root / "user_key.pub").read_text())
    host_key = (root / "host_key.pub").read_text()
    (root / "known_hosts").write_text("".join(f"{n.address} {host_key}{n.name} {host_key}" for n in servers))
    (root / "config").write_text(_CLIENT.format(root=root))
    # ssh reads the home directory of the password file, not $HOME.
    write_command(client.directory / "bin", "ssh", f'exec {find("ssh")} -F {root}/config "$@"')
    Path("/run/sshd").mkdir(exist_ok=True)  # where Debian's sshd changes its root to before a login
    with ExitStack() as stack:
        for node in servers:
            stack.callback(_stop, node, _start(node, root, known=node not in refusing))
        yield Ssh(client, root)


def _start(node: Node, root: Path, known: bool) -> subprocess.Popen[str]:
    environ = node.full_environ()
    authorized = root / "authorized_keys" if known else "none"
    names = ("PATH", "PYTHONPATH", "OMP_NUM_THREADS", *node.environ)
    # SHLVL: bash behind sshd reads ~/.bashrc only as the first shell, and what stands there is not the test's.
    variables = " ".join(["SHLVL=2", *(f"{name}={environ[name]}" for name in dict.fromkeys(names))])
    config = node.directory / "sshd_config"
    config.write_text(_SERVER.format(root=root, authorized=authorized, variables=variables))
    log = node.directory / "sshd.log"
    return node.popen([str(find("sshd")), "-D", "-E", log, "-f", config], stdin=subprocess.DEVNULL)


def _stop(node: Node, server: subprocess.Popen[str]) -> None:
    node.kill(signal.SIGKILL, "sshd")  # its sessions are called so, too
    server.wait(10)
