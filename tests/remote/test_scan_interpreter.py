"""What the scanner says of the interpreter itself."""

from __future__ import annotations

import os
import platform
import sys
import sysconfig
from pathlib import Path

import pytest
from packaging.markers import default_environment

from rlcheck.remote.scan import interpreter, main


def test_markers_are_those_of_packaging() -> None:
    assert interpreter.marker_environment() == default_environment()


def test_the_libc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert interpreter.libc("/").split()[0] in ("glibc", "musl")

    def no_glibc(name: str) -> str:
        raise ValueError(name)

    monkeypatch.setattr(os, "confstr", no_glibc)
    assert interpreter.libc(str(tmp_path)) == ""
    (tmp_path / "lib").mkdir()
    (tmp_path / f"lib/ld-musl-{platform.machine()}.so.1").touch()
    assert interpreter.libc(str(tmp_path)) == "musl"


@pytest.mark.parametrize(
    ("argv0", "first", "dropped"),
    [
        ("/opt/venv/bin/rlcheck", "/opt/venv/bin", True),
        ("-c", "", True),
        ("/x/rlcheck/__main__.py", "{cwd}", True),
        ("/opt/venv/bin/rlcheck", "/opt/project", False),
    ],
)
def test_the_entry_of_this_run_is_not_part_of_the_search_path(
    monkeypatch: pytest.MonkeyPatch, argv0: str, first: str, dropped: bool
) -> None:
    monkeypatch.setattr(sys, "argv", [argv0])
    first = first.format(cwd=os.getcwd())
    rest = ("/usr/lib/python3.12", "/opt/venv/lib/python3.12/site-packages")
    assert interpreter.search_path([first, *rest, rest[1]]) == (rest if dropped else (first, *rest))


def test_kinds(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    assert interpreter.kind() == "venv"
    monkeypatch.setattr(sys, "base_prefix", str(tmp_path))
    assert interpreter.kind() == "user"
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/pytorch-2.5.1-py3.12_cuda12.4_0.json").touch()
    (tmp_path / "conda-meta/history").touch()
    assert interpreter.kind() == "conda"
    assert interpreter.conda_packages() == {"pytorch": "2.5.1"}
    monkeypatch.setattr(sys, "base_prefix", "/usr")
    monkeypatch.setattr(sys, "prefix", "/usr")
    assert interpreter.kind() == "system"


def test_externally_managed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "base_prefix", sys.prefix)
    monkeypatch.setattr(os, "__file__", str(tmp_path / "os.py"))
    assert interpreter.describe({}, "")["externally_managed"] is False
    (tmp_path / "EXTERNALLY-MANAGED").touch()
    assert interpreter.describe({}, "")["externally_managed"] is True


def test_the_marker_of_an_externally_managed_python_is_sought_where_pip_does() -> None:
    assert interpreter._stdlib("x") == os.path.join(sysconfig.get_path("stdlib"), "x")


def test_pip_settings_come_without_credentials(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/pip.conf").write_text(
        "# comment\n[global]\nindex-url = https://user:hunter2@pypi.corp/simple\nextra-index-url =\n"
        "    https://tok3n@a/simple\n    https://b/simple\n[install]\nuser: yes\nnonsense\n"
    )
    environ = {"PIP_INDEX_URL": "https://x:hunter2@y", "HOME": "/home/me", "PATH": "/bin"}
    lines = interpreter.pip_config(environ, str(tmp_path))
    assert lines == (
        "/etc/pip.conf: global.index-url = https://***@pypi.corp/simple".replace("/etc", f"{tmp_path}/etc"),
        f"{tmp_path}/etc/pip.conf: global.extra-index-url =  https://***@a/simple https://b/simple",
        f"{tmp_path}/etc/pip.conf: install.user = yes",
        "PIP_INDEX_URL = https://***@y",
    )


def test_a_part_that_breaks_costs_itself_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def breaks(*_: object) -> None:
        raise RuntimeError("no such thing\nsecond line")

    monkeypatch.setattr(main.owners, "shared", breaks)
    document = main.scan([], {}, "/", [str(tmp_path)])
    assert document["errors"] == {"owners": "RuntimeError: no such thing"}
    assert document["version"].startswith(f"{sys.version_info.major}.")
