"""CFG071-CFG074: settings with which a run cannot be resumed, or not from where it stopped. All are verl's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from rlcheck.check import Verdict, check
from rlcheck.checks.config.say import Case, conclude, config_of, for_verl_alone
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.measure.config.arithmetic import is_verl, value, who, whole

_CHECKPOINT = "actor_rollout_ref.actor.checkpoint"


def saves(run: ConfigFacts) -> bool:
    """Whether the run writes checkpoints."""
    return is_verl(run) and run.spec.save_freq > 0


def automatic_cases(run: ConfigFacts) -> Iterator[Case]:
    """What keeps a restarted run from its newest checkpoint."""
    mode, path = value(run, "trainer.resume_mode", "auto"), value(run, "trainer.resume_from_path")
    strategy = run.spec.actor.sharding.strategy
    key = f"{_CHECKPOINT}.async_save"
    if saves(run) and value(run, key, False) is True and strategy != "megatron":
        found = f"true: with {strategy} latest_checkpointed_iteration.txt is never written"
        then = "and a restarted run begins at step 0" if mode == "auto" else "and resume_mode=auto begins at step 0"
        yield Case("fail" if mode == "auto" else "warn", key, "false, but with Megatron", f"{found}, {then}", False)
    if not is_verl(run):
        return
    if mode == "resume_path" and not (isinstance(path, str) and "global_step_" in path):
        yield Case("fail", "trainer.resume_from_path", "the folder of a step, .../global_step_N", str(path))
    if mode == "auto" and path is not None:
        words = "trainer.resume_mode=resume_path, or null"
        yield Case("warn", "trainer.resume_from_path", words, f"{path}, which resume_mode=auto does not read")
    if mode != "disable" and value(run, "trainer.default_hdfs_dir"):
        words = f"null, or trainer.resume_mode=disable ({who(run)} loads no checkpoints from HDFS)"
        yield Case("fail", "trainer.default_hdfs_dir", words, str(value(run, "trainer.default_hdfs_dir")))


@check("CFG071", "A restarted run finds its checkpoint", needs=("config",), playbook="resume-not-the-newest",
       problem="A restarted run does not find its checkpoint")  # fmt: skip
def automatic(facts: Facts) -> Verdict:
    """Looks for settings with which verl writes no tracker, or looks elsewhere than it is told.

    What it does:
        Reports async_save beside another strategy than Megatron, resume_from_path that is not read or names no step,
        and an HDFS directory, from which verl loads nothing.

    Why it matters:
        The run is restarted after a crash, begins at step 0 without an error, and saves over what was there.
    """
    for_verl_alone(run := config_of(facts))
    return conclude(run, list(automatic_cases(run)), "nothing keeps a restarted run from its newest checkpoint")


def epochs_cases(run: ConfigFacts, rows: int) -> Iterator[Case]:
    """Epochs of ROWS rows that end before the steps that were asked for."""
    total, batch = run.spec.total_steps, run.spec.data.train_batch_size
    if not is_verl(run) or not total or not rows or batch <= 0:
        return
    steps = rows // batch * run.spec.total_epochs
    if 0 < steps < total:
        needed = -(-total // (rows // batch))
        save = run.spec.save_freq
        lost = f"; step {steps} is not saved, as {steps} is no multiple of save_freq={save}" if save > 0 and (
            steps % save) else ""  # fmt: skip
        found = f"{run.spec.total_epochs}: the epochs end at step {steps}{lost}"
        yield Case("warn", "total_epochs", f"at least {needed}, for {total} steps of {batch} prompts", found, needed)


@check("CFG072", "Epochs last for the steps that are asked for", needs=("config",), playbook="save-test-frequency",
       problem="The run ends before the steps that are asked for")  # fmt: skip
def epochs(facts: Facts) -> Verdict:
    """Compares total_training_steps with the steps of total_epochs, where the number of rows is known.

    What it does:
        Takes rows from data.train_max_samples or, in a preflight, from the data that was read.

    Why it matters:
        verl stops when either is reached. What it does at the last step (save, test) belongs to
        total_training_steps: where the epochs end first, steps after the last save_freq are lost.
    """
    for_verl_alone(run := config_of(facts))
    data = facts.data.value
    known = data.num_rows("train") if data is not None and not data.most_rows else 0
    limit = run.spec.data.train_max_samples
    rows = min(known, limit) if known and limit > 0 else known or max(0, limit)
    return conclude(run, list(epochs_cases(run, rows)), "nothing says that epochs end before those steps")


def kept_cases(run: ConfigFacts) -> Iterator[Case]:
    """Too few checkpoints kept."""
    for role in ("actor", "critic"):
        key = f"trainer.max_{role}_ckpt_to_keep"
        if saves(run) and whole(run, key) == 1 and (role == "actor" or run.spec.critic is not None):
            yield Case(
                "warn", key, "2 or more", "1: the earlier one is deleted before the tracker names the new one", 2
            )


@check("CFG073", "More than one checkpoint is kept", needs=("config",), playbook="resume-one-checkpoint",
       problem="One checkpoint alone is kept")  # fmt: skip
def kept(facts: Facts) -> Verdict:
    """Reads max_actor_ckpt_to_keep and max_critic_ckpt_to_keep of verl.

    What it does:
        Reports 1. rltrain replaces a checkpoint by one rename, and keeps the best one besides.

    Why it matters:
        verl deletes the earlier weights when the ranks have written the new ones, and then writes data order and
        tracker: a kill in between leaves a tracker that names what is gone, and a run that begins at step 0.
    """
    for_verl_alone(run := config_of(facts))
    return conclude(run, list(kept_cases(run)), "more than one checkpoint is kept, or none is saved")


def contents_cases(run: ConfigFacts) -> Iterator[Case]:
    """Parts that are loaded and not saved, or not saved at all."""
    for role, section in (("actor", _CHECKPOINT), ("critic", "critic.checkpoint")):
        saved, loaded = _parts(run, f"{section}.save_contents"), _parts(run, f"{section}.load_contents")
        if not saves(run) or not saved or (role == "critic" and run.spec.critic is None):
            continue
        key, wanted = f"{section}.save_contents", ["model", "optimizer", "extra"]
        if absent := [part for part in loaded if part not in saved]:
            yield Case(
                "fail",
                key,
                f"what load_contents has: {', '.join(loaded)}",
                f"{', '.join(saved)}: a resume raises for want of {', '.join(absent)}",
                [*saved, *absent],
            )
        elif lost := [part for part in wanted if part not in saved]:
            words = f"{', '.join(saved)}: a resumed run starts {' and '.join(lost)} over in silence"
            yield Case("warn", key, ", ".join(wanted), words, [*saved, *lost])


def _parts(run: ConfigFacts, key: str) -> list[str]:
    found = value(run, key)
    return [str(part) for part in cast("list[object]", found)] if isinstance(found, list | tuple) else []


@check("CFG074", "Checkpoints hold what a resume needs", needs=("config",), playbook="resume-state-lost",
       problem="Checkpoints do not hold what a resume needs")  # fmt: skip
def contents(facts: Facts) -> Verdict:
    """Compares save_contents with load_contents, and with model, optimizer and extra.

    What it does:
        Reports parts that are loaded and never saved, and parts of the training that are not saved.

    Why it matters:
        The first stops the resumed run; the second starts optimizer, schedule and random numbers over in silence.
    """
    for_verl_alone(run := config_of(facts))
    return conclude(run, list(contents_cases(run)), "what is loaded is saved, and all of it is saved")
