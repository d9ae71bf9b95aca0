"""docs/examples/automation: the scripts run, with the real rlcheck; the files parse, and their commands exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command

from rlcheck.cli.app import make_app
from rlcheck.report import monitors
from tests.conftest import ROOT, base_environ, write_command
from tests.report.test_monitors import series, value

EXAMPLES = ROOT / "docs" / "examples" / "automation"
SICK = ROOT / "tests/fixtures/machines/fabric-manager-down.json"
WELL = ROOT / "tests/fixtures/machines/h100-ib-healthy.json"
FILES = sorted(EXAMPLES.iterdir())
"""Of each, every call of rlcheck is parsed by the command itself."""


def calls(path: Path) -> list[list[str]]:
    """The words of every call of rlcheck in PATH, as the shell, Kubernetes or NRPE would read them."""
    text = path.read_text(encoding="utf-8")
    lists = [json.loads(found) for found in re.findall(r'command: (\["rlcheck".*\])', text)]
    ends = r"(?= 2>| \|\||\)$|\n|$)"
    lines = re.findall(rf'(?:^|[ =(]|/)(?:"?\$RLCHECK"?|rlcheck) ((?:[a-z]+) [^\n#]*?){ends}', text, re.M)
    return [words[1:] for words in lists] + [shlex.split(line.rstrip(")")) for line in lines if "--" in line]


def test_each_command_exists() -> None:
    found = {path.name: calls(path) for path in FILES}
    assert {name for name, words in found.items() if words} == {path.name for path in FILES} - {"prometheus-rules.yaml"}
    group: Any = get_command(make_app())
    for words in (words for several in found.values() for words in several):
        group.commands[words[0]].make_context(words[0], words[1:])


def test_files_of_yaml_are_what_they_are_for() -> None:
    job = yaml.safe_load((EXAMPLES / "init-container.yaml").read_text())["spec"]["template"]["spec"]
    first, then = job["initContainers"][0], job["containers"][0]
    for shared in ("image", "resources", "volumeMounts"):
        assert first[shared] == then[shared]
    mounted = {volume["name"] for volume in job["volumes"]}
    assert {mount["name"] for mount in first["volumeMounts"]} == mounted
    steps = yaml.safe_load((EXAMPLES / "github-action.yml").read_text())["jobs"]["rlcheck"]["steps"]
    assert all(step.keys() & {"uses", "run"} for step in steps)
    rules = yaml.safe_load((EXAMPLES / "prometheus-rules.yaml").read_text())["groups"][0]["rules"]
    named = {name for rule in rules for name in re.findall(r"rlcheck_\w+", rule["expr"])}
    assert named
    assert named <= set(monitors._HELP)


@pytest.fixture
def bin(tmp_path: Path) -> dict[str, str]:
    """Variables of a script for which rlcheck judges the record $FACTS; what it tells the system log is in `log`."""
    write_command(tmp_path / "bin", "logger", f'echo "$*" >>{tmp_path}/log')
    command = f'exec {sys.executable} -m rlcheck "$@" ${{FACTS:+--facts $FACTS}}'
    write_command(tmp_path / "bin", "rlcheck", command)
    path = f"{tmp_path / 'bin'}:/usr/bin:/bin"
    return {**base_environ(), "PATH": path, "RLCHECK": str(tmp_path / "bin" / "rlcheck"), "LOG": str(tmp_path / "log")}


def ran(name: str, bin: dict[str, str], *words: str | Path, **more: str) -> subprocess.CompletedProcess[str]:
    command = ["bash", str(EXAMPLES / name), *map(str, words)]
    return subprocess.run(command, env={**bin, **more}, capture_output=True, text=True, timeout=100, check=False)


def logged(bin: dict[str, str]) -> str:
    path = Path(bin["LOG"])
    return path.read_text() if path.exists() else ""


def test_the_prolog_drains_a_sick_node_and_no_other(bin: dict[str, str]) -> None:
    assert ran("slurm-prolog.sh", bin, FACTS=str(WELL)).returncode == 0
    done = ran("slurm-prolog.sh", bin, FACTS=str(SICK))
    assert done.returncode == 1, done
    assert "-p daemon.err -- RLCHECK CRITICAL - GPU025" in logged(bin)


@pytest.mark.parametrize("broken", ["exit 3", "exit 2 # of wrong options", "kill -9 $$", "exec sleep 60", "missing"])
def test_a_broken_rlcheck_drains_nothing(broken: str, bin: dict[str, str], tmp_path: Path) -> None:
    rlcheck = Path(bin["RLCHECK"])
    if broken.startswith("exit 2"):  # as an rlcheck too old for this format would; ours says UNKNOWN
        write_command(tmp_path / "bin", "rlcheck", f'exec {sys.executable} -m rlcheck "$@" --no-such-option')
    elif broken == "missing":
        rlcheck.unlink()
    else:
        write_command(tmp_path / "bin", "rlcheck", broken)
    started = time.monotonic()
    assert ran("slurm-prolog.sh", bin, LIMIT_S="2").returncode == 0
    assert time.monotonic() - started < 20
    assert "not judged" in logged(bin)


def test_metrics_are_written_and_a_failure_of_rlcheck_is_seen(bin: dict[str, str], tmp_path: Path) -> None:
    done = ran("prometheus.sh", bin, TEXTFILES=str(tmp_path), FACTS=str(SICK))
    assert done.returncode == 0, done.stderr
    found = series((tmp_path / "rlcheck.prom").read_text())
    assert value(found, "rlcheck_exit_code", command="env") == 1
    before = (tmp_path / "rlcheck.prom").read_text()
    assert ran("prometheus.sh", bin, TEXTFILES=str(tmp_path), FACTS="/nowhere").returncode == 1
    assert (tmp_path / "rlcheck.prom").read_text() == before


PREEMPTED = "slurmstepd: error: *** JOB 8123456 ON node1 CANCELLED AT 2026-01-02T10:11:12 DUE TO PREEMPTION ***\n"
LOST_NODE = "srun: error: Node failure on node17\n"
LOST_GPU = "pynvml.NVMLError_GpuIsLost: GPU is lost\n"


def trainer(tmp_path: Path, *logs: str) -> list[str | Path]:
    """A command that fails with each of LOGS in turn, then ends well; it writes down which nodes it left out."""
    for number, text in enumerate(logs):
        (tmp_path / f"fails-{number}").write_text(text)
    script = f"""
mkdir -p {tmp_path}/logs; echo "started without [$EXCLUDE]" >>{tmp_path}/starts
for n in 0 1 2 3 4 5; do
    if [ -e {tmp_path}/fails-$n ]; then mv {tmp_path}/fails-$n {tmp_path}/logs/train.log; exit 1; fi
done
echo step 1 >{tmp_path}/logs/train.log"""
    return [tmp_path / "logs", "bash", "-c", script]


def test_a_restart_does_what_next_says(bin: dict[str, str], tmp_path: Path) -> None:
    done = ran("restart.sh", bin, *trainer(tmp_path, PREEMPTED, LOST_NODE, LOST_NODE.replace("17", "18")))
    assert done.returncode == 0, done.stderr
    starts = (tmp_path / "starts").read_text().splitlines()
    assert starts == [f"started without [{nodes}]" for nodes in ("", "", "node17", "node17,node18")]


def test_restarts_are_counted(bin: dict[str, str], tmp_path: Path) -> None:
    done = ran("restart.sh", bin, *trainer(tmp_path, *[PREEMPTED] * 3), RESTARTS="1")
    assert done.returncode == 1
    assert "the last restart failed" in done.stderr
    assert (tmp_path / "starts").read_text().count("started") == 2


def test_no_restart_on_the_same_node_where_the_log_names_none(bin: dict[str, str], tmp_path: Path) -> None:
    done = ran("restart.sh", bin, *trainer(tmp_path, LOST_GPU))
    assert done.returncode == 1
    assert "find the node first" in done.stderr


def test_a_restart_stops_where_something_must_be_fixed(bin: dict[str, str], tmp_path: Path) -> None:
    oom = (ROOT / "docs/examples/oom.log").read_text()
    done = ran("restart.sh", bin, *trainer(tmp_path, oom))
    assert done.returncode == 1
    assert "restart.sh: fix: Out of memory in the backward pass" in done.stderr
    done = ran("restart.sh", bin, *trainer(tmp_path, "step 1\nstep 2\n"))
    assert "no log says why" in done.stderr
    os.unlink(bin["RLCHECK"])
    done = ran("restart.sh", bin, *trainer(tmp_path, oom))
    assert done.returncode == 1
    assert "rlcheck gave no answer" in done.stderr
