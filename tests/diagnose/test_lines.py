"""What launchers and loggers put before a message is taken off, and told."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcheck.diagnose.lines import Message, read_line
from rlcheck.diagnose.literals import any_of
from rlcheck.diagnose.model import LogLine

TEXT = "ValueError: no"
LINES = {
    "(TaskRunner pid=85869) {}": {"pid": "85869"},
    "(WorkerDict pid=41, ip=10.0.0.7) {}": {"pid": "41", "node": "10.0.0.7"},
    "(raylet, ip=10.0.0.7) {}": {"node": "10.0.0.7"},
    "(VllmWorker rank=3 pid=7) ERROR 08-12 01:36:10 [multiproc_executor.py:511] {}": {"rank": "3", "pid": "7"},
    "(EngineCore_DP0 pid=2) ERROR 11-14 15:11:23 [v1/engine/core.py:72] {}": {"pid": "2", "time": "11-14 15:11:23"},
    "ERROR 06-13 11:42:20 _custom_ops.py:11] {}": {"time": "06-13 11:42:20"},
    "[rank12]: {}": {"rank": "12"},
    "[default0]:{}": {"rank": "0"},
    "[rank3]:[E323 12:00:00.123456 ProcessGroupNCCL.cpp:616] {}": {"rank": "3", "time": "323 12:00:00.123456"},
    "[2026-01-02 03:04:05,678 E 12 34] (gcs_server) gcs_client.cc:5: {}": {"pid": "12"},
    "[2026-03-24 14:09:34 TP14] {}": {"time": "2026-03-24 14:09:34"},
    "2026-07-04 18:17:57,324\tWARNING utils.py:1597 -- {}": {"time": "2026-07-04 18:17:57.324"},
    "2026-03-05 16:46:49 2026-03-05 21:46:49,643     INFO worker.py:1429 -- {}": {"time": "2026-03-05 16:46:49"},
    "2026-01-26T09:59:13.239Z {}": {"time": "2026-01-26 09:59:13.239"},
    " 3: [rank3]: {}": {"rank": "3"},
    "{}": {"rank": "", "pid": "", "node": "", "time": ""},
}


def read(text: str) -> Message:
    return read_line(LogLine(number=1, text=text), 0, 0)


@pytest.mark.parametrize("line", LINES)
def test_prefixes(line: str) -> None:
    message = read(line.format(TEXT))
    assert message.text.removeprefix("gcs_client.cc:5: ") == TEXT
    assert message.whole == line.format(TEXT)
    assert {name: getattr(message, name) for name in LINES[line]} == LINES[line]


def test_indentation_of_a_traceback_stays() -> None:
    assert read('(WorkerDict pid=1)   File "a.py", line 3, in f').text == '  File "a.py", line 3, in f'
    assert read("    raise ValueError").text == "    raise ValueError"


def test_nccl_tells_node_and_process_in_its_message() -> None:
    message = read("node5:240:241 [6] misc/socket.cc:533 NCCL WARN no route")
    assert (message.node, message.pid, message.text) == ("node5", "240", message.whole)


@given(st.text(max_size=300))
def test_any_text_is_a_line(text: str) -> None:
    message = read(text)
    assert text.endswith(message.text)


@given(st.lists(st.text("ab.(", min_size=1, max_size=6), min_size=1, max_size=8), st.text("ab.(c\n", max_size=60))
def test_one_pattern_finds_what_any_literal_finds(literals: list[str], text: str) -> None:
    assert (any_of(literals).search(text) is not None) == any(literal in text for literal in literals)
