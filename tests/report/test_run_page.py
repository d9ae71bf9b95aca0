"""The page of a run: well-formed, small, self-contained, safe with any text; drawn by a real browser."""

from __future__ import annotations

import math
import random
import re
import shutil
import subprocess
import zlib
from html.parser import HTMLParser
from pathlib import Path

import pytest

from rlcheck.facts.base import known
from rlcheck.facts.run import Curve, RunFacts, SampleRow
from rlcheck.finding import Finding, Fix, Report, Summary
from rlcheck.report.pages.run_curves import figure, thinned
from rlcheck.report.pages.run_page import SIZE_LIMIT, page
from tests.checks.run.synthetic import healthy_curves

HOSTILE = "<script>document.title='taken'</script>\u202egnirts\u0007 <img src=x onerror=alert(1)> \"'&amp; שלום مرحبا "
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)


class Reader(HTMLParser):
    """Elements by name, what they would load, and whether each is closed in its place."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.loads: list[str] = []
        self.handlers: list[str] = []
        self.titles: list[str] = []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.loads += [value or "" for name, value in attrs if name in ("src", "href", "xlink:href", "action", "data")]
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "title":
            self.titles.append(data)


def finding(**fields: object) -> Finding:
    usual = {
        "id": "RUN034",
        "title": "The entropy does not collapse",
        "headline": "The entropy has collapsed",
        "family": "RUN",
        "status": "fail",
        "message": "m",
        "expected": "entropy",
        "found": HOSTILE,
        "details": (HOSTILE,),
        "node": "n",
        "fixes": (Fix(title="More of it", kind="config", safety="safe", command="actor.entropy_coeff=0.01"),),
    }
    return Finding(**{**usual, **fields})  # type: ignore[arg-type]


def report(*findings: Finding) -> Report:
    return Report(version="1", command="run", nodes=("n",), checks=findings, summary=Summary(passed=1))


def sample(step: int, text: str = HOSTILE) -> SampleRow:
    return SampleRow(step=step, uid=text[:20], source="s", prompt=text, response=text * 3, ground_truth="42",
                     reward=0.5, parts={"<b>": 1.0}, length=7)  # fmt: skip


def made(**fields: object) -> RunFacts:
    usual = {"source": "runs/<one>", "framework": "rltrain", "num_steps": 40, "first_step": 1, "last_step": 40,
             "curves": healthy_curves(), "samples": known((sample(1), sample(40)))}  # fmt: skip
    return RunFacts(**{**usual, **fields})  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def long_runs() -> tuple[RunFacts, RunFacts]:
    """10,000 steps of 120 metrics with long texts."""
    rng = random.Random(0)
    steps = tuple(range(1, 10_001))
    values = tuple(rng.gauss(0, 1) * 1e-7 for _ in steps)
    curves = {**{f"made/up/metric/{n}": Curve(steps=steps, values=values) for n in range(110)}}
    curves |= {name: Curve(steps=steps, values=values) for name in healthy_curves()}
    samples = known(tuple(sample(step, "<&\"'" * 5000) for step in (1, 10_000) for _ in range(20)))
    one = made(curves=curves, samples=samples, num_steps=10_000, last_step=10_000)
    return one, made(curves=curves, samples=samples, num_steps=10_000, last_step=10_000, source="runs/two")


def test_it_is_well_formed_and_loads_nothing() -> None:
    text = page(report(finding()), [made()])
    read = Reader(text)
    assert read.count["figure"] == len(healthy_curves())
    assert not read.loads
    assert "script" not in read.count
    assert not read.handlers
    assert not re.search(r"url\(|@import|https?:", text)
    assert "default-src 'none'" in text


def test_text_of_models_is_shown_and_never_acted_on() -> None:
    text = page(report(finding()), [made()])
    assert "<script>" not in text
    assert "&lt;script&gt;document.title" in text
    assert "\u202e" not in text
    assert "\u0007" not in text
    assert "שלום مرحبا" in text
    assert text.count('<pre dir="auto">') == 6
    assert "&lt;b&gt; 1" in text


def test_the_first_finding_stands_first_with_its_fix_and_its_step() -> None:
    from rlcheck.check import Evidence

    where = Evidence(fact="run.curves.actor/entropy", value="0.1", source="steps 12 to 40")
    text = page(report(finding(evidence=(where,)), finding(id="RUN019", status="warn", found="short")), [made()])
    assert text.index("first: RUN034") < text.index("RUN019")
    assert "since step 12" in text
    assert "actor.entropy_coeff=0.01" in text
    assert text.count('class="since"') == len(healthy_curves())
    assert '<article class="warn">' in text


def test_what_follows_from_another_finding_is_short() -> None:
    causes = finding(id="RUN019", caused_by=("RUN034",), details=("a long story",))
    assert "fix RUN034 first" in (text := page(report(finding(), causes), [made()]))
    assert "a long story" not in text
    assert "a long story" in page(report(causes), [made()])


def test_a_run_without_problems_says_so_and_one_without_checks_does_not() -> None:
    assert "nothing to fix was found" in page(report(), [made()])
    assert "nothing was checked" in page(Report(version="1", command="run"), [made()])


def test_ten_thousand_steps_stay_small(long_runs: tuple[RunFacts, RunFacts]) -> None:
    text = page(report(finding()), long_runs)
    assert len(text.encode()) <= SIZE_LIMIT
    assert 300 < max(path.count("L") for path in re.findall(r'd="([^"]*)"', text)) < 500


def test_a_thinned_curve_keeps_its_extremes_and_its_order() -> None:
    rng = random.Random(3)
    values = [rng.gauss(0, 1) for _ in range(10_007)]
    values[7_777], values[1_234] = 50.0, -60.0
    curve = Curve(steps=tuple(range(len(values))), values=tuple(values))
    points = thinned(curve, 500)
    assert len(points) <= 500
    assert {(7_777, 50.0), (1_234, -60.0)} <= set(points)
    assert [step for step, _ in points] == sorted({step for step, _ in points})
    assert thinned(curve, 20_000) == tuple(zip(curve.steps, curve.values, strict=True))


def test_values_are_under_the_pointer() -> None:
    curve = Curve(steps=(1, 2, 3, 7), values=(0.5, 1.5, -2.0, 4.0), nonfinite=(5,))
    text = figure("actor/kl_loss", "KL", [curve])
    titles = re.findall(r"<title>([^<]*)</title>", text)
    assert "step 5: not a number" in titles
    assert any("1.5" in title and title.startswith("step") for title in titles)
    assert any(title.endswith("4") for title in titles)
    two = figure("actor/kl_loss", "", [curve, Curve(steps=(1,), values=(9.0,))])
    assert "A 0.5; B 9" in two


@pytest.mark.parametrize("values", [(), (1.0,), (2.0, 2.0), (1e300, -1e300), (1e-320, 0.0)])
def test_curves_of_any_shape_have_places_in_the_picture(values: tuple[float, ...]) -> None:
    text = figure("x", "", [Curve(steps=tuple(range(len(values))), values=values, nonfinite=(3,))])
    places = [float(number) for number in re.findall(r'[xy]\d?="([-\d.a-z]+)"', text)]
    assert all(math.isfinite(place) and -1 <= place <= 330 for place in places)
    assert "nan" not in text.replace("not a number", "")


def test_two_runs_share_one_picture() -> None:
    text = page(report(), [made(), made(source="runs/two", curves={"only/b": Curve(steps=(1, 2), values=(1.0, 2.0))})])
    assert Reader(text).count["figure"] == len(healthy_curves()) + 1
    assert text.count('class="curve b"') == 1
    assert "runs/&lt;one&gt; against runs/two" in text


@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on PATH")
def test_a_browser_draws_it(tmp_path: Path) -> None:
    file, picture = tmp_path / "page.html", tmp_path / "page.png"
    file.write_text(page(report(finding()), [made()]), encoding="utf-8")
    common = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
              f"--user-data-dir={tmp_path / 'profile'}", "--window-size=900,1400"]  # fmt: skip
    done = subprocess.run(
        [*common, f"--screenshot={picture}", "--dump-dom", f"file://{file}"],
        capture_output=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert picture.exists()
    colours = _colours(picture.read_bytes())
    assert len(colours) > 50, "an empty page"
    dom = subprocess.run([*common, "--dump-dom", f"file://{file}"], capture_output=True, timeout=120, check=True)
    read = Reader(dom.stdout.decode())
    assert "taken" not in "".join(read.titles)
    assert read.count["svg"] == len(healthy_curves())


def _colours(png: bytes) -> set[bytes]:
    """The distinct pixels of some lines of a PNG, filters left as they are: a blank picture has one or two."""
    data, place = b"", 8
    while place < len(png):
        size = int.from_bytes(png[place : place + 4], "big")
        if png[place + 4 : place + 8] == b"IDAT":
            data += png[place + 8 : place + 8 + size]
        place += 12 + size
    pixels = zlib.decompress(data)
    return {pixels[n : n + 4] for n in range(0, len(pixels), 997)}
