from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.measure.cluster.hosts import Host, HostsError, parse_hosts, read_hosts, slurm_hosts
from tests.conftest import write_command


def test_every_style_of_a_line() -> None:
    text = """
    # a comment
    node1
    node2 slots=8            # DeepSpeed
    root@node3:2222
    me@10.0.0.4 slots=2 max_slots=4
    [fd00::5]:23
    fd00::6
    gpu_box-7.example.org
    """
    assert parse_hosts(text) == (
        Host("node1"),
        Host("node2", slots=8),
        Host("node3", user="root", port=2222),
        Host("10.0.0.4", user="me", slots=2),
        Host("fd00::5", port=23),
        Host("fd00::6"),
        Host("gpu_box-7.example.org"),
    )


def test_a_host_that_is_named_again_adds_its_slots() -> None:
    assert parse_hosts("a slots=2\nb\na slots=3\na:23\n") == (Host("a", slots=5), Host("b"), Host("a", port=23))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("-oProxyCommand=touch", "line 1"),
        ("x@-oProxyCommand=y", "no host"),
        ("a;b", "no host"),
        ("$(id)", "no host"),
        ("node1:99999", "no host"),
        ("node1:ssh", "no host"),
        ("node1 node2", "'node2' after the host"),
        ("node1 slots=many", "slots=many"),
        ("# nobody", "names no host"),
        ("", "names no host"),
    ],
)
def test_what_is_no_host_is_said_with_its_line(line: str, said: str) -> None:
    with pytest.raises(HostsError, match=said.replace("$", r"\$")):
        parse_hosts(line)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(HostsError, match="No such file"):
        read_hosts(tmp_path / "none")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(HostsError, match="not a text file"):
        read_hosts(tmp_path / "bytes")


def test_nodes_of_a_slurm_job(tmp_path: Path) -> None:
    write_command(tmp_path, "scontrol", 'test "$*" = "show hostnames gpu[01-02,7]" && printf "gpu01\\ngpu02\\ngpu7\\n"')
    environ = {"PATH": f"{tmp_path}:/usr/bin:/bin", "SLURM_JOB_NODELIST": "gpu[01-02,7]"}
    assert slurm_hosts(environ) == ("gpu01", "gpu02", "gpu7")
    assert slurm_hosts({"SLURM_JOB_NODELIST": "one,two"}) == ("one", "two")
    with pytest.raises(HostsError, match="no Slurm job"):
        slurm_hosts({})
    write_command(tmp_path, "scontrol", "echo slurm_load_jobs error >&2; exit 1")
    with pytest.raises(HostsError, match="slurm_load_jobs error"):
        slurm_hosts(environ)
