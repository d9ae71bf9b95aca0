"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.slow import EngineUse, GpuBusy, RankTimes, SlowFacts, StageCost, Tail, TraceUse


def slow(**more: object) -> Facts:
    """A step of 100 s in which nothing is slow, changed by MORE."""
    values = {
        "framework": "verl",
        "step_s": 100.0,
        "steps": 20,
        "other_s": 1.0,
        "stages": stages(),
        "tail": Tail(requests=512, running=200, part=0.4, occupied=0.8, source="samples"),
        "engines": (EngineUse("m.txt", "vllm", preemptions=1, requests=512, kv_usage=0.5, queue_s=1, run_s=40),),
        "traces": (trace(0), trace(1)),
        "ranks": (RankTimes("step", (50.0, 51.0), source="traces"),),
        **more,
    }
    return Facts(slow=known(SlowFacts(**values)))  # pyright: ignore


def stages(gen: float = 60.0, update: float = 35.0, reward: float = 1.0) -> tuple[StageCost, ...]:
    """Stages with floors of 40 and 20 s."""
    return (
        StageCost("gen", gen, gen / 100, 40.0, "480 passes"),
        StageCost("update_actor", update, update / 100, 20.0, "forward and backward"),
        StageCost("reward", reward, reward / 100),
    )


def trace(rank: int, **more: float) -> TraceUse:
    """A trace of 10 s on a GPU that is busy."""
    values = {"span_s": 10.0, "busy_s": 9.5, "together_s": 2.0, "exposed_s": 0.5, **more}
    return TraceUse(f"rank{rank}.json", rank, 2, "NVIDIA H100 80GB HBM3", True, **values)  # pyright: ignore


def ranks(own: tuple[float, ...], slower: float, waited: float = 1.0) -> RankTimes:
    """Ranks that work OWN seconds; the slowest was slower than the others in SLOWER of the steps."""
    return RankTimes("all phases", own, waited=(waited,) * len(own), pace=(own[1] / own[0], own[0] / own[1])[::-1],
                     slower=(0.0, slower), steps=8, source="clock.jsonl")  # fmt: skip


HEALTHY = slow()
LONG = Tail(requests=512, running=9, part=0.4, occupied=0.2, source="samples")
CASES: dict[str, tuple[Facts, Facts]] = {
    "SLO001": (slow(stages=stages(gen=90.0)), HEALTHY),
    "SLO002": (slow(stages=stages(update=50.0)), HEALTHY),
    "SLO003": (slow(tail=LONG), HEALTHY),
    "SLO004": (slow(engines=(EngineUse("m.txt", "vllm", preemptions=90, requests=512, kv_usage=1.0),)), HEALTHY),
    "SLO005": (slow(stages=stages(reward=30.0)), HEALTHY),
    "SLO006": (slow(traces=(trace(0, busy_s=3.0),)), HEALTHY),
    "SLO007": (slow(ranks=(RankTimes("step", (50.0, 75.0), source="traces"),)), HEALTHY),
    "SLO008": (slow(traces=(trace(0, exposed_s=4.0), trace(1, exposed_s=5.0))), HEALTHY),
}
OTHER_FIRES: dict[str, tuple[Facts, ...]] = {
    "SLO003": (slow(tail=Tail(512, -1, 0.0, 0.1, 8000, 800, "means")),),
    "SLO004": (
        # Places are too few, although the cache has room.
        slow(engines=(EngineUse("m.txt", "vllm", preemptions=0, requests=9, queue_s=30, run_s=10, kv_usage=0.2),)),
        # No request has ended, and all are preempted.
        slow(engines=(EngineUse("m.txt", "vllm", preemptions=900, requests=0, kv_usage=1.0),)),
    ),
    "SLO005": (slow(other_s=40.0),),
    "SLO007": (slow(ranks=(ranks((50.0, 60.0), 1.0),)),),
    "SLO006": (
        slow(traces=(), gpus=(GpuBusy("n0", "0", 0.9), GpuBusy("n0", "1", 0.4))),
        slow(traces=(TraceUse("cpu.json", span_s=1.0, busy_s=0.9, data_s=0.8),)),
    ),
}
OTHER_QUIET: dict[str, tuple[Facts, ...]] = {
    # Requests that wait for a full cache cost nothing.
    "SLO004": (
        slow(engines=(EngineUse("m.txt", "vllm", preemptions=0, requests=9, queue_s=30, run_s=10, kv_usage=0.95),)),
    ),
    # A trainer that times more than is read.
    "SLO005": (slow(other_s=40.0, framework="skyrl"),),
    "SLO006": (slow(traces=(), gpus=(GpuBusy("n0", "0", 0.9),)),),
    "SLO007": (
        # Noise: slower in half of the steps.
        slow(ranks=(ranks((50.0, 60.0), 0.5),)),
        # On a GPU nearly all of a call is collectives beside other work; what is left of own work is noise.
        slow(ranks=(ranks((2.4, 5.0), 1.0, waited=95.0),)),
        # A trace of a step or two.
        slow(ranks=(RankTimes("step", (50.0, 55.0), source="traces"),)),
        # Slow in a phase that is next to nothing of a step.
        slow(ranks=(ranks((1.0, 2.0), 1.0),)),
    ),
    # A few long answers cost nothing where generation is a small part of the step.
    "SLO003": (slow(tail=LONG, stages=stages(gen=5.0)),),
    # One rank that waits for the other is no slow network.
    "SLO008": (slow(traces=(trace(0, exposed_s=6.0), trace(1, exposed_s=0.2))),),
}
