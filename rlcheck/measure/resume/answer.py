"""From facts of checkpoints to the answer: from which step, on how many ranks, with what lost, and what to type."""

from __future__ import annotations

from rlcheck.facts.resume import Answer, ResumeFacts, Saved, newest_whole

_PEOPLE = {"rltrain": "rltrain", "verl": "verl", "transformers": "transformers' Trainer (TRL)"}


def answer(facts: ResumeFacts) -> Answer:
    """From where the run can be resumed."""
    best = newest_whole(facts)
    automatic = None if facts.chosen_error else facts.chosen or 0
    who = _PEOPLE[facts.maker]
    if best is None:
        return Answer(said=f"no checkpoint of {who} here is whole", maker=facts.maker, automatic=automatic)
    lost = lost_from(facts, best)
    ranks = best.world_sizes if best.needs_ranks else ()
    where = f"{who} can resume from step {best.step}"
    if facts.total_steps:
        where += f" of {facts.total_steps}"
    where += f", on {_ranks(ranks)}" if ranks else ", on any number of ranks"
    said = f"{where}; lost: {', '.join(lost)}" if lost else f"{where}; nothing is lost"
    return Answer(said=said, maker=facts.maker, step=best.step, path=f"{facts.place}/{best.name}", automatic=automatic,
                  ranks=ranks, lost=lost, words=words(facts, best))  # fmt: skip


def words(facts: ResumeFacts, best: Saved) -> str:
    """What to give the trainer, so that it goes on from BEST."""
    path = f"{facts.place}/{best.name}"
    if facts.maker == "transformers":
        return f"resume_from_checkpoint={path}"
    return f"trainer.resume_mode=resume_path trainer.resume_from_path={path}"


def lost_from(facts: ResumeFacts, best: Saved) -> tuple[str, ...]:
    """What is not as if the run had never stopped, where it goes on from BEST."""
    parts = list(dict.fromkeys(lack.part for lack in best.lacks))
    if facts.wanted_ranks and best.world_sizes and facts.wanted_ranks not in best.world_sizes and not best.needs_ranks:
        parts = [*parts, *(["random numbers"] if "random numbers" not in parts else [])]
    steps = facts.reached - best.step
    done = [f"steps {best.step + 1} to {facts.reached}" if steps > 1 else f"step {facts.reached}"] if steps > 0 else []
    return (*done, *(str(part) for part in parts))


def _ranks(ranks: tuple[int, ...]) -> str:
    return " or ".join(str(one) for one in ranks) + (" rank" if ranks == (1,) else " ranks") + " alone"
