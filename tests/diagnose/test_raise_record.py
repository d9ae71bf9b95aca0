"""The shipped record of raise sites: dated, sorted, without doubles, small, and of messages that name their site."""

from __future__ import annotations

import re
import time
from itertools import groupby

from rlcheck.diagnose.source.recorded import FOLDER, entry_of, found_in, line_of, literals_of, parts_of, read, texts
from tests.every import every
from tests.tools.raise_sites.fetch import PLANS, top_of, wanted
from tests.tools.raise_sites.merge import GENERIC
from tests.tools.raise_sites.reading import LEAST

MOST_BYTES = 2_600_000
PATHS = sorted(FOLDER.glob("*.txt"))


def test_there_is_one_record_for_each_package() -> None:
    assert [path.stem for path in PATHS] == sorted(top_of(package) for package in PLANS)
    assert sum(path.stat().st_size for path in PATHS) <= MOST_BYTES


@every(PATHS, name=lambda path: path.stem)
def test_a_record_is_dated_sorted_and_without_doubles(path) -> None:
    text = path.read_text(encoding="utf-8")
    record = read(text)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", record.date)
    assert top_of(record.package) == path.stem
    assert len(record.releases) >= 3
    assert list(record.sites) == sorted(record.sites)
    blocks = [[*lines] for is_site, lines in groupby(text.split("\n")[2:-1], key=lambda line: "\t" in line) if is_site]
    assert all(lines == sorted(set(lines)) for lines in blocks)
    assert all(wanted(file, path.stem) for file in record.sites)


@every(PATHS, name=lambda path: path.stem)
def test_each_site_is_read_as_it_is_written_and_names_something(path) -> None:
    record = read(path.read_text(encoding="utf-8"))
    for file, entries in record.sites.items():
        for one in entries:
            where = f"{file}: {one}"
            assert entry_of(line_of(one)) == one, where
            assert 0 <= one.first <= one.last < len(record.releases), where
            assert max(map(len, literals_of(one.template))) >= LEAST - 2, where
            assert not GENERIC.match(one.template), where
            holes = sum(not isinstance(part, str) for part in parts_of(one.template))
            assert all(int(known.value) < holes for known in one.settings if known.origin == "log"), where


def test_each_package_is_looked_through_quickly() -> None:
    message = ["The model of this run does not fit: 14 of 15 layers are there, and the file says nothing of them"]
    started = time.process_time()
    assert [found for text in texts() for found in found_in(text, {"ValueError"}, message)] == []
    assert time.process_time() - started < 0.5
