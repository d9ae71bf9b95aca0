"""Each walk of CONTRIBUTING, done in a scratch copy: few files by hand, and the commands know the new thing."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest

from rltrain.config.engines import ENGINES
from rltrain.config.estimators import ESTIMATORS
from tests.architecture import walks
from tests.conftest import base_environ

ROOT = Path(__file__).resolve().parents[2]
COPIED = (
    "rlcheck", "playbooks", "trainer/rltrain", "docs/trainer", "tests/__init__.py", "tests/conftest.py",
    "tests/every.py", "tests/warm.py", "tests/tools", "tests/rows", "README.md",
    "tests/checks", "tests/architecture", "tests/trainer/algos", "tests/trainer/workers/rollout/conftest.py",
    "tests/measure/run", "tests/measure/config/trainers", "docs/trainers.md", "tests/fixtures/diagnose",
    "tests/trainer/__init__.py", "tests/measure/__init__.py",
)  # fmt: skip
SECTION = re.compile(r"^### (?P<title>[^\n:]+): (?P<number>\d) files?\n(?P<text>.*?)(?=^##)", re.M | re.S)
RECIPE = "trainer/rltrain/recipes/toy-ppo.yaml"
WRITE_KEYS = (
    "from tests.tools import build, rltrain_keys; "
    "(build.ROOT / 'rlcheck/data/rltrain_keys.json').write_text(rltrain_keys.text())"
)
# What holds of every check, of one.
TESTED = """
from tests.architecture import test_checks as tests
check = next(check for check in tests.CHECKS if check.id == "{}")
tests.test_there_are_enough_checks()
tests.test_ids_and_titles_are_unique()
for test in (tests.test_page_has_its_headings, tests.test_needs_exist, tests.test_fires_and_stays_quiet):
    test.of_one(check)
"""
PAGES = "from tests.tools import check_pages as p; from rlcheck.playbook import Library; "


@dataclass(frozen=True)
class Scratch:
    """A copy of the tree."""

    root: Path

    def run(self, *words: str, code: int | None = 0, **environ: str) -> str:
        """Return what `python WORDS` prints in the copy; standard error for a CODE of an error."""
        paths = os.pathsep.join((str(self.root), str(self.root / "trainer")))
        environ = {"PYTHONPATH": paths, "XDG_CACHE_HOME": str(self.root / "cache"), **environ}
        command = [sys.executable, *words]
        done = subprocess.run(
            command, cwd=self.root, env=base_environ(environ), capture_output=True, text=True, timeout=60, check=False
        )
        assert code is None or done.returncode == code, done.stdout[-2000:] + done.stderr[-2000:]
        return done.stdout + (done.stderr if code else "")

    def write(self, walk: walks.Walk) -> None:
        """Do WALK, within its bar."""
        assert len(walk.files) <= walk.bar
        walk.write(self.root)


@pytest.fixture
def scratch(tmp_path: Path) -> Scratch:
    for name in COPIED:
        source, target = ROOT / name, tmp_path / name
        if source.is_dir():
            shutil.copytree(source, target)  # compiled modules, too: each command would compile all of them again
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    return Scratch(tmp_path)


def test_contributing_has_each_walk_with_files_that_are_there() -> None:
    """As many as the walk here writes: one example for each."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    found = {match["title"]: match for match in SECTION.finditer(text)}
    assert list(found) == list(walks.WALKS)
    for title, walk in walks.WALKS.items():
        named = re.findall(r"^\d\. `([^`]+)`", found[title]["text"], re.M)
        assert len(named) == int(found[title]["number"]) == len(walk.files) <= walk.bar, title
        assert [name for name in named if not (ROOT / name).is_file()] == []


def test_a_check(scratch: Scratch) -> None:
    scratch.write(walks.CHECK)
    rows = {row["id"]: row for row in json.loads(scratch.run("-m", "rlcheck", "list", "--format", "json"))}
    assert rows["SYS099"]["playbook"] == "kernel-not-walked"
    page = scratch.run("-m", "rlcheck", "explain", "SYS099")
    assert "The kernel is a walked one" in page
    assert "Walk back to kernel-not-walked" in page
    assert "## SYS099: The kernel is a walked one" in scratch.run("-c", f"{PAGES}print(p.family_page('SYS'))")
    scratch.run("-c", TESTED.format("SYS099"))


def test_a_log_playbook(scratch: Scratch) -> None:
    log = scratch.root / "train.log"
    log.write_text("step 16\n" + walks.LOG_LINE + "\n", encoding="utf-8")
    scratch.write(walks.PLAYBOOK)
    assert "walker-left-path" in scratch.run("-m", "rlcheck", "list", "--playbooks")
    answer = scratch.run("-m", "rlcheck", "diagnose", str(log), code=1)
    assert "The walk of walker-left-path leads here" in answer
    assert "Walk back to walker-left-path" in answer
    index = scratch.run("-c", f"{PAGES}l = Library(); print(p.index_page([l.get(id) for id in l.ids()]))")
    assert re.search(r"walker-left-path.*\| • \|", index)


def test_an_advantage_estimator(scratch: Scratch) -> None:
    scratch.write(walks.ESTIMATOR)
    override = "algorithm.adv_estimator=walked"
    assert "adv_estimator: walked" in scratch.run("-m", "rltrain", "run", "toy-ppo", override, "--dry-run")
    scratch.run("-m", "rltrain", "init", "new.yaml")
    assert re.search(r"One of gae, .*walked", (scratch.root / "new.yaml").read_text(encoding="utf-8"))
    scratch.run("-m", "rlcheck", "config", RECIPE, override, code=1)
    scratch.run("-c", WRITE_KEYS)
    assert re.search(r"estimator +walked", scratch.run("-m", "rlcheck", "config", RECIPE, override))
    assert undocumented(scratch.root, ("walked",), ()) == []


def test_an_engine(scratch: Scratch) -> None:
    scratch.write(walks.ENGINE)
    override = "actor_rollout_ref.rollout.name=walked"
    assert "name: walked" in scratch.run("-m", "rltrain", "run", "toy-ppo", override, "--dry-run")
    scratch.run("-m", "rltrain", "init", "new.yaml")
    assert f"One of {', '.join(ENGINES)}, walked." in (scratch.root / "new.yaml").read_text(encoding="utf-8")
    scratch.run("-c", WRITE_KEYS)
    awake = "actor_rollout_ref.rollout.free_cache_engine=false"
    assert re.search(r"rollout +walked", scratch.run("-m", "rlcheck", "config", RECIPE, override, awake))
    assert undocumented(scratch.root, (), ("walked",)) == []


@pytest.mark.parametrize("key", ["algorithm.adv_estimator", "actor_rollout_ref.rollout.name"])
def test_an_unknown_name_is_refused_with_the_known_ones(key: str) -> None:
    known = ESTIMATORS if key.startswith("algorithm") else ENGINES
    refused = Scratch(ROOT).run("-m", "rltrain", "run", "toy-ppo", f"{key}=walked", "--dry-run", code=2)
    assert f"{key}: expected one of {', '.join(known)}, got 'walked'" in refused
    assert len(refused.strip().splitlines()) == 1


def test_a_metrics_reader(scratch: Scratch) -> None:
    steps = [json.dumps({"step": step, "w/gain": step / 10, "w/words": 40}) for step in range(1, 5)]
    run = scratch.root / "run"
    run.mkdir()
    (run / "metrics.jsonl").write_text("\n".join(steps) + "\n", encoding="utf-8")
    assert "walker" not in scratch.run("-m", "rlcheck", "run", str(run), code=None)
    scratch.write(walks.READER)
    shown = scratch.run("-m", "rlcheck", "run", str(run))
    assert "walker, up to step 4, reward 0.1 to 0.4" in shown
    assert re.search(r"response length +40 +40", shown)


def test_a_family(scratch: Scratch) -> None:
    scratch.write(walks.FAMILY)
    scratch.write(walks.FIRST_CHECK)
    rows = json.loads(scratch.run("-m", "rlcheck", "list", "--select", "WLK", "--format", "json"))
    assert [(row["id"], row["needs"]) for row in rows] == [("WLK001", ["path"])]
    found = scratch.run("-m", "rlcheck", "env", "--select", "WLK", code=None, WALK_SURFACE="mud")
    assert re.search(r"Walks.*\n.*WLK001", found)
    assert "Walk back to muddy-path" in found
    scratch.run("-m", "rlcheck", "collect", "-o", "facts.json", WALK_SURFACE="mud")
    saved = json.loads((scratch.root / "facts.json").read_text(encoding="utf-8"))
    assert saved["nodes"][0]["path"] == {"value": {"surface": "mud"}}
    assert "WLK001" in scratch.run("-m", "rlcheck", "env", "--facts", "facts.json", code=None)
    assert "# WLK: Walks" in scratch.run("-c", f"{PAGES}print(p.family_page('WLK'))")
    scratch.run("-c", TESTED.format("WLK001"))


def test_a_trainers_configs(scratch: Scratch) -> None:
    scratch.write(walks.TRAINER)
    source = scratch.root / "walker" / "train.py"
    source.parent.mkdir()
    options = {
        "num_gpus": "type=int, default=8",
        "num_samples": "type=int, default=4",
        "rate": "type=float, default=1e-6",
    }
    lines = [f"parser.add_argument('--{name}', {words})" for name, words in options.items()]
    source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    for words in (
        ("init", "-q"),
        ("add", "walker"),
        ("-c", "user.name=w", "-c", "user.email=w@w", "commit", "-qm", "w"),
    ):
        subprocess.run(["git", "-C", str(scratch.root), *words], check=True, capture_output=True)
    scratch.run("-m", "tests.tools.trainer_keys", "walker", f"{scratch.root}@HEAD")
    run = scratch.root / "run.sh"
    run.write_text("python -m walker.train --rate 5e-7 --num_sample 4 --nun_gpus 2\n", encoding="utf-8")
    found = scratch.run("-m", "rlcheck", "config", str(run), "--no-fs", code=1)
    assert "nun_gpus: unknown key; did you mean num_gpus?" in found
    assert re.search(r"keys of Walker HEAD: example/walker@\w+", found)
    assert "8 GPUs" in found
    run.write_text("python -m walker.train --rate 5e-7 --num_gpus 2\n", encoding="utf-8")
    assert "the config does not say" in scratch.run("-m", "rlcheck", "config", str(run), "--no-fs")


def undocumented(root: Path, estimators: Iterable[str], engines: Iterable[str]) -> list[str]:
    """Return which of these the trainer's pages do not name."""
    algorithms = (root / "docs/trainer/algorithms.md").read_text(encoding="utf-8")
    quickstart = (root / "docs/trainer/quickstart.md").read_text(encoding="utf-8").lower()
    missing = [name for name in estimators if f"| `{name}` |" not in algorithms]
    return missing + [name for name in engines if not re.search(rf"^\| .*\b{name}\b", quickstart, re.M)]


def test_docs_name_each_estimator_and_each_engine() -> None:
    assert undocumented(ROOT, ESTIMATORS, ENGINES) == []
    assert undocumented(ROOT, ("walked",), ("walked",)) == ["walked", "walked"]
