"""Metrics in JSON lines: every form that loggers write, and every damage that files suffer."""

from __future__ import annotations

import gzip
import json
import math
import random
from pathlib import Path

import pytest

from rlcheck.facts.run import Curve
from rlcheck.measure.run import jsonl
from rlcheck.measure.run.jsonl import Lines, read_lines
from rlcheck.measure.run.series import CurveError, Series
from tests.measure.run import write


def read(path: Path) -> tuple[dict[str, Curve], Lines]:
    series = Series()
    found = read_lines(path, series)
    return series.curves(), found


def points(curve: Curve) -> dict[int, float]:
    return dict(zip(curve.steps, curve.values, strict=True))


def test_lines_of_changing_forms_are_read_as_json_reads_them(tmp_path: Path) -> None:
    rng = random.Random(3)
    records = [
        {
            "step": step,
            **{name: rng.choice([rng.gauss(0, 9), step, 10**20, 1e-300]) for name in rng.sample("abcdef", 4)},
        }
        for step in range(1, 400)
    ]
    curves, found = read(write.lines(tmp_path / "m.jsonl", records))
    for name in "abcdef":
        assert points(curves[name]) == {line["step"]: float(line[name]) for line in records if name in line}
    assert (found.num_records, found.num_bad) == (399, 0)


def test_what_is_no_number_is_kept_apart(tmp_path: Path) -> None:
    records = [
        {"step": 1, "loss": 1.0, "kl": 0.5},
        {"step": 2, "loss": None, "kl": 0.5, "nonfinite": ["loss"]},
        {"step": 3, "loss": math.nan, "kl": math.inf},
        {"step": 4, "loss": "NaN", "kl": "-Infinity"},
        {"step": 5, "loss": None, "kl": 0.25},
        {"step": 6, "loss": 2.0, "kl": 0.125},
        *({"step": step, "loss": 2.0, "kl": -math.inf} for step in range(7, 12)),
    ]
    curves, found = read(write.lines(tmp_path / "m.jsonl", records))
    assert curves["loss"] == Curve(steps=(1, *range(6, 12)), values=(1.0, *[2.0] * 6), nonfinite=(2, 3, 4))
    assert curves["kl"] == Curve(steps=(1, 2, 5, 6), values=(0.5, 0.5, 0.25, 0.125), nonfinite=(3, 4, *range(7, 12)))
    assert found.num_bad == 0


def test_verls_file_logger_and_nested_objects(tmp_path: Path) -> None:
    verl = [{"step": step, "data": {"critic/score/mean": step / 10, "training/global_step": step}} for step in range(9)]
    curves, _ = read(write.lines(tmp_path / "verl.jsonl", verl))
    assert points(curves["critic/score/mean"])[7] == 0.7
    nested = [
        {"iteration": step, "reward": {"mean": float(step), "by": {"gsm8k": 1.0}}, "ok": True} for step in range(9)
    ]
    curves, _ = read(write.lines(tmp_path / "nested.jsonl", nested))
    assert points(curves["reward/mean"])[8] == 8.0
    assert points(curves["reward/by/gsm8k"])[8] == 1.0
    assert points(curves["ok"])[3] == 1.0


@pytest.mark.parametrize("name", jsonl.STEP_NAMES)
def test_every_name_of_the_step(tmp_path: Path, name: str) -> None:
    curves, _ = read(write.lines(tmp_path / "m.jsonl", [{name: step, "x": 1.5} for step in (3.0, 4.0, 5.0, 6.0)]))
    assert curves["x"].steps == (3, 4, 5, 6)


def test_one_metric_a_line_as_wandb_exports_it(tmp_path: Path) -> None:
    records = [{"_step": step, name: step * scale} for step in range(200) for name, scale in (("a", 1.0), ("b", 2.0))]
    curves, found = read(write.lines(tmp_path / "history.jsonl", records))
    assert points(curves["b"]) == {step: step * 2.0 for step in range(200)}
    assert found.num_records == 400
    assert "_step" not in curves


def test_a_resumed_run_replaces_what_it_did_again(tmp_path: Path) -> None:
    first = [{"step": step, "x": 1.0, **({"val": 1.0} if step % 5 == 0 else {})} for step in range(1, 21)]
    again = [{"step": step, "x": 2.0, **({"val": 2.0} if step % 5 == 0 else {})} for step in range(11, 16)]
    curves, _ = read(write.lines(tmp_path / "m.jsonl", first + again))
    assert points(curves["x"]) == {**dict.fromkeys(range(1, 11), 1.0), **dict.fromkeys(range(11, 16), 2.0)}
    assert points(curves["val"]) == {5: 1.0, 10: 1.0, 15: 2.0}


def test_steps_out_of_order_are_sorted_and_none_is_lost(tmp_path: Path) -> None:
    steps = list(range(300))
    random.Random(1).shuffle(steps)
    curves, _ = read(write.lines(tmp_path / "m.jsonl", [{"step": step, "x": float(step)} for step in steps]))
    assert curves["x"] == Curve(steps=tuple(range(300)), values=tuple(map(float, range(300))))


def test_a_cut_last_line_bom_crlf_and_blank_lines(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"step": 1, "x": 1}\r\n\r\n{"step": 2, "x": 2}\r\n{"step": 3, "x"')
    curves, found = read(path)
    assert points(curves["x"]) == {1: 1.0, 2: 2.0}
    assert (found.num_bad, found.first_bad) == (0, 0)


def test_bad_lines_in_the_middle_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    good = [json.dumps({"step": step, "x": step}) for step in range(1, 8)]
    path.write_bytes(
        "\n".join([*good[:5], "Traceback:", "[1, 2]", *good[5:], '{"x": 5}', '{"step": 1.5, "x": 5}']).encode()
        + b"\n\xff\n"
    )
    curves, found = read(path)
    assert curves["x"].steps == tuple(range(1, 8))
    assert (found.num_bad, found.first_bad, found.num_without_step) == (3, 6, 2)


def test_gzip_also_when_it_is_cut(tmp_path: Path) -> None:
    text = "".join(json.dumps({"step": step, "x": random.random()}) + "\n" for step in range(3000)).encode()
    whole = tmp_path / "m.jsonl.gz"
    whole.write_bytes(gzip.compress(text))
    assert len(read(whole)[0]["x"].steps) == 3000
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(text)[:-3000])
    assert 1000 < len(read(cut)[0]["x"].steps) < 3000


def test_what_is_no_file_of_metrics_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = tmp_path / "notes.txt"
    text.write_text("hello\nworld\n")
    with pytest.raises(CurveError, match="holds no metrics"):
        read(text)
    text.write_text("a line of a console log\n" * 200_002 + '{"step": 1, "x": 1}\n')
    with pytest.raises(CurveError, match="holds no metrics"):
        read(text)  # nobody waits for the end of a log of many gigabytes
    monkeypatch.setattr(jsonl, "LONGEST_LINE", 1000)
    long = tmp_path / "long.jsonl"
    long.write_text('{"step": 1, "x": 1}\n{"step": 2, "text": "' + "a" * 1000 + '"}\n')
    with pytest.raises(CurveError, match=r"long\.jsonl:2: a line of over"):
        read(long)
    with pytest.raises(CurveError, match="cannot be read"):
        read(tmp_path)


def test_enormous_numbers_and_depths_raise_nothing(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    values = ["1e999", "9" * 400, "[" * 3000 + "]" * 3000, '{"a":' * 3000 + "1" + "}" * 3000]
    rows = [f'{{"step": {step}, "x": {value}}}' for step, value in enumerate(values, start=1)]
    rows += ['{"step": 1e99, "x": 1}', '{"step": 5, "x": 1}']
    path.write_text("\n".join(rows) + "\n")
    curves, _ = read(path)
    assert points(curves["x"]) == {5: 1.0}
    assert set(curves["x"].nonfinite) <= {1, 2}


def test_a_name_that_json_escapes(tmp_path: Path) -> None:
    name = 'reward/"quoted\\\n'
    curves, _ = read(write.lines(tmp_path / "m.jsonl", [{"step": step, name: 1.0, "y": 2} for step in range(9)]))
    assert len(curves[name].steps) == len(curves["y"].steps) == 9


def test_audit_records_are_handed_on(tmp_path: Path) -> None:
    records = [{"step": step, "x": 1.0, "audit": {"loss_tokens": step * 1.0, "odd": "text"}} for step in range(1, 8)]
    curves, found = read(write.lines(tmp_path / "m.jsonl", records))
    assert [step for step, _ in found.audit] == list(range(1, 8))
    assert found.audit[6][1]["loss_tokens"] == 7.0
    assert set(curves) == {"x"}
