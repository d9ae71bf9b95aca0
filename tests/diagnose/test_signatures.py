"""The index of signatures: built when it is needed, kept where that is possible, never older than the playbooks."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rlcheck.diagnose import signatures
from rlcheck.playbook import DIRECTORY, Library, PlaybookError

FEW = ("shm-too-small", "gpu-lost", "import-fails")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with three playbooks; `rlcheck/data` is a place to keep the index."""
    books = tmp_path / "playbooks"
    books.mkdir()
    for name in FEW:
        shutil.copy(DIRECTORY / f"{name}.md", books)
    monkeypatch.setattr(signatures, "DIRECTORY", books)
    monkeypatch.setattr(signatures, "Library", lambda: Library((books,)))
    monkeypatch.setattr(signatures, "_BUILT", tmp_path / "data" / "signatures.json")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def ids() -> set[str]:
    return {known.id for known in signatures.load().playbooks}


def refuse(library: Library) -> signatures.Index:
    raise AssertionError("it is built again")


def test_it_is_built_once_and_kept(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = signatures.load()
    assert {known.id for known in first.playbooks} == set(FEW)
    assert [path.name for path in (tree / "data").iterdir()] == ["signatures.json"]
    monkeypatch.setattr(signatures, "build", refuse)
    assert signatures.load() == first


def test_a_playbook_that_is_new_changed_or_gone_is_noticed(tree: Path) -> None:
    assert ids() == set(FEW)
    shutil.copy(DIRECTORY / "mtu.md", tree / "playbooks" / "mtu.md")
    shutil.copy(DIRECTORY / "open-files-limit.md", tree / "playbooks")
    assert "open-files-limit" in ids()
    (tree / "playbooks" / "gpu-lost.md").unlink()
    assert "gpu-lost" not in ids()
    book = tree / "playbooks" / "shm-too-small.md"
    before = book.stat()
    book.write_text(book.read_text().replace("insufficient shared", "xnsufficient shared"))
    os.utime(book, ns=(before.st_atime_ns, before.st_mtime_ns))  # as `rsync --times` leaves it
    literals = {signature.literal for known in signatures.load().playbooks for signature in known.signatures}
    assert "xnsufficient shared memory" in literals


@pytest.mark.parametrize("damage", [b"", b"{", b'{"code": 1}', b'{"code":"x","stamps":{},"playbooks":[]}'])
def test_a_damaged_file_is_built_again(tree: Path, damage: bytes) -> None:
    (tree / "data").mkdir()
    (tree / "data" / "signatures.json").write_bytes(damage)
    assert ids() == set(FEW)


def test_a_directory_that_cannot_be_written_leaves_the_cache(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "data").write_text("a file: nothing can be written below it, by root neither")
    assert ids() == set(FEW)
    assert len([*(tree / "cache" / "rlcheck").iterdir()]) == 1
    monkeypatch.setattr(signatures, "build", refuse)
    assert ids() == set(FEW)


def test_without_any_place_it_still_answers(tree: Path) -> None:
    (tree / "data").write_text("")
    (tree / "cache").write_text("")
    assert ids() == set(FEW)


def test_an_installed_index_is_taken_as_it_is(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tree / "data").mkdir()
    signatures.write(tree / "data" / "signatures.json")
    monkeypatch.setattr(signatures, "_PACKAGE", tree)
    monkeypatch.setattr(signatures, "build", refuse)
    assert ids() == set(FEW)


def test_a_broken_playbook_is_named(tree: Path) -> None:
    (tree / "playbooks" / "broken.md").write_text("no front matter")
    with pytest.raises(PlaybookError, match=r"^broken\.md: "):
        signatures.load()
