"""The door to the machine: what it says when something cannot be read, and that nothing escapes or waits."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest

from rlcheck.facts.base import MissingKind, known
from rlcheck.measure.machine.context import READ_LIMIT_BYTES, ProbeContext
from tests.conftest import FakeMachine, write_command


def kind(fact: object) -> MissingKind | None:
    return fact.missing.kind if fact.missing is not None else None  # type: ignore[attr-defined]


def test_reading(fake_machine: FakeMachine) -> None:
    machine = fake_machine({"/a/b": b"x\xffy\n", "/big": b"z" * (READ_LIMIT_BYTES + 5)})
    assert machine.read_text("/a/b") == known("x\ufffdy\n")
    assert machine.read_text("/a/b", limit=1) == known("x")
    assert len(machine.read_text("/big").value or "") == READ_LIMIT_BYTES
    assert machine.list_dir("/a") == known(["b"])
    assert machine.exists("/a/b")
    assert not machine.exists("/a/c")
    assert machine.access("/a/b", os.R_OK)


def test_what_cannot_be_read(fake_machine: FakeMachine) -> None:
    machine = fake_machine({"/file": "x"})
    assert kind(machine.read_text("/nothing")) is MissingKind.ABSENT
    assert kind(machine.read_text("/file/below")) is MissingKind.ABSENT
    assert kind(machine.read_text("/")) is MissingKind.ERROR
    assert kind(machine.list_dir("/nothing")) is MissingKind.ABSENT
    assert kind(machine.list_dir("/file")) is MissingKind.ABSENT
    assert kind(machine.read_link("/nothing")) is MissingKind.ABSENT
    assert kind(machine.read_link("/file")) is MissingKind.ERROR


@pytest.mark.parametrize("path", ["/a\0b", "/" + "x" * 5000, "/\udcff", ""])
def test_impossible_paths(path: str, fake_machine: FakeMachine) -> None:
    machine = fake_machine()
    assert machine.read_text(path).value is None
    machine.list_dir(path)
    assert machine.read_link(path).value is None
    assert machine.access(path, os.W_OK) in (True, False)
    assert machine.exists(path) in (True, False)


def test_links(fake_machine: FakeMachine, tmp_path: Path) -> None:
    machine = fake_machine({"/x": "1"})
    (tmp_path / "root" / "dangling").symlink_to("/no/where")
    (tmp_path / "root" / "loop").symlink_to("loop")
    assert machine.read_link("/dangling") == known("/no/where")
    assert machine.exists("/dangling")
    assert kind(machine.read_text("/loop")) is MissingKind.ERROR


def test_a_pipe_is_not_waited_for(fake_machine: FakeMachine, tmp_path: Path) -> None:
    machine = fake_machine({"/x": "1"})
    os.mkfifo(tmp_path / "root" / "pipe")
    started = time.monotonic()
    assert machine.read_text("/pipe") == known("")
    writer = os.open(tmp_path / "root" / "pipe", os.O_RDWR)
    assert machine.read_text("/pipe").value in ("", None)
    os.close(writer)
    assert time.monotonic() - started < 10


def test_errors_of_sysfs_are_named(fake_machine: FakeMachine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: object, *args: object, **more: object) -> object:
        raise OSError(22, "Invalid argument")

    machine = fake_machine()
    monkeypatch.setattr("builtins.open", refuse)
    fact = machine.read_text("/sys/class/net/eth0/speed")
    assert fact.missing is not None
    assert fact.missing.kind is MissingKind.ERROR
    assert fact.missing.reason == "/sys/class/net/eth0/speed: Invalid argument"


def test_commands_come_from_the_path_given(fake_machine: FakeMachine) -> None:
    machine = fake_machine(commands={"tool": "echo here"})
    fact = machine.run(["tool"])
    assert fact.value is not None
    assert fact.value.stdout == "here\n"
    assert kind(machine.run(["no-such-tool-of-ours"])) is MissingKind.ABSENT
    assert kind(ProbeContext(environ={"PATH": "/nowhere"}).run(["sh"])) is MissingKind.ABSENT


def test_odd_search_paths(tmp_path: Path) -> None:
    write_command(tmp_path, "tool", "echo here")
    (tmp_path / "dir" / "tool").mkdir(parents=True)
    for path in (f"{tmp_path}/dir:{tmp_path}", f"a\0b:{tmp_path}", f"::{tmp_path}", f"{'x' * 5000}:{tmp_path}"):
        assert ProbeContext(environ={"PATH": path}).find_command("tool") == str(tmp_path / "tool")
    assert ProbeContext(environ={}).find_command("sh") is not None


def test_the_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = ProbeContext()
    monkeypatch.setenv("RLCHECK_LATER", "1")
    assert "RLCHECK_LATER" not in machine.environ


def test_side_by_side(fake_machine: FakeMachine) -> None:
    """Probes run in threads: commands of one must not wait for those of another."""
    machine = fake_machine(commands={"slow": "sleep 2"})
    threads = [threading.Thread(target=machine.run, args=(["slow"],)) for _ in range(4)]
    started = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - started < 6
