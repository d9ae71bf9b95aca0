"""Traps of resume, planted in folders and configs: each is named before the restart, and nothing in healthy ones."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.measure.resume.answer import answer
from rlcheck.measure.resume.look import look
from tests.measure.resume import made

BY_ID = {check.id: check for check in family_checks("RES") if "resume" in check.needs}
Plant = Callable[[Path], object]


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    return {"verl": made.verl(root / "verl", 10, 20), "rltrain": made.rltrain(root / "own", 10, 20),
            "trainer": made.trainer(root / "trl")}  # fmt: skip


def _verdicts(place: Path, *, ranks: int = 0, checksums: bool = False) -> dict[str, str]:
    facts = Facts(resume=known(look(place, ranks=ranks, checksums=checksums)))
    found = {id: check.judge(facts).status for id, check in BY_ID.items()}
    return {id: status for id, status in found.items() if status in ("fail", "warn", "info", "error")}


def _cut(name: str) -> Plant:
    def plant(place: Path) -> None:
        data = (place / name).read_bytes()
        (place / name).write_bytes(data[: len(data) * 3 // 4])

    return plant


def _flip(name: str) -> Plant:
    def plant(place: Path) -> None:
        data = bytearray((place / name).read_bytes())
        data[len(data) // 2] ^= 1
        (place / name).write_bytes(data)

    return plant


def _gone(*names: str) -> Plant:
    def plant(place: Path) -> None:
        for name in names:
            found = place / name
            shutil.rmtree(found) if found.is_dir() else found.unlink()

    return plant


def _says(name: str, text: str) -> Plant:
    return lambda place: (place / name).write_text(text)


def _sharded(place: Path) -> None:
    (place / "checkpoint-4/model.safetensors").rename(place / "checkpoint-4/model-00001-of-00002.safetensors")
    parts = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (place / "checkpoint-4/model.safetensors.index.json").write_text(json.dumps({"weight_map": parts}))


TRACKER, RANK = "latest_checkpointed_iteration.txt", "global_step_20/actor/{}_world_size_2_rank_{}.pt"
OWN = "checkpoints/global_step_20/"
TRAPS: dict[str, tuple[str, Plant, str, str]] = {
    "no tracker, as async_save leaves it": ("verl", _gone(TRACKER), "RES002", "fail"),
    "tracker names what is gone": ("verl", _says(TRACKER, "30"), "RES002", "fail"),
    "tracker is empty": ("verl", _says(TRACKER, ""), "RES002", "fail"),
    "tracker is older": ("verl", _says(TRACKER, "10"), "RES002", "warn"),
    "a rank's file is missing": ("verl", _gone(RANK.format("optim", 1)), "RES003", "fail"),
    "a rank's file is cut": ("verl", _cut(RANK.format("model", 1)), "RES003", "fail"),
    "no data order": ("verl", _gone("global_step_20/data.pt"), "RES004", "warn"),
    "no optimizer was saved": ("verl", _gone(RANK.format("optim", 0), RANK.format("optim", 1)), "RES004", "fail"),
    "files of two numbers of ranks": ("verl", lambda place: made.verl(place, 20, ranks=1), "RES005", "warn"),
    "rltrain: nothing was finished": ("rltrain", _gone(OWN + "complete.json", "checkpoints/global_step_10"),
                                      "RES001", "fail"),
    "rltrain: a file has changed its size": ("rltrain", _cut(OWN + "actor/__0_0.distcp"), "RES003", "fail"),
    "rltrain: a byte has changed": ("rltrain", _flip(OWN + "actor/__0_0.distcp"), "RES003", "fail"),
    "Trainer: the last save was interrupted": ("trainer", _gone("checkpoint-4/trainer_state.json"), "RES002", "fail"),
    "Trainer: optimizer is not there": ("trainer", _gone("checkpoint-4/optimizer.pt"), "RES004", "fail"),
    "Trainer: a shard is missing": ("trainer", _sharded, "RES003", "fail"),
    "Trainer: weights are cut": ("trainer", _cut("checkpoint-4/model.safetensors"), "RES003", "fail"),
    "Trainer: one checkpoint is left": ("trainer", _gone("checkpoint-2"), "RES007", "info"),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAPS)
def test_a_trap_is_named(name: str, originals: dict[str, Path], tmp_path: Path) -> None:
    maker, plant, id, status = TRAPS[name]
    place = tmp_path / "run"
    shutil.copytree(originals[maker], place)
    assert _verdicts(place, checksums=True) == {}
    plant(place)
    found = _verdicts(place, checksums="byte" in name)
    assert found.get(id) == status, found
    assert found.keys() <= {id, "RES002", "RES007"}


def test_ranks_and_the_end_of_a_run(originals: dict[str, Path], tmp_path: Path) -> None:
    assert _verdicts(originals["verl"], ranks=4) == {"RES005": "fail"}
    assert _verdicts(originals["verl"], ranks=2) == {}
    assert _verdicts(originals["rltrain"], ranks=4) == {"RES005": "info"}
    assert _verdicts(made.rltrain(tmp_path / "ended", 10, 20, total=20)) == {"RES006": "info"}


def test_the_answer(originals: dict[str, Path], tmp_path: Path) -> None:
    own, foreign = answer(look(originals["rltrain"])), answer(look(originals["verl"]))
    assert (own.step, own.automatic, own.ranks, own.lost) == (20, 20, (), ("steps 21 to 22",))
    assert (foreign.step, foreign.ranks, foreign.lost) == (20, (2,), ())
    place = shutil.copytree(originals["verl"], tmp_path / "v")
    (place / TRACKER).unlink()
    restarted = answer(look(place))
    assert (restarted.step, restarted.automatic) == (20, 0)
    assert restarted.words.endswith(f"trainer.resume_from_path={place}/global_step_20")
    alone = look(place / "global_step_10")
    assert (answer(alone).step, alone.chosen) == (10, 10)


def test_what_rltrain_puts_back_counts(tmp_path: Path) -> None:
    run = made.rltrain(tmp_path, 10, 20)
    (run / OWN).rename(run / "checkpoints/.global_step_20.old")
    (run / "checkpoints/.global_step_30.partial").mkdir()
    found = look(run)
    assert (found.chosen, [one.step for one in found.checkpoints if one.unfinished]) == (20, [30])
