"""The screen: every column that a user looks for, never wider than 80, and hardly a word in a pipe."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from rltrain.controller.callbacks import StepRecord
from rltrain.controller.callbacks.console import LiveConsole, PlainConsole
from rltrain.controller.callbacks.words import COLUMNS, STAGES, WIDTH, duration, fitted, footer, plain_line, trend
from rltrain.core import work
from rltrain.core.progress import Stages
from rltrain.core.work import WorkFiles
from tests.trainer.controller.build import pipe, run, terminal

ORDINARY = {
    "critic/score/mean": 0.5,
    "val/reward/mean": 0.25,
    "actor/ppo_kl": 1.5e-3,
    "actor/kl_loss": 2.5e-2,
    "actor/reward_kl_penalty": -3.5e-2,
    "actor/entropy": 2.25,
    "actor/pg_loss": -0.125,
    "critic/vf_loss": 0.375,
    "critic/vf_explained_var": 0.75,
    "actor/grad_norm": 0.875,
    "training/rollout_probs_diff_mean": 7.5e-9,
    "response_length/mean": 5.5,
    "timing_s/step": 3.25,
    "timing_s/grad_comm": 0.11,
    "perf/throughput": 1234.0,
    "perf/cpu_memory_used_gb": 5.5,
    "perf/device_memory_used_gb": 61.5,
    "perf/max_memory_allocated_gb": 33.5,
} | {f"timing_s/{stage}": 123.456 for stage in STAGES}


def table(metrics: dict[str, float], work: WorkFiles, path: Path, *stages: str) -> list[str]:
    """The last picture after one step with METRICS."""
    console, _ = terminal()
    live = LiveConsole(console, work)
    live.on_run_start(run(path, total_steps=99_999))
    try:
        for step in range(99_970, 100_000):
            live.on_step_end(StepRecord(step, metrics))
        for stage in stages:
            live.stage(stage)
        return drawn(live)
    finally:
        live.on_run_end("finished")


def drawn(live: LiveConsole) -> list[str]:
    """What LIVE shows now, on a screen too wide to hide anything."""
    wide = Console(width=200, color_system=None, highlight=False)
    with wide.capture() as capture:
        wide.print(live._draw())  # pyright: ignore[reportPrivateUsage]
    return [line.rstrip() for line in capture.get().splitlines()]


@pytest.mark.row("F63")
def test_the_table_names_every_number_that_a_user_looks_for(tmp_path: Path) -> None:
    text = "\n".join(table(ORDINARY, WorkFiles({}), tmp_path))
    for shown in ("0.500", "0.250", "1.5e-03", "2.25", "-0.125", "0.375", "0.75", "0.88", "7.5e-09", "5.5", "3.25"):
        assert shown in text
    for fact in ("1,234 tokens/s", "gradient communication 0.11 s", "host 5.5 GiB", "GPU 61.5 GiB", "of it torch 33.5"):
        assert fact in text
    assert "KL to the reference: 2.5e-02 in the loss · -3.5e-02 in the reward" in text
    assert "99999  0.500" in text, "the last step's number is whole"
    for name, _ in STAGES.values():
        assert f"{name} 123.46" in text


@pytest.mark.parametrize("value", [0.0, -1.0e-12, 123456.789, -98765.4, 1e30, math.nan, -math.inf])
def test_no_value_makes_the_table_wider_than_the_screen(value: float, tmp_path: Path) -> None:
    lines = table(dict.fromkeys(ORDINARY, value), WorkFiles({}), tmp_path, "testing", "update_weights")
    assert max(map(len, lines)) <= WIDTH
    assert sum(column.width + 1 for column in COLUMNS) - 1 <= WIDTH
    for column in COLUMNS:
        assert len(column.cell(1_000_000, {column.metric: value})) <= column.width


def test_a_stage_shows_how_far_it_is(tmp_path: Path) -> None:
    """Counts of all workers together; those of the stage before are forgotten."""
    logs = [tmp_path / f"train-{rank}.log" for rank in range(2)]
    files = [work.place_of(log) for log in logs]
    for file in files:
        file.write_bytes(work._COUNTS.pack(3, 8))  # pyright: ignore[reportPrivateUsage]
    counted = WorkFiles({"update_actor": files})
    assert counted.counts("update_actor") == (6, 16)
    assert counted.counts("gen") is None
    assert not any("6/16" in line for line in table(ORDINARY, counted, tmp_path / "run", "update_actor"))

    console, _ = terminal()
    live = LiveConsole(console, counted)
    live.on_run_start(run(tmp_path / "run"))
    live.stage("update_actor")
    files[0].write_bytes(work._COUNTS.pack(2, 8))  # pyright: ignore[reportPrivateUsage]
    assert any(line.startswith("updating the actor ━━━╌") and " 2/8 " in line for line in drawn(live))
    live.on_run_end("finished")


def test_generation_for_validation_is_called_so(tmp_path: Path) -> None:
    assert table(ORDINARY, WorkFiles({}), tmp_path, "testing", "gen")[1].startswith("validating: generating")
    assert table(ORDINARY, WorkFiles({}), tmp_path, "testing", "gen", "step", "gen")[1].startswith("generating")


def test_a_pipe_gets_about_twenty_lines_of_a_long_run(tmp_path: Path) -> None:
    console, text = pipe()
    plain = PlainConsole(console)
    plain.on_run_start(run(tmp_path, total_steps=1000))
    for step in range(1, 1001):
        plain.on_step_end(StepRecord(step, {"critic/score/mean": 0.5}))
    assert len(text.getvalue().splitlines()) == 20
    plain.on_step_end(StepRecord(1, {"val/reward/mean": 0.5}))
    assert text.getvalue().splitlines()[-1] == "step 1/1000  val 0.500"
    assert len(plain_line(1000, 1000, ORDINARY)) <= WIDTH


@pytest.mark.row("F22")
def test_a_stage_in_a_pipe_is_one_line_and_words_while_it_lasts() -> None:
    console, text = pipe()
    stages = Stages(console)
    stages.still("not said: no stage lasts")
    with stages.stage("loading") as done:
        done(1)
        stages.still("loading (15 s, at most 300)")
    first, second = text.getvalue().splitlines()
    assert first == "loading (15 s, at most 300)"
    assert second.startswith("loading: ")


def test_a_stage_in_a_terminal_is_a_bar_with_counts() -> None:
    console, text = terminal()
    stages = Stages(console)
    with stages.stage("warm-up", 8) as done:
        done(8)
        stages.still("not said: the bar shows it")
        stages.say("a line")
    assert "8/8" in text.getvalue()
    assert "not said" not in text.getvalue()
    assert "a line" in text.getvalue()


def test_a_run_outlives_its_reader(tmp_path: Path) -> None:
    """`rltrain run … | head`, or a `tee` that was killed."""
    code = (
        "import sys\nfrom rltrain.core.progress import screen\nscreen = screen()\nprint('here', flush=True)\n"
        "sys.stdin.read()\nfor _ in range(3): screen.print('a line')\nopen(sys.argv[1], 'w').write('went on')"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "mark")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        assert child.stderr is not None
        assert child.stdout.readline() == b"here\n"
        child.stdout.close()
        child.stdin.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 0
    assert (tmp_path / "mark").read_text() == "went on"


def test_a_run_outlives_its_terminal(tmp_path: Path) -> None:
    """A connection that was lost: every write is an I/O error from then on."""
    code = (
        "import sys, os, signal\nfrom rltrain.core.progress import screen\n"
        "signal.signal(signal.SIGHUP, signal.SIG_IGN)\n"
        "screen = screen()\nassert screen.is_terminal\nscreen.print('here')\n"
        "sys.stdin.read()\nfor _ in range(3): screen.print('a line')\nopen(sys.argv[1], 'w').write('went on')"
    )
    ours, theirs = os.openpty()
    command = [sys.executable, "-c", code, str(tmp_path / "mark")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=theirs, stderr=subprocess.PIPE) as child:
        os.close(theirs)
        assert child.stdin is not None
        assert child.stderr is not None
        assert b"here" in os.read(ours, 100)
        os.close(ours)
        child.stdin.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 0
    assert (tmp_path / "mark").read_text() == "went on"


def test_words_of_numbers() -> None:
    assert [duration(s) for s in (5.2, 119, 600, 4000, 90000)] == ["5 s", "119 s", "10 min", "67 min", "25 h 00 min"]
    assert [fitted(v, ".2f", 5) for v in (1.0, 123.456, 12345.6, 1234567.0)] == ["1.00", "123.5", "12346", "1e+06"]
    assert [fitted(v, ".1e", 7) for v in (-4.46e-4, 4.46e-4)] == ["-4e-04", "4.5e-04"], "a small KL is not 0"
    assert trend([0, 1, math.nan, 7]) == "▁▂█"
    assert trend([]) == ""
    assert footer({}) == []
