"""SLO001-SLO008: where the time of a step goes, against what it has to take."""

from __future__ import annotations

from rlcheck.check import Evidence, Verdict, check, evidence, passed, skip, unknown, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.slow import SlowFacts, StageCost, TraceUse
from rlcheck.measure.slow.answer import (
    PASSES,
    WHOLE,
    has_tail,
    is_slow,
    preempted_share,
    preempted_words,
    rank_words,
    slow_ranks,
    stage_words,
    tail_words,
    untimed,
)
from rlcheck.measure.slow.limits import limit

_NEEDS = ("slow",)


def _proof(fact: str, value: object, source: str) -> tuple[Evidence, ...]:
    return (evidence(f"slow.{fact}", value, source),)


def _stage(facts: SlowFacts, name: str) -> StageCost | None:
    return next((one for one in facts.stages if one.name == name), None)


def _judged(stages: list[StageCost]) -> Verdict:
    """STAGES against their floors."""
    with_floor = [one for one in stages if one.floor_s > 0]
    if not with_floor:
        lacking = unknown("no floor can be made: it takes the GPU's name (--gpu) and the run's config")
        return lacking if stages else skip("no such stage is timed")
    slow = [one for one in with_floor if is_slow(one)]
    if not slow:
        return passed("; ".join(stage_words(one) for one in with_floor))
    worst = max(slow, key=lambda one: one.saves_s)
    return warn(
        f"at most {limit('stage_times'):g} x the floor",
        f"{stage_words(worst)}; a step would be up to {worst.saves_s:.3g} s shorter",
        details=tuple(f"{stage_words(one)} ({one.floor_why})" for one in slow),
        evidence=_proof("stages", f"{worst.seconds:.3g} s", worst.name),
    )


@check("SLO001", "Generation is near its floor", needs=_NEEDS, playbook="slow-generation",
       caused_by=("SLO003", "SLO004"), problem="Generation takes far longer than it has to")  # fmt: skip
def generation(facts: Facts) -> Verdict:
    """Compares generation with what its tokens cost on such a GPU, every place in use.

    What it does:
        Counts operations and bytes of the passes from the model's sizes, engines, tokens of prompts and answers; takes
        the vendor's rates, of which good software reaches a part. Warns from twice that on.

    Why it matters:
        Generation is most of a step. A floor says whether it can be much shorter on the same GPUs.
    """
    found = _stage(need(facts.slow), "gen")
    return _judged([] if found is None else [found])


@check("SLO002", "Updates and passes are near their floors", needs=_NEEDS, playbook="slow-passes",
       caused_by=("SLO006", "SLO007", "SLO008"), problem="Updates take far longer than they have to")  # fmt: skip
def passes(facts: Facts) -> Verdict:
    """Compares updates, log-probabilities and values with the operations that they are.

    What it does:
        Counts operations from the model's sizes, tokens and the config (recomputed activations, epochs, LoRA). Warns
        when a stage takes twice its floor and a tenth of the step.

    Why it matters:
        Small micro-batches, padding, offload and waits for other ranks keep GPUs from their work, and no log says so.
    """
    return _judged([one for one in need(facts.slow).stages if one.name in PASSES])


@check("SLO003", "Generation does not wait for a few long answers", needs=_NEEDS, playbook="generation-tail",
       problem="Generation waits for a few long answers")  # fmt: skip
def tail(facts: Facts) -> Verdict:
    """Looks at how many requests still run while a round of generation ends.

    What it does:
        From the lengths of a step's answers, or from their mean and the longest, takes the mean share of places that
        have a request; of an engine's own counters the share of passes with a few tokens.

    Why it matters:
        A pass for a few requests takes as long as one for a hundred: all GPUs wait for the longest answers.
    """
    looked = need(facts.slow)
    found, stage = looked.tail, _stage(looked, "gen")
    if found is None and stage is None:
        return skip("generation is not timed")
    if found is None:
        return unknown("nothing says how long a step's answers are (response_length/mean and max, samples)")
    usual = f"on average {found.occupied:.0%} of the requests that the engines have places for run"
    if not has_tail(found):
        return passed(usual)
    if stage is not None and stage.share < limit("tail_share"):
        return passed(f"{usual}; generation is {stage.share:.0%} of a step")
    saves = f"; up to {(1 - found.occupied) * stage.seconds:.3g} s of a step" if stage is not None else ""
    expected = f"at least {limit('occupied'):.0%} of the engines' places in use on average"
    return warn(expected, f"{tail_words(found)}{saves}",
                details=(usual,), evidence=_proof("tail", usual, found.source))  # fmt: skip


@check("SLO004", "Engines compute each request once, and soon", needs=_NEEDS, playbook="engine-preempts-requests",
       problem="Requests are preempted, or wait for a place in the engine")  # fmt: skip
def engines(facts: Facts) -> Verdict:
    """Reads the counters of vLLM or SGLang: preemptions (retractions), the wait before a request runs.

    What it does:
        Warns when more than one request in fifty was preempted, or a request waits for a third of its time although the
        KV cache has room (max_num_seqs is too small then). That requests wait for a full cache costs nothing.

    Why it matters:
        The cache of a preempted request is computed again; with several of each request that doubles generation.
    """
    looked = need(facts.slow)
    if not looked.engines:
        return skip("no counters of an engine were given: curl http://ENGINE/metrics >> metrics.txt")
    worst = max(looked.engines, key=preempted_share)
    if preempted_share(worst) > limit("preempted"):
        found = preempted_words(worst)
        cache = f"; its KV cache was {worst.kv_usage:.0%} full" if worst.kv_usage >= 0 else ""
        return warn(f"at most {limit('preempted'):.0%} of requests preempted", f"{worst.source}: {found}{cache}",
                    evidence=_proof("engines", found, worst.source))  # fmt: skip
    for one in looked.engines:
        whole = one.queue_s + one.run_s
        waits = one.queue_s > 0 and one.run_s >= 0 and one.queue_s > limit("queue_share") * whole
        if waits and 0 <= one.kv_usage < limit("kv_room"):
            found = (
                f"{one.source}: a request waits {one.queue_s:.3g} s and runs {one.run_s:.3g} s, while at most "
                f"{one.kv_usage:.0%} of the KV cache is in use"
            )
            return warn("requests that run while the KV cache has room", found,
                        evidence=_proof("engines", found, one.source))  # fmt: skip
    if all(one.preemptions < 0 for one in looked.engines):
        return skip("the engines do not count preemptions")
    return passed(f"{sum(max(one.preemptions, 0) for one in looked.engines):.6g} preemptions")


@check("SLO005", "Generation and passes are nearly all of a step", needs=_NEEDS, playbook="run-slows-down",
       problem="GPUs wait for a stage that is none of theirs")  # fmt: skip
def beside(facts: Facts) -> Verdict:
    """Looks at stages in which GPUs have nothing to do: rewards, weight sync, validation, and what is in no stage.

    What it does:
        Warns when one of them takes over a seventh of a step. Of trainers other than verl and rltrain, time in no stage
        is not judged: they time more than is read. verl's data loader is outside of its steps: a trace shows it.

    Why it matters:
        All of it can be done beside the GPUs' work, or faster.
    """
    looked = need(facts.slow)
    if not looked.stages or looked.step_s <= 0:
        return skip("no stage is timed")
    other = [(one.name, one.seconds, one.share) for one in looked.stages if one.name not in ("gen", "reshard", *PASSES)]
    if untimed(looked):
        other.append(("what is in no stage that is timed", looked.other_s, looked.other_s / looked.step_s))
    slow = sorted((one for one in other if one[2] > limit("other_share")), key=lambda one: -one[1])
    if not slow:
        words = f"{sum(share for _, _, share in other):.0%} of a step is in stages beside generation and passes"
        if looked.framework not in WHOLE and looked.other_s > limit("other_share") * looked.step_s:
            words += f"; {looked.other_s / looked.step_s:.0%} is in none that is known here, and is not judged"
        return passed(words)
    lines = tuple(f"{name} takes {seconds:.3g} s, {share:.0%} of a step" for name, seconds, share in slow)
    return warn(f"at most {limit('other_share'):.0%} of a step", f"{lines[0]}, in which the GPUs wait", details=lines,
                evidence=_proof("stages", lines[0], slow[0][0]))  # fmt: skip


@check("SLO006", "The GPU has work all the time", needs=_NEEDS, playbook="gpu-waits-for-host",
       caused_by=("SLO005", "SLO007"), problem="The GPU waits for its host")  # fmt: skip
def gpu_busy(facts: Facts) -> Verdict:
    """Reads traces of torch's profiler: for how long nothing ran on the GPU, or data was waited for.

    What it does:
        Takes the union of all kernels and copies against the traced steps; of a trace without a GPU, the data loader.
        Without a trace, rltrain's clock has for how much of a step any kernel ran, as the driver says.

    Why it matters:
        A GPU that waits for Python, for small kernels to be launched or for data costs as much as one that works.
    """
    looked = need(facts.slow)
    if not looked.traces:
        return _by_nvml(looked)
    data = max(looked.traces, key=lambda one: _share(one, one.data_s))
    if _share(data, data.data_s) > limit("data_share"):
        found = (
            f"{data.source}: for {_share(data, data.data_s):.0%} of {data.span_s:.3g} s the data loader is waited for"
        )
        return warn("data that is there when it is asked for", found, evidence=_proof("traces", found, data.source))
    on_gpu = [one for one in looked.traces if one.on_gpu]
    if not on_gpu:
        return passed("the data loader is not waited for; no GPU is in the traces")
    worst = max(on_gpu, key=lambda one: _share(one, one.idle_s))
    share = _share(worst, worst.idle_s)
    if share <= limit("idle"):
        return passed(f"{1 - share:.0%} of the time or more something runs on each GPU")
    found = f"{worst.source}: nothing runs on the GPU for {share:.0%} of {worst.span_s:.3g} s"
    return warn(f"at most {limit('idle'):.0%} without work", found, evidence=_proof("traces", found, worst.source))


def _by_nvml(looked: SlowFacts) -> Verdict:
    if not looked.gpus:
        return skip("no trace was given, and the run does not log how busy its GPUs are")
    worst = min(looked.gpus, key=lambda one: one.share)
    found = f"a kernel runs on GPU {worst.gpu} of {worst.node} for {worst.share:.0%} of a step"
    if 1 - worst.share <= limit("idle"):
        return passed(f"{found}, on others for longer" if len(looked.gpus) > 1 else found)
    return warn(f"at most {limit('idle'):.0%} without work", found, evidence=_proof("gpus", found, "clock.jsonl"))


def _share(trace: TraceUse, seconds: float) -> float:
    return seconds / trace.span_s if trace.span_s > 0 else 0.0


@check(
    "SLO007",
    "Ranks work equally long",
    needs=_NEEDS,
    playbook="slow-rank",
    problem="One rank is slower than the others",
)
def ranks_alike(facts: Facts) -> Verdict:
    """Compares the ranks' own work, without what they wait for in collectives.

    What it does:
        From rltrain's clock, warns where one rank works 8 % longer than the others in most steps, of the run or of its
        last 16 (5 % where steps hardly differ, more where they differ much); from a trace of each rank, or times by
        rank, where it is an eighth.

    Why it matters:
        Every collective waits for the last rank; in the others' times it looks like a slow network.
    """
    looked = need(facts.slow)
    if not looked.ranks:
        return skip("no times by rank: give a trace of each rank, or a run that logs them")
    slow = slow_ranks(looked)
    if not slow:
        near = f"{max(len(one.own) for one in looked.ranks)} ranks near each other in {len(looked.ranks)} phases"
        return passed(near + _starved(looked))
    ranks, rank = slow[0]
    lines = tuple(rank_words(*one) for one in slow)
    return warn("ranks that work equally long", rank_words(ranks, rank), details=lines[:8],
                evidence=_proof("ranks", lines[0], ranks.source), params={"rank": str(rank)})  # fmt: skip


def _starved(looked: SlowFacts) -> str:
    """What was not counted: waits for a processor, which another program's work on a rank's host makes longer."""
    most = max((one for one in looked.ranks if one.queued), key=lambda one: max(one.queued), default=None)
    if most is None or max(most.queued, default=0.0) <= limit("queued") * max(most.own, default=0.0):
        return ""
    rank = most.queued.index(max(most.queued))
    return (
        f"; not counted: in {most.phase} rank {rank} waits {most.queued[rank]:.3g} s for a processor, others "
        f"{min(most.queued):.3g} s and more"
    )


@check("SLO008", "Collectives are behind other work", needs=_NEEDS, playbook="collectives-in-the-open",
       caused_by=("SLO007",), problem="All ranks wait for the network")  # fmt: skip
def together(facts: Facts) -> Verdict:
    """Reads from traces for how long a rank does nothing but a collective.

    What it does:
        Warns when that is a third of the time on every rank: what one slow rank causes, that rank itself does not show.

    Why it matters:
        A slow link, or transfers that overlap with nothing, cost every step the same time.
    """
    looked = need(facts.slow)
    known = [one for one in looked.traces if one.together_s > 0]
    if not known:
        return skip("no trace with collectives was given")
    least = min(known, key=lambda one: _share(one, one.exposed_s))
    share = _share(least, least.exposed_s)
    if share <= limit("exposed"):
        return passed(f"{share:.0%} of {least.source} is spent in collectives alone")
    found = f"{share:.0%} of the time or more on each of {len(known)} traced ranks"
    return warn(f"at most {limit('exposed'):.0%} in collectives alone", found,
                evidence=_proof("traces", found, least.source))  # fmt: skip
