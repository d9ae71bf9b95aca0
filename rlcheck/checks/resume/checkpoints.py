"""RES001-RES007: whether a run goes on from its checkpoints, before it is started again."""

from __future__ import annotations

from rlcheck.check import Evidence, Verdict, check, evidence, fail, info, passed, skip, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.resume import ResumeFacts, Saved, chosen, newest_whole
from rlcheck.measure.resume.answer import words
from rlcheck.text import listed, several

_MOST = 8


def _params(facts: ResumeFacts) -> dict[str, str]:
    best = newest_whole(facts)
    return {} if best is None else {"words": several(words(facts, best).split(" "))}


def _proof(one: Saved | None, source: str) -> tuple[Evidence, ...]:
    return () if one is None else (evidence("resume.checkpoints", one.name, source),)


@check("RES001", "A finished checkpoint is there", needs=("resume",), playbook="no-checkpoint-found",
       problem="No checkpoint here was finished")  # fmt: skip
def any_finished(facts: Facts) -> Verdict:
    """Looks for the file that each trainer writes last.

    What it does:
        Reads names: complete.json of rltrain, trainer_state.json of transformers, the ranks' weights of verl.

    Why it matters:
        A run that has saved nothing whole starts from step 0, whatever it is told.
    """
    looked = need(facts.resume)
    finished = [one for one in looked.checkpoints if not one.unfinished]
    if finished:
        return passed(
            f"{len(finished)} of {len(looked.checkpoints)} were finished, the last at step {finished[-1].step}"
        )
    lines = tuple(f"{one.name}: {one.unfinished}" for one in looked.checkpoints[-_MOST:])
    return fail("a finished checkpoint", lines[-1] if lines else f"none in {looked.place}", details=lines,
                evidence=(evidence("resume.place", looked.place, "listed"),))  # fmt: skip


@check("RES002", "Automatic resume takes the newest whole checkpoint", needs=("resume",),
       playbook="resume-not-the-newest", caused_by=("RES001",),
       problem="A run that is started again does not go on from its newest whole checkpoint")  # fmt: skip
def automatic(facts: Facts) -> Verdict:
    """Does what the trainer does to find its checkpoint: reads verl's tracker, takes the highest number of the others.

    What it does:
        Compares the step that the trainer takes by itself with the newest checkpoint whose files are whole.

    Why it matters:
        verl starts from step 0 without an error where its tracker is missing, and saves over what was there; the
        others take the highest number, even if its save was interrupted.
    """
    looked = need(facts.resume)
    best, taken = newest_whole(looked), chosen(looked)
    if best is None:
        return skip("no checkpoint is whole")
    if taken is not None and taken.step == best.step and not looked.chosen_error:
        return passed(f"the run goes on from step {best.step}: {looked.chosen_why}")
    expected, more = (
        f"to go on from step {best.step}",
        {"params": _params(looked), "evidence": _proof(best, "is whole")},
    )
    if looked.chosen_error:
        return fail(expected, f"the trainer refuses: {looked.chosen_error}", **more)
    if taken is None:
        return fail(expected, looked.chosen_why, **more)
    return warn(expected, f"step {taken.step}: {looked.chosen_why}", **more)


@check("RES003", "Every file of a finished checkpoint is whole", needs=("resume",), playbook="checkpoint-truncated",
       problem="A checkpoint is damaged")  # fmt: skip
def files_whole(facts: Facts) -> Verdict:
    """Looks at every file of each checkpoint: size, end of the archive, header; with --checksums also what is in them.

    What it does:
        Holds rltrain's against their manifests; of the others reads the ends of torch's archives, the headers of
        safetensors, indexes, and whether each rank has left its files. Nothing is unpickled.

    Why it matters:
        A file that was cut (disk full, a kill, a copy that broke off) shows when the run has its GPUs, and loads for
        minutes before it does.
    """
    looked = need(facts.resume)
    finished = [one for one in looked.checkpoints if not one.unfinished]
    broken = [one for one in finished if one.damages]
    if not finished:
        return skip("no checkpoint was finished")
    if not broken:
        read = "and the one to resume from was read" if looked.read_all else "by ends and headers"
        return passed(f"{sum(one.files for one in finished)} files of {len(finished)} checkpoints are whole, {read}")
    lines = [f"{one.name}: {damage.file} {damage.why}" for one in reversed(broken) for damage in one.damages]
    first = broken[-1].damages[0]
    more = {
        "details": tuple(lines[:_MOST]),
        "evidence": tuple(evidence("resume.checkpoints", f"{first.file} {first.why}", one.name) for one in broken[-1:]),
        "params": _params(looked),
    }
    worst = broken[-1] is finished[-1] or broken[-1].step == looked.chosen
    return (fail if worst else warn)("whole files", lines[0], **more)


@check("RES004", "The checkpoint holds all of the training", needs=("resume",), playbook="resume-state-lost",
       problem="Part of the training is lost on resume")  # fmt: skip
def state_kept(facts: Facts) -> Verdict:
    """Looks for weights, optimizer, schedule, order of the data and random numbers of the newest whole checkpoint.

    What it does:
        Reads names. Says whether the trainer refuses to resume without the part, or starts it over in silence.

    Why it matters:
        Adam without its moments takes steps of full size at once; a schedule that starts over warms up again; data
        that starts over repeats what was learnt.
    """
    looked = need(facts.resume)
    best = newest_whole(looked)
    if best is None:
        return skip("no checkpoint is whole")
    if not best.lacks:
        return passed(f"{best.name} holds weights, optimizer, schedule, data order and random numbers")
    parts = listed(dict.fromkeys(lack.part for lack in best.lacks))
    raises = any(lack.raises for lack in best.lacks)
    then = "the trainer refuses to resume by itself" if raises else "the trainer starts it over without an error"
    lines = tuple(f"{lack.part}: {lack.file} is not there" for lack in best.lacks)
    grave = raises or any(lack.part in ("weights", "optimizer", "schedule") for lack in best.lacks)
    return (fail if grave else warn)("all of the training", f"{best.name} has no {parts}; {then}", details=lines,
                                     evidence=_proof(best, lines[0]))  # fmt: skip


@check("RES005", "The checkpoint fits the number of ranks", needs=("resume",), playbook="resume-other-ranks",
       problem="The checkpoint does not fit the number of ranks")  # fmt: skip
def ranks_fit(facts: Facts) -> Verdict:
    """Compares the numbers of ranks of which files are there with each other, and with --ranks.

    What it does:
        verl's FSDP and DeepSpeed read a file per rank, named after the number of ranks: they resume on that number
        alone. rltrain, Megatron and plain data parallelism do on any.

    Why it matters:
        On another number the load fails on the first file. Files of two numbers in one folder come from a run that
        was started over: its merger takes the number in fsdp_config.json.
    """
    looked = need(facts.resume)
    best = newest_whole(looked)
    if best is None or not best.world_sizes:
        return skip("no whole checkpoint says how many ranks it has")
    sizes = " and ".join(str(world) for world in best.world_sizes)
    proof = {"evidence": _proof(best, f"files of {sizes} ranks"), "params": {"ranks": str(best.world_sizes[0])}}
    wanted = looked.wanted_ranks
    if wanted and wanted not in best.world_sizes:
        if best.needs_ranks:
            return fail(
                f"files of {wanted} ranks", f"{best.name} has those of {sizes}, and resumes on no other", **proof
            )
        return info(
            f"{best.name} was saved by {sizes} ranks and resumes on {wanted}; random numbers are then seeded again"
        )
    if len(best.world_sizes) > 1:
        return warn("files of one number of ranks", f"{best.name} has those of {sizes}", **proof)
    if best.needs_ranks:
        return passed(f"resumes on {sizes} ranks alone" + ("" if wanted else "; --ranks N compares"))
    return passed(f"saved by {sizes} ranks; resumes on any number")


@check("RES006", "Steps are left to train", needs=("resume",), playbook="resume-no-steps-left",
       problem="A resumed run would end at once")  # fmt: skip
def steps_left(facts: Facts) -> Verdict:
    """Compares the step of the checkpoint with the number of steps that the run's own files plan.

    What it does:
        Reads max_steps of trainer_state.json and the record of rltrain's run. verl's folders do not say it.

    Why it matters:
        A run that is resumed at its last step trains nothing, and ends with exit code 0 as if it had.
    """
    looked = need(facts.resume)
    best = newest_whole(looked)
    if best is None or not looked.total_steps:
        return skip("nothing here says how many steps the run has")
    left = looked.total_steps - best.step
    if left > 0:
        return passed(f"{left} of {looked.total_steps} steps are left")
    return info(f"no step is left: the checkpoint is of step {best.step} of {looked.total_steps}",
                evidence=_proof(best, f"step {best.step}"))  # fmt: skip


@check("RES007", "There is an earlier checkpoint to fall back on", needs=("resume",), playbook="resume-one-checkpoint")
def fallback(facts: Facts) -> Verdict:
    """Counts the whole checkpoints.

    What it does:
        Says when only one is whole.

    Why it matters:
        Where the one checkpoint turns out damaged, or was saved after training had gone wrong, all is lost.
    """
    looked = need(facts.resume)
    whole = [one for one in looked.checkpoints if one.whole]
    if not whole:
        return skip("no checkpoint is whole")
    if len(whole) > 1 or looked.chosen_why == "it was named":
        return passed(f"{len(whole)} checkpoints are whole")
    return info(f"{whole[0].name} is the only whole checkpoint", evidence=_proof(whole[0], "the only whole one"))
