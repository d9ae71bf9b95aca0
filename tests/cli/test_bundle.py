"""`rlcheck bundle`: what is in it, for whom; no secret, nothing from outside the run, bounded whatever lies there."""

from __future__ import annotations

import json
import os
import re
import shutil
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rlcheck.measure import bundle
from tests.cli.test_secrets import AWS, HF, MARK, NAME, URL, VARIABLES
from tests.conftest import ROOT, Done, rlcheck, write_tree

OOM = (ROOT / "docs/examples/oom.log").read_text()
HANG = ROOT / "docs/examples/hang"
BARE = f"{MARK}bareValue0123456789"
"""A secret that stands in a log without a name: of a variable of the one who makes the bundle."""


def packed(place: Path, out: Path, env: dict[str, str | None] | None = None) -> tuple[Done, dict[str, str]]:
    """The command's end, and the files of the bundle."""
    done = rlcheck("bundle", place, "-o", out, env=env, timeout=120)
    assert done.code == 0, done.err
    with tarfile.open(out) as archive:
        members = archive.getmembers()
        assert all(
            member.isreg() and member.name.startswith("bundle/") and ".." not in member.name for member in members
        )
        names = {member.name.removeprefix("bundle/"): archive.extractfile(member) for member in members}
        return done, {name: file.read().decode() for name, file in names.items() if file is not None}


def left_out(files: dict[str, str]) -> str:
    return "\n".join(json.loads(files["manifest.json"])["left_out"])


def test_any_trainers_folder_of_logs(tmp_path: Path) -> None:
    run = write_tree(tmp_path / "run", {
        "rank0/train.log": OOM, "rank1/stderr": "step 1\nlast words of rank 1\n", "launch.sh": "torchrun train.py\n",
        ".hydra/config.yaml": "trainer:\n  total_epochs: 3\n", "weights.safetensors": "x" * 9999,
        "checkpoint-10/train.log": "old", "train.py": "print(1)\n",
    })  # fmt: skip
    for number in range(4):
        shutil.copy(HANG / f"dump_{number}.json", run)
    done, files = packed(run, tmp_path / "b.tar.gz")
    assert "secrets are left out" in done.out
    taken = {name for name in files if name.startswith(("logs/", "config/", "dumps/"))}
    assert taken == {"logs/rank0/train.log", "logs/rank1/stderr", "config/launch.sh", "config/.hydra/config.yaml",
                     *(f"dumps/dump_{number}.json" for number in range(4))}  # fmt: skip
    diagnosis = json.loads(files["findings/diagnose.json"])
    assert diagnosis["hang"]["culprits"][0]["rank"] == 2
    assert {one["id"] for one in diagnosis["diagnoses"]} == {"activations-out-of-memory"}
    assert json.loads(files["facts.json"])["nodes"][0]["python"]["value"]["distributions"]
    assert "holds no metrics" in left_out(files)
    text = files["issue.md"]
    for heading in ("### System Info", "### Reproduction", "### What happened", "### Expected behavior"):
        assert heading in text
    for part in ("torch==", "Linux", "total_epochs: 3", "Out of memory in the backward pass", "rank 2: has not called",
                 "last words of rank 1"):  # fmt: skip
        assert part in text, part
    (tmp_path / "again").mkdir()
    with tarfile.open(tmp_path / "b.tar.gz") as archive:
        archive.extractall(tmp_path / "again", filter="data")
    again = json.loads(rlcheck("diagnose", tmp_path / "again" / "bundle", "--format", "json").out)
    assert again["hang"]["culprits"][0]["rank"] == 2, "who receives the bundle finds the same"


def test_a_run_of_rltrain(tmp_path: Path) -> None:
    from tests.measure.resume import made

    run = made.rltrain(tmp_path / "own", 10)
    (run / "run.json").write_text(json.dumps({"config": {"trainer": {"seed": 7}}, "outcome": "failed"}))
    (run / "logs").mkdir(exist_ok=True)
    (run / "logs" / "train-0.log").write_text(OOM)
    _, files = packed(run, tmp_path / "b.tar.gz")
    assert json.loads(files["config/run.json"])["config"]["trainer"]["seed"] == 7
    assert json.loads(files["findings/resume.json"])["data"]["resume"]["step"] == 10
    assert not any("global_step" in name for name in files), "checkpoints stay where they are"


SECRETS = f"""
export HF_TOKEN={HF}
wandb: login(key="{"0123456789abcdef" * 2}{MARK.lower().encode().hex()}")
{{'password': '{MARK}x', "api_key": "{MARK}y", 'hub_token': '{MARK}z', 'max_tokens': 512, 'pad_token': '<pad>'}}
Authorization: Bearer {MARK}bearerbearer.0123456789
pulling {URL}registry.example.org/image
aws_secret_access_key = {AWS}
Traceback: File "/home/{NAME}/train.py", line 3, in main
my own secret is {BARE}
passphrase: {MARK}
"""


def test_no_secret_is_in_it(tmp_path: Path) -> None:
    home = tmp_path / "home" / NAME
    run = write_tree(home / "run", {
        "train.log": SECRETS + "RuntimeError: boom\n" + SECRETS,
        "ranks/rank0.log": "x\n" * 90_000 + SECRETS,
        "config.yaml": f"trainer:\n  wandb_api_key: {MARK}\n  password: {MARK}\n  hf_token: {HF}\n  max_tokens: 512\n",
        "args.json": json.dumps({"api_key": MARK, "nested": {"secret": f"{MARK}!"}, "url": f"{URL}host/x"}),
        "launch.sh": f"export WANDB_API_KEY={MARK}\npython train.py --hub-token {MARK}abc --password {MARK}def\n",
        f"{NAME}.log": SECRETS,
        "stacks/rank_0.txt": f'Thread 0x1 (most recent call first):\n  File "/home/{NAME}/a.py", line 1 in {BARE}\n',
    })  # fmt: skip
    dump = json.loads((HANG / "dump_0.json").read_text())
    dump["entries"][-1]["frames"] = [{"name": BARE, "filename": f"/home/{NAME}/x.py", "line": 1}]
    (run / "dump_0.json").write_text(json.dumps(dump))
    env = {**VARIABLES, "HOME": str(home), "MY_API_KEY": BARE}
    done, files = packed(run, tmp_path / "b.tar.gz", env)
    assert len(files) > 10
    for name, text in {**files, "out": done.out.replace(str(tmp_path), ""), **{name: name for name in files}}.items():
        for line in text.splitlines():
            assert MARK not in line, (name, line[:300])
            assert MARK.lower().encode().hex() not in line, (name, line[:300])
            if name != "out":
                assert NAME not in line, (name, line[:300])
    assert "max_tokens: 512" in files["config/config.yaml"], "what is no secret is kept"
    assert "'pad_token': '<pad>'" in files["logs/train.log"]


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root reads everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_links_lead_nowhere_and_odd_files_are_lines(tmp_path: Path) -> None:
    outside = write_tree(tmp_path / "outside", {"secret.log": f"{MARK}\n", "d/other.log": f"{MARK}\n",
                                                "metrics.jsonl": json.dumps({"step": 1, f"{MARK}": 1.0})})  # fmt: skip
    run = write_tree(tmp_path / "run", {"train.log": "step 1\n", "closed.log": "x", "closed/in.log": "x"})
    (run / "file.log").symlink_to(outside / "secret.log")
    (run / "folder").symlink_to(outside / "d")
    (run / "metrics.jsonl").symlink_to(outside / "metrics.jsonl")
    (run / "loop").symlink_to(run)
    (run / "gone.log").symlink_to("/nowhere")
    os.mkfifo(run / "pipe.log")
    (run / "dump_0.json").write_text('{"pg_config": {"0": ' + "[" * 100_000)
    (run / "dump_1").write_bytes(b"\x80\x04cposix\nsystem\nnccl_version")
    _, files = packed(run, tmp_path / "b.tar.gz")
    assert not any(MARK in text for text in files.values())
    assert {name for name in files if name.startswith(("logs/", "dumps/"))} == {"logs/train.log", "logs/closed.log",
                                                                               "logs/closed/in.log"}  # fmt: skip
    said = left_out(files)
    for part in ("links were not followed", "leads out of the run", "dump_0.json: it is damaged", "not taken: dump_1"):
        assert part in said, part
    run.chmod(0o755)
    (run / "closed.log").chmod(0)
    (run / "closed").chmod(0)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent.name.startswith(("pytest", "popen", tmp_path.name)):
            parent.chmod(0o755)
    with as_nobody():
        found = bundle.gather(run, {}, 30, lambda _: None)
    assert "logs/train.log" in found.taken
    assert any("closed.log: Permission denied" in note for note in found.notes)
    assert any(re.search(r"closed: Permission denied", note) for note in found.notes)


def test_a_terabyte_and_ten_thousand_dumps_are_bounded(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    with open(run / "train.log", "wb") as file:
        file.write(b"the first line\n" + b"step\n" * 9999)
        file.seek(1 << 40)
        file.write(b"\nthe last line\n")
    source = (HANG / "dump_0.json").read_bytes()
    for number in range(10_000):
        (run / f"nccl_trace_rank_{number}").write_bytes(source)
    started = time.monotonic()
    found = bundle.gather(run, {}, 30, lambda _: None)
    assert time.monotonic() - started < 45
    log = found.taken["logs/train.log"].decode()
    assert log.startswith("the first line")
    assert log.endswith("the last line\n")
    assert len(log) < 1 << 20
    dumps = [name for name in found.taken if name.startswith("dumps/")]
    assert dumps[:3] == [f"dumps/nccl_trace_rank_{number}.json" for number in range(3)]
    assert len(dumps) == bundle.SHARES["dumps"].files
    assert f"{10_000 - len(dumps)} more files of dumps were left out" in "\n".join(found.notes)
    assert sum(map(len, found.taken.values())) < 96 << 20


def test_a_deadline_and_a_count_end_the_walk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = write_tree(tmp_path / "run", {f"d{n}/a.log": "x\n" for n in range(50)})
    assert "not all of the folder was looked at" in "\n".join(bundle.gather(run, {}, -1, lambda _: None).notes)
    monkeypatch.setattr(bundle, "MOST_LOOKED_AT", 60)
    found = bundle.gather(run, {}, 30, lambda _: None)
    assert 0 < len(found.taken) < 50
    assert "not all of the folder was looked at" in "\n".join(found.notes)


@pytest.mark.parametrize(("words", "said"), [((), "give RUN"), (("/nowhere",), "no such folder"),
                                             (("docs", "-o", "/nowhere/x.tar.gz"), "there is no folder")])  # fmt: skip
def test_bad_words_are_one_line(words: tuple[str, ...], said: str) -> None:
    done = rlcheck("bundle", *words)
    assert done.code == 2
    assert said in done.error_line


def test_an_empty_folder_still_gives_the_machine(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    _, files = packed(tmp_path / "empty", tmp_path / "b.tar.gz")
    assert "(No error was found in the logs" in files["issue.md"]
    assert "findings/env.json" in files
