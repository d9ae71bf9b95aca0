"""`rlcheck ray --start-help`: the right interface, the right flags, and a script that a shell accepts and runs."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.network import DefaultRoute, Interface, NetworkFacts
from rlcheck.facts.python import Distribution, PythonFacts
from rlcheck.facts.ray import RayFacts
from rlcheck.facts.system import CpuFacts, DeviceFacts, Hardware, Place, SystemFacts
from rlcheck.measure.cluster.start_help import best_interface, start_help

GIB = 1 << 30
LO = Interface(name="lo", up=True, operstate="unknown", kind="loopback", ipv4="127.0.0.1")
DOCKER = Interface(name="docker0", up=True, operstate="up", kind="bridge", ipv4="172.17.0.1")
ETH0 = Interface(name="eth0", up=True, operstate="up", kind="ethernet", ipv4="10.0.0.7", speed_mbps=1000)
FAST = Interface(name="ens5", up=True, operstate="up", kind="ethernet", ipv4="10.1.0.7", speed_mbps=100000)
DOWN = Interface(name="ens6", up=False, operstate="down", kind="ethernet", ipv4="10.2.0.7", speed_mbps=400000)


def machine(
    *interfaces: Interface,
    default: str = "eth0",
    environ: dict[str, str] | None = None,
    ray: str = "2.60.0",
    **more: Any,
) -> Facts:
    routes = (DefaultRoute(interface=default, gateway="10.0.0.1"),) if default else ()
    system: dict[str, Any] = {"cpu": CpuFacts(online=known(64), allowed=known(tuple(range(more.pop("cpus", 64)))))}
    system["places"] = more.pop("places", ())
    system["devices"] = DeviceFacts(hardware=tuple(Hardware(kind="nvidia") for _ in range(more.pop("gpus", 0))))
    section = RayFacts(
        local_port_range=known(more.pop("span", (32768, 60999))), reserved_ports=more.pop("reserved", "")
    )
    packages = (Distribution(name="ray", version=ray, location="/s"),) if ray else ()
    assert not more
    return Facts(
        node="node7",
        environ=known(environ or {}),
        python=known(PythonFacts(version="3.11.7", distributions=packages)),
        ray=known(section),
        network=known(NetworkFacts(interfaces=known((LO, *interfaces)), default_routes=known(routes))),
        system=known(SystemFacts(**system)),
    )


def place(purpose: str, path: str, free_gib: float, **more: Any) -> Place:
    return Place(purpose=purpose, path=path, free_bytes=known(int(free_gib * GIB)), writable=known(True), **more)


def starts(text: str) -> list[str]:
    """The `ray start` lines."""
    return [line.strip() for line in text.splitlines() if "ray start" in line and not line.startswith("#")]


@pytest.mark.parametrize(
    ("interfaces", "head", "default", "chosen"),
    [
        ((DOCKER, ETH0, FAST), "", "eth0", "eth0"),
        ((DOCKER, ETH0, FAST), "10.1.0.7", "eth0", "ens5"),
        ((DOCKER, ETH0, FAST), "10.1.0.200", "eth0", "ens5"),
        ((DOCKER, ETH0, FAST, DOWN), "", "", "ens5"),
        ((DOCKER, ETH0, FAST), "", "docker0", "ens5"),
        ((DOCKER,), "", "docker0", ""),
    ],
)
def test_the_interface(interfaces: tuple[Interface, ...], head: str, default: str, chosen: str) -> None:
    found, reason = best_interface(machine(*interfaces, default=default), head)
    assert (found.name if found else "") == chosen
    assert bool(reason) == bool(chosen)


def test_a_plain_machine() -> None:
    text = start_help(machine(ETH0), "", 6379)
    assert starts(text) == [
        'ray start --head --node-ip-address="$HEAD" --port=6379',
        'ray start --address="$HEAD:6379" --node-ip-address="$NODE_IP"',
    ]
    assert "HEAD=10.0.0.7\n" in text
    assert "SOCKET_IFNAME" not in text, "one interface needs no choice"
    assert "RAY_AUTH_MODE=token" in text


def test_what_the_machine_asks_for() -> None:
    places = (place("ray", "/tmp/ray", 2), place("cwd", "/data/me", 900, network=True), place("home", "/local/me", 300))
    text = start_help(machine(DOCKER, ETH0, cpus=8, gpus=4, span=(15000, 65000), places=places), "10.0.0.1", 6380)
    for line in starts(text):
        assert "--num-cpus=8" in line
        assert "--num-gpus=4" in line
        assert "--min-worker-port=10002 --max-worker-port=14999" in line
        assert "--temp-dir=/local/me/ray" in line
    assert "--port=6380" in text
    assert 'GLOO_SOCKET_IFNAME="$IFACE"' in text
    assert "8 of 64 processors" in " ".join(text.replace("#", "").split())


def test_worker_ports_when_no_range_is_free() -> None:
    text = start_help(machine(ETH0, span=(1024, 65535)), "", 6379)
    assert "worker-port" not in "".join(starts(text))
    assert "ip_local_reserved_ports=10002-19999" in text
    assert "reserved_ports" not in start_help(machine(ETH0, span=(1024, 65535), reserved="10000-20000"), "", 6379)


def test_tokens_by_version() -> None:
    assert "ray get-auth-token --generate" in start_help(machine(ETH0, ray=""), "", 6379)
    old = start_help(machine(ETH0, ray="2.49.0"), "", 6379)
    assert "RAY_AUTH_MODE" not in old
    assert "2.52" in old


def test_devices_that_are_visible() -> None:
    text = start_help(machine(ETH0, gpus=8, environ={"CUDA_VISIBLE_DEVICES": "0,1"}), "", 6379)
    assert all("--num-gpus=2" in line for line in starts(text))


def test_slurm() -> None:
    text = start_help(machine(ETH0, cpus=8, environ={"SLURM_JOB_ID": "17"}), "", 6379)
    assert text.count("srun --overlap") == 2
    assert "--num-cpus=8" not in "".join(starts(text)), "a step has the processors that it is given"
    assert text.count('--num-cpus="$CPUS"') == 2
    assert "RAY_AUTH_TOKEN=$(od" in text


HOSTILE = "x; touch /tmp/owned $(id) 'q' \"d\" \n rm"
SCRIPTS = {
    "plain": start_help(machine(ETH0), "", 6379),
    "everything": start_help(
        machine(DOCKER, ETH0, cpus=2, gpus=1, span=(15000, 65000),
                places=(place("tmp", "/tmp", 1), place("home", "/x y'z/me", 500))), "10.0.0.1", 6379),
    "slurm": start_help(
        machine(DOCKER, ETH0, environ={"SLURM_JOB_ID": "1"},
                places=(place("tmp", "/tmp", 1), place("home", "/x y'z/me", 500))), "10.0.0.1", 6379),
    "name": start_help(machine(ETH0), "head-1.example.org", 6379),
    "IPv6": start_help(machine(ETH0), "fd00::1", 6379),
    "nothing known": start_help(Facts(), "", 6379),
    "hostile": start_help(machine(ETH0, environ={"CUDA_VISIBLE_DEVICES": HOSTILE}), HOSTILE, 6379),
}  # fmt: skip


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_shell_accepts_it(name: str) -> None:
    done = subprocess.run(["bash", "-n"], input=SCRIPTS[name], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    comments = [line for line in SCRIPTS[name].splitlines() if line.startswith("#")]
    assert max(len(line) for line in comments) <= 80


@pytest.mark.parametrize("name", ["plain", "everything", "slurm", "hostile"])
def test_what_a_shell_makes_of_it(name: str, tmp_path: Path) -> None:
    """Run with stand-ins for ray, srun and ip that write down how they were called."""
    bash = shutil.which("bash")
    assert bash is not None
    tools = {
        "ray": 'line=$(printf "%s|" "$@"); echo "$line" >> "$LOG"',
        "srun": 'while [ "$1" != bash ] && [ "$1" != ray ]; do shift; done; exec "$@"',
        "ip": 'if [ "$1" = -o ]; then echo "2: eth0 inet 10.0.0.7/24 scope global"; else\n'
        'echo "10.0.0.1 dev eth0 src 10.0.0.7 uid 0"; fi',
        "scontrol": "echo node1",
        "rlcheck": ":",
        "getent": "echo 10.0.0.1 STREAM",
    }
    for tool, body in tools.items():
        (tmp_path / tool).write_text(f"#!{bash}\n{body}\n")
        (tmp_path / tool).chmod(0o755)
    log = tmp_path / "log"
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LOG": str(log), "SLURM_JOB_NODELIST": "node[1-2]",
           "SLURM_JOB_NUM_NODES": "2", "SLURM_CPUS_PER_TASK": "3"}  # fmt: skip
    script = SCRIPTS[name] + "wait\n"
    done = subprocess.run(
        [bash, "-eu"], input=script, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=20, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    calls = [line.split("|")[:-1] for line in log.read_text().splitlines() if line.startswith("start")]
    head, worker = sorted(calls, key=lambda call: "--head" not in call)
    assert "--head" in head
    assert "--node-ip-address=10.0.0.7" in worker
    assert any(word.startswith("--address=") and word.endswith(":6379") for word in worker)
    if name == "slurm":
        assert "--num-cpus=3" in head
        assert "--num-cpus=3" in worker
    if name in ("slurm", "everything"):
        assert "--temp-dir=/x y'z/me/ray" in head
        assert "--temp-dir=/x y'z/me/ray" in worker
    assert not Path("/tmp/owned").exists()


def test_the_command_counts_gpus_by_their_own_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`rlcheck ray --start-help` asks for what the count is read from."""
    from rlcheck.cli import front_door, ray
    from rlcheck.cli.requests.machines import RayRequest

    asked: list[str] = []

    def own_facts(*arguments: Any) -> Facts:
        asked.extend(arguments[2])
        return machine(ETH0)

    monkeypatch.setattr(front_door.Examination, "own_facts", own_facts)
    assert ray.run(RayRequest(start_help=True)) == 0
    assert "nvidia" in asked
