from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from rlcheck.measure.machine.context import ProbeContext
from rlcheck.remote import fs_child

ALL = ["statvfs", "write_lock"]
NOBODY = 65534


def ask(*items: Any, timeout_s: float = 10.0) -> dict[str, dict[str, Any]]:
    lines = ProbeContext().child("fs_child.py", {"paths": list(items)}, timeout_s=timeout_s)
    return {line["path"]: line for line in lines}


def test_measures_and_leaves_nothing_behind(tmp_path: Path) -> None:
    line = ask({"path": str(tmp_path), "actions": ALL, "fs_type": "nfs4"})[str(tmp_path)]
    assert (line["exists"], line["at"], line["error"], line["fs_type"]) == (True, str(tmp_path), "", "nfs4")
    assert line["total_bytes"] >= line["free_bytes"] > 0
    assert line["owner_uid"] == os.geteuid()
    assert line["mode"] == 0o700 or line["mode"] == 0o755
    assert line["writable"] is True
    assert line["write_lock"] == {"ok": True, "step": "", "errno": ""}
    assert list(tmp_path.iterdir()) == []


def test_path_that_is_not_there_yet(tmp_path: Path) -> None:
    wanted = tmp_path / "a/b"
    line = ask({"path": str(wanted), "actions": ALL})[str(wanted)]
    assert (line["exists"], line["at"]) == (False, str(tmp_path))
    assert line["total_bytes"] > 0
    assert line["write_lock"] == {"ok": False, "step": "create", "errno": "ENOENT"}


def test_one_line_each_and_errors_by_name(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    loop, file = str(tmp_path / "loop" / "x"), tmp_path / "file"
    file.write_text("")
    lines = ask(
        {"path": str(tmp_path)}, {"path": loop}, {"path": str(file), "actions": ["write_lock"]}, {"path": "a\0b"}
    )
    assert lines[loop]["error"] == "ELOOP"
    assert lines[str(file)]["write_lock"]["errno"] == "ENOTDIR"
    assert lines["a\0b"]["error"] == "ValueError"
    assert lines[str(tmp_path)]["total_bytes"] > 0


@pytest.fixture
def closed() -> Iterator[Path]:
    """A directory in which this process may not write; root, who may everywhere, is nobody meanwhile."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        if os.geteuid() == 0:
            os.setresuid(NOBODY, NOBODY, 0)
        yield Path(folder)
        if os.getuid() == NOBODY:
            os.setresuid(0, 0, 0)


def test_directory_that_is_closed(closed: Path) -> None:
    assert fs_child.measure(str(closed))["writable"] is False
    assert fs_child.write_lock(str(closed)) == {"ok": False, "step": "create", "errno": "EACCES"}


@pytest.mark.row("F58")
@pytest.mark.parametrize(
    ("call", "step"), [("os.open", "create"), ("os.write", "write"), ("os.unlink", "remove"), ("fcntl.flock", "lock")]
)
def test_each_step_that_fails_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, step: str) -> None:
    """F58: a cache on a file system without locks, or over its quota."""

    def refuse(*args: Any, **more: Any) -> None:
        raise OSError(errno.EDQUOT, "over quota")

    module, name = call.split(".")
    monkeypatch.setattr(getattr(fs_child, module), name, refuse)
    assert fs_child.write_lock(str(tmp_path)) == {"ok": False, "step": step, "errno": "EDQUOT"}
    monkeypatch.undo()
    left = list(tmp_path.iterdir())
    assert len(left) == (1 if step == "remove" else 0)


def test_a_path_that_hangs_holds_up_itself_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One dead server: the other line comes, and the whole is over at the deadline."""
    script = tmp_path / "remote"
    script.mkdir()
    source = Path(fs_child.__file__).read_text(encoding="utf-8")
    slow = 'def measure(path: str) -> dict:\n    import time\n    time.sleep(60 if path.endswith("dead") else 0)\n'
    (script / "fs_child.py").write_text(source.replace("def measure(path: str) -> dict:\n", slow), encoding="utf-8")
    monkeypatch.setattr("rlcheck.measure.machine.process._REMOTE", script)
    (tmp_path / "dead").mkdir()
    lines = ask({"path": str(tmp_path / "dead")}, {"path": str(tmp_path)}, timeout_s=1.0)
    assert list(lines) == [str(tmp_path)]


@pytest.mark.parametrize("request_text", ["", "garbage", "{}", '{"paths": []}'])
def test_odd_requests_give_no_lines(request_text: str) -> None:
    from rlcheck.measure.machine.process import stream_child

    assert stream_child("fs_child.py", request_text.encode(), {}, 10.0) == []
