"""Every reader gives the same rows, and names the place of what it cannot read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rltrain.core.errors import UserError
from rltrain.data.readers import resolve_files
from tests.trainer.data.build import jsonl, numbered, read_rows, row


def saved(rows: list[dict[str, Any]], directory: Path) -> None:
    """Write ROWS as the library `datasets` saves them; importing it takes two CPU seconds."""
    import datasets

    datasets.Dataset.from_list(rows).save_to_disk(str(directory))


def failure(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        list(read_rows(str(path)))
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.row("F62")
def test_the_three_kinds_of_file_hold_the_same_rows(tmp_path: Path) -> None:
    rows = [row("copy 1", "1"), row("copy 2", "2")]
    jsonl(tmp_path / "a.jsonl", *rows)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    saved(rows, tmp_path / "saved")
    places = {
        "a.jsonl": ["a.jsonl:1", "a.jsonl:2"],
        "a.parquet": ["a.parquet:row 0", "a.parquet:row 1"],
        "saved": ["saved:row 0", "saved:row 1"],
    }
    for name, expected in places.items():
        read = list(read_rows(str(tmp_path / name)))
        assert [r.values for r in read] == rows
        assert [r.place for r in read] == [str(tmp_path / place) for place in expected]


def test_rows_stream(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\nnot json\n')
    stream = read_rows(str(path))
    assert next(stream).values == {"a": 1}
    with pytest.raises(UserError):
        next(stream)


def test_several_files_in_the_order_given(tmp_path: Path) -> None:
    b, a = numbered(tmp_path / "b.jsonl", 1), numbered(tmp_path / "a.jsonl", 2)
    assert [r.place for r in read_rows((str(b), str(a)))] == [f"{b}:1", f"{a}:1", f"{a}:2"]


def test_byte_order_mark_crlf_blank_lines_and_line_separators(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": "x\xe2\x80\xa8y"}\r\n\r\n{"a": "t\tb"}\r\n   \n')
    assert [(r.place, r.values) for r in read_rows(str(path))] == [
        (f"{path}:1", {"a": "x\u2028y"}),
        (f"{path}:3", {"a": "t\tb"}),
    ]


@pytest.mark.parametrize(
    ("second_line", "expected"),
    [
        (b'{"a": 1,}', "2: not JSON: "),
        (b'{"a": tru}', "(column 7)"),
        (b'{"a": "cut', "2: not JSON: Unterminated string"),
        (b"[1, 2]", "2: expected a JSON object, found list; turn an array into lines"),
        (b"null", "2: expected a JSON object, found NoneType"),
        (b'{"a": 1, "a": 2}', "2: not usable JSON: the key 'a' occurs twice"),
        (b"[" * 100_000, "2: not"),
        (b'{"a": ' + b"9" * 5000 + b"}", "2: not usable JSON: "),
        (b'{"a": "\xe9t\xe9"}', "2: not UTF-8: byte 0xe9 at byte offset 16 of the file"),
    ],
)
def test_bad_lines(tmp_path: Path, second_line: bytes, expected: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"a": 1}\n' + second_line + b"\n")
    message = failure(path)
    assert message.startswith(f"{path}:2: ")
    assert expected in message


def test_the_offset_of_a_bad_byte_counts_the_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": "\xff"}\n')
    assert path.read_bytes()[10] == 0xFF
    assert "byte 0xff at byte offset 10" in failure(path)


def test_utf16(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text('{"a": 1}\n', encoding="utf-16")
    assert "the file is UTF-16" in failure(path)


def test_pretty_printed_array(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([row()]))
    assert "jq -c" in failure(path)


def test_broken_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 nothing of the kind PAR1")
    assert "not readable Parquet" in failure(path)


def test_data_set_of_several_splits(tmp_path: Path) -> None:
    import datasets

    part = datasets.Dataset.from_list([row()])
    datasets.DatasetDict({"train": part, "test": part}).save_to_disk(str(tmp_path / "all"))
    message = failure(tmp_path / "all")
    assert f"{tmp_path}/all/train, {tmp_path}/all/test" in message
    assert len(list(read_rows(str(tmp_path / "all" / "train")))) == 1


def test_a_directory_that_is_no_data_set(tmp_path: Path) -> None:
    assert "is not a data set that datasets.save_to_disk wrote" in failure(tmp_path)


@pytest.mark.parametrize("text", ["[]", "3", "null", "{"])
@pytest.mark.parametrize("name", ["state.json", "dataset_info.json"])
def test_a_saved_data_set_whose_files_are_of_another_form(name: str, text: str, tmp_path: Path) -> None:
    place = tmp_path / "saved"
    saved([row()], place)
    (place / name).write_text(text)
    assert "is not a data set that datasets.save_to_disk wrote" in failure(place)


def test_unknown_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n")
    assert "unknown kind of file '.csv'; expected .jsonl" in failure(path)


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = numbered(tmp_path / "a.jsonl", 1)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("DATA_HERE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    for name in ("~/a.jsonl", "$DATA_HERE/a.jsonl", "${DATA_HERE}/a.jsonl", "a.jsonl", "./x/../a.jsonl", str(path)):
        assert resolve_files(name) == (path,)


@pytest.mark.row("F31")
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("gone.jsonl", "check the path"),
        ("$NOT_SET_HERE/a.jsonl", "an environment variable in it is not set"),
        ("data\\a.jsonl", "write / between directories"),
    ],
)
def test_missing_files_show_the_resolved_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError) as caught:
        resolve_files(name)
    assert f"looked for {tmp_path}/{name}" in str(caught.value)
    assert hint in str(caught.value)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.symlink_to("/proc/self/mem")
    assert f"{path} cannot be read: Input/output error" in failure(path)
