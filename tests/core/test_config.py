"""Settings files: found, understood, and refused in one line."""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path

import pytest

from rlcheck.doctor.settings import ConfigError, IgnoreEntry, Settings, load_settings, waivers
from rlcheck.finding import Waiver
from tests.conftest import rlcheck

TODAY = date(2026, 11, 21)
Acme = dict[str, str | None]


def write(directory: Path, text: str, name: str = "pyproject.toml") -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / name).write_text(text)
    return directory


FULL = """
[tool.rlcheck]
select = ["ENV", "GPU"]
strict = true
[[tool.rlcheck.ignore]]
id = "SYS004"
reason = "swap is wanted"
expires = "2027-01-31"
[[tool.rlcheck.ignore]]
id = "SYS005"
expires = 2020-01-01
"""


def test_everything_is_read(tmp_path: Path) -> None:
    settings = load_settings(write(tmp_path, FULL))
    assert settings == Settings(
        select=("ENV", "GPU"),
        strict=True,
        ignore=(
            IgnoreEntry(id="SYS004", reason="swap is wanted", expires=date(2027, 1, 31)),
            IgnoreEntry(id="SYS005", expires=date(2020, 1, 1)),
        ),
        path=str(tmp_path / "pyproject.toml"),
    )


def test_the_nearest_file_counts(tmp_path: Path) -> None:
    write(tmp_path, FULL)
    below = write(tmp_path / "a", "[tool.other]\nx = 1\n") / "b"
    below.mkdir()
    assert load_settings(below).select == ("ENV", "GPU")
    write(below, "strict = true\n", "rlcheck.toml")
    assert load_settings(below) == Settings(strict=True, path=str(below / "rlcheck.toml"))


def test_its_own_file_needs_no_table_and_goes_first(tmp_path: Path) -> None:
    write(tmp_path, FULL)
    write(tmp_path, 'select = ["NET"]\n', "rlcheck.toml")
    assert load_settings(tmp_path).select == ("NET",)


@pytest.mark.parametrize(
    "text", ["", "[tool]\n", "[tool.ruff]\n", 'x = "[tool.other] rlcheck"\n', "[project]\nname = 'rlcheck'\n"]
)
def test_a_project_that_does_not_mention_us(text: str, tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, text)) == Settings()


def test_a_broken_project_that_does_not_mention_us_is_not_our_business(tmp_path: Path) -> None:
    assert load_settings(write(tmp_path, "dependencies = ['rlcheck'\n[[[")) == Settings()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[tool.rlcheck]\nselct = ['ENV']", "unknown field `selct`"),
        ("[tool.rlcheck]\nselect = 'ENV'", "select"),
        ("[tool.rlcheck]\nstrict = 'yes'", "strict"),
        ("[[tool.rlcheck.ignore]]\nreason = 'x'", "missing required field `id`"),
        ("[[tool.rlcheck.ignore]]\nid = 'SYS001'\nexpires = 'soon'", "expires"),
        ("[[tool.rlcheck.ignore]]\nid = 'SYS001'\nuntil = '2027-01-01'", "unknown field `until`"),
        ("[tool.rlcheck\n", "not valid TOML"),
        ("[tool.rlcheck]\na = " + "[" * 10_000, "not valid TOML"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load_settings(write(tmp_path, text))
    assert str(tmp_path / "pyproject.toml") in str(caught.value)
    assert says in str(caught.value)
    done = rlcheck("env", "--select", "SYS001", cwd=tmp_path)
    assert done.code == 2
    assert says in done.error_line


def test_unreadable_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rlcheck.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings(tmp_path)
    (tmp_path / "rlcheck.toml").unlink()
    (tmp_path / "pyproject.toml").write_bytes(b"\xff\xfe [tool.rlcheck]")
    assert load_settings(tmp_path) == Settings()
    (tmp_path / "pyproject.toml").unlink()
    (tmp_path / "pyproject.toml").mkdir()
    assert load_settings(tmp_path) == Settings()

    def forbidden(path: object, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.stat", forbidden)
    assert load_settings(tmp_path) == Settings()


def test_waivers_expire_the_day_after() -> None:
    settings = Settings(
        ignore=(
            IgnoreEntry(id="SYS001", reason="r"),
            IgnoreEntry(id="SYS002", expires=TODAY),
            IgnoreEntry(id="SYS003", expires=date(2026, 11, 20)),
        ),
        path="f.toml",
    )
    found, notes = waivers(settings, ("SYS004",), TODAY)
    assert found == {
        "SYS001": Waiver(reason="r"),
        "SYS002": Waiver(expires="2026-11-21"),
        "SYS004": Waiver(reason="--ignore on the command line"),
    }
    assert notes == ("f.toml: the ignore of SYS003 expired on 2026-11-20 and is not applied",)


def test_a_waived_failure_is_shown_and_does_not_fail(acme: Acme, tmp_path: Path) -> None:
    write(tmp_path, "[[tool.rlcheck.ignore]]\nid = 'ACM001'\nreason = 'we know'\nexpires = 2999-01-01\n")
    done = rlcheck("env", "--select", "ACM", env=acme, cwd=tmp_path)
    assert done.code == 0
    assert "(waived: we know, until 2999-01-01)" in done.out
    report = json.loads(rlcheck("env", "--select", "ACM", "--format", "json", env=acme, cwd=tmp_path).out)
    assert report["summary"]["waived"] == 1
    assert report["checks"][-1]["waived"] == {"reason": "we know", "expires": "2999-01-01"}


def test_an_expired_waiver_is_told_and_the_failure_counts(acme: Acme, tmp_path: Path) -> None:
    write(tmp_path, "[[tool.rlcheck.ignore]]\nid = 'ACM001'\nexpires = 2020-01-01\n")
    done = rlcheck("env", "--select", "ACM", env=acme, cwd=tmp_path)
    assert done.code == 1
    assert "the ignore of ACM001 expired on 2020-01-01" in done.out


def test_strict_and_select_from_the_file(acme: Acme, tmp_path: Path) -> None:
    write(tmp_path, "[tool.rlcheck]\nstrict = true\nselect = ['ACM002']\n")
    done = rlcheck("env", "--format", "json", env=acme, cwd=tmp_path)
    assert [finding["id"] for finding in json.loads(done.out)["checks"]] == ["ACM002"]
    assert done.code == 1
    assert rlcheck("env", "--select", "ACM001", env={**acme, "ACME_MODE": "fast"}, cwd=tmp_path).code == 0


def test_an_ignore_that_names_nothing_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "[[tool.rlcheck.ignore]]\nid = 'SYS901'\n")
    assert "SYS901" in rlcheck("env", "--select", "SYS001", cwd=tmp_path).error_line


def test_a_directory_that_is_gone(acme: Acme, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    code = f"import os, sys; os.rmdir({str(gone)!r}); sys.argv = ['rlcheck', 'env', '--select', 'ACM001']; "
    code += "from rlcheck.cli.app import main; main()"
    import subprocess
    import sys

    from tests.conftest import base_environ

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=gone, env=base_environ(acme), capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr


def test_python_3_10_without_tomli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A project that only names us, as a script or a dependency, must not ask for a TOML reader."""
    monkeypatch.setitem(sys.modules, "tomllib", None)
    monkeypatch.setitem(sys.modules, "tomli", None)
    (tmp_path / "pyproject.toml").write_text('[project.scripts]\nrlcheck = "rlcheck.cli.app:main"\n')
    assert load_settings(tmp_path).path == ""
    (tmp_path / "pyproject.toml").write_text('[tool.rlcheck]\nselect = ["ENV"]\n')
    with pytest.raises(ConfigError, match="pip install tomli"):
        load_settings(tmp_path)
