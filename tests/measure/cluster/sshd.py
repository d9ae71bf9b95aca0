"""A real sshd on loopback, with a host key, a user key and a client configuration made on the spot."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/sbin")
MISSING = "" if SSHD and shutil.which("ssh") and shutil.which("ssh-keygen") else "sshd, ssh or ssh-keygen is missing"


NUM_ADDRESSES = 12


@dataclass(frozen=True)
class Server:
    """Where it listens, and the ssh command that trusts it and has the right key; n0 to n63 are names for it."""

    port: int
    ssh: tuple[str, ...]
    directory: Path

    def other(self, **options: str) -> tuple[str, ...]:
        """The ssh command with other options."""
        return (self.ssh[0], *(f"-o{name}={value}" for name, value in options.items()), *self.ssh[1:])


def make_key(path: Path) -> Path:
    """A key pair without a passphrase."""
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)], check=True, timeout=20)
    return path


def free_port() -> int:
    """A port that nobody has at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@contextmanager
def running(directory: Path) -> Iterator[Server]:
    """The server, until the end of the block."""
    host_key, user_key = make_key(directory / "host"), make_key(directory / "user")
    authorized = directory / "authorized"
    authorized.write_text((directory / "user.pub").read_text())
    authorized.chmod(0o600)
    port = free_port()
    Path("/run/sshd").mkdir(exist_ok=True)
    config = directory / "sshd_config"
    config.write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {host_key}\nAuthorizedKeysFile {authorized}\n"
        f"PidFile {directory}/pid\nUsePAM no\nStrictModes no\nPermitRootLogin yes\nPasswordAuthentication no\n"
        "KbdInteractiveAuthentication no\nMaxStartups 200\nLogLevel ERROR\nUseDNS no\n"
        f"SetEnv HOME={directory}\n"  # so that nobody's .bashrc is run 64 times
        # sshd listens on 16 addresses at most.
        + "".join(f"ListenAddress 127.0.0.{last}\n" for last in range(2, NUM_ADDRESSES + 1))
    )
    known = directory / "known_hosts"
    known.write_text("* " + (directory / "host.pub").read_text())
    names = "".join(f"Host n{i}\n HostName 127.0.0.{i % NUM_ADDRESSES + 1}\n Port {port}\n" for i in range(64))
    (directory / "config").write_text(names)
    assert SSHD is not None
    process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(config)], stderr=(directory / "log").open("wb"))
    trust = ("-oIdentitiesOnly=yes", "-oGlobalKnownHostsFile=/dev/null", "-oStrictHostKeyChecking=yes")
    ssh = ("ssh", f"-F{directory}/config", f"-oIdentityFile={user_key}", f"-oUserKnownHostsFile={known}", *trust)
    try:
        _await(port, process, directory / "log")
        yield Server(port, ssh, directory)
    finally:
        process.terminate()
        process.wait(10)


def _await(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise AssertionError(log.read_text())
