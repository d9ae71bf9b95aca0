"""Logs of any size and content become condensed logs: nothing that matters is lost, line numbers are the file's."""

from __future__ import annotations

import io
import random
import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlcheck.diagnose.blocks import BLOCK, Cutter
from rlcheck.diagnose.condense import HEAD, TAIL, WHOLE
from rlcheck.diagnose.model import MAX_LINE
from rlcheck.diagnose.needed import needed
from rlcheck.diagnose.scan import Finder, Search
from tests.conftest import base_environ
from tests.diagnose.long_logs import LONG, NEEDLE, condensed, texts

# A short log, whatever it holds


def test_a_short_log_is_whole() -> None:
    log = condensed(b"one\n\x1b[31mtwo\x1b[0m\r\n\nfour")
    assert [(line.number, line.text) for line in log.lines] == [(1, "one"), (2, "two"), (3, ""), (4, "four")]
    assert (log.total_lines, log.total_bytes, log.whole, log.problem) == (4, 23, True, "")


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"\x1b]0;title\x07\x1b[1;36m(Engine pid=3)\x1b[0m up", ["(Engine pid=3) up"]),
        (b"[36m(Worker pid=3)[0m up", ["(Worker pid=3) up"]),
        (b"\\x1b[32mINFO\\x1b[0m up", ["INFO up"]),
        (b"10%|#  |\r20%|## |\r\r30%|###|", ["10%|#  |", "20%|## |", "30%|###|"]),
        (b"a\x00b\x08c\x0bd\te", ["abcd\te"]),
        (b"caf\xe9 \xff", ["caf\ufffd \ufffd"]),
        (b"\x1b]0;never ends " + b"x" * 9, ["0;never ends xxxxxxxxx"]),
        (b"\r\r", [""]),
    ],
)
def test_what_is_for_terminals_goes(raw: bytes, shown: list[str]) -> None:
    assert texts(condensed(raw)) == shown


@given(st.binary(max_size=3000))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_read_and_numbered(data: bytes) -> None:
    log = condensed(data)
    numbers = [line.number for line in log.lines]
    assert numbers == sorted(numbers)
    assert set(numbers) == set(range(1, log.total_lines + 1))
    assert log.total_lines == len(data.splitlines() if b"\r" not in data else io.BytesIO(data).readlines())
    assert all(len(line.text) <= MAX_LINE and not set(line.text) & {"\n", "\r", "\x1b", "\0"} for line in log.lines)


@given(st.lists(st.text("abc xyzé", max_size=30), max_size=30))
@settings(max_examples=50, deadline=None)
def test_plain_lines_stay_as_they_are(lines: list[str]) -> None:
    assert texts(condensed("".join(f"{line}\n" for line in lines).encode())) == lines


def test_a_long_line_comes_in_pieces_that_overlap() -> None:
    line = "".join(f"{number:06}" for number in range(3000))
    log = condensed(line.encode())
    assert {piece.number for piece in log.lines} == {1}
    for start in range(0, len(line) - 200, 97):
        assert any(line[start : start + 200] in piece.text for piece in log.lines)


# A long log


def test_of_a_long_log_head_tail_and_what_matters_are_kept() -> None:
    lines = [*LONG]
    lines[40_000] = "\x1b[31m(Worker pid=1)\x1b[0m the \x1b[1mfrob\x1b[0mnicator of rank 7 is jammed"
    log = condensed("\n".join(lines).encode())
    by_number = {line.number: line.text for line in log.lines}
    assert not log.whole
    assert (log.total_lines, log.total_bytes) == (80_000, len("\n".join(lines)))
    wanted = {*range(1, HEAD + 1), *range(80_001 - TAIL, 80_001), *range(40_001 - 60, 40_001 + 61)}
    assert wanted <= set(by_number)
    assert len(by_number) < 2 * len(wanted)
    assert by_number[40_001] == f"(Worker pid=1) {NEEDLE}"
    assert all(by_number[number] == lines[number - 1] for number in by_number if number != 40_001)


@pytest.mark.parametrize("marker", ["Traceback (most recent call last):", "thread main panicked at x.rs:1", "Killed"])
def test_failures_that_no_playbook_knows_are_kept(marker: str) -> None:
    lines = [*LONG]
    lines[50_000] = marker
    assert (50_001, marker) in {(line.number, line.text) for line in condensed("\n".join(lines).encode()).lines}


def test_a_word_of_every_line_does_not_hide_the_line_that_matches() -> None:
    # `step` is in each line and is the literal of the signature; only one line matches its pattern.
    lines = [*LONG]
    lines[60_000] = "step 60000 of worker failed"
    assert lines[60_000] in texts(condensed("\n".join(lines).encode()))


def test_of_what_repeats_the_first_and_the_last_places_are_kept() -> None:
    lines = [*LONG]
    places = list(range(1_000, 79_000, 500))
    for place in places:
        lines[place - 1] = NEEDLE
    kept = {line.number for line in condensed("\n".join(lines).encode()).lines if line.text == NEEDLE}
    assert {*places[:20], *places[-5:]} <= kept
    assert len(kept) < len(places) / 2
    around = {line.number for line in condensed("\n".join(lines).encode()).lines}
    assert set(range(places[-5] - 60, places[-5] + 61)) <= around


def test_a_storm_of_errors_is_bounded_and_what_follows_it_is_found() -> None:
    storm = [f"node{number % 64}: NCCL WARN connection {number} closed ERROR: exit code 1" for number in range(60_000)]
    log = condensed("\n".join([*storm, *LONG[:9_000], NEEDLE, *LONG[:9_000]]).encode())
    assert len(log.lines) < 20_000
    assert (69_001, NEEDLE) in {(line.number, line.text) for line in log.lines}


@pytest.mark.parametrize("offset", [0, BLOCK - 20, BLOCK - 256, BLOCK - 3])
def test_in_a_line_without_end_all_is_found_and_little_kept(offset: int) -> None:
    at = BLOCK * 20 + offset
    line = b"y" * at + NEEDLE.encode() + b"y" * (WHOLE + 10)
    log = condensed(b"first\n" + line + b"\nlast")
    assert log.total_lines == 3
    assert {piece.number for piece in log.lines if NEEDLE in piece.text} == {2}
    assert log.lines[-1].text == "last"
    assert sum(len(piece.text) for piece in log.lines) < 100_000


def test_memory_is_bounded_whatever_stands_in_a_line(tmp_path: Path) -> None:
    path = tmp_path / "endless.log"
    path.write_bytes(b"y" * (30 << 20) + NEEDLE.encode())
    code = (
        "import sys; from rlcheck.diagnose.condense import read_logs; from rlcheck.diagnose.signatures import Index\n"
        "def most(): return int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0])\n"
        "before = most(); log, = read_logs(sys.argv[1:], Index()); print(most() - before, log.lines[-1].text[-6:])"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, env=base_environ(), check=True, timeout=60)
    kib, end = done.stdout.decode().split()
    assert int(kib) < 20 << 10
    assert end == "jammed"


def test_garbage_hides_nothing() -> None:
    garbage = random.Random(3).randbytes(3 << 20)
    log = condensed(garbage + b"\n" + NEEDLE.encode() + b"\n" + garbage)
    assert NEEDLE in texts(log)
    numbers = [line.number for line in log.lines]
    assert numbers == sorted(numbers)


@given(st.integers(0, 2**32), st.sampled_from([30, 100, 5000, 70_000]))
@settings(max_examples=12, deadline=None)
def test_numbers_of_a_long_log_are_right(seed: int, longest: int) -> None:
    rng = random.Random(seed)
    lines: list[bytes] = []
    left = WHOLE + 10
    while left > 0:
        size = 4 + rng.randrange(longest)
        lines.append(b"%d:" % (len(lines) + 1) + rng.choice([b"x", b"Error: y ", b"frobnicator "]) * (size // 4))
        left -= len(lines[-1])
    log = condensed(b"\n".join(lines))
    assert log.total_lines == len(lines)
    for line in log.lines:
        stated = re.match(r"(\d+):", line.text)
        if stated and len(lines[line.number - 1]) < MAX_LINE:
            assert int(stated[1]) == line.number
    assert {line.number for line in log.lines} >= set(range(len(lines) - min(len(lines), 20) + 1, len(lines) + 1))


# The search


@pytest.mark.parametrize("by", ["the automaton", "grams"])
@given(
    wanted=st.lists(st.text("abcdefgh 12:.-", min_size=3, max_size=30), min_size=1, max_size=40),
    text=st.text("abcdefgh 12:.-\n", max_size=6000),
    seed=st.integers(0, 2**32),
)
@settings(max_examples=100, deadline=None)
def test_the_finder_finds_exactly_what_is_there(by: str, wanted: list[str], text: str, seed: int) -> None:
    rng = random.Random(seed)
    for one in rng.sample(wanted, len(wanted) // 2):
        at = rng.randrange(len(text) + 1)
        text = text[:at] + one + text[at:]
    data = text.encode()
    hidden = {"ahocorasick_rs": None} if by == "grams" else {}
    with patch.dict(sys.modules, hidden):
        finder = Finder([one.encode() for one in wanted])
    assert finder.find(data) == (sorted({one.encode() for one in wanted if one in text}), data)


def test_short_texts_are_found_among_lines_that_are_all_unlike() -> None:
    rng = random.Random(5)
    lines = ["".join(rng.choices("abcdefghij klm", k=100)) for _ in range(40_000)]
    lines[20_000], lines[35_000] = "xq1z", NEEDLE
    log = condensed("\n".join(lines).encode())
    assert {(20_001, "xq1z"), (35_001, NEEDLE)} <= {(line.number, line.text) for line in log.lines}
    assert not log.problem


def test_blocks_come_out_as_they_went_in() -> None:
    rng = random.Random(7)
    lines = [b"step %d" % rng.randrange(10**9) for _ in range(300_000)]
    for at in range(0, len(lines), 7_000):
        lines[at] += b" \x1b[1mthe rank that never came\x1b[0m"
    blocks = list(Cutter().feed(b"\n".join(lines) + b"\n"))
    search = Search([b"the rank that never came", b"not there"])
    found = [one for start in range(0, len(blocks), 3) for one in search.push(blocks[start : start + 3])]
    found += search.rest()
    assert [block for block, _ in found] == blocks
    held = {block.first for block, (texts, _) in found if texts}
    assert held == {block.first for block in blocks if b"never came" in block.data}


@pytest.mark.parametrize(
    ("pattern", "literal", "matches"),
    [
        (r"Capture (?:CUDA|cuda) [Gg]raph failed", "failed", ["Capture cuda Graph failed"]),
        (r"(?i)no such thing", "such", ["NO such thing"]),
        (r"abcdefgh?i.{0,9}(?P<n>\d+) of (?:x|y+)", "of", ["abcdefgi 12 of yyy", "abcdefghi1 of x"]),
        (r"(?:first case \d|second|)the end\b", "the end", ["first case 1the end", "the end"]),
        (r"(?:ab){2,3}c+[^d]e{0}f*", "ab", ["ababcccx", "abababcgff"]),
        (r"one\nline two", "one", ["one\nline two"]),
        (r"(?=look)look(?!x)\b.", "look", ["look "]),
    ],
)
def test_every_match_holds_one_of_the_needed_texts(pattern: str, literal: str, matches: list[str]) -> None:
    found = needed(pattern, literal)
    for match in matches:
        assert re.search(pattern, match)
        assert any(text in match for text in found), (found, match)
        assert not any("\n" in text for text in found)


def test_needed_texts_are_rarer_than_the_literal() -> None:
    assert needed(r"Capture (?:CUDA|cuda) graph failed", "failed") == {
        "Capture CUDA graph faile",
        "Capture cuda graph faile",
    }
