"""The hub probe on made-up machines (F58, F31)."""

import os
import stat
import time
from pathlib import Path

import msgspec
import pytest

import rlcheck.measure.machine.hub as hub_probe
from rlcheck.facts.base import MissingKind, known
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.hub import HubFacts
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.mount_table import mount_of, read_mounts

UID = os.getuid()


def machine(root: Path, **environ: str) -> ProbeContext:
    """A tree with a home directory, an account and a mount table."""
    for name in ("etc", "proc/self", "home/bob"):
        (root / name).mkdir(parents=True, exist_ok=True)
    (root / "etc/passwd").write_text(f"bob:x:{UID}:{UID}::/home/bob:/bin/sh\nann:x:99999:1::/home/ann:/bin/sh\n")
    mounts = "/dev/sda / ext4 rw 0 0\nsrv:/vol /home/bob nfs4 rw,hard 0 0\ntmpfs /home/bobby tmpfs rw 0 0\n"
    (root / "proc/self/mounts").write_text(mounts)
    return ProbeContext(root=root, environ={"HOME": "/home/bob", **environ})


def cache_with(root: Path, name: str = "models--org--tiny") -> Path:
    repo = root / "home/bob/.cache/huggingface/hub" / name
    for part in ("blobs", "refs", "snapshots/abc"):
        (repo / part).mkdir(parents=True)
    (repo / "blobs/b1").write_text("x")
    (repo / "snapshots/abc/config.json").symlink_to("../../blobs/b1")
    (repo / "refs/main").write_text("abc")
    return repo


@pytest.mark.parametrize(
    ("environ", "cache_dir", "source"),
    [
        ({}, "/home/bob/.cache/huggingface/hub", "default"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub", "XDG_CACHE_HOME"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, "/h/hub", "HF_HOME"),
        ({"HF_HOME": "/h", "HUGGINGFACE_HUB_CACHE": "/old"}, "/old", "HUGGINGFACE_HUB_CACHE"),
        ({"HUGGINGFACE_HUB_CACHE": "/old", "HF_HUB_CACHE": "/new"}, "/new", "HF_HUB_CACHE"),
        ({"HF_HOME": "~/hf"}, "/home/bob/hf/hub", "HF_HOME"),
        ({"HF_HOME": "~ann/hf"}, "/home/ann/hf/hub", "HF_HOME"),
        ({"HF_HOME": "$SCRATCH/hf", "SCRATCH": "/s"}, "/s/hf/hub", "HF_HOME"),
        ({"HF_HOME": "${NOWHERE}/hf"}, "${NOWHERE}/hf/hub", "HF_HOME"),
        ({"HF_HOME": ""}, "hub", "HF_HOME"),
        ({"HOME": ""}, "/.cache/huggingface/hub", "default"),
    ],
)
def test_the_cache_is_resolved_as_huggingface_hub_does(tmp_path: Path, environ, cache_dir: str, source: str):
    facts = hub_probe.collect(machine(tmp_path, **environ))
    assert (facts.cache_dir, facts.cache_source) == (cache_dir, source)


def test_without_home_the_account_decides(tmp_path: Path):
    ctx = machine(tmp_path)
    facts = hub_probe.collect(ProbeContext(root=tmp_path, environ={}))
    assert facts.cache_dir == "/home/bob/.cache/huggingface/hub"
    assert facts.home.value is not None
    assert facts.home.value.source == "passwd"
    (tmp_path / "etc/passwd").unlink()
    assert hub_probe.collect(ProbeContext(root=tmp_path, environ={})).home.missing is not None
    assert ctx.environ["HOME"] == "/home/bob"


def test_settings_say_what_was_wrong_with_the_value_itself(tmp_path: Path):
    facts = hub_probe.collect(machine(tmp_path, HF_DATASETS_CACHE="~/data", HF_HUB_CACHE="cache", HF_XET_CACHE="$S/x"))
    by_name = {setting.name: setting for setting in facts.settings}
    assert (by_name["HF_DATASETS_CACHE"].has_tilde, by_name["HF_DATASETS_CACHE"].resolved) == (True, "~/data")
    assert by_name["HF_HUB_CACHE"].relative
    assert by_name["HF_XET_CACHE"].has_variable
    assert facts.datasets_dir == "~/data"


def test_a_cache_that_does_not_exist_is_not_made(tmp_path: Path):
    facts = hub_probe.collect(machine(tmp_path))
    assert facts.cache.value is not None
    assert not facts.cache.value.exists
    assert facts.cache.value.nearest == "/home/bob"
    assert facts.cache.value.free_bytes > 0
    assert facts.contents.missing is not None
    assert facts.contents.missing.kind is MissingKind.ABSENT
    assert facts.write_test.value is not None
    assert facts.write_test.value.failed_step == ""
    assert list((tmp_path / "home/bob").iterdir()) == []


def test_the_walk_finds_every_kind_of_leftover(tmp_path: Path):
    repo = cache_with(tmp_path)
    cache_with(tmp_path, "datasets--org--gsm8k")
    old = time.time() - 100_000
    (repo / "blobs/b2.incomplete").write_bytes(b"y" * 1000)
    os.utime(repo / "blobs/b2.incomplete", (old, old))
    (repo / "blobs/b3.1234abcd.incomplete").write_bytes(b"y")
    (repo / "snapshots/abc/model.safetensors").symlink_to("../../blobs/gone")
    (repo / "refs/pr").mkdir()
    (repo / "refs/pr/1").write_text("not-there")
    locks = repo.parent / ".locks/models--org--tiny"
    locks.mkdir(parents=True)
    (locks / "b1.lock").write_text("")
    found = hub_probe.collect(machine(tmp_path)).contents.value
    assert found is not None
    assert (found.num_models, found.num_datasets, found.models) == (1, 1, ("org/tiny",))
    assert (found.incomplete.num, found.incomplete.num_bytes, found.incomplete_recent.num) == (1, 1000, 1)
    assert found.incomplete.oldest_s > 90_000
    assert found.dangling.first == ("models--org--tiny/snapshots/abc/model.safetensors",)
    assert found.lost_refs.first == ("models--org--tiny/refs/pr/1",)
    assert found.locks.num == 1
    assert found.complete


def test_a_huge_cache_is_cut_off_and_said_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    repo = cache_with(tmp_path)
    for number in range(300):
        (repo / f"blobs/x{number}").write_text("")
    real = ProbeContext.child

    def child(self, script, payload=None, timeout_s=5.0):
        return real(self, script, {**payload, "max_entries": 50}, timeout_s)

    monkeypatch.setattr(ProbeContext, "child", child)
    found = hub_probe.collect(machine(tmp_path)).contents.value
    assert found is not None
    assert (found.complete, found.cut_reason) == (False, "more than 50 entries")


def test_a_file_in_place_of_the_cache(tmp_path: Path):
    ctx = machine(tmp_path)
    (tmp_path / "home/bob/.cache").write_text("not a directory")
    facts = hub_probe.collect(ctx)
    assert facts.write_test.value is not None
    assert (facts.write_test.value.failed_step, facts.write_test.value.error) == ("create", "Not a directory")


def test_token_files_are_seen_but_never_read(tmp_path: Path):
    ctx = machine(tmp_path)
    token = tmp_path / "home/bob/.cache/huggingface/token"
    token.parent.mkdir(parents=True)
    token.write_text("hf_verysecretverysecret")
    token.chmod(0o644)
    old = tmp_path / "home/bob/.huggingface/token"
    old.parent.mkdir()
    old.write_text("hf_oldoldoldold")
    facts = hub_probe.collect(ctx)
    assert facts.tokens.value is not None
    new_place, old_place = facts.tokens.value
    assert (new_place.path, new_place.exists, new_place.readable) == ("/home/bob/.cache/huggingface/token", True, True)
    # pytest's own directory above is closed, so that nobody else gets at the file whatever its mode says.
    assert stat.filemode(new_place.mode)[-6:] == "------"
    assert (old_place.exists, old_place.read_by_library) == (True, False)
    assert b"hf_" not in msgspec.json.encode(facts)


def test_rights_that_a_closed_directory_takes_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rlcheck.remote import hub_child

    modes = {"/": 0o755, "/home": 0o755, "/home/bob": 0o755, "/home/eve": 0o750, "/home/ann": 0o700}
    monkeypatch.setattr(hub_child.os, "stat", lambda path: os.stat_result((modes[path], *[0] * 9)))
    monkeypatch.setattr(hub_child.os.path, "realpath", lambda path: path)
    taken = [hub_child.closed_above(f"/home/{name}/token") for name in ("bob", "eve", "ann")]
    assert taken == [0, 0o007, 0o077]


def test_a_child_that_hangs_costs_its_part_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def child(self, script, payload=None, timeout_s=5.0):
        return [{"item": "home", "value": {"exists": True}}, "garbage", {"item": "cache", "value": 3}, {"value": 1}]

    monkeypatch.setattr(ProbeContext, "child", child)
    facts = hub_probe.collect(machine(tmp_path))
    assert facts.home.value is not None
    assert facts.cache.missing is not None
    assert facts.cache.missing.kind is MissingKind.ERROR
    assert facts.write_test.missing is not None
    assert facts.write_test.missing.kind is MissingKind.TIMEOUT


def test_a_machine_with_nothing_at_all(tmp_path: Path):
    facts = hub_probe.collect(ProbeContext(root=tmp_path / "void", environ={"HF_HUB_CACHE": "/a\udcff\0b"}))
    assert isinstance(facts, HubFacts)
    assert facts.fs_type.missing is not None
    assert decode(encode((Facts(hub=known(facts)),)))[0].hub.value == facts


def test_the_file_system_under_the_cache(tmp_path: Path):
    facts = hub_probe.collect(machine(tmp_path))
    assert (facts.fs_type.value, facts.fs_point, facts.fs_is_network) == ("nfs4", "/home/bob", True)


def test_a_symbolic_link_decides_the_file_system(tmp_path: Path):
    ctx = machine(tmp_path)
    (tmp_path / "scratch").mkdir()
    (tmp_path / "home/bob/.cache").symlink_to(tmp_path / "scratch")
    facts = hub_probe.collect(ctx)
    assert (facts.fs_type.value, facts.fs_is_network) == ("ext4", False)


def test_mount_table_with_escapes_and_garbage(tmp_path: Path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/mounts").write_text("junk\n/dev/a / xfs rw 0 0\nx /my\\040disk fuse.s3fs rw 0 0\n\x00\n")
    mounts = read_mounts(ProbeContext(root=tmp_path, environ={})).value
    assert mounts is not None
    inner, outer = mount_of(mounts, "/my disk/hub"), mount_of(mounts, "/my diskette")
    assert inner is not None
    assert inner.is_network
    assert outer is not None
    assert outer.fs_type == "xfs"


def test_what_the_kernel_says_against_locks_and_links_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rlcheck.remote import hub_child

    def refuse(*_: object) -> None:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(hub_child.fcntl, "flock", refuse)
    monkeypatch.setattr(hub_child.os, "symlink", refuse)
    found = hub_child.write_test(str(tmp_path))
    assert (found["lock_errno"], found["lock_error"], found["symlink_errno"]) == (38, "Function not implemented", 38)
    assert list(tmp_path.iterdir()) == []


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    from rlcheck.remote import hub_child

    def full(*_: object) -> None:
        raise OSError(122, "Disk quota exceeded")

    monkeypatch.setattr(hub_child.os, "write", full)
    found = hub_child.write_test(str(tmp_path))
    assert (found["failed_step"], found["error"]) == ("write", "Disk quota exceeded")
    assert list(tmp_path.iterdir()) == []
