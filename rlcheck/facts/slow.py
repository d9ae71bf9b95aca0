"""Where the time of a step goes: stages against their floors, the tail of answers, engines, traces, ranks."""

from __future__ import annotations

from rlcheck.facts.base import Struct


class StageCost(Struct, frozen=True):
    """A stage of a step. Medians over the steps, the first two left out.

    `floor_s`: what it would take where nothing goes wrong, 0: not known. `floor_why`: what the floor is made of, or why
    there is none. `saves_s`: what a step would be shorter by, if the stage took its floor.
    """

    name: str
    seconds: float
    share: float
    floor_s: float = 0.0
    floor_why: str = ""

    @property
    def times(self) -> float:
        """Seconds over the floor; 0: there is no floor."""
        return self.seconds / self.floor_s if self.floor_s > 0 else 0.0

    @property
    def saves_s(self) -> float:
        """Seconds above the floor; 0 where it is not known."""
        return max(0.0, self.seconds - self.floor_s) if self.floor_s > 0 else 0.0


class Tail(Struct, frozen=True):
    """How a round of generation ends, by the answers' lengths or by what the engine said of itself.

    `requests`: of a step. `running`: that still run when the last part begins, `part`: that part of the time.
    `occupied`: mean share of places that have a request, while a round lasts. `longest`, `mean`: tokens of answers.
    """

    requests: int
    running: int
    part: float
    occupied: float
    longest: float = 0.0
    mean: float = 0.0
    source: str = ""


class EngineUse(Struct, frozen=True):
    """One engine, as its counters say. -1: it does not say.

    `kv_usage`: the fullest, a share. `preemptions`: how often a request's cache was taken from it, and computed again.
    `cache_hits`: share of prompt tokens. `queue_s`, `run_s`: mean time of a request before it runs, and after.
    `small_passes`: share of passes with at most `small_tokens` tokens.
    """

    source: str
    engine: str = ""
    scrapes: int = 1
    running: float = -1
    waiting: float = -1
    kv_usage: float = -1
    preemptions: float = -1
    requests: float = -1
    tokens: float = -1
    cache_hits: float = -1
    queue_s: float = -1
    run_s: float = -1
    small_passes: float = -1
    small_tokens: float = 0


class TraceUse(Struct, frozen=True):
    """One trace of torch's profiler. Seconds; of a GPU where one is in it, else of the CPU's threads.

    `busy_s`: something ran. `together_s`: collectives; `exposed_s`: of these, while nothing else ran. `copy_s`: copies
    to and from the host. `data_s`: the data loader was waited for. `top`: what took longest, with seconds.
    """

    source: str
    rank: int = -1
    world: int = 0
    device: str = ""
    on_gpu: bool = False
    span_s: float = 0.0
    busy_s: float = 0.0
    together_s: float = 0.0
    exposed_s: float = 0.0
    copy_s: float = 0.0
    data_s: float = 0.0
    steps: int = 0
    top: tuple[tuple[str, float], ...] = ()

    @property
    def own_s(self) -> float:
        """Time in which the rank did not wait in a collective."""
        return max(self.span_s - self.exposed_s, 0.0)

    @property
    def idle_s(self) -> float:
        """Time in which nothing ran."""
        return max(self.span_s - self.busy_s, 0.0)


class RankTimes(Struct, frozen=True):
    """Seconds of own work in one phase, by rank; `waited`: in collectives and for others. `steps`: over how many.

    `pace`: each rank's own work over the median of the others', median over steps; () where only medians are known.
    A machine that is busy for a while slows all ranks of a step alike. `bars`: the pace from which on each rank is
    called slow, by how much its steps differ; () where steps are not known. `slower`: of each rank, the
    share of steps in which it was slower than the others by half of that. `queued`: seconds for which each was ready to
    work and had no processor, which are in neither.
    """

    phase: str
    own: tuple[float, ...]
    waited: tuple[float, ...] = ()
    pace: tuple[float, ...] = ()
    bars: tuple[float, ...] = ()
    slower: tuple[float, ...] = ()
    queued: tuple[float, ...] = ()
    steps: int = 1
    source: str = ""


class GpuBusy(Struct, frozen=True):
    """One GPU, as NVML said of it: `share` of a step in which a kernel ran, median over steps."""

    node: str
    gpu: str
    share: float
    steps: int = 1


class SlowFacts(Struct, frozen=True):
    """What is known of the time of a run's steps. `read`: files, in words; `unread`: what could not be, and why.
    `step_s`: a step, median. `device`: the GPU that floors are for, "" none. `other_s`: of a step, in no stage."""

    source: str = ""
    framework: str = ""
    steps: int = 0
    step_s: float = 0.0
    other_s: float = 0.0
    stages: tuple[StageCost, ...] = ()
    tail: Tail | None = None
    engines: tuple[EngineUse, ...] = ()
    traces: tuple[TraceUse, ...] = ()
    ranks: tuple[RankTimes, ...] = ()
    gpus: tuple[GpuBusy, ...] = ()
    device: str = ""
    read: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


class SlowAnswer(Struct, frozen=True, omit_defaults=False):
    """The one thing to change first. `stage`: of the step; `cause`: in a word, "" where none is known; `saves_s`: by
    which a step would be shorter, 0 where that is not known."""

    said: str
    stage: str = ""
    cause: str = ""
    step_s: float = 0.0
    floor_s: float = 0.0
    saves_s: float = 0.0
