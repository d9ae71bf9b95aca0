"""The chain at the start of `rltrain run`: bounded reading of the data, what stops a run, and what is kept of it."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from rlcheck.doctor import clinic
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts, decode
from rlcheck.measure.data.plan import Wanted, make_plan
from rlcheck.measure.data.survey import survey
from rlcheck.report.topics.data import headline
from rltrain.cli.preflight import Origin, examine
from rltrain.config import Machine, load, resolve
from rltrain.core.errors import RunFailure
from tests.measure.data.files import config, row
from tests.trainer.config import SMALL

CPU = Machine("cpu", 0, 2)


def write(path: Path, num_rows: int) -> Path:
    lines = [row(number) for number in range(num_rows)]
    if path.suffix == ".parquet":
        parquet = pytest.importorskip("pyarrow.parquet")
        import pyarrow

        parquet.write_table(pyarrow.Table.from_pylist(lines), path)
        return path
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt") as file:
        file.write("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.parquet"])
def test_of_a_large_file_the_first_rows_are_read_and_it_is_said(name: str, tmp_path: Path) -> None:
    file = write(tmp_path / name, 300)
    plan = make_plan(Wanted(files=(str(file),)), config(train_batch_size=200))
    found = survey(plan, (), lambda _: None, most_rows=100).facts
    assert found.num_rows("train") == 100
    facts = Facts(data=known(found))
    assert "no more than the first 100 of a file were read" in headline(facts)
    fills_batch = next(check for check in clinic.summon(("DAT",)).checks if check.id == "DAT022")
    assert fills_batch.judge(facts).status == "skip", "100 rows were read; there may be 200"


@pytest.mark.row("F30")
def test_a_broken_row_stops_the_run_and_names_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write(tmp_path / "rows.jsonl", 64)
    data.write_text(data.read_text() + '{"prompt": [')
    words = (f"data.train_files=[{data}]", f"data.val_files=[{data}]")
    with pytest.raises(RunFailure, match=r"preflight checks found .*\(DAT\d+.*--ignore DAT\d+"):
        examine(resolve(load(SMALL, words), CPU), Origin(SMALL, words), (), 20.0)
    shown = capsys.readouterr().out
    assert f"{data}:65" in shown
    assert "cache and data" in shown
    assert "Columns of" not in shown, "tables of what is well are for the whole command"


def test_what_the_chain_found_is_kept_without_secrets() -> None:
    words = ("trainer.project_name=https://ada:hunter22@example.org/x",)
    told: list[str] = []
    found = examine(resolve(load(SMALL, words), CPU), Origin(SMALL, words), (), 20.0, told=told.append)
    record = found.record()
    assert [link["link"] for link in record["links"]][:2] == ["machine", "network"]
    assert all(finding["playbook"] for finding in record["findings"])
    assert "collectives: left out: --preflight full" in told
    kept = found.facts_json()
    assert b"hunter22" not in kept
    (facts,) = decode(kept)
    assert facts.config.value is not None
    assert facts.config.value.source.endswith("small.yaml")
