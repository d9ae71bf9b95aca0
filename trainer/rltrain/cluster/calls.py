"""Calls that are under way, and waiting for them: the first failure ends the wait."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import exceptions as ray_errors

from rltrain.cluster.host import Failure, last_line
from rltrain.cluster.ranks import Ranks
from rltrain.cluster.ray_api import ray
from rltrain.cluster.runtime import Runtime
from rltrain.cluster.waits import Waiting
from rltrain.core.errors import RunFailure, UserError
from rltrain.core.spent import Answered

POLL_S = 0.25
SETTLE_S = 1.0
"""After a failure, how long to look for its cause: a dead rank makes the others fail as well, and they may be first."""
WORDS_EVERY_S = 15.0
MAX_WORDS = 160
MAX_LOGS = 8


@dataclass(frozen=True)
class Call:
    """One method, begun on the ranks of one group."""

    group: Ranks
    method: str
    refs: dict[Any, int]
    """Ray's reference of each pending result: the rank that it comes from."""


@dataclass(frozen=True)
class Trouble:
    """What went wrong on one rank; the smaller the weight, the nearer to the cause."""

    weight: int
    error: Exception


def gather(
    runtime: Runtime, calls: Sequence[Call], deadline_s: float, doing: str, limit: str | None = None
) -> list[list[Any]]:
    """Wait for CALLS; returns their results, by call and then in the order in which the ranks were asked.

    Args:
        runtime: where they run.
        calls: what to wait for.
        deadline_s: seconds without an answer or another sign of progress after which the wait is given up.
        doing: what the calls do, for messages: "updating the actor".
        limit: the config key that sets DEADLINE_S, for the message when it has passed.

    Raises:
        UserError: a worker raised one.
        RunFailure: a worker raised anything else, died, or did not answer in time.
        Interrupted: a signal asked the run to stop; the calls are dropped.
    """
    owners = {ref: (call, rank) for call in calls for ref, rank in call.refs.items()}
    results: dict[Any, Any] = {}
    begin = said = time.monotonic()
    with runtime.waits.waiting(doing, names_of(owners)) as waiting:
        while len(results) < len(owners):
            troubles = _collect(runtime, owners, results, waiting)
            if troubles:
                time.sleep(SETTLE_S)
                troubles += _collect(runtime, owners, results, waiting)
                runtime.waits.check()  # who asked the run to stop may have ended them, too
                raise min(troubles, key=lambda trouble: trouble.weight).error from None
            runtime.waits.check()
            runtime.waits.look()
            runtime.waits.meanwhile()
            now = time.monotonic()
            if len(results) < len(owners) and now - max(begin, runtime.waits.last_beat.at) > deadline_s:
                missing = [owner for ref, owner in owners.items() if ref not in results]
                words = late(waiting, missing, deadline_s)
                raise RunFailure(f"{words}; the limit is {limit}" if limit else words)
            if now - said > WORDS_EVERY_S:
                said = now
                runtime.still(f"{doing} ({now - begin:.0f} s, at most {deadline_s:.0f})")
    return [[results[ref] for ref in call.refs] for call in calls]


def _collect(
    runtime: Runtime, owners: dict[Any, tuple[Call, int]], results: dict[Any, Any], waiting: Waiting
) -> list[Trouble]:
    """Take what has arrived within a moment; returns what went wrong."""
    left = [ref for ref in owners if ref not in results]
    ready: list[Any] = ray.wait(left, num_returns=len(left), timeout=0)[0] if left else []
    if not ready and left:
        ready: list[Any] = ray.wait(left, num_returns=1, timeout=POLL_S)[0]
    troubles: list[Trouble] = []
    for ref in ready:
        call, rank = owners[ref]
        results[ref] = result_of(call, rank, ref, waiting.doing, troubles)
        runtime.waits.beat(f"{call.group.kind}.{call.method} of rank {rank}")
    waiting.left[:] = names_of({ref: owner for ref, owner in owners.items() if ref not in results})
    return troubles


def result_of(call: Call, rank: int, ref: Any, doing: str, troubles: list[Trouble]) -> Any:
    """What RANK answered to CALL; where that is an error, None, and what went wrong is added to TROUBLES."""
    group = call.group
    log = group.logs[rank]
    try:
        value = ray.get(ref)
    except ray_errors.RayActorError as error:
        troubles.append(Trouble(0, RunFailure(_obituary(group, rank, str(error), doing))))
        return None
    except (ray_errors.ObjectStoreFullError, ray_errors.OutOfDiskError):
        troubles.append(Trouble(0, UserError(_store_full(group, rank, doing))))
        return None
    except (ray_errors.RayError, OSError) as error:
        troubles.append(Trouble(1, RunFailure(f"{doing}: {group.title(rank)}: {last_line(error)}; log: {log}")))
        return None
    if isinstance(value, Failure):
        kind = UserError if value.is_user_error else RunFailure
        words = value.line if value.is_user_error else f"{doing}: {group.title(rank)}: {value.line}; log: {log}"
        troubles.append(Trouble(1 if value.is_user_error else 2, kind(words)))
    if isinstance(value, Answered):
        group.account(call.method, rank, value)
        return value.value
    return value


def _obituary(group: Ranks, rank: int, said: str, doing: str) -> str:
    """Who died, where, how, and its last words."""
    log = group.logs[rank]
    fate = group.ask_node(rank, "fate", group.pids[rank], said) or "died with its node, which does not answer"
    # Nobody has last words when SIGKILL comes.
    tail: list[str] = [] if "SIGKILL" in fate else group.ask_node(rank, "tail", log, 1) or []
    words = f'; its last words: "{tail[-1].strip()[:MAX_WORDS]}"' if tail else ""
    return f"{doing}: {group.title(rank)} {fate}{words}; log: {log}"


def _store_full(group: Ranks, rank: int, doing: str) -> str:
    return (
        f"{doing}: Ray's object store is full on the node of {group.name(rank)}: raise "
        "ray_kwargs.ray_init.object_store_memory (bytes), or lower data.train_batch_size"
    )


def late(waiting: Waiting, missing: Iterable[tuple[Call, int]], deadline_s: float) -> str:
    """That WAITING has lasted DEADLINE_S seconds, for whom, and where the logs of MISSING are."""
    logs = [call.group.logs[rank] for call, rank in missing]
    return f"{waiting.doing}: no answer within {deadline_s:g} s from {', '.join(waiting.left)}; {_logs(logs)}"


def _logs(paths: Sequence[Path]) -> str:
    return f"log{'s' if len(paths) > 1 else ''}: {', '.join(map(str, paths[:MAX_LOGS]))}"


def names_of(owners: Mapping[Any, tuple[Call, int]]) -> list[str]:
    """Of the calls in OWNERS, each with its rank."""
    return [f"{call.group.kind}.{call.method} of rank {rank}" for call, rank in owners.values()]
