"""The one thing to change first: of all that is known of a step's time, what would make it shortest."""

from __future__ import annotations

from typing import NamedTuple

from rlcheck.facts.slow import EngineUse, RankTimes, SlowAnswer, SlowFacts, StageCost, Tail, TraceUse
from rlcheck.measure.run.look import median
from rlcheck.measure.slow.limits import limit

WHOLE = ("rltrain", "verl")
"""Trainers all of whose stages are read; others time some more under names of their own."""
PASSES = ("update_actor", "update_critic", "old_log_prob", "ref", "values")


class Cause(NamedTuple):
    """Why a stage is slow. `saves_s`: a step would be shorter by about that."""

    saves_s: float
    name: str
    words: str


_OTHER = {"reward": "slow reward", "update_weights": "weight sync", "testing": "validation",
          "save_checkpoint": "checkpoints", "adv": "advantages"}  # fmt: skip


def answer(facts: SlowFacts) -> SlowAnswer:
    """The largest saving, in words."""
    found = sorted(_candidates(facts), key=lambda one: -one.saves_s)
    if found:
        return found[0]
    longest = next(iter(facts.stages), None)
    if longest is None:
        read = "; ".join(facts.read) or "nothing"
        return SlowAnswer(said=f"nothing slow is found in what was read ({read})", step_s=facts.step_s)
    floors = [stage.name for stage in facts.stages if stage.floor_s > 0]
    judged = (
        f"by their floors, {', '.join(floors)} need not be shorter" if floors else "no floor is known to judge it by"
    )
    said = f"{longest.name} takes the most, {longest.share:.0%} of a step of {facts.step_s:.3g} s; {judged}"
    return SlowAnswer(said=said, stage=longest.name, step_s=facts.step_s, floor_s=longest.floor_s)


def _candidates(facts: SlowFacts) -> list[SlowAnswer]:
    found: list[SlowAnswer] = []
    for stage in facts.stages:
        found += _stage(facts, stage)
    if untimed(facts):
        said = f"{facts.other_s:.3g} s of a step of {facts.step_s:.3g} s are in no stage that is timed"
        found.append(SlowAnswer(said, "other", "untimed work", facts.step_s, 0.0, facts.other_s))
    for ranks, rank in slow_ranks(facts):
        step_s = facts.step_s or ranks.own[rank] + (ranks.waited[rank] if ranks.waited else 0.0)
        said, lost = rank_words(ranks, rank), lost_to(ranks, rank)
        found.append(SlowAnswer(said, ranks.phase, "slow rank", step_s, 0.0, lost))
    if not any(stage.name == "gen" for stage in facts.stages):
        found += [
            SlowAnswer(f"{one.source}: {preempted_words(one)}", "gen", "KV preemption")
            for one in facts.engines
            if preempted_share(one) > limit("preempted")
        ]
    # What one slow rank causes, that rank itself does not wait for.
    least = min((one.exposed_s / one.span_s for one in facts.traces if one.span_s > 0), default=0.0)
    return [*found, *(answer for one in facts.traces for answer in _trace(one, least))]


def untimed(facts: SlowFacts) -> bool:
    """Whether much of a step is in no stage, of a trainer all of whose stages are known here."""
    return facts.framework in WHOLE and facts.other_s > limit("other_share") * facts.step_s > 0


def _trace(trace: TraceUse, alone: float) -> list[SlowAnswer]:
    """What a trace shows to be waited for, for each of its steps. `alone`: share of collectives alone on each rank."""
    if trace.span_s <= 0:
        return []
    parts = ((trace.data_s, "data_share", "data loading", "the data loader is waited for"),
             (trace.idle_s if trace.on_gpu else 0.0, "idle", "host", "nothing runs on the GPU"),
             (alone * trace.span_s, "exposed", "network", "a collective alone runs"))  # fmt: skip
    steps = max(1, trace.steps)
    return [
        SlowAnswer(f"{trace.source}: for {seconds / trace.span_s:.0%} of {trace.span_s:.3g} s {words}",
                   "traced steps", cause, trace.span_s / steps, 0.0, seconds / steps)
        for seconds, name, cause, words in parts
        if seconds > limit(name) * trace.span_s
    ]  # fmt: skip


def _stage(facts: SlowFacts, stage: StageCost) -> list[SlowAnswer]:
    if stage.name == "gen" and (cause := generation_cause(facts, stage)) is not None:
        said = f"{stage_words(stage)}: {cause.words}"
        return [SlowAnswer(said, stage.name, cause.name, facts.step_s, stage.floor_s, cause.saves_s)]
    if stage.name in _OTHER and stage.share > limit("other_share"):
        said = f"{stage_words(stage)}: {_OTHER[stage.name]}"
        return [SlowAnswer(said, stage.name, _OTHER[stage.name], facts.step_s, 0.0, stage.seconds)]
    if stage.name != "gen" and is_slow(stage):
        return [SlowAnswer(stage_words(stage), stage.name, "", facts.step_s, stage.floor_s, stage.saves_s)]
    return []


def is_slow(stage: StageCost) -> bool:
    """Whether STAGE takes far more than its floor, and enough of the step to matter."""
    return stage.times > limit("stage_times") and stage.share >= limit("stage_share")


def stage_words(stage: StageCost) -> str:
    """What a stage takes."""
    if stage.floor_s <= 0:
        return f"{stage.name} takes {stage.seconds:.3g} s, {stage.share:.0%} of a step"
    return f"{stage.name} takes {stage.seconds:.3g} s, {stage.times:.2g} x its floor of {stage.floor_s:.3g} s"


def generation_cause(facts: SlowFacts, stage: StageCost) -> Cause | None:
    """Why generation is slow; None where nothing says that it is."""
    tail, found = facts.tail, list[Cause]()
    if tail is not None and has_tail(tail) and stage.share >= limit("tail_share"):
        found.append(Cause((1 - tail.occupied) * stage.seconds, "tail", tail_words(tail)))
    preempted = max((preempted_share(one) for one in facts.engines), default=0.0)
    if preempted > limit("preempted"):
        share = min(preempted, 1.0)
        words = next(preempted_words(one) for one in facts.engines if preempted_share(one) == preempted)
        found.append(Cause(share / (1 + share) * stage.seconds, "KV preemption", words))
    if not found and is_slow(stage):
        found.append(Cause(stage.saves_s, "", "neither a tail nor preemptions explain it"))
    return max(found, default=None)


def preempted_share(engine: EngineUse) -> float:
    """Preemptions for each request that ended; 0 where the engine does not say. Where none ended, as if one had."""
    return engine.preemptions / max(engine.requests, 1.0) if engine.preemptions > 0 else 0.0


def preempted_words(engine: EngineUse) -> str:
    """How often it preempts."""
    if engine.requests <= 0:
        return f"{engine.preemptions:.4g} preemptions while no request ended"
    return f"{engine.preemptions:.6g} preemptions of {engine.requests:.6g} requests ({preempted_share(engine):.0%})"


def has_tail(tail: Tail) -> bool:
    """Whether most places stand empty for most of a round."""
    return tail.occupied < limit("occupied")


def tail_words(tail: Tail) -> str:
    """How a round ends."""
    if tail.running >= 0:
        return f"{tail.running} of {tail.requests} requests run in its last {tail.part:.0%}: tail"
    return (
        f"answers have {tail.mean:.0f} tokens on average and {tail.longest:.0f} at most: "
        f"{tail.occupied:.0%} of {tail.requests} requests run on average: tail"
    )


def slow_rank(ranks: RankTimes) -> int | None:
    """The rank whose own work takes longer than that of the others; None where none does, or it costs next to nothing.

    Where each step is known, most steps must show it; where only sums or medians are, it must be slower by more.
    """
    paces = _paces(ranks)
    if not paces:
        return None
    worst = max(range(len(paces)), key=lambda rank: paces[rank])
    if paces[worst] <= slow_from(ranks, worst):
        return None
    if len(ranks.slower) == len(ranks.own) and ranks.slower[worst] < limit("slow_rank_steps"):
        return None
    waited = ranks.waited[worst] if len(ranks.waited) == len(ranks.own) else 0.0
    return worst if lost_to(ranks, worst) > limit("slow_rank_cost") * (ranks.own[worst] + waited) else None


def slow_from(ranks: RankTimes, rank: int) -> float:
    """Own work over the others' from which on RANK is called slow."""
    if len(ranks.pace) != len(ranks.own):
        return limit("slow_rank_sums")
    return ranks.bars[rank] if len(ranks.bars) == len(ranks.own) else limit("slow_rank")


def slow_ranks(facts: SlowFacts) -> list[tuple[RankTimes, int]]:
    """Slow ranks whose slowness a step feels, with the times that show it, what costs most first."""
    found = [(ranks, rank) for ranks in facts.ranks if (rank := slow_rank(ranks)) is not None]
    felt = [one for one in found if lost_to(*one) >= limit("slow_rank_step") * facts.step_s]
    return sorted(felt, key=lambda one: -lost_to(*one))


def lost_to(ranks: RankTimes, rank: int) -> float:
    """Seconds that RANK works longer than the others."""
    return ranks.own[rank] - _others(ranks, rank)


def _paces(ranks: RankTimes) -> tuple[float, ...]:
    if len(ranks.own) < 2:
        return ()
    if len(ranks.pace) == len(ranks.own):
        return ranks.pace
    others = [_others(ranks, rank) for rank in range(len(ranks.own))]
    return tuple(own / other if other > 0 else 1.0 for own, other in zip(ranks.own, others, strict=True))


def _others(ranks: RankTimes, rank: int) -> float:
    return median(own for number, own in enumerate(ranks.own) if number != rank) or 0.0


def rank_words(ranks: RankTimes, rank: int) -> str:
    """How slow RANK is."""
    others = _others(ranks, rank)
    return (
        f"rank {rank} works {ranks.own[rank]:.3g} s on {ranks.phase}, the others {others:.3g} s "
        f"({_paces(ranks)[rank]:.2f} x), and wait for it"
    )
