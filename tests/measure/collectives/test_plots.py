"""Pictures and tables of a measurement: the right numbers, at 80 columns, and nothing loaded from outside."""

from __future__ import annotations

import io
import re
import struct
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import msgspec
import pytest

from rlcheck.errors import UserError
from rlcheck.facts.base import known
from rlcheck.facts.collectives import CollectiveFacts, GroupRun
from rlcheck.facts.document import Facts, encode
from rlcheck.finding import Report
from rlcheck.report.pages.collectives_curves import heat_of, panels_of
from rlcheck.report.pages.collectives_plots import write_plot
from rlcheck.report.text import render_text
from rlcheck.report.topics.collectives import bandwidths, exhibits
from tests.checks.collectives.collective_cases import CASES, GLOO, HEALTHY, NODES, all_pairs, over_all, run
from tests.conftest import rlcheck
from tests.measure.collectives.h200 import h200
from tests.measure.collectives.test_attribution import RDMA, pair_run, rounds_of

SLOW = run(over_all(), *all_pairs(200.0, "n2"))


def shown(facts: Facts, ascii_only: bool = False) -> str:
    out = io.StringIO()
    report = Report(version="1", command="nccl", nodes=("n0",), exhibits=exhibits(facts))
    render_text(report, out, ascii_only=ascii_only)
    return out.getvalue()


def test_the_table_of_one_node() -> None:
    table = exhibits(h200(8))[0]
    assert table.title == "Collectives inside node0 (8 × NVIDIA H200)"
    assert table.columns == ("collective", "8 B", "1 MiB", "32 MiB", "8 GiB", "best", "expected", "over size")
    assert table.rows[0] == ("all_reduce", "49 µs", "49.0", "281", "366", "366", "≥ 337", "▁▁▁▂▄▇█████")


def test_few_sizes_stand_once() -> None:
    """A quick run may have no size in the middle."""
    assert exhibits(GLOO)[0].columns[:4] == ("collective", "8 B", "256 MiB", "4 GiB")
    group = over_all(samples=pair_run("a", "b", 1e9).samples[:1])
    assert exhibits(run(group))[0].columns == ("collective", "8 MiB", "8 MiB", "best", "over size")


def test_the_pairs_are_numbers_up_to_twelve_nodes() -> None:
    matrix = exhibits(SLOW)[-1]
    assert matrix.title == "Best bandwidth between pairs of nodes, GB/s"
    assert matrix.rows[2] == ("2 n2", "200", "200", "·", "200")
    assert exhibits(CASES["NCL044"][0])[-1].rows[3] == ("3 n3", "!", "!", "!", "·")


def large(size: int, slow: str) -> Facts:
    nodes = [f"compute-node-{i:03}" for i in range(size)]
    groups = tuple(pair_run(a, b, 20e9 if slow in (a, b) else 40e9) for a, b in rounds_of(nodes, size - 1))
    return Facts(node="n0", collectives=known(CollectiveFacts(launcher="ray", backend="nccl", groups=groups)))


def test_the_pairs_of_many_nodes_are_signs() -> None:
    matrix = exhibits(large(64, "compute-node-003"))[-1]
    assert len(matrix.rows) == 64
    assert matrix.rows[3][1] == "XXX\\" + "X" * 60
    assert matrix.rows[0][1] == "\\..X" + "." * 60
    assert all(len(row[0]) + 2 + len(row[1]) <= 76 for row in matrix.rows)


def test_of_very_many_nodes_the_odd_ones_are_shown() -> None:
    matrix = exhibits(large(66, "compute-node-003"))[-1]
    assert matrix.rows[3] == ("3 ~te-node-003", "65 very slow")
    assert matrix.rows[0][1] == "64 well, 1 very slow"


@pytest.mark.parametrize("facts", [h200(8), h200(8, p2p=False), SLOW, GLOO, large(64, "compute-node-003")])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_it_fits_eighty_columns(facts: Facts, ascii_only: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(facts, ascii_only)
    body = [line for line in text.splitlines() if not re.match(r"\s*(Bus|column|Expected|\S+ at least)", line)]
    tables = [line for line in body if line.startswith("    ")]
    assert tables
    assert max(len(line) for line in tables if "  " in line.strip()) <= 80
    if ascii_only:
        assert text.isascii()
        assert "?" not in "".join(line for line in tables if "all_reduce" in line)


def test_sparklines() -> None:
    assert bandwidths([0.0, 0.5, 1.0]) == "▁▅█"
    assert bandwidths([]) == ""
    assert bandwidths([0.0, 0.0]) == ""
    assert len(bandwidths(list(range(1, 100)))) == 12
    assert bandwidths([1.0] * 99 + [0.1])[-1] == "▁"


def test_nothing_measured_is_nothing_shown() -> None:
    assert exhibits(Facts()) == ()
    empty = Facts(collectives=known(CollectiveFacts(launcher="local", backend="gloo")))
    assert exhibits(empty) == ()


def test_a_png_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_plot(SLOW, tmp_path / "plot.PNG")
    data = (tmp_path / "plot.PNG").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    assert width > 700
    assert height > 900
    assert len(data) > 10_000


class Page(HTMLParser):
    """Collects what a browser would load, the tables, and whether tags nest."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.cells: list[str] = []
        self.circles = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [f"{tag} {name}" for name, _ in attrs if name in ("src", "href", "xlink:href", "onload")]
        self.circles += tag == "circle"
        if tag not in ("meta", "line", "rect", "polyline"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "td":
            self.cells.append(data)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loads += [name for name, _ in attrs if name in ("src", "href")]


def test_a_page_stands_alone(tmp_path: Path) -> None:
    path = tmp_path / "plot.html"
    write_plot(SLOW, path)
    text = path.read_text(encoding="utf-8")
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.loads == []
    assert "http" not in text
    assert "url(" not in text
    assert "prefers-color-scheme: dark" in text
    assert page.circles == 8
    assert "360 (320)" in page.cells
    assert page.cells.count("200") == 6


def test_names_cannot_break_the_page(tmp_path: Path) -> None:
    rows = [(a, b) for i, a in enumerate(NODES) for b in NODES[i + 1 :]]
    evil = {"n0": "<script>alert(1)</script>"}
    groups = tuple(GroupRun(phase="pair", nodes=(evil.get(a, a), b), ranks=(), transport=RDMA) for a, b in rows)
    facts = Facts(collectives=known(CollectiveFacts(launcher="ray", backend="nccl", groups=groups)), node="<b>")
    write_plot(facts, tmp_path / "evil.html")
    assert "<script>" not in (tmp_path / "evil.html").read_text(encoding="utf-8")


def test_panels_hold_what_was_found_and_what_is_expected() -> None:
    panel = panels_of(h200(8))[0]
    curve = panel.curves[0]
    assert panel.title == "Inside node0, 8 × NVIDIA H200"
    assert curve.found[-1] == (8589934592, pytest.approx(366.16))
    assert curve.expected[-1][1] == pytest.approx(366.16 * 0.92)
    assert not curve.derived
    assert panels_of(HEALTHY)[0].curves[0].derived
    assert heat_of(h200(8)) is None


@pytest.mark.parametrize(
    ("facts", "name", "said"),
    [
        (h200(8), "plot.svg", "ends in .png or .html"),
        (Facts(), "plot.html", "nothing was measured"),
        (h200(8), "missing/plot.html", "cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_said_in_one_line(facts: Facts, name: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=said) as caught:
        write_plot(facts, tmp_path / name)
    assert "\n" not in str(caught.value)


def test_without_matplotlib_the_way_to_get_it_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(UserError, match=r"pip install 'rlcheck\[plot\]'"):
        write_plot(h200(8), tmp_path / "plot.png")
    write_plot(h200(8), tmp_path / "plot.html")


def test_showing_a_report_loads_no_matplotlib() -> None:
    code = (
        "import sys; import rlcheck.report.pages.collectives_plots, rlcheck.report.topics.collectives; "
        "from rlcheck.checks import family_checks; family_checks('NCL'); "
        "print(sorted({'matplotlib', 'torch', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


def test_facts_survive_a_file() -> None:
    assert msgspec.json.decode(msgspec.json.encode(SLOW), type=Facts) == SLOW


def test_a_shared_domain_does_not_hide_the_names() -> None:
    runs = [pair_run(f"n{i}.long.example.com", f"n{j}.long.example.com", 1e9) for i, j in ((0, 1), (0, 2), (1, 2))]
    assert [row[0] for row in exhibits(run(*runs))[-1].rows] == ["0 n0", "1 n1", "2 n2"]


def test_what_has_no_expectation_says_so() -> None:
    """Numbers alone could be read as a verdict."""
    assert "No expectation is on record for cpu between nodes: shown, not judged." in exhibits(GLOO)[0].notes
    assert "expected" not in exhibits(GLOO)[0].columns
    assert not any("No expectation" in note for note in exhibits(h200(8))[0].notes)


def test_a_failed_picture_does_not_cost_the_report(tmp_path: Path) -> None:
    """A directory that does not exist is said before anything is measured, an empty measurement after the report."""
    facts = tmp_path / "facts.json"
    facts.write_bytes(encode((Facts(collectives=known(CollectiveFacts(launcher="local", backend="gloo"))),)))
    done = rlcheck("nccl", "--facts", str(facts), "--plot", str(tmp_path / "a.html"))
    assert (done.code, len(done.err.splitlines())) == (2, 1)
    assert "exit code" in done.out
    done = rlcheck("nccl", "--plot", str(tmp_path / "missing" / "a.html"))
    assert (done.code, done.out) == (2, "")
    assert "there is no directory" in done.err
