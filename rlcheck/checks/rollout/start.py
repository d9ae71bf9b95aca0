"""ROL001, ROL002, ROL007: the engine starts, generates, and gives its memory back."""

from __future__ import annotations

from rlcheck.check import Verdict, check, evidence, fail, info, passed, skip, unknown, warn
from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.rollout import Failure, RolloutFacts
from rlcheck.text import GIB, gib

_STARTING = ("", "config", "tokenizer", "engine start")
_LEFT_SHARE = 0.5
"""Asleep, an engine keeps its context and its CUDA graphs; half of what it held is more than those (level 2 frees
weights and cache: https://docs.vllm.ai/en/latest/features/sleep_mode.html)."""
_SMALL_BYTES = 2 * GIB
"""Of an engine that holds less than this, context and graphs are most."""


def details_of(failure: Failure) -> tuple[str, ...]:
    """The first error, the playbook that knows it, and what was printed last."""
    lines = [f"raised first: {failure.root}"] if failure.root else []
    lines += [f"known problem: rlcheck explain {failure.known}"] if failure.known else []
    return (*lines, *(f"| {line[:200]}" for line in failure.tail))


def _started(rollout: RolloutFacts) -> bool:
    return rollout.failure is None or rollout.failure.stage not in _STARTING


@check("ROL001", "The rollout engine starts", needs=("rollout",), playbook="rollout-engine-start",
       problem="The rollout engine does not start")  # fmt: skip
def engine_starts(facts: Facts) -> Verdict:
    """The engine of the config starts, in the Python that will run it.

    What it does:
        Starts the engine in a process of its own with the arguments that the trainer would give it, and ends it. When
        it fails, the error that was raised first is shown, not the one that says that a process failed.

    Why it matters:
        An engine starts minutes into a run, after Ray, data and models, on devices that are held meanwhile; and what
        the log of the run says of its end is a consequence of the cause.
    """
    rollout = need(facts.rollout)
    failure = rollout.failure
    if rollout.is_server:
        return skip("a server that runs already")
    if failure is None or _started(rollout):
        seconds = sum(stage.seconds for stage in rollout.stages if stage.name in ("engine import", "engine start"))
        return passed(f"{rollout.engine} {rollout.version} started in {seconds:.1f} s with {rollout.weights} weights")
    if failure.kind == "unsupported":
        return unknown(failure.line)
    found = failure.root or failure.line
    return fail(
        f"the engine {rollout.engine} to start",
        found,
        details=(f"in stage: {failure.stage or 'start of Python'}", *details_of(failure)),
        evidence=(evidence("rollout.failure.line", failure.line, "the engine's process"),),
        params=_known(failure),
    )


def _known(failure: Failure) -> dict[str, str]:
    late = {"option": "--start-timeout SECONDS"} if failure.kind == "timeout" else {}
    return late | ({"known": failure.known} if failure.known else {})


@check("ROL002", "The engine generates text", needs=("rollout",), playbook="rollout-generation",
       caused_by=("ROL001", "ROL010", "ROL011", "ROL012"))  # fmt: skip
def it_generates(facts: Facts) -> Verdict:
    """A prompt is answered within its deadline, and so is everything else that is asked.

    What it does:
        Generates with the config's sampling: one token, a batch, greedy and sampled answers; each with a deadline.

    Why it matters:
        Engines that start may still fail at the first batch: a kernel that does not compile, a sampler that does not
        know the setting, memory that is only taken now.
    """
    rollout = need(facts.rollout)
    failure = rollout.failure
    if failure is None:
        speed = rollout.speed.value
        if speed is None:
            return passed("every generation was answered")
        first = f"first token after {speed.first_token_s * 1e3:.0f} ms"
        return passed(f"{first}, {speed.tokens_per_s:.0f} tokens/s with {speed.num_requests} at a time")
    if not rollout.is_server and not _started(rollout):
        return skip("the engine did not start")
    server = rollout.server.value
    if rollout.is_server and not (server and server.models):
        return skip("no LLM server was reached")
    found = failure.root or failure.line
    return fail(
        "an answer to every generation",
        found,
        details=(f"in stage: {failure.stage}", *details_of(failure)),
        evidence=(evidence("rollout.failure.line", failure.line, rollout.target),),
        params={"url": rollout.target} if rollout.is_server else {"engine": rollout.engine} | _known(failure),
    )


@check("ROL007", "A sleeping engine gives its memory back", needs=("rollout.sleep",), playbook="rollout-sleep",
       caused_by=("ROL001",))  # fmt: skip
def sleep_gives_back(facts: Facts) -> Verdict:
    """While the engine sleeps, its GPU has nearly all the memory that the engine took; awake, it has it again.

    What it does:
        Compares what the driver counts on the GPU before the engine came, while it was awake, and asleep.

    Why it matters:
        A colocated actor trains in that memory. What does not come back is missing there, and the run ends out of
        memory at its first update.
    """
    sleep = need(need(facts.rollout).sleep)
    taken = sleep.awake_bytes - sleep.before_start_bytes
    left = sleep.asleep_bytes - sleep.before_start_bytes
    numbers = (
        f"{gib(sleep.before_start_bytes)} before, {gib(sleep.awake_bytes)} awake, {gib(sleep.asleep_bytes)} asleep, "
        f"{gib(sleep.again_bytes)} awake again, of {gib(sleep.total_bytes)}"
    )
    if taken < _SMALL_BYTES:
        return info(f"the engine takes {gib(taken)} only: {numbers}")
    if left > _LEFT_SHARE * taken:
        return warn(
            f"most of the engine's {gib(taken)} free while it sleeps",
            f"{gib(left)} still in use",
            details=(numbers,),
            evidence=(evidence("rollout.sleep.asleep_bytes", sleep.asleep_bytes, "NVML"),),
        )
    return passed(f"{gib(taken - left)} of {gib(taken)} come back in {sleep.sleep_s:.1f} s", details=(numbers,))
