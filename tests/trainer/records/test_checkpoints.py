"""Checkpoints: whole or not there at all; the last ones and the best stay; a damaged one is refused by name."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rltrain.controller.callbacks import StepRecord
from rltrain.controller.callbacks.checkpoint import SaveCheckpoints
from rltrain.core.clock import Clock
from rltrain.core.errors import RunFailure, UserError
from rltrain.records import checkpoints
from rltrain.records.checkpoints import CheckpointStore, at, choose, finished
from tests.trainer.controller.build import run

STATE = {"loader": {"position": 7}, "best": None}


def ranks(directory: Path) -> None:
    """What two ranks would write."""
    (directory / "actor").mkdir()
    for rank in range(2):
        (directory / "actor" / f"__{rank}_0.distcp").write_bytes(bytes([rank]) * 5000)


def saved(directory: Path, *steps: int, keep: int | None = None) -> CheckpointStore:
    store = CheckpointStore(directory, keep)
    for step in steps:
        store.save(step, STATE, ranks)
    return store


def steps_of(directory: Path) -> list[int]:
    return [checkpoint.step for checkpoint in finished(directory)]


def names_in(directory: Path) -> list[str]:
    return sorted(place.name for place in directory.iterdir())


def test_a_checkpoint_holds_what_was_written_and_is_verified(tmp_path: Path) -> None:
    saved(tmp_path, 10, 9)
    assert steps_of(tmp_path) == [9, 10]
    found = at(tmp_path / "global_step_10")
    found.verify()
    assert found.controller_state() == STATE
    assert (found.path / "actor" / "__1_0.distcp").read_bytes() == b"\1" * 5000


def test_what_its_writers_have_hashed_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    digest = checkpoints._digest
    monkeypatch.setattr(checkpoints, "_digest", lambda path: (read.append(path.name), digest(path))[1])

    def write(directory: Path) -> dict[str, str]:
        ranks(directory)
        files = [directory / "actor" / f"__{rank}_0.distcp" for rank in range(2)]
        return {f"actor/{file.name}": hashlib.sha256(file.read_bytes()).hexdigest() for file in files}

    CheckpointStore(tmp_path, None).save(1, STATE, write)
    assert read == ["controller.json"]
    at(tmp_path / "global_step_1").verify()
    assert sorted(read) == ["__0_0.distcp", "__1_0.distcp", "controller.json", "controller.json"]


def test_a_file_of_a_rank_that_is_not_seen_here_ends_the_save(tmp_path: Path) -> None:
    with pytest.raises(RunFailure, match=r"actor/__7_0\.distcp, which a training rank wrote, is not there: all nodes"):
        CheckpointStore(tmp_path, None).save(1, STATE, lambda _: {"actor/__7_0.distcp": "0" * 64})
    assert names_in(tmp_path) == []


def test_without_reading_it_a_checkpoint_is_held_against_its_sizes(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    file = tmp_path / "global_step_1" / "actor" / "__1_0.distcp"
    file.write_bytes(bytes(5000))
    assert choose(tmp_path, "auto", None, verify=False) is not None
    with pytest.raises(UserError, match=r"is damaged: actor/__1_0\.distcp has changed"):
        choose(tmp_path, "auto", None)
    file.write_bytes(bytes(4999))
    with pytest.raises(UserError, match=r"is damaged: actor/__1_0\.distcp has changed"):
        choose(tmp_path, "auto", None, verify=False)
    file.unlink()
    with pytest.raises(UserError, match=r"is damaged: actor/__1_0\.distcp is missing"):
        choose(tmp_path, "auto", None, verify=False)


def test_nothing_has_the_final_name_before_all_is_written(tmp_path: Path) -> None:
    seen: list[list[str]] = []

    def write(directory: Path) -> None:
        ranks(directory)
        seen.append(names_in(tmp_path))

    CheckpointStore(tmp_path, None).save(1, STATE, write)
    assert seen == [[".global_step_1.partial"]]
    assert names_in(tmp_path) == ["global_step_1"]


class Killed(BaseException):
    """As SIGTERM in the middle."""


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (UserError("checkpoint actor cannot be written: rank 1: OSError: No space left on device"), RunFailure),
        (OSError(28, "No space left on device"), RunFailure),
        (RunFailure("train rank 1 died"), RunFailure),
        (Killed(), Killed),
    ],
)
def test_a_failed_save_leaves_nothing_of_itself_and_all_of_the_earlier(
    error: BaseException, raised: type[BaseException], tmp_path: Path
) -> None:
    saved(tmp_path, 1)

    def write(directory: Path) -> None:
        ranks(directory)
        raise error

    with pytest.raises(raised) as caught:
        CheckpointStore(tmp_path, None).save(2, STATE, write)
    assert names_in(tmp_path) == ["global_step_1"]
    at(tmp_path / "global_step_1").verify()
    if isinstance(error, UserError | OSError):
        words = str(caught.value)
        assert words.startswith("checkpoint of step 2 could not be written to ")
        assert "No space left on device" in words
        assert "trainer.resume_mode=auto" in words
        assert "\n" not in words


def test_what_a_killed_run_left_half_made_is_not_found_and_is_removed_by_the_next_save(tmp_path: Path) -> None:
    half = tmp_path / ".global_step_5.partial"
    half.mkdir()
    ranks(half)
    assert choose(tmp_path, "auto", None) is None
    saved(tmp_path, 6)
    assert names_in(tmp_path) == ["global_step_6"]


def test_a_step_that_is_saved_again_replaces_the_old_one(tmp_path: Path) -> None:
    saved(tmp_path, 4)

    def other(directory: Path) -> None:
        (directory / "other").write_text("new")

    CheckpointStore(tmp_path, None).save(4, STATE, other)
    assert names_in(tmp_path) == ["global_step_4"]
    assert names_in(tmp_path / "global_step_4") == ["complete.json", "controller.json", "other"]


@pytest.mark.parametrize(("keep", "left"), [(None, [1, 2, 3, 4, 5]), (1, [2, 5]), (2, [2, 4, 5]), (9, [1, 2, 3, 4, 5])])
def test_the_last_k_and_the_best_stay(keep: int | None, left: list[int], tmp_path: Path) -> None:
    saved(tmp_path, 1, 2, 3, 4, 5, keep=keep).drop_old(best_step=2)
    assert steps_of(tmp_path) == left


def test_the_best_is_by_validation_among_those_that_were_saved(tmp_path: Path) -> None:
    info = run(tmp_path, total_steps=7, save_freq=2, max_actor_ckpt_to_keep=1)
    saver = SaveCheckpoints(CheckpointStore(info.directory.checkpoints, 1), ranks, dict, Clock())
    saver.on_run_start(info)
    for step, value in enumerate([9.0, 9.0, 0.3, 9.0, 0.2, 9.0, 0.1, 0.25]):
        saver.on_step_end(StepRecord(step, {"val/reward/mean": value}, None if step == 0 else _any_batch()))
    assert saver.best == {"step": 2, "value": 0.3}
    assert steps_of(info.directory.checkpoints) == [2, 7]
    assert saver.saved_step == 7
    assert at(info.directory.checkpoints / "global_step_7").controller_state()["best"] == saver.best


@pytest.mark.parametrize(("every", "saved"), [(-1, []), (3, [3, 6, 7]), (7, [7]), (100, [7])])
def test_the_last_step_is_saved_where_any_is(every: int, saved: list[int], tmp_path: Path) -> None:
    info = run(tmp_path, total_steps=7, save_freq=every)
    saver = SaveCheckpoints(CheckpointStore(info.directory.checkpoints, None), ranks, dict, Clock())
    saver.on_run_start(info)
    for step in range(8):
        saver.on_step_end(StepRecord(step, {}, None if step == 0 else _any_batch()))
    assert steps_of(info.directory.checkpoints) == saved


def _any_batch() -> Any:
    from tests.trainer.controller.build import batch

    return batch()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("actor/__1_0.distcp", flip, "actor/__1_0.distcp has changed"),
    ("actor/__0_0.distcp", cut, "actor/__0_0.distcp has changed"),
    ("actor/__0_0.distcp", Path.unlink, "actor/__0_0.distcp is missing"),
    ("controller.json", cut, "controller.json has changed"),
    ("complete.json", cut, "complete.json cannot be read"),
    *(
        ("complete.json", lambda path, text=text: path.write_text(text) and None, "complete.json cannot be read")
        for text in ("[]", '{"sha256": 3}', '{"sha256": null}', '{"sha256": ["a"]}')
    ),
]


@pytest.mark.parametrize(("name", "harm", "words"), DAMAGE)
def test_a_damaged_checkpoint_is_refused_by_the_name_of_its_file(
    name: str, harm: Callable[[Path], None], words: str, tmp_path: Path
) -> None:
    saved(tmp_path, 1, 2)
    harm(tmp_path / "global_step_2" / name)
    with pytest.raises(UserError) as error:
        choose(tmp_path, "auto", None)
    assert words in str(error.value)
    assert f"trainer.resume_mode={tmp_path / 'global_step_1'}" in str(error.value), "the way out"
    assert "\n" not in str(error.value)


def test_resume_modes(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    first, last = tmp_path / "global_step_1", tmp_path / "global_step_2"
    assert choose(tmp_path, "disable", None) is None
    assert choose(tmp_path / "none", "auto", None) is None
    for found, wanted in (
        (choose(tmp_path, "auto", None), last),
        (choose(tmp_path, "resume_path", str(first)), first),
        (choose(tmp_path, str(first), None), first),
    ):
        assert found is not None
        assert found.path == wanted


def test_a_path_that_is_no_finished_checkpoint_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1)
    (tmp_path / "global_step_1" / "complete.json").unlink()
    with pytest.raises(UserError, match=r"global_step_1 was never finished \(it has no complete.json\)"):
        choose(tmp_path, str(tmp_path / "global_step_1"), None)
    with pytest.raises(UserError, match="global_step_9"):
        choose(tmp_path, "resume_path", str(tmp_path / "global_step_9"))
    with pytest.raises(UserError, match="global_step_N"):
        choose(tmp_path, str(tmp_path), None)


def test_going_back_leaves_later_checkpoints_behind(tmp_path: Path) -> None:
    """Otherwise they would be resumed from, and kept in place of what the run saves from here on."""
    store = saved(tmp_path, 40, 50, keep=1)
    (moved,) = store.set_aside_after(40)
    assert moved == tmp_path / "left_behind" / "global_step_50"
    at(moved).verify()
    store.save(45, STATE, ranks)
    store.drop_old(None)
    assert steps_of(tmp_path) == [45]
    chosen = choose(tmp_path, "auto", None)
    assert chosen is not None
    assert chosen.step == 45
    assert (moved / "complete.json").is_file()


def test_going_back_twice_leaves_the_last_ones_behind(tmp_path: Path) -> None:
    store = saved(tmp_path, 1, 2, 3)
    assert [place.name for place in store.set_aside_after(1)] == ["global_step_2", "global_step_3"]
    store.save(2, {"second": True}, ranks)
    (moved,) = store.set_aside_after(1)
    assert at(moved).controller_state() == {"second": True}
    assert names_in(tmp_path / "left_behind") == ["global_step_2", "global_step_3"]
    assert store.set_aside_after(1) == []


def killed_between_the_renames(directory: Path) -> None:
    saved(directory, 4)
    (directory / "global_step_4").rename(directory / ".global_step_4.old")


def test_a_kill_between_the_two_renames_loses_no_checkpoint(tmp_path: Path) -> None:
    for number, mode in enumerate(("auto", "resume_path", "{}")):
        place = tmp_path / str(number)
        killed_between_the_renames(place)
        final = place / "global_step_4"
        chosen = choose(place, mode.format(final), None if mode == "auto" else str(final))
        assert chosen is not None
        assert chosen.path == final
    place = tmp_path / "saved"
    killed_between_the_renames(place)
    saved(place, 5)
    assert steps_of(place) == [4, 5]
    half = tmp_path / "half"
    killed_between_the_renames(half)
    (half / ".global_step_4.old" / "complete.json").unlink()
    assert choose(half, "auto", None) is None, "it was never finished"


def test_best_is_only_what_lies_in_the_own_directory(tmp_path: Path) -> None:
    best = {"step": 1, "value": 0.5}
    own, other = CheckpointStore(tmp_path / "own", None), CheckpointStore(tmp_path / "other", None)
    own.save(1, {"best": best}, ranks)
    assert own.confirmed(best) == best
    assert own.confirmed(None) is None
    assert other.confirmed(best) is None
    other.save(1, {"best": {"step": 1, "value": 0.1}}, ranks)
    assert other.confirmed(best) is None, "another run's step"
