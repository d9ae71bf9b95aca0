"""The recorder of raise sites: planted releases of every shape, merged, cut and read again."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from pathlib import Path

import pytest

from rlcheck.diagnose.source.installed import Environment
from rlcheck.diagnose.source.recorded import CUT, Entry, entry_of, is_specific, line_of, parts_of, read, written
from tests.diagnose.planted import asked, site_of
from tests.diagnose.test_source import SHAPES, log_of
from tests.tools.raise_sites import fetch
from tests.tools.raise_sites.fetch import PLANS, Plan, spread, usable, wanted
from tests.tools.raise_sites.merge import GENERIC, kept, merged, written_record
from tests.tools.raise_sites.reading import sites


def release(folder: Path, version: str, files: dict[str, str]) -> Path:
    path = folder / f"acme-{version}.zip"
    with zipfile.ZipFile(path, "w") as out:
        for name, code in files.items():
            out.writestr(name, code)
    return path


def entries(code: str) -> list[Entry]:
    return [one.entry for one in sites("acme/engine.py", code.encode())]


@pytest.mark.parametrize("name", [name for name in SHAPES if name != "format"])
def test_each_shape_of_a_raise_is_found_again_by_its_message(tmp_path: Path, name: str) -> None:
    shape = SHAPES[name]
    found = merged([release(tmp_path, "1.0", {"acme/engine.py": shape.code})])
    folder = tmp_path / "raises"
    folder.mkdir()
    (folder / "acme.txt").write_text(written_record("2026-11-28", "acme", ["1.0"], found), encoding="utf-8")
    where = Environment(sites=(), stdlib=os.path.dirname(os.__file__), records=str(folder))
    site = site_of(asked(where, log_of(shape)))
    assert (site.file, site.releases) == ("acme/engine.py", ("1.0", "1.0"))
    assert site.conditions[-1] == shape.condition
    said = {one.name: (one.kind, one.value) for one in site.settings}
    # An argument that neither decides nor is shown is not recorded.
    assert said == {key: value for key, value in shape.settings.items() if key in said}
    assert all(key in said for key, (kind, _) in shape.settings.items() if kind not in ("argument", "limit"))


def test_formats_are_read_with_their_places() -> None:
    (one,) = entries(SHAPES["format"].code)
    assert one.template == "at most {LIMIT} workers are allowed, not {cfg['num_workers']}"
    assert {(known.name, known.value, known.origin) for known in one.settings} == {
        ("num_workers", "1", "log"),
        ("LIMIT", "64", "source"),
    }


def test_the_same_site_is_one_over_the_releases(tmp_path: Path) -> None:
    old = "def go(n):\n    if n > 3:\n        raise ValueError(f'too many of the workers: {n}')\n"
    new = f"import os\n\n\n{old}".replace("n > 3", "n > 4")
    archives = [
        release(tmp_path, version, {"acme/a.py": code})
        for version, code in (("1.0", old), ("1.1", "# other lines\n" + old), ("2.0", new), ("2.1", new))
    ]
    spans = {one.entry.conditions: (one.entry.first, one.entry.last) for one in merged(archives)}
    assert spans == {("n > 3",): (0, 1), ("n > 4",): (2, 3)}


def test_a_message_that_several_functions_share_is_marked(tmp_path: Path) -> None:
    code = "def a(n):\n    if n:\n        raise ValueError(f'too many of the workers: {n}')\n"
    both = code + code.replace("def a", "def b") + code.replace("def a", "def c").replace("workers", "engines")
    found = merged([release(tmp_path, "1.0", {"acme/a.py": both})])
    assert {one.entry.function: one.entry.shared for one in found} == {"a": True, "b": True, "c": False}
    assert all(entry_of(line_of(one.entry)) == one.entry for one in found)


def test_what_names_nothing_is_left_out() -> None:
    assert not entries(
        "def go():\n    raise ValueError('no')\n    raise ValueError\n    raise ValueError(1, 'long enough')\n"
    )
    assert not entries("def go(self):\n    raise NotImplementedError('of a subclass')\n")
    assert not entries("def go(x):\n    raise ValueError(f'{x}: {x} {x}')\n")
    assert not entries("def go(:\n    raise ValueError('not a line of Python')\n")
    (one,) = entries("def go(x):\n    raise ValueError(x or 'a default' if x else 'the text that it falls back to')\n")
    assert one.template == "the text that it falls back to"
    found = merged([])
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "list index out of range",
        "No module named {name}",
        "CUDA error: {x} of it",
        "{self.name} object has no attribute {x}",
    ],
)
def test_what_python_and_cuda_say_is_generic(tmp_path: Path, text: str) -> None:
    assert GENERIC.match(text)
    code = f"def go(self, name, x):\n    raise ValueError(f{text!r})\n"
    assert merged([release(tmp_path, "1.0", {"acme/a.py": code})]) == []


def test_an_error_that_is_logged_before_the_process_ends_is_a_site() -> None:
    code = (
        "def go(n):\n    if n:\n        logger.error('the port %s is taken by another', n)\n        sys.exit(1)\n"
        "    logger.error('this one is only said, and all goes on')\n"
    )
    (one,) = entries(code)
    assert (one.kind, one.template, one.conditions) == ("exit", "the port {n} is taken by another", ("n",))


def test_a_form_that_another_covers_and_the_end_of_a_long_message_are_left_out() -> None:
    code = (
        "def go(n):\n    name = 'transformers'\n    name = name or n\n"
        "    raise ImportError(f'the package {name} has to be installed first')\n"
    )
    assert [one.template for one in entries(code)] == ["the package {name} has to be installed first"]
    (long,) = entries(f"def go(n):\n    raise ValueError('so many words ' * 0 + {'many words ' * 40!r})\n")
    assert long.template.endswith(f"{{{CUT}}}")
    assert len(long.template) < 200


def test_a_line_of_the_record_is_read_as_it_was_written() -> None:
    code = SHAPES["f-string"].code + SHAPES["in steps"].code + SHAPES["format"].code
    for one in entries(code):
        assert entry_of(line_of(one)) == one
        assert written(parts_of(one.template)) == one.template
    record = read(written_record("2026-11-28", "acme", ["1", "2"], sites("acme/a.py", code.encode())))
    assert (record.date, record.package, record.releases) == ("2026-11-28", "acme", ("1", "2"))
    assert [*record.sites] == ["acme/a.py"]
    assert len(record.sites["acme/a.py"]) == len(entries(code))


def test_of_too_many_the_sites_that_users_can_hit_are_kept() -> None:
    code = (
        "def a(self):\n    raise RuntimeError('something is odd with a thing')\n"
        "def b(engine_args):\n    if engine_args.max_model_len > 9:\n"
        "        raise ValueError(f'max_model_len must be at most 9, not {engine_args.max_model_len}')\n"
    )
    found = sites("acme/a.py", code.encode())
    (best,) = kept(found, 1, 180)
    assert best.entry.function == "b"
    assert len(kept(found, 1, 10_000)) == 2
    assert kept(found, 1, 10) == []
    assert is_specific(best.entry.template)


@pytest.mark.parametrize(
    ("name", "is_read"),
    [
        ("vllm/config.py", True), ("vllm/tests/a.py", False), ("vllm/third_party/a.py", False),
        ("vllm/entrypoints/test_a.py", False), ("vllm-1.data/scripts/a.py", False), ("vllm/a.so", False),
        ("vllm/latest_test/a.py", False), ("other/a.py", False), ("setup.py", False),
        ("vllm/model_executor/models/llama.py", True),
    ],
)  # fmt: skip
def test_tests_examples_and_vendored_code_are_not_read(name: str, is_read: bool) -> None:
    assert wanted(name, "vllm") is is_read


def test_files_are_named_from_site_packages_on(tmp_path: Path) -> None:
    wheel = tmp_path / "acme-1.0-py3-none-any.whl"
    names = ("acme/a.py", "acme-1.0.data/purelib/acme/b.py", "acme/tests/c.py", "acme-1.0.data/scripts/d.py")
    with zipfile.ZipFile(wheel, "w") as out:
        for name in names:
            out.writestr(name, "x = 1\n")
    source = tmp_path / "acme-1.0.tar.gz"
    with tarfile.open(source, "w:gz") as out:
        for name in ("acme-1.0/acme/a.py", "acme-1.0/python/acme/b.py", "acme-1.0/setup.py", "acme-1.0/src/acme/e.py"):
            member = tarfile.TarInfo(name)
            member.size = 6
            out.addfile(member, io.BytesIO(b"x = 1\n"))
    assert [name for name, _ in fetch.members(wheel, "acme")] == ["acme/a.py", "acme/b.py"]
    assert [name for name, _ in fetch.members(source, "acme")] == ["acme/a.py", "acme/b.py", "acme/e.py"]


def test_releases_are_spread_and_pre_releases_left_out() -> None:
    listed = ["1.3", "2.0rc1", "1.2.post1", "1.2", "1.1.0", "1.1", "1.0+cpu", "0.9", "0.8"]
    assert usable(listed, Plan("0.9", 3, 1)) == ["0.9", "1.1", "1.2.post1", "1.3"]
    assert spread(["a", "b", "c", "d", "e"], 3) == ["a", "c", "e"]
    assert spread(["a"], 3) == ["a"]


def test_a_release_that_pip_cannot_take_is_replaced_by_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(PLANS, "acme", Plan("1.0", 2, 1))
    monkeypatch.setattr(fetch, "_pip", lambda *words: (True, "Available versions: 1.2, 1.1, 1.0"))
    monkeypatch.setattr(fetch, "sources", lambda name, version, plan, folder: None if version == "1.2" else folder)
    assert [version for version, _ in fetch.archives("acme", tmp_path)] == ["1.0", "1.1"]
    monkeypatch.setattr(fetch, "_pip", lambda *words: (False, ""))
    with pytest.raises(SystemExit, match="pip knows no acme"):
        fetch.archives("acme", tmp_path)
