"""Where logs come from: files, packed or damaged, directories, pipes, and what is still being written."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from rlcheck.diagnose.condense import condense, read_logs
from rlcheck.diagnose.follow import follow
from rlcheck.diagnose.model import CondensedLog
from rlcheck.diagnose.reader import Reader
from rlcheck.diagnose.sources import MOST_FILES, Source, open_sources
from rlcheck.errors import UserError
from tests.conftest import base_environ
from tests.diagnose.long_logs import INDEX, LONG, NEEDLE, texts

# Where logs come from


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_packed_logs_are_unpacked(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    path = tmp_path / "train.log"  # by its content, whatever its name
    path.write_bytes(pack(f"one\n{NEEDLE}\n".encode()))
    (log,) = read_logs([str(path)], INDEX)
    assert texts(log) == ["one", NEEDLE]


@pytest.mark.parametrize("damage", ["cut", "spoiled"])
def test_a_damaged_gzip_counts_as_far_as_it_goes(tmp_path: Path, damage: str) -> None:
    packed = bytearray(gzip.compress("\n".join(LONG).encode()))
    if damage == "cut":
        del packed[len(packed) // 2 :]
    else:
        packed[len(packed) // 2 : len(packed) // 2 + 9] = b"\xff" * 9
    path = tmp_path / "train.log.gz"
    path.write_bytes(packed)
    (log,) = read_logs([str(path)], INDEX)
    assert log.problem.startswith("the gzip file ")
    assert log.lines[0].text == LONG[0]
    assert log.total_lines > 100


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be"])
def test_utf_16_is_decoded(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "out.txt"
    path.write_bytes(f"\ufeffone\r\n{NEEDLE} é\r\n".encode(encoding))
    assert texts(read_logs([str(path)], INDEX)[0]) == ["one", f"{NEEDLE} é"]


def test_an_empty_file_is_an_empty_log(tmp_path: Path) -> None:
    (tmp_path / "a.log").touch()
    (log,) = read_logs([str(tmp_path / "a.log"), str(tmp_path / "a.log")], INDEX)
    assert (log.lines, log.total_lines, log.whole) == ((), 0, True)


def test_standard_input_is_a_log() -> None:
    code = (
        "from rlcheck.diagnose.condense import read_logs; from rlcheck.diagnose.signatures import Index\n"
        "log, = read_logs(['-'], Index()); print(log.name, log.total_lines, log.lines[-1].text)"
    )
    command = [sys.executable, "-c", code]
    data = gzip.compress(b"one\ntwo\nthree\n")
    done = subprocess.run(command, input=data, capture_output=True, env=base_environ(), check=True, timeout=60)
    assert done.stdout == b"- 3 three\n"


def test_a_directory_stands_for_its_logs(tmp_path: Path) -> None:
    logs = ["none/attempt_0/0/stderr.log", "none/attempt_0/1/stdout.log", "logs/raylet.out", "logs/worker-a-1.err"]
    logs += ["slurm-12.out", "train.log.1", "train.log.2026-11-22", "job.o1234", "old.log.gz", "stderr"]
    others = ["model.safetensors", "config.json", "data.jsonl", "plot.png", ".git/x.log", "global_step_1/model.pt"]
    for name in [*logs, *others]:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(b"x\n") if name.endswith(".gz") else b"x\n")
    (tmp_path / "binary.log").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "loop").symlink_to(tmp_path)
    (tmp_path / "again.log").symlink_to(tmp_path / "train.log.1")
    (tmp_path / "dangling.log").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.log")
    names = [source.name for source in open_sources([str(tmp_path)])]
    again = {str(tmp_path / "again.log"), str(tmp_path / "train.log.1")}
    assert len(again & set(names)) == 1
    assert set(names) - again == {str(tmp_path / name) for name in logs} - again
    assert names == [source.name for source in open_sources([str(tmp_path)])]
    # Without times the order decides, and a service of Ray only tells of what a worker has said itself.
    assert names[-1] == str(tmp_path / "logs/raylet.out")


def test_a_directory_of_too_many_logs_says_so(tmp_path: Path) -> None:
    for number in range(MOST_FILES + 5):
        (tmp_path / f"{number}.log").write_text("x")
    *sources, note = open_sources([str(tmp_path)])
    assert len(sources) == MOST_FILES
    log = condense(note, INDEX)
    assert log.problem == f"only its first {MOST_FILES} logs were read; name the others"


def test_what_cannot_be_read_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        for path, word in [
            (str(tmp_path / "gone.log"), "no such file"),
            (str(tmp_path / "empty"), "no logs here"),
            ("/dev/zero", "not a file but a device"),
            (str(tmp_path / "s"), "cannot be read"),
            ("a\0b", "cannot be read"),
        ]:
            with pytest.raises(UserError, match=word) as caught:
                list(open_sources([path]))
            assert "\n" not in str(caught.value)


def test_a_fifo_without_writer_does_not_hang(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "p")
    assert read_logs([str(tmp_path / "p")], INDEX)[0].total_lines == 0


def test_a_reading_error_is_the_problem_of_the_log() -> None:
    class Broken(io.RawIOBase):
        def __init__(self) -> None:
            self.left = 2

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: object) -> int:
            self.left -= 1
            if self.left < 0:
                raise OSError(5, "Input/output error")
            view = memoryview(buffer)  # type: ignore[arg-type]
            view[:4] = b"one\n"
            return 4

    reader = Reader(io.BufferedReader(Broken(), 16))
    assert b"".join(reader).startswith(b"one\n")
    assert "Input/output error" in reader.problem


def test_many_logs_together_are_kept_shorter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlcheck.diagnose.condense._ALL_WHOLE", 100_000)
    for number in range(4):
        (tmp_path / f"{number}.log").write_text("\n".join(LONG[:3_000]))
    logs = read_logs([str(tmp_path)], INDEX)
    assert [log.whole for log in logs] == [True, False, False, False]
    assert all(log.total_lines == 3_000 and log.lines[-1].text == LONG[2_999] for log in logs)


# A log that is being written


def test_follow_waits_for_the_file_and_tells_each_pause(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    said: list[str] = []

    def write() -> None:
        time.sleep(0.3)
        with path.open("w") as file:
            for text in ("one\n", f"two\n{NEEDLE}\n"):
                file.write(text)
                file.flush()
                time.sleep(1.5)

    writer = threading.Thread(target=write)
    writer.start()
    states = list(follow(str(path), INDEX, timeout=4, quiet=0.3, appear=5, waiting=said.append))
    writer.join()
    assert said == [f"{path}: not there yet; waiting up to 5 s for it"]
    assert [texts(state) for state in states] == [["one"], ["one", "two", NEEDLE]]


@pytest.mark.parametrize("how", ["renamed", "cut"])
def test_follow_goes_on_with_a_file_that_was_replaced(tmp_path: Path, how: str) -> None:
    path = tmp_path / "train.log"
    path.write_text("old and long\n")
    states: list[CondensedLog] = []
    for state in follow(str(path), INDEX, timeout=0.8, quiet=0.1):
        states.append(state)
        if len(states) == 1:
            if how == "renamed":
                with path.open("a") as file:
                    file.write("its end\n")
                path.rename(tmp_path / "train.log.1")
            path.write_text("new\n")
    assert texts(states[0]) == ["old and long"]
    assert texts(states[-1]) == ["new"]
    assert "while it was followed" in states[-1].problem
    if how == "renamed":
        assert texts(states[1]) == ["old and long", "its end"]


def test_follow_ends_with_the_writer_of_a_pipe() -> None:
    code = (
        "from rlcheck.diagnose.follow import follow; from rlcheck.diagnose.signatures import Index\n"
        "for log in follow('-', Index(), quiet=0.2): print(log.total_lines, flush=True)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=base_environ()
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(b"one\n")
    process.stdin.flush()
    assert process.stdout.readline() == b"1\n"
    out, _ = process.communicate(b"two", timeout=30)
    assert out == b"2\n"


def test_follow_says_what_did_not_appear(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="did not appear within"):
        list(follow(str(tmp_path / "x"), INDEX, appear=0.05))
    (tmp_path / "x.gz").write_bytes(gzip.compress(b"x"))
    with pytest.raises(UserError, match="without --follow"):
        list(follow(str(tmp_path / "x.gz"), INDEX, timeout=1))


def test_a_source_is_opened_each_time_anew() -> None:
    with tempfile.NamedTemporaryFile() as file:
        file.write(b"one\n")
        file.flush()
        source = Source(file.name, file.name)
        assert condense(source, INDEX) == condense(source, INDEX)
