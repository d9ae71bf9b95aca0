"""RUN040, RUN053: what the ranks of a run do: different work, at one pace."""

from __future__ import annotations

import math

from rlcheck.check import Verdict, check, evidence, fail, passed, skip, unknown, warn
from rlcheck.checks.run.behaviour import ENTROPY
from rlcheck.checks.run.common import NEEDS, curve_of, drawn, num_ranks, number_setting, proof, run_of
from rlcheck.facts.base import value_or
from rlcheck.facts.document import Facts
from rlcheck.facts.run import AuditStep, Curve, RunFacts
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import charted, median, steps_words

_LOSSES = ("actor/pg_loss", "actor/loss", "loss", "train/loss")
_FEWEST = 3


@check("RUN040", "Ranks learn from different data", needs=NEEDS, playbook="ranks-learn-the-same",
       caused_by=("RUN013",))  # fmt: skip
def ranks_differ(facts: Facts) -> Verdict:
    """Compares what the ranks learnt from, and their losses.

    What it does:
        Fails when the audit record shows ranks whose tokens have one hash, or one loss to the last bit, step after
        step; when the spread of the ranks' losses is exactly 0; and when each rank wrote its own metrics and their
        losses are the same numbers.

    Why it matters:
        Ranks that all read the same rows train on a fraction of the batch. Losses look healthy, and the reward rises
        more slowly, or not at all, than with one GPU.
    """
    run = run_of(facts)
    verdicts = [_hashes(run), _audited_losses(run), _spread(run), _written(run)]
    told = [verdict for verdict in verdicts if verdict is not None]
    problem = next((verdict for verdict in told if verdict.status == "fail"), None)
    if problem is not None:
        return problem
    if judged := [verdict for verdict in told if verdict.status != "unknown"] or told:
        return judged[0]
    if num_ranks(run) == 1:
        return skip("one rank")
    return unknown("the run does not say what each rank learnt from (trainer.audit=true does)")


def _ranks_of_a_share(run: RunFacts) -> float:
    """How many ranks work on the same rows by design: sequence, tensor and pipeline parallel."""
    actor = "actor_rollout_ref.actor"
    sizes = [
        number_setting(
            run, f"{actor}.fsdp_config.ulysses_sequence_parallel_size", f"{actor}.ulysses_sequence_parallel_size"
        ),
        *(number_setting(run, f"{actor}.megatron.{kind}_model_parallel_size") for kind in ("tensor", "pipeline")),
    ]
    return math.prod(max(1.0, size or 1.0) for size in sizes)


def _hashes(run: RunFacts) -> Verdict | None:
    certain = _certain_steps(run)
    audit = [one for one in value_or(run.audit, ()) if len(one.shard_hashes) > 1 and one.step not in certain]
    if not audit:
        return None
    share = _ranks_of_a_share(run)
    same = [one for one in audit if len(set(one.shard_hashes)) * share < len(one.shard_hashes)]
    ranks = len(audit[0].shard_hashes)
    # Two ranks may draw one row each, and the same one, by chance; step after step they do not.
    if len(same) < max(2, len(audit) // 2):
        return passed(f"{ranks} ranks, each with rows of its own in {len(audit) - len(same)} of {len(audit)} steps")
    return _found(run, same, f"{ranks} ranks that learnt from {_distinct(same[-1])}")


def _certain_steps(run: RunFacts) -> frozenset[int]:
    """Steps whose policy gives one answer only: then all rows hold the same tokens, whoever reads them."""
    entropy = curve_of(run, *ENTROPY)
    if entropy is None:
        return frozenset()
    return frozenset(
        step for step, value in zip(entropy.steps, entropy.values, strict=True) if value < limit("certain")
    )


def _distinct(one: AuditStep) -> str:
    number = len(set(one.shard_hashes))
    return "the same tokens" if number == 1 else f"only {number} different parts of the batch"


def _audited_losses(run: RunFacts) -> Verdict | None:
    audit = [one for one in value_or(run.audit, ()) if len(one.shard_losses) > 1 and any(one.shard_losses)]
    if len(audit) < _FEWEST:
        return None
    share = _ranks_of_a_share(run)
    same = [one for one in audit if len(set(one.shard_losses)) == 1 and len(one.shard_losses) > share]
    if len(same) < len(audit):
        return passed(f"{len(audit[0].shard_losses)} ranks with losses of their own")
    return _found(run, same, f"{len(audit[0].shard_losses)} ranks with one and the same loss to the last bit")


def _found(run: RunFacts, same: list[AuditStep], words: str) -> Verdict:
    first, last = same[0].step, same[-1].step
    return fail(
        "ranks that each learn from rows of their own",
        f"{words}, {steps_words(first, last)} ({len(same)} steps)",
        details=drawn(run, "actor/shard_loss_spread", "actor/loss_tokens", "critic/score/mean"),
        evidence=(evidence("run.audit", f"{len(same)} steps with equal shards", steps_words(first, last)),),
    )


def _spread(run: RunFacts) -> Verdict | None:
    curve = curve_of(run, "actor/shard_loss_spread")
    if curve is None or num_ranks(run) == 1 or len(curve.values) < _FEWEST:
        return None
    losses = curve_of(run, "actor/pg_loss", "actor/loss")
    if any(curve.values) or losses is None or len(set(losses.values)) < 2:
        return passed(f"losses of the ranks differ by {median(curve.values) or 0.0:.2g}") if any(curve.values) else None
    # One rank has this spread, too; it writes no norms by rank.
    if num_ranks(run) is None and curve_of(run, "actor/grad_norm_rank_min", "critic/grad_norm_rank_min") is None:
        return unknown(
            "a spread of exactly 0: one rank, or several that learn from the same rows; how many there are is not known"
        )
    return fail(
        "losses that differ between ranks",
        f"a spread of exactly 0 in all {len(curve.values)} steps",
        details=drawn(run, "actor/shard_loss_spread", "actor/pg_loss", "actor/loss_tokens"),
        evidence=(proof("actor/shard_loss_spread", 0, curve.steps[0], curve.steps[-1]),),
    )


def _written(run: RunFacts) -> Verdict | None:
    """Metrics that every rank wrote. A loss that was averaged over ranks before is no evidence: then all is alike."""
    losses = next((run.ranks[name] for name in _LOSSES if len(run.ranks.get(name, ())) > 1), None)
    if losses is None or len(losses) <= _ranks_of_a_share(run):
        return None
    if len(losses[0].values) < _FEWEST or len(set(losses[0].values)) < 2:
        return None
    if not _equal(losses):
        return passed(f"{len(losses)} ranks with losses of their own")
    others = [name for name, curves in run.ranks.items() if _of_the_rows(name) and len(curves) > 1]
    if any(not _equal(run.ranks[name]) for name in others):
        return passed("the ranks' rows differ; their loss was averaged before it was written")
    return fail(
        "losses that differ between ranks",
        f"the same numbers on {len(losses)} ranks in all {len(losses[0].values)} steps",
        details=tuple(charted(f"rank {rank}", curve) for rank, curve in enumerate(losses[:4])),
        evidence=(evidence("run.ranks", "equal losses", steps_words(losses[0].steps[0], losses[0].steps[-1])),),
    )


def _equal(curves: tuple[Curve, ...]) -> bool:
    return all(curve.steps == curves[0].steps and curve.values == curves[0].values for curve in curves[1:])


def _of_the_rows(name: str) -> bool:
    return name.startswith(("critic/score", "critic/rewards", "response_length", "prompt_length", "reward"))


@check("RUN053", "No rank is slower than the others", needs=NEEDS, playbook="slow-rank", caused_by=("RUN050",))
def ranks_keep_pace(facts: Facts) -> Verdict:
    """Compares times of the ranks, and how long gradients wait for them.

    What it does:
        Where ranks wrote their own times, warns when one takes 1.3 times the median of all. Where they did not, warns
        when most of the actor's update is spent in the reduce-scatter of gradients, in which ranks wait for the
        slowest, and when the longest part of a batch is far longer than the shortest.

    Why it matters:
        Every step takes as long as its slowest rank: one GPU that throttles slows all others.
    """
    run = run_of(facts)
    timed = {name: curves for name, curves in run.ranks.items() if name.startswith(("timing_s/", "perf/time"))}
    slow = [words for name, curves in timed.items() if (words := _slow_words(name, curves))]
    if slow:
        where = steps_words(run.first_step, run.last_step)
        proven = (evidence("run.ranks", slow[0], where),)
        return warn("ranks that take equally long", slow[0], details=tuple(slow[:6]), evidence=proven)
    waiting = _waiting(run)
    if waiting is not None:
        return waiting
    if timed:
        return passed(
            f"{len(timed)} times of {max(len(curves) for curves in timed.values())} ranks, all near each other"
        )
    if curve_of(run, "timing_s/grad_comm") is not None:
        return passed("the exchange of gradients waits for no rank (waits before it are not measured)")
    return skip("one rank") if num_ranks(run) == 1 else unknown("the run does not log times by rank")


def _slow_words(name: str, curves: tuple[Curve, ...]) -> str:
    """One rank that is slower than the others, in most steps."""
    if len(curves) < 2 or any(len(curve.values) < _FEWEST for curve in curves):
        return ""
    times = [median(curve.values) or 0.0 for curve in curves]
    usual, slowest = median(times) or 0.0, max(range(len(times)), key=lambda rank: times[rank])
    others = median(time for rank, time in enumerate(times) if rank != slowest) or usual
    if times[slowest] <= limit("slow_rank") * others or times[slowest] - others < limit("slow_rank_seconds"):
        return ""
    return f"rank {slowest} takes {times[slowest]:.3g} s for {name}, the others {others:.3g} s"


def _waiting(run: RunFacts) -> Verdict | None:
    wait, update = curve_of(run, "timing_s/grad_comm"), curve_of(run, "timing_s/update_actor")
    if wait is None or update is None or min(len(wait.values), len(update.values)) < _FEWEST:
        return None
    waited, whole = median(wait.values) or 0.0, median(update.values) or 0.0
    if whole < limit("slow_rank_seconds") or waited <= limit("gradient_wait_share") * whole:
        return None
    return warn(
        f"at most {limit('gradient_wait_share'):.0%} of the actor's update in the exchange of gradients",
        f"{waited / whole:.0%} ({waited:.3g} s of {whole:.3g} s): one rank, or the network, is slow",
        details=drawn(run, "timing_s/grad_comm", "timing_s/update_actor", "global_seqlen/minmax_diff"),
        evidence=(proof("timing_s/grad_comm", f"{waited:.3g} s", wait.steps[0], wait.steps[-1]),),
    )
