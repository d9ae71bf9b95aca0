"""Machines that are not as they should be, seen by the whole command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from rlcheck.checks import builtin_checks
from tests.conftest import rlcheck, write_command

Acme = dict[str, str | None]


def examined(**env: str | None) -> dict[str, str]:
    """Status of every check in such an environment; the command must end well."""
    done = rlcheck("env", "--format", "json", env=env)
    assert done.code in (0, 1), done.err
    assert done.err == ""
    checks = json.loads(done.out)["checks"]
    assert len(checks) > 100
    errors = [check for check in checks if check["status"] == "error"]
    assert not errors
    return {check["id"]: check["status"] for check in checks}


@pytest.mark.parametrize(
    "env",
    [
        {"HOME": None},
        {"HOME": ""},
        {"HOME": "/no/such/home"},
        {"HOME": "/proc/self"},
        {"HOME": "relative"},
        {"HOME": "/dev/null"},
        {"PATH": None},
        {"PATH": ""},
        {"PATH": "/no/such/directory"},
        {"PYTHONHASHSEED": "0"},
        {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONUNBUFFERED": "1", "PYTHONUTF8": "0"},
        {"PYTHONOPTIMIZE": "2"},
        {"PYTHONWARNINGS": "error"},
        {"PYTHONDEVMODE": "1", "PYTHONWARNINGS": "ignore"},
        {"LANG": None, "LC_ALL": "C"},
        {"LC_ALL": "de_DE.ISO-8859-1"},
        {"LC_ALL": "no_such_LOCALE"},
        {"PYTHONIOENCODING": "ascii"},
        {"PYTHONIOENCODING": "latin-1:strict"},
        {"TERM": None},
        {"TMPDIR": "/no/such/tmp"},
        {"COLUMNS": "garbage"},
        {"USER": None, "LOGNAME": None},
        {"CUDA_VISIBLE_DEVICES": "x" * 100_000},
        {"NCCL_DEBUG": "INFO\nNCCL_DEBUG=TRACE\x1b[31m"},
    ],
    ids=repr,
)
def test_odd_environments(env: dict[str, str | None]) -> None:
    examined(**env)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    """Variables, names of directories and of files that are not UTF-8."""
    home = tmp_path / "h\udcff"
    (home / ".cache" / "huggingface").mkdir(parents=True)
    (home / "l\udcfe").write_text("")
    odd = {"HOME": str(home), "NCCL_SOCKET_IFNAME": "eth\udcff", "HF_HOME": str(home / "x\udcff"), "TMPDIR": str(home)}
    examined(**odd)
    for format in ("text", "markdown", "junit", "sarif"):
        assert rlcheck("env", "-v", "--format", format, env=odd).code in (0, 1)
    done = rlcheck("collect", env=odd)
    assert rlcheck("env", "--facts", "-", stdin=done.out.encode()).code in (0, 1)


def test_tools_that_hang_or_print_garbage(tmp_path: Path) -> None:
    for name in ("nvidia-smi", "rocm-smi", "dmesg", "lspci", "ldconfig", "gcc", "timedatectl", "ray"):
        write_command(tmp_path / "hang", name, "sleep 100")
        write_command(tmp_path / "garbage", name, "head -c 100000 /dev/urandom; exit 3")
    for directory in ("hang", "garbage"):
        done = rlcheck("env", "--format", "json", env={"PATH": f"{tmp_path / directory}:/usr/bin:/bin"})
        assert done.code in (0, 1)
        assert done.seconds < 60, "each tool hangs for 100 s"


@pytest.mark.parametrize(
    "script",
    ["sleep 100", "head -c 100000 /dev/urandom", "exit 0", "exit 3", "kill -SEGV $$", "cat", "echo '{}'", "yes"],
)
def test_another_python_that_is_none(script: str, tmp_path: Path) -> None:
    python = write_command(tmp_path, "python", script)
    done = rlcheck("env", "--python", python, "--format", "json", "--timeout", "2", timeout=30)
    assert done.code in (0, 1), done.err
    checks = json.loads(done.out)["checks"]
    about_python = {check.id for check in builtin_checks() if any(need.startswith("python") for need in check.needs)}
    found = {check["id"]: check["status"] for check in checks if check["id"] in about_python}
    assert set(found.values()) <= {"unknown", "skip"}, "nothing is known of that environment"
    assert any(check["status"] == "pass" for check in checks), "the rest of the report is intact"
    assert done.code == 1, "a typing error in a job script must not look like a healthy environment"


@pytest.mark.parametrize("behaviour", ["hang", "raise", "exit", "garbage", "absent"])
def test_a_probe_that_misbehaves(behaviour: str, acme: Acme) -> None:
    done = rlcheck(
        "env", "--select", "ACM", "--format", "json", "--timeout", "1", env={**acme, "ACME_PROBE": behaviour}
    )
    assert done.code == 0
    status = {check["status"] for check in json.loads(done.out)["checks"]}
    assert (
        status == ({"skip"} if behaviour in ("absent", "hang in tool") else {"unknown"}) or behaviour == "hang in tool"
    )
    assert done.seconds < 20, "the probe hangs for 1000 s"


def test_the_report_goes_out_and_progress_stays_quiet(acme: Acme, tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    done = rlcheck("env", "--select", "ACM", "--format", "markdown", "-o", path, env=acme)
    assert (done.out, done.err, done.code) == ("", "", 1)
    assert path.read_text().startswith("### rlcheck ")


def test_merge(tmp_path: Path) -> None:
    one = rlcheck("collect").out
    for name in ("a", "b"):
        document = json.loads(one)
        document["nodes"][0]["node"] = name
        (tmp_path / name).write_text(json.dumps(document))
    merged = tmp_path / "all.json"
    assert rlcheck("merge", tmp_path / "a", tmp_path / "b", "-o", merged).code == 0
    report = json.loads(rlcheck("env", "--facts", merged, "--format", "json").out)
    assert report["nodes"] == ["a", "b"]
    assert {check["node"] for check in report["checks"]} == {"a", "b"}
    again = rlcheck("merge", merged, tmp_path / "a")
    assert again.code == 2
    assert "already in an earlier file" in again.error_line
    assert " on a, b\n" in rlcheck("env", "--facts", merged).out
