"""What a reader sees of a prediction: in the terminal at 80 columns, in ASCII, in JSON, as a picture."""

from __future__ import annotations

import io
import json
import re
import shutil
import subprocess
import time
from pathlib import Path

import msgspec
import pytest

from rlcheck.doctor import clinic
from rlcheck.doctor.settings import Settings
from rlcheck.errors import UserError
from rlcheck.facts.document import Facts
from rlcheck.facts.memory import MemoryProfile, Phase
from rlcheck.finding import Report
from rlcheck.measure.memory.summary import by_kind
from rlcheck.report.pages.memory_plots import write_plot
from rlcheck.report.render import render
from rlcheck.report.topics.memory import exhibits, headline
from rlcheck.report.topics.memory_bars import BAR_WIDTH, FREE, GLYPHS, LIMIT, bar, bars
from rlcheck.report.wording import to_ascii
from tests.measure.memory.samples import CHANGES, GIB, PHASES, facts, measured, memory, phase, too_much

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


def report(document: Facts) -> Report:
    doctor = clinic.summon(("MEM",))
    return clinic.examine(
        doctor, (document,), doctor.select(("MEM",)), Settings(), command="memory-profile", started=time.perf_counter()
    )


class Terminal(io.StringIO):
    """A terminal of 80 columns that takes Unicode."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def on_terminal(document: Facts, monkeypatch: pytest.MonkeyPatch, ascii_only: bool = False) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    out = Terminal()
    render(report(document), "text", out, ascii_only=ascii_only)
    return out.getvalue()


@pytest.mark.parametrize("prediction", [memory(), too_much(), measured()], ids=["fits", "too much", "measured"])
@pytest.mark.parametrize("ascii_only", [False, True])
def test_it_stays_within_eighty_columns(
    prediction: MemoryProfile, ascii_only: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = on_terminal(facts(prediction), monkeypatch, ascii_only)
    assert [line for line in text.splitlines() if len(line) > 80] == []
    assert not ascii_only or text.isascii()
    assert not ascii_only or "?" not in text


def test_each_phase_has_its_bar_on_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(facts(), monkeypatch)
    for one in PHASES:
        (line,) = [line for line in text.splitlines() if line.strip().startswith(f"{one.name} ") and LIMIT in line]
        assert f"{one.num_bytes / GIB:.1f}" in line


def test_a_bar_is_as_long_as_its_sum() -> None:
    drawn = bar({"weights": 10, "logits": 30}, limit_bytes=100, scale_bytes=100, width=40)
    assert drawn == GLYPHS["weights"] * 4 + GLYPHS["logits"] * 12 + FREE * 23 + LIMIT


def test_many_small_parts_do_not_lengthen_a_bar() -> None:
    drawn = bar({f"kind {n}": 1 for n in range(30)}, limit_bytes=100, scale_bytes=100, width=40)
    assert len(drawn.replace(FREE, "").replace(LIMIT, "")) == 12


def test_what_reaches_over_the_limit_stands_behind_it() -> None:
    (drawn,) = bars([phase("actor update", actor_weights=80)], limit_bytes=40 * GIB, total_bytes=41 * GIB)
    before, after = drawn.split(LIMIT)
    assert len(drawn) == BAR_WIDTH
    assert set(after) == {GLYPHS["weights"]}
    assert abs(len(before) - BAR_WIDTH / 2) <= 1


def test_every_kind_has_its_own_character_also_in_ascii() -> None:
    assert len(set(GLYPHS.values())) == len(GLYPHS)
    assert len({to_ascii(sign) for sign in (*GLYPHS.values(), FREE, LIMIT)}) == len(GLYPHS) + 2


def test_the_table_adds_up() -> None:
    table = next(exhibit for exhibit in exhibits(facts()) if exhibit.title.startswith("Memory by owner"))
    for row in table.rows:
        parts = [float(cell) for cell in row[1:-1] if cell]
        assert sum(parts) == pytest.approx(float(row[-1]), abs=0.06 * len(parts))


def test_changes_come_with_what_to_type(monkeypatch: pytest.MonkeyPatch) -> None:
    text = on_terminal(facts(too_much()), monkeypatch)
    for number, change in enumerate(CHANGES, 1):
        assert f"    {number}: {change.overrides[0]}" in text


def test_a_measurement_names_what_the_prediction_missed() -> None:
    table = next(exhibit for exhibit in exhibits(facts(measured())) if exhibit.title.startswith("Predicted"))
    rows = {row[0]: row for row in table.rows}
    assert rows["actor update"][3:] == ("-19.1", "passes -13.3")
    assert rows["rollout"][3:] == ("-0.6", "")
    assert "out of memory" in rows["checkpoint"][-1]


def test_headline_says_model_gpu_and_peak() -> None:
    assert headline(facts()) == (
        "Qwen2ForCausalLM of 7.6 B on 4 x H200 (140 GiB): peak 88.8 GiB in rollout, 64% of what is usable"
    )
    assert headline(facts(too_much())).endswith("does not fit")
    assert headline(Facts()) == ""


def test_json_holds_the_whole_prediction() -> None:
    out = io.StringIO()
    render(report(facts(too_much())), "json", out)
    data = json.loads(out.getvalue())["data"]["memory"]
    assert data["fits"] is False
    assert data["peak_phase"] == "rollout"
    assert data["headroom_bytes"] == data["usable_bytes"] - data["peak_bytes"] < 0
    again = msgspec.convert(data, MemoryProfile)
    assert again == too_much()
    assert [one["name"] for one in data["phases"]] == [one.name for one in PHASES]


def test_json_has_every_field_also_at_its_default() -> None:
    out = io.StringIO()
    render(report(facts(memory(measured=(), notes=(), exact=True))), "json", out)
    data = json.loads(out.getvalue())["data"]["memory"]
    assert set(MemoryProfile.__struct_fields__) <= set(data)
    assert data["limits"]["kv_tokens"] == 898_000


def test_the_page_loads_nothing_and_has_a_part_for_every_owner(tmp_path: Path) -> None:
    page = written(tmp_path / "memory.html")
    assert not re.search(r"https?:|src=|@import|url\(|<script|<link", page)
    assert page.count('class="part"') == sum(len(by_kind(one)) for one in PHASES)
    assert page.count('class="measured"') == 2
    assert "&lt;b&gt;" in written(tmp_path / "hostile.html", facts(memory(architecture="<b>bold</b>")))


def written(path: Path, document: Facts | None = None) -> str:
    write_plot(document or facts(measured()), path)
    return path.read_text(encoding="utf-8")


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here (Debian: apt-get install chromium)")
def test_a_browser_shows_the_page(tmp_path: Path) -> None:
    page = tmp_path / "memory.html"
    written(page)
    command = [str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}"]
    shot = tmp_path / "page.png"
    done = subprocess.run(
        [*command, "--window-size=840,1400", f"--screenshot={shot}", "--virtual-time-budget=2000", page.as_uri()],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert shot.exists(), done.stderr[-2000:]
    image = pytest.importorskip("PIL.Image").open(shot).convert("RGB")
    seen = {colour for _, colour in image.getcolors(1 << 24)}
    # The colours of weights, optimizer, activations and KV cache, as they are in the legend and in the bars.
    assert {(0x44, 0x77, 0xAA), (0x22, 0x88, 0x33), (0xCC, 0xBB, 0x44), (0xEE, 0x88, 0x66)} <= seen


def test_png_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "memory.png"
    write_plot(facts(measured()), path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_picture_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no predicted phase"):
        write_plot(Facts(), tmp_path / "memory.html")


def test_an_owner_of_a_kind_that_is_not_known_is_still_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    odd: Phase = phase("actor update", actor_weights=7, actor_magic=60)
    text = on_terminal(facts(memory(phases=(odd,))), monkeypatch)
    assert "magic of actor" in text
    assert "67.0" in text
