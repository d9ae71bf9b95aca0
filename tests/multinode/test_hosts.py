"""`rlcheck ray --hosts FILE`: machines where no Ray runs yet, reached through real sshds."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.multinode.debs import require
from tests.multinode.netns import Node, network
from tests.multinode.reports import Examined, examine, examine_ray
from tests.multinode.ssh import Ssh, sshd

HERE = ("--python", sys.executable)
MANY_S = 60.0


@pytest.fixture
def ssh(trio: tuple[Node, ...], tmp_path: Path) -> Iterator[Ssh]:
    """An sshd on each of `trio`; the user sits on the first."""
    require("sshd", "ssh", "ssh-keygen")
    with sshd(trio[0], trio, tmp_path) as made:
        yield made
    for node in trio:
        node.environ.clear()


def ask(ssh: Ssh, hosts: Path) -> Examined:
    return examine_ray(ssh.client, "--hosts", hosts, *HERE)


def test_three_machines(ssh: Ssh, trio: tuple[Node, ...]) -> None:
    examined = ask(ssh, ssh.hosts_file(trio))
    assert examined.failed() == set()
    for id in ("RAY045", "RAY046", "RAY047", "RAY062", "RAY063"):
        assert examined.findings[id]["status"] == "pass", examined.findings[id]


def test_machines_that_cannot_be_reached(trio: tuple[Node, ...], tmp_path: Path) -> None:
    """One without sshd, one that knows no key of ours, one that does not exist: each with its own reason, at once."""
    require("sshd", "ssh", "ssh-keygen")
    with sshd(trio[0], trio[:2], tmp_path, refusing=trio[1:2]) as ssh:
        hosts = ssh.hosts_file(trio)
        hosts.write_text(hosts.read_text() + "no-such-host\n")
        examined = ask(ssh, hosts)
    said = str(examined.findings["RAY045"])
    for host, reason in (
        (trio[1].address, "it does not accept our key"),
        (trio[2].address, "nothing listens on its ssh port"),
        ("no-such-host", "its name cannot be resolved"),
    ):
        assert f"{host}: {reason}" in said, said
    examined.names("RAY045", "3 silent")
    assert examined.seconds < 10


def test_a_dead_machine_costs_its_own_deadline(ssh: Ssh, trio: tuple[Node, ...]) -> None:
    with trio[2].link_down():
        examined = ask(ssh, ssh.hosts_file(trio))
    examined.names("RAY045", trio[2].address)
    assert examined.findings["RAY062"]["status"] == "pass"
    assert examined.seconds < 20


def test_an_unknown_host_key(ssh: Ssh, trio: tuple[Node, ...]) -> None:
    known = ssh.root / "known_hosts"
    known.write_text("".join(line for line in known.read_text().splitlines(True) if trio[1].address not in line))
    examined = ask(ssh, ssh.hosts_file(trio))
    examined.names("RAY045", trio[1].address, "host key")


def test_a_clock_that_is_off(trio: tuple[Node, ...], tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("import time\n_time = time.time\ntime.time = lambda: _time() - 40\n")
    trio[1].environ["PYTHONPATH"] = f"{tmp_path}:{ROOT}"
    require("sshd", "ssh", "ssh-keygen")
    (tmp_path / "ssh").mkdir()
    with sshd(trio[0], trio, tmp_path / "ssh") as ssh:
        examined = ask(ssh, ssh.hosts_file(trio))
    trio[1].environ.clear()
    examined.names("RAY046", trio[1].address, "40", "behind", status="warn")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("many", [16, pytest.param(64, marks=pytest.mark.long)])
def test_many_machines(namespaces: None, many: int, tmp_path: Path) -> None:
    """One of them dead: collected, and every pair connected, within a minute."""
    require("sshd", "ssh", "ssh-keygen")
    with network(many, prefix="host") as nodes, sshd(nodes[0], nodes[:-1], tmp_path) as ssh, nodes[-1].link_down():
        examined = examine(ssh.client, "ray", "--hosts", ssh.hosts_file(nodes), *HERE, timeout=150)
    print(f"{many} hosts: {examined.seconds:.1f} s")
    examined.names("RAY045", nodes[-1].address)
    assert examined.findings["RAY062"]["status"] == "pass", examined.findings["RAY062"]
    assert examined.seconds < MANY_S
