"""`rlcheck preflight --rehearse` with a real Ray: a kill loses nothing, and each planted trap is named."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.rehearsal import RehearsalFacts
from rltrain.measure.rehearse.plugin import STEPS, Trial, changes, go_on, go_straight, stop
from tests.conftest import rlcheck
from tests.preflight.test_command import HF, QUIET, verl, went

pytestmark = pytest.mark.timeout(900)
SMALL = (HF, "trainer.num_cpu_ranks=1", "data.train_batch_size=32", "actor_rollout_ref.actor.ppo_mini_batch_size=16",
         "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16", "critic.ppo_mini_batch_size=16",
         "critic.ppo_micro_batch_size_per_gpu=16", "trainer.resume_mode=auto")  # fmt: skip
CHECKS = [check for check in family_checks("RES") if "rehearsal" in check.needs]
ONLY = [
    word for link in ("machine", "network", "collectives", "data", "memory", "rollout") for word in ("--skip", link)
]


def _trial(directory: Path, *more: str) -> tuple[Trial, RehearsalFacts]:
    from rltrain.config import load, resolve
    from rltrain.config.machine import this_machine

    words = ("toy-ppo", *SMALL, *more)
    config = resolve(load(words[0], words[1:]), this_machine())
    trial = Trial((*words, *changes(config, 32)), directory, lambda _: None, [])
    return trial, RehearsalFacts(steps=STEPS, save_freq=config.trainer.save_freq, resume_mode="auto")


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Trial, RehearsalFacts, Path]]:
    """A run of four steps, one killed after two, and a copy of what the kill has left."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        directory = tmp_path_factory.mktemp("rehearse")
        trial, facts = _trial(directory)
        facts = stop(trial, go_straight(trial, facts))
        assert facts.failure is None, facts.failure
        shutil.copytree(directory / "stopped", directory / "left", symlinks=True)
        yield trial, facts, directory


def verdicts(facts: RehearsalFacts) -> dict[str, str]:
    document = Facts(rehearsal=known(facts))
    return {check.id: check.judge(document).status for check in CHECKS}


def edited(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    """Change a JSON file of a checkpoint, its checksum with it: a trainer that has not saved the part writes it so."""
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))
    manifest = path.parent / "complete.json"
    said = json.loads(manifest.read_text())
    said["sha256"][path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    said["bytes"][path.name] = path.stat().st_size
    manifest.write_text(json.dumps(said))


def no_data_position(step: Path) -> None:
    edited(step / "controller.json", lambda state: state["loader"].update(batches_done=0, epoch=0))


def no_optimizer(step: Path) -> None:
    edited(step / "train_state.json", lambda state: [role.update(optimizer=False) for role in state["roles"].values()])


def test_a_kill_loses_nothing(killed: tuple[Trial, RehearsalFacts, Path]) -> None:
    trial, facts, directory = killed
    found = resumed(trial, facts, directory, lambda _: None)
    assert found.resumed_from == max(found.saved)
    assert (found.early, found.first) == (None, None)
    assert found.compared > 200
    assert set(verdicts(found).values()) == {"pass"}


def resumed(trial: Trial, facts: RehearsalFacts, directory: Path, plant: Callable[[Path], object]) -> RehearsalFacts:
    """The second start, with a trap in the newest checkpoint."""
    shutil.rmtree(directory / "stopped")
    shutil.copytree(directory / "left", directory / "stopped", symlinks=True)
    plant(directory / "stopped" / "checkpoints" / f"global_step_{max(facts.saved)}")
    found = go_on(trial, facts)
    assert found.failure is None, found.failure
    return found


PLANTED = [(no_data_position, "data position"), pytest.param(no_optimizer, "optimizer", marks=pytest.mark.long)]


@pytest.mark.parametrize(("plant", "lost"), PLANTED)
def test_what_a_checkpoint_lacks_is_named(
    killed: tuple[Trial, RehearsalFacts, Path], plant: Callable[[Path], object], lost: str
) -> None:
    found = resumed(*killed, plant)
    assert found.first is not None
    assert found.first.step == found.resumed_from + 1
    assert found.lost == lost, found.first
    assert verdicts(found) == {"RES008": "pass", "RES009": "pass", "RES010": "fail"}


@pytest.mark.long
def test_nothing_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    trial, facts = _trial(tmp_path, "trainer.save_freq=-1")
    facts = stop(trial, facts)
    assert (facts.failure, facts.saved) == (None, ())
    assert facts.killed_after >= 2
    assert verdicts(facts)["RES008"] == "fail"


def test_a_run_that_does_not_repeat_itself_is_not_accused(killed: tuple[Trial, RehearsalFacts, Path]) -> None:
    from rlcheck.facts.rehearsal import Difference

    facts = msgspec.structs.replace(killed[1], resumed_from=2, early=Difference(1, "actor/loss", "1.0", "1.1"),
                                    first=Difference(3, "actor/loss", "1.0", "1.1"))  # fmt: skip
    assert verdicts(facts)["RES010"] == "unknown"


def test_the_command_names_a_mode_that_starts_over(tmp_path: Path) -> None:
    """toy-ppo's own: resume_mode=disable."""
    words = [word for word in SMALL if not word.startswith("trainer.resume_mode")]
    record = tmp_path / "record.json"
    done = rlcheck("preflight", "toy-ppo", *words, "--rehearse", *ONLY, "-f", "json", "--record", record, env=QUIET,
                   timeout=600)  # fmt: skip
    assert done.code == 1, done.err
    report = json.loads(done.out)
    failed = {one["id"]: one for one in report["checks"] if one["status"] == "fail"}
    assert list(failed) == ["RES009"]
    assert "it started over at step 1, with trainer.resume_mode=disable" in failed["RES009"]["found"]
    assert {link["link"]: link["verdict"] for link in report["data"]["preflight"]}["rehearse"] == "fails"
    (node,) = json.loads(record.read_text())["nodes"]
    assert node["rehearsal"]["value"]["killed_after"] >= 2


def test_verls_config_is_judged_by_rules(tmp_path: Path) -> None:
    words = [word for word in verl(tmp_path, tmp_path) if word != "--smoke"]
    _, links, _ = went(*words, "--rehearse", *ONLY, "--skip", "config", code=0)
    assert links["rehearse"]["verdict"] == "does not apply"
    assert "CFG071 to CFG074" in links["rehearse"]["reason"]
