"""`rlcheck run` as a user types it: runs on disk, reports in every format, two runs side by side."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlcheck.facts.run import Curve
from tests.checks.run.synthetic import healthy_curves
from tests.cli.made_runs import constant_reward, write_run
from tests.conftest import base_environ, in_terminal, rlcheck

COLOUR = re.compile(r"\x1b\[[\d;]*[mK]")
STACK = {"torch", "ray", "vllm", "transformers", "pydantic", "omegaconf", "numpy", "matplotlib", "rltrain"}


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("runs") / "healthy", healthy_curves())


@pytest.fixture(scope="module")
def alike(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every answer earns the same."""
    return write_run(tmp_path_factory.mktemp("runs") / "alike", constant_reward(healthy_curves()))


def report_of(*words: str | Path, code: int = 0) -> dict[str, Any]:
    done = rlcheck("run", *words, "-f", "json")
    assert done.code == code, done.out + done.err
    return json.loads(done.out)


@pytest.mark.row("F64")
def test_a_healthy_run_is_a_table_that_fits_a_terminal(healthy: Path) -> None:
    done = in_terminal("run", healthy, columns=80)
    assert done.code == 0, done.out
    assert "first:" not in done.out
    lines = COLOUR.sub("", done.out).splitlines()
    assert max(len(line) for line in lines if str(healthy) not in line) <= 80
    reward = next(line for line in lines if line.strip().startswith("reward"))
    assert reward.rstrip().endswith("█")
    assert "finished" in done.out


@pytest.mark.parametrize("command", ["run", "drift"])
def test_help_fits_a_terminal(command: str) -> None:
    done = in_terminal(command, "--help", columns=80)
    assert done.code == 0
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_ascii_is_ascii(alike: Path) -> None:
    done = rlcheck("run", alike, "--ascii")
    assert done.out.isascii()
    assert "#" in next(line for line in done.out.splitlines() if line.strip().startswith("response length"))


def test_what_to_mend_first_is_the_first_line(alike: Path) -> None:
    done = rlcheck("run", alike)
    assert done.code == 1
    assert done.out.splitlines()[1].startswith("first: RUN011: Rewards do not differ between answers; ")
    assert report_of(alike, code=1)["checks"][0]["id"] == "RUN011"
    assert report_of(alike, "--ignore", "RUN011")["checks"][0]["status"] != "fail"


def test_only_checks_of_what_was_read_are_made(healthy: Path) -> None:
    ids = {check["id"] for check in report_of(healthy)["checks"]}
    assert {"RUN011", "DRF007"} <= ids
    assert not {id for id in ids if id in ("RUN001", "RUN002") or (id >= "DRF020" and id.startswith("DRF"))}


@pytest.mark.parametrize("format", ["markdown", "junit", "sarif"])
def test_every_format_names_the_finding(alike: Path, format: str) -> None:
    done = rlcheck("run", alike, "-f", format)
    assert done.code == 1
    assert "RUN011" in done.out


def test_a_record_is_judged_alike(alike: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    here = report_of(alike, "--record", record, code=1)
    there = report_of("--facts", record, code=1)
    statuses = [{check["id"]: check["status"] for check in report["checks"]} for report in (here, there)]
    assert statuses[0] == statuses[1]


def test_two_runs_part_where_they_part(healthy: Path, tmp_path: Path) -> None:
    curves = healthy_curves()
    entropy = curves["actor/entropy"]
    later = tuple(value * (1.5 if step >= 20 else 1) for step, value in zip(entropy.steps, entropy.values, strict=True))
    other = write_run(
        tmp_path / "b", {**curves, "actor/entropy": Curve(steps=entropy.steps, values=later)}, settings={"data.seed": 7}
    )
    found = report_of(healthy, "--compare", other)["data"]["compare"]
    assert found["equal_until"] == 19
    assert [row[:2] for row in found["first"]] == [[20, "actor/entropy"]]
    assert found["settings"] == [["data.seed", "", "7"]]
    shown = in_terminal("run", healthy, "--compare", other, columns=80).out
    assert "they part at step 20: actor/entropy" in shown
    table = COLOUR.sub("", shown)
    table = table[table.index("Since when") : table.index("A: ")]
    assert max(map(len, table.splitlines())) <= 80


def test_a_finding_of_one_of_two_runs_says_which(healthy: Path, alike: Path) -> None:
    report = report_of(healthy, "--compare", alike, code=1)
    assert {check["node"] for check in report["checks"] if check["status"] == "fail"} == {"run B"}
    assert "(run B)" in rlcheck("run", healthy, "--compare", alike).out.splitlines()[1]


def test_the_page_is_written_beside_the_report(alike: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    report = report_of(alike, "--html", page, code=1)
    text = page.read_text()
    assert report["checks"][0]["headline"] in text
    assert "<svg" in text
    assert "copy 12" in text


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give a RUN_DIR"),
        (("nowhere",), "nowhere"),
        (("x", "--facts", "y"), "leave RUN_DIR out"),
        (("--watch", "--facts", "y"), "--watch follows one run"),
        (("--watch",), "--watch: give the RUN_DIR"),
        (("{run}", "--compare", "nowhere"), "nowhere"),
        (("{run}", "--html", "nowhere/page.html"), "--html nowhere/page.html"),
        (("{run}", "--select", "RUN999"), "RUN999"),
    ],
)
def test_what_cannot_be_done_is_one_line(healthy: Path, words: tuple[str, ...], why: str) -> None:
    done = rlcheck("run", *(word.format(run=healthy) for word in words))
    assert done.code == 2
    assert why in done.error_line
    assert not done.out


def test_the_process_stays_light(healthy: Path) -> None:
    code = (
        "import sys\n"
        "from rlcheck.cli.app import make_app\n"
        f"make_app()(['run', {str(healthy)!r}, '-f', 'json', '-o', '/dev/null'], standalone_mode=False)\n"
        f"print(sorted({STACK!r} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=base_environ(), capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"


def test_ten_thousand_steps_take_a_second(tmp_path: Path) -> None:
    names = [f"made/up/{n}" for n in range(30)]
    run = write_run(tmp_path / "long", healthy_curves(100))
    line = json.loads((run / "metrics.jsonl").read_text().splitlines()[50])
    text = json.dumps({**line, **dict.fromkeys(names, 0.123456789012)})
    rest = text[text.index(", ") + 2 :]
    (run / "metrics.jsonl").write_text("".join(f'{{"step": {n}, {rest}\n' for n in range(1, 10_001)))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    report_of(run)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    # Of the processor, since other tests may run beside this one; with the start of Python.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 1.5
