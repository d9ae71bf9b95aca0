"""The Ray probe on made-up machines (F51): what runs, what ran, who holds the ports."""

import os
import time
from pathlib import Path

import pytest

from rlcheck.facts.base import MissingKind, known
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.ray import RayFacts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.ray import collect

SESSION = "session_2026-11-21_03-19-31_329815_5212"
HEADER = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"


def tcp(*rows: tuple[str, str, int, int]) -> str:
    lines = (
        f"   {n}: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {uid}    0 {inode} 1 0 100\n"
        for n, (local, state, uid, inode) in enumerate(rows)
    )
    return HEADER + "".join(lines)


def machine(root: Path, **environ: str) -> ProbeContext:
    """A machine on which no Ray ever ran."""
    for name in ("proc/net", "proc/self", "proc/sys/net/ipv4", "proc/sys/net/core", "tmp"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "proc/self/mounts").write_text("/dev/sda / ext4 rw 0 0\nsrv:/ /scratch lustre rw 0 0\n")
    (root / "proc/net/tcp").write_text(tcp(("0100007F:0016", "0A", 0, 11)))
    (root / "proc/net/unix").write_text("Num RefCount Protocol Flags Type St Inode Path\n0: 2 0 1 1 1 5 /run/dbus\n")
    (root / "proc/net/fib_trie").write_text(
        "Main:\n     |-- 10.0.0.5\n        /32 host LOCAL\n     |-- 10.0.0.255\n        /32 link BROADCAST\n"
    )
    (root / "proc/sys/net/ipv4/ip_local_port_range").write_text("32768\t60999\n")
    (root / "proc/sys/net/core/somaxconn").write_text("4096\n")
    (root / "proc/uptime").write_text("1000.5 3000.0\n")
    return ProbeContext(root=root, environ=environ)


def process(root: Path, pid: int, name: str, cmdline: str = "", uid: int = 1000, sockets: tuple[int, ...] = ()) -> None:
    home = root / f"proc/{pid}"
    (home / "fd").mkdir(parents=True)
    (home / "comm").write_text(name + "\n")
    (home / "cmdline").write_bytes(cmdline.replace(" ", "\0").encode())
    (home / "status").write_text(f"Name:\t{name}\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    ticks = 400 * os.sysconf("SC_CLK_TCK")
    (home / "stat").write_text(f"{pid} (we ird) na) S 1 {'0 ' * 17}{ticks} 0 0\n")
    for number, inode in enumerate(sockets):
        (home / f"fd/{number}").symlink_to(f"socket:[{inode}]")


def with_ray(root: Path) -> ProbeContext:
    """A head node: gcs_server, raylet and dashboard of one session."""
    ctx = machine(root)
    directory = root / f"tmp/ray/{SESSION}/sockets"
    directory.mkdir(parents=True)
    (directory / "raylet").write_text("")
    (root / "tmp/ray/session_latest").symlink_to(f"/tmp/ray/{SESSION}")
    (root / "tmp/ray/ray_current_cluster").write_text("10.0.0.5:6379\n")
    socket = f"/tmp/ray/{SESSION}/sockets/raylet"
    (root / "proc/net/unix").write_text(f"Num\n0: 2 0 1 1 1 5 {socket}\n")
    rows = (("00000000000000000000000000000000:18EB", "0A", 1000, 21), ("0100007F:2049", "0A", 1000, 22))
    (root / "proc/net/tcp6").write_text(tcp(rows[0]))
    (root / "proc/net/tcp").write_text(tcp(rows[1], ("0100007F:9999", "01", 1000, 23)))
    where = f"--session-name={SESSION} --redis_password=hunter2"
    process(root, 100, "gcs_server", f"gcs --gcs_server_port=6379 --node-ip-address=10.0.0.5 {where}", sockets=(21,))
    where = f"--session_dir=/tmp/ray/{SESSION} --temp_dir=/tmp/ray"
    process(root, 101, "raylet", f"raylet --gcs-address=10.0.0.5:6379 {where}")
    process(root, 102, "python", "python /site/ray/dashboard/dashboard.py --port=8265", sockets=(22,))
    return ctx


def test_a_machine_without_ray(tmp_path: Path):
    facts = collect(machine(tmp_path))
    assert (facts.processes.value, facts.listeners.value) == ((), ())
    assert facts.sessions.missing is not None
    assert facts.sessions.missing.kind is MissingKind.ABSENT
    assert facts.current_cluster.value == ""
    assert facts.local_port_range.value == (32768, 60999)
    assert (facts.somaxconn.value, facts.addresses) == (4096, ("10.0.0.5",))


def test_processes_are_not_searched_for_when_nothing_points_to_ray(tmp_path: Path):
    ctx = machine(tmp_path)
    process(tmp_path, 100, "raylet")
    assert collect(ctx).processes.value == ()


def test_a_running_head(tmp_path: Path):
    facts = collect(with_ray(tmp_path))
    assert facts.processes.value is not None
    gcs, raylet = facts.processes.value
    assert (gcs.name, gcs.pid, gcs.owner_uid, gcs.gcs_address) == ("gcs_server", 100, 1000, "10.0.0.5:6379")
    assert gcs.age_s == pytest.approx(600.5)
    assert (raylet.session, raylet.temp_dir) == (SESSION, "/tmp/ray")
    assert facts.listeners.value is not None
    assert {(p.port, p.address, p.pid, p.process) for p in facts.listeners.value} == {
        (6379, "::", 100, "gcs_server"),
        (8265, "127.0.0.1", 102, "ray-dashboard"),
    }
    assert facts.sessions.value is not None
    session = facts.sessions.value[0]
    assert (session.live, session.has_socket, session.starter_pid) == (True, True, 5212)
    assert (facts.session_latest, facts.current_cluster.value) == (SESSION, "10.0.0.5:6379")
    assert facts.num_unseen_raylets == 0


def test_no_password_of_a_command_line_is_recorded(tmp_path: Path):
    assert b"hunter2" not in encode((Facts(ray=known(collect(with_ray(tmp_path)))),))


def test_a_raylet_of_another_container_is_counted(tmp_path: Path):
    ctx = machine(tmp_path)
    (tmp_path / "proc/net/unix").write_text(f"0: 2 0 1 1 1 5 /data/ray/{SESSION}/sockets/raylet.1\n")
    assert collect(ctx).num_unseen_raylets == 1


@pytest.mark.row("F51")
def test_a_stranger_on_6379(tmp_path: Path):
    ctx = machine(tmp_path)
    (tmp_path / "proc/net/tcp").write_text(tcp(("00000000:18EB", "0A", 113, 31)))
    process(tmp_path, 50, "redis-server", uid=113, sockets=(99, 31))
    listeners = collect(ctx).listeners.value
    assert listeners is not None
    assert [(l.port, l.address, l.owner_uid, l.process) for l in listeners] == [(6379, "0.0.0.0", 113, "redis-server")]  # noqa: E741


def test_the_port_of_ray_address_is_looked_at(tmp_path: Path):
    """A tunnel to a head on another port."""
    ctx = machine(tmp_path, RAY_ADDRESS="ray://127.0.0.1:16380")
    (tmp_path / "proc/net/tcp").write_text(tcp(("0100007F:3FFC", "0A", 1000, 31)))
    process(tmp_path, 50, "ssh", sockets=(31,))
    listeners = collect(ctx).listeners.value
    assert listeners is not None
    assert [(found.port, found.process) for found in listeners] == [(16380, "ssh")]


@pytest.mark.row("F51")
def test_old_sessions_with_spilled_objects(tmp_path: Path):
    ctx = machine(tmp_path)
    for number in range(60):
        directory = tmp_path / f"tmp/ray/session_2025-01-{number:03}_7"
        directory.mkdir(parents=True)
        old = time.time() - 86400
        if number == 59:
            (directory / "ray_spilled_objects_abc").mkdir()
            (directory / "ray_spilled_objects_abc/1").write_text("")
        os.utime(directory, (old, old))
    facts = collect(ctx)
    assert facts.num_sessions.value == 60
    assert facts.sessions.value is not None
    assert len(facts.sessions.value) == 50
    newest = facts.sessions.value[0]
    assert (newest.spilled, newest.live, newest.starter_pid, newest.owner_uid) == (1, False, 7, os.getuid())
    assert newest.age_s == pytest.approx(86400, abs=60)


@pytest.mark.parametrize(
    ("environ", "temp_dir", "source"),
    [
        ({"RAY_TMPDIR": "/a", "TMPDIR": "/b"}, "/a/ray", "RAY_TMPDIR"),
        ({"TMPDIR": "/b"}, "/b/ray", "TMPDIR"),
        ({}, "/tmp/ray", "default"),
    ],
)
def test_the_temporary_directory(tmp_path: Path, environ: dict[str, str], temp_dir: str, source: str):
    facts = collect(machine(tmp_path, **environ))
    assert (facts.temp_dir, facts.temp_dir_source) == (temp_dir, source)


def test_a_network_file_system_is_not_touched(tmp_path: Path):
    facts = collect(machine(tmp_path, TMPDIR="/scratch/me", RAY_AUTH_MODE="token", RAY_AUTH_TOKEN_PATH="/scratch/t"))
    for fact in (facts.sessions, facts.current_cluster, facts.auth_token):
        assert fact.missing is not None
        assert (fact.missing.kind, "lustre" in fact.missing.reason) == (MissingKind.UNSUPPORTED, True)


def test_the_token_file_is_seen_and_not_read(tmp_path: Path):
    ctx = machine(tmp_path, RAY_AUTH_MODE="token", HOME="/home/bob")
    missing_token = collect(ctx).auth_token.value
    assert missing_token is not None
    assert (missing_token.path, missing_token.exists) == ("/home/bob/.ray/auth_token", False)
    (tmp_path / "home/bob/.ray").mkdir(parents=True)
    (tmp_path / "home/bob/.ray/auth_token").write_text("supersecret")
    token = collect(ctx).auth_token.value
    assert token is not None
    assert (token.exists, token.readable, token.num_bytes) == (True, True, 11)
    assert b"supersecret" not in encode((Facts(ray=known(collect(ctx))),))


def test_garbage_everywhere(tmp_path: Path):
    ctx = machine(tmp_path, TMPDIR="/t\udcffx")
    (tmp_path / "proc/net/tcp").write_bytes(
        HEADER.encode() + b"\xff\xfe\n 0: ZZ:18EB x 0A\n 1: 00:XX 0:0 0A 0 0 0 uid 0 1\n"
    )
    (tmp_path / "proc/net/unix").write_bytes(b"\x00\xff /x/sockets/raylet\n 9 /sockets/raylet")
    (tmp_path / "proc/sys/net/ipv4/ip_local_port_range").write_text("many\n")
    (tmp_path / "proc/sys/net/core/somaxconn").write_text("")
    (tmp_path / "proc/uptime").write_text("")
    process(tmp_path, 7, "raylet", "--gcs-address")
    (tmp_path / "proc/7/stat").write_text("7 (raylet")
    (tmp_path / "proc/7/status").write_bytes(b"Uid:\n\xff")
    facts = collect(ctx)
    assert facts.local_port_range.missing is not None
    assert facts.somaxconn.missing is not None
    assert facts.processes.value is not None
    assert [(p.owner_uid, p.age_s) for p in facts.processes.value] == [(-1, -1.0)]
    assert decode(encode((Facts(ray=known(facts)),)))[0].ray.value == facts


def test_no_proc_at_all(tmp_path: Path):
    facts = collect(ProbeContext(root=tmp_path / "void", environ={}))
    assert isinstance(facts, RayFacts)
    assert facts.processes.missing is not None
    assert facts.listeners.missing is not None
    assert facts.addresses == ()
