"""A run whose rewards go wrong, and what may stop it from being gone on with: all of it is told before Ray starts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from rltrain.core.errors import UserError
from rltrain.records.checkpoints import MANIFEST, choose
from rltrain.toy.make import make_toy
from tests.trainer.end_to_end.runs import Run
from tests.trainer.failures.scene import PATIENCE_S, Watched, arguments, checkpoints, message, planned

pytestmark = pytest.mark.timeout(900)
SAVED = ("global_step_1", "global_step_2")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training file that stays where it is while runs come and go."""
    from rltrain.config import load

    return make_toy(load("toy-ppo", ("toy.num_train=64", "toy.num_val=8")), tmp_path_factory.mktemp("data")).train_file


def values(directory: Path, data: Path) -> tuple[str, ...]:
    """Dr.GRPO, whose advantages are not normed: a reward of any size reaches the gradient."""
    return (
        "algorithm.adv_estimator=grpo",
        "algorithm.norm_adv_by_std_in_grpo=false",
        "critic.enable=false",
        "actor_rollout_ref.rollout.n=4",
        *planned(directory, step_2="huge", step_3="nan"),
        f"data.train_files={data}",
        "trainer.verify_weight_sync=true",
    )


@pytest.fixture(scope="module")
def bad_rewards(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Step 2: rewards that overflow the loss. Step 3: a reward that is no number. Meanwhile the data file grows."""
    directory = tmp_path_factory.mktemp("runs") / "bad-rewards"
    run = Watched(directory, *arguments(directory, *values(directory, data)))
    run.wait_for_step(1, PATIENCE_S)
    kept = data.read_text()
    data.write_text(kept + kept.splitlines(keepends=True)[0])
    try:
        return run.finish()
    finally:
        data.write_text(kept)


@pytest.mark.row("F40")
def test_a_gradient_that_is_not_finite_is_skipped_and_counted(bad_rewards: Run) -> None:
    first, second = bad_rewards.steps[-2:]
    assert (first["step"], second["step"]) == (1, 2)
    assert first["actor/skipped_steps"] == 0
    assert second["actor/skipped_steps"] == 2
    assert second["audit"]["parameter_sha256"] == first["audit"]["parameter_sha256"]


@pytest.mark.row("F40")
def test_it_never_reaches_the_engine(bad_rewards: Run) -> None:
    """Step 3 was generated, by an engine whose checksums agree with the actor's, before its reward ended the run."""
    assert "reward" in bad_rewards.err
    assert "checksum" not in bad_rewards.err
    assert all(step["training/rollout_probs_diff_mean"] < 5e-6 for step in bad_rewards.steps[1:])


@pytest.mark.row("F33")
def test_nan_reward_names_the_sample(bad_rewards: Run) -> None:
    assert bad_rewards.code == 1
    lines = message(bad_rewards)
    assert "reward.py" in lines[0]
    assert "nan" in lines[0]
    assert "uid" in lines[0] or "sample" in lines[0]
    assert "Saved up to step 2" in lines[-1]
    assert checkpoints(bad_rewards.directory) == list(SAVED)


def test_a_data_file_that_changes_during_the_run_does_not_reach_it(bad_rewards: Run) -> None:
    """The rows were read before the first step: two steps were made and saved after the file had grown."""
    assert "train data: 64 rows" in bad_rewards.out
    assert bad_rewards.checkpoint(2).is_dir()


def again(bad_rewards: Run, place: Path, data: Path) -> Run:
    """The run in the copy PLACE, gone on with."""
    run = Watched(place, *arguments(place, *values(place, data))).finish()
    assert "training rank" not in run.out, "refused only after workers were started"
    assert len(message(run)) == 1
    assert "resume_mode=auto" not in run.err
    return run


@pytest.fixture
def copy(bad_rewards: Run, tmp_path: Path) -> Path:
    """Its run directory, to break."""
    return Path(shutil.copytree(bad_rewards.directory, tmp_path / "run"))


def test_data_that_changed_before_it_went_on(bad_rewards: Run, copy: Path, data: Path) -> None:
    kept = data.read_text()
    data.write_text(kept.replace("copy", "kopy") + kept.splitlines(keepends=True)[0])
    try:
        run = again(bad_rewards, copy, data)
    finally:
        data.write_text(kept)
    assert run.code == 1
    assert f"{data} changed since the run stopped (64 rows then, 65 now)" in message(run)[0]
    assert checkpoints(copy) == list(SAVED)


def flip(file: Path) -> None:
    """Change one bit in the middle."""
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def halve(file: Path) -> None:
    """As after a crash of the machine."""
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])


def shard(run: Path) -> Path:
    """The actor's part of the last checkpoint."""
    return next((run / "checkpoints" / "global_step_2" / "actor").glob("*.distcp"))


def test_a_corrupt_checkpoint(bad_rewards: Run, copy: Path, data: Path) -> None:
    flip(shard(copy))
    run = again(bad_rewards, copy, data)
    assert run.code == 1
    line = message(run)[0]
    assert f"global_step_2 is damaged: actor/{shard(copy).name} has changed; go on from an earlier one" in line
    assert f"trainer.resume_mode={copy / 'checkpoints' / 'global_step_1'}" in line
    assert checkpoints(copy) == list(SAVED)


@pytest.mark.parametrize(("breaks", "words"), [(halve, "has changed"), (Path.unlink, "is missing")])
def test_a_checkpoint_with_half_a_file_or_without(copy: Path, breaks: Callable[[Path], None], words: str) -> None:
    breaks(file := shard(copy))
    with pytest.raises(UserError, match=rf"global_step_2 is damaged: actor/{file.name} {words}"):
        choose(copy / "checkpoints", "auto", None)


def test_a_checkpoint_that_was_never_finished(copy: Path) -> None:
    """Killed while it was written, or removed by half: `auto` takes the one before, and by name it is refused."""
    place = copy / "checkpoints"
    (place / "global_step_2" / MANIFEST).unlink()
    chosen = choose(place, "auto", None)
    assert chosen is not None
    assert chosen.step == 1
    with pytest.raises(UserError, match="global_step_2 was never finished"):
        choose(place, str(place / "global_step_2"), None)
