"""Kinds of files, slices, tables, lengths, twins: the same findings whatever the file is made of."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import pytest

from rlcheck.facts.config import ModelUse, RoleSpec, RunSpec
from rlcheck.measure.data import survey as module
from tests.measure.data.files import config, found, kinds, lines, make_tokenizer, planned, row, say, surveyed, truth

pa = pytest.importorskip("pyarrow")


def with_faults(number: int) -> list[dict]:
    rows = [row(n) for n in range(number)]
    rows[3] = row(3, prompt=None)
    rows[5] = row(2)
    rows[number - 2] = row(number - 2, prompt=say("a\0b"))
    return rows


WANTED = {"prompt_null": 1, "repeated": 1, "nul": 1}


def write(rows: list[dict], form: str, directory: Path) -> Path:
    path = directory / f"rows.{form}"
    if form in ("jsonl", "txt"):
        return lines(path, *rows)
    if form == "jsonl.gz":
        path.write_bytes(gzip.compress(lines(directory / "plain", *rows).read_bytes()))
    elif form == "json":
        path.write_text(json.dumps(rows, indent=1))
    elif form == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    elif form == "arrow":
        table = pa.Table.from_pylist(rows)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table, max_chunksize=5)
    else:
        from datasets import Dataset

        Dataset.from_list(rows).save_to_disk(str(path))
    return path


@pytest.mark.row("F62")
@pytest.mark.parametrize("form", ["jsonl", "txt", "jsonl.gz", "json", "parquet", "arrow", "saved"])
def test_every_form_gives_the_same(form: str, tmp_path, monkeypatch) -> None:
    """In slices so small that faults lie in different ones."""
    monkeypatch.setattr(module, "SLICE_BYTES", 300)
    monkeypatch.setattr(module, "SLICE_ROWS", 4)
    facts = found(write(with_faults(20), form, tmp_path), run=config())
    assert kinds(facts) == WANTED
    assert facts.files[0].num_rows == 20
    spot = facts.trouble("nul").spots[0]
    assert (spot.line, spot.row) == ((19, -1) if form in ("jsonl", "txt", "jsonl.gz") else (0, 18))
    assert facts.trouble("repeated").spots[0].text.endswith((":3", ":row 2"))


def test_cut_files_say_how_far_they_were_read(tmp_path) -> None:
    packed = write([row(n) for n in range(3000)], "jsonl.gz", tmp_path)
    packed.write_bytes(packed.read_bytes()[:-200])
    table = write(with_faults(20), "parquet", tmp_path)
    table.write_bytes(table.read_bytes()[:-200])
    facts = found(packed, table)
    assert [bool(file.problem) for file in facts.files] == [True, True]
    assert facts.files[0].num_rows > 1000
    assert found(packed).asked.prompt_key == "prompt"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-32"])
def test_wide_encodings_are_one_finding(encoding: str, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(module, "SLICE_BYTES", 300)
    path = tmp_path / "rows.jsonl"
    path.write_bytes("\n".join(json.dumps(row(n)) for n in range(9)).encode(encoding))
    facts = found(path, run=config())
    assert kinds(facts) == {"wide": 1}
    assert facts.trouble("wide").spots[0].text == encoding.upper()


def test_directories_and_patterns_are_their_files(tmp_path) -> None:
    for name in ("b.jsonl", "a.jsonl", "README.md"):
        lines(tmp_path / name, row(1))
    for words in (tmp_path, tmp_path / "*.jsonl"):
        assert [source.path for source in planned(words).sources] == [f"{tmp_path}/a.jsonl", f"{tmp_path}/b.jsonl"]


def test_one_file_under_two_names(tmp_path) -> None:
    path = lines(tmp_path / "rows.jsonl", row(1))
    (tmp_path / "link.jsonl").symlink_to(path)
    facts = found(path, val=(tmp_path / "link.jsonl",), run=config())
    assert [file.same_as for file in facts.files] == ["", str(path)]


def test_a_file_that_is_still_written_is_said(tmp_path, monkeypatch) -> None:
    path = lines(tmp_path / "rows.jsonl", row(1))
    real = module._read

    def read(*words) -> None:
        real(*words)
        with path.open("ab") as file:
            file.write(b"{}\n")

    monkeypatch.setattr(module, "_read", read)
    assert "still writes" in found(path).files[0].problem


def test_what_fix_puts_aside_is_what_the_checks_say(tmp_path) -> None:
    from rlcheck.checks.data.common import PUT_ASIDE

    reasons = surveyed(planned(lines(tmp_path / "rows.jsonl", row(1)))).reasons
    assert set(reasons) - {"", "wide"} | {"repeated", "leak", "leak_alike"} == PUT_ASIDE


def test_without_pyarrow_lines_are_still_read(tmp_path) -> None:
    """A Python of its own, isolated from everything that is installed."""
    import sys

    plan = planned(write(with_faults(20), "jsonl", tmp_path), write(with_faults(20), "parquet", tmp_path), run=config())
    facts = module.survey(plan, (sys.executable, "-I", "-S"), lambda _: None).facts
    assert (facts.files[0].num_rows, facts.files[1].num_rows) == (20, 0)
    assert "pyarrow" in facts.files[1].lacking
    assert kinds(facts)["nul"] == 1


def test_marks_and_line_ends(tmp_path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row(1)).encode() + b"\r\n" + json.dumps(row(2)).encode() + b"\n")
    facts = found(path, run=config())
    assert kinds(facts) == {"bom": 1}
    assert (facts.files[0].num_rows, facts.files[0].num_crlf) == (2, 1)


def test_leaks_and_twins(tmp_path) -> None:
    other = row(3, prompt=say("WHAT is 2  + 1?"))
    train = lines(tmp_path / "train.jsonl", row(1), row(2), row(1), row(1, **truth("7")), other)
    val = lines(tmp_path / "val.jsonl", row(9), row(2))
    facts = found(train, val=(val,), run=config())
    assert kinds(facts) == {"repeated": 1, "contradicts": 1, "alike": 1, "leak": 1, "leak_alike": 1}
    assert facts.trouble("leak").spots[0].place == f"{train}:2"
    assert facts.trouble("leak").spots[0].text == f"{val}:2"


@pytest.mark.parametrize("num_rows", [1, 1000])
def test_digests_in_partitions(num_rows: int, monkeypatch) -> None:
    from array import array

    from rlcheck.measure.data import twins

    monkeypatch.setattr(twins, "_PARTITION_ROWS", num_rows)
    draw = random.Random(1)
    values = [draw.getrandbits(64) for _ in range(300)]
    columns = [array("Q", [*values, values[3], 0, 0]), array("Q", [values[7], 5])]
    assert twins.repeated(columns) == {values[3], values[7]}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def test_lengths_are_exact_although_few_prompts_are_tokenized(tokenizer, tmp_path, monkeypatch) -> None:
    """A token a byte: the bound is as sharp as it can be."""
    monkeypatch.setattr(module, "SAMPLE_ROWS", 20)
    draw = random.Random(3)
    sizes = [draw.randrange(1, 200) for _ in range(400)]
    texts = ["ä" * (size // 2) if draw.random() < 0.2 else "a" * size for size in sizes]
    path = lines(tmp_path / "rows.jsonl", *(row(n, prompt=say(text)) for n, text in enumerate(texts)))
    added = len("<|im_start|>user\n") - 11 + 1 + len("\n<|im_start|>assistant\n") - 11
    facts = found(path, run=config(max_prompt_length=150), tokenizer=tokenizer)
    wanted = [len(text.encode()) + added for text in texts]
    assert facts.lengths.num_too_long == sum(size > 150 for size in wanted)
    assert facts.lengths.longest == max(wanted)
    assert facts.lengths.num_bounded > 50
    assert facts.lengths.num_bounded + facts.lengths.num_measured == 400
    assert set(facts.lengths.sample) <= set(wanted)
    assert facts.lengths.append == {"plain": "", "thinking": ""}


def test_a_template_that_forgets(tmp_path) -> None:
    forgets = "{% for m in messages %}{{ m.role + ': ' + (m.content.split('</think>')[-1] if not loop.last else m.content) + '\\n' }}{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"  # noqa: E501
    where = make_tokenizer(tmp_path / "tokenizer", forgets)
    facts = found(lines(tmp_path / "rows.jsonl", row(1)), run=config(), tokenizer=where)
    assert facts.lengths.append["plain"] == ""
    assert "changes when the next turn comes" in facts.lengths.append["thinking"]


def test_a_template_that_refuses(tmp_path) -> None:
    strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}{{ m.content }}{% endfor %}"  # noqa: E501
    where = make_tokenizer(tmp_path / "tokenizer", strict)
    path = lines(tmp_path / "rows.jsonl", row(1), row(2, prompt=[{"role": "system", "content": "x"}, *say("y")]))
    facts = found(path, run=config(), tokenizer=where)
    assert facts.trouble("template").spots[0].line == 2
    assert "no system here" in facts.trouble("template").spots[0].text


def test_the_configs_model_gives_the_tokenizer(tokenizer, tmp_path) -> None:
    import msgspec

    run = config()
    actor = RoleSpec(name="actor", model=ModelUse(path=str(tokenizer)))
    spec: RunSpec = msgspec.structs.replace(run.spec, actor=actor)
    plan = planned(lines(tmp_path / "rows.jsonl", row(1)), run=msgspec.structs.replace(run, spec=spec))
    assert plan.tokenizer == str(tokenizer)
    assert surveyed(plan).facts.lengths.unit == "tokens"


def test_a_broken_tokenizer_is_said(tmp_path) -> None:
    (tmp_path / "empty").mkdir()
    facts = found(lines(tmp_path / "rows.jsonl", row(1)), run=config(), tokenizer=tmp_path / "empty")
    assert "no tokenizer from" in facts.lengths.problem
    assert kinds(facts) == {}
    (tmp_path / "empty/config.json").write_text('{"model_type": "qwen2"}')
    facts = found(lines(tmp_path / "rows.jsonl", row(1)), run=config(), tokenizer=tmp_path / "empty")
    assert "makes no tokens of text" in facts.lengths.problem


def test_images_and_their_marks(tmp_path) -> None:
    rows = [row(1, data_source="hiyouga/geometry3k", prompt=say("<image> what?"), images=images, **truth("1"))
            for images in (["a.png"], ["b.png"], ["c.png", "d.png"])]  # fmt: skip
    facts = found(lines(tmp_path / "rows.jsonl", *rows), run=config("verl"))
    assert kinds(facts) == {"media_count": 1}
    assert facts.counts["media:images"] == 3
