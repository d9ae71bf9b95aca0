"""What only repeats that something else failed, and is not the cause."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rlcheck.diagnose.failures import Failure
from rlcheck.diagnose.hits import Hit
from rlcheck.diagnose.lines import Message

Problems = Mapping[str, Sequence[Hit]]
"""The hits of each playbook in one incident, in order of time."""

_MESSAGE = 8
"""Lines that the message of an exception may have, at most, for a hit in it to be about it."""
_WRAPPERS = re.compile(
    r"RayTaskError|RayActorError|ActorDiedError|ActorUnavailableError|WorkerCrashedError|NodeDiedError|OwnerDiedError"
    r"|ChildFailedError|EngineDeadError|EngineCore|DistBackendError|DistStoreError|DistNetworkError|SignalException"
    r"|ProcessRaisedException|ProcessExitedException|BrokenPipeError|ConnectionResetError|CalledProcessError|SystemExit"
    r"|KeyboardInterrupt|EOFError|(?:Base)?ExceptionGroup"
)


def is_wrapper(failure: Failure) -> bool:
    """Whether the exception only reports that another process has failed."""
    return _WRAPPERS.match(failure.message.text.lstrip(" |").split(":", 1)[0].rsplit(".", 1)[-1]) is not None


def is_echo(playbook_id: str, problems: Problems, found: Sequence[Failure]) -> bool:
    """Whether another problem of the incident, or an exception that nobody knows, explains this one."""
    mine = problems[playbook_id]
    relations = mine[0].known.relations
    if any(other in problems for other in relations.consequence_of if other != playbook_id):
        return True
    if relations.wraps:
        return _others_that_failed(playbook_id, problems, wrappers=False) or bool(
            unexplained(found, [hit for of_one in problems.values() for hit in of_one])
        )
    return "*" in relations.consequence_of and _something_before(playbook_id, problems, found)


def _others_that_failed(playbook_id: str, problems: Problems, *, wrappers: bool) -> bool:
    return any(
        other != playbook_id
        and (wrappers or not of_other[0].known.relations.wraps)
        and any(hit.signature.status == "fail" for hit in of_other)
        for other, of_other in problems.items()
    )


def _something_before(playbook_id: str, problems: Problems, found: Sequence[Failure]) -> bool:
    """Whether another failure, known or not, is above the first hit in its log, or anywhere in another log."""
    first = problems[playbook_id][0].message
    for other, of_other in problems.items():
        relations = of_other[0].known.relations
        if other == playbook_id or relations.wraps or "*" in relations.consequence_of:
            continue
        if any(hit.signature.status == "fail" and _is_before(hit.message, first) for hit in of_other):
            return True
    loose = unexplained(found, [hit for of_one in problems.values() for hit in of_one])
    return any(_is_before(failure.message, first) for failure in loose)


def _is_before(one: Message, other: Message) -> bool:
    return one.log != other.log or one.at < other.at


def unexplained(found: Sequence[Failure], hits: Sequence[Hit]) -> list[Failure]:
    """The exceptions that no hit is about, and which do not only repeat another failure.

    A hit is about the exceptions on its lines, and, unless it may be an echo itself, about the last one above them:
    messages go over several lines.
    """
    raised = [failure for failure in found if failure.raised]
    explained: set[tuple[int, int]] = set()
    for hit in hits:
        log, first, last = hit.message.log, hit.message.at, hit.message.at + hit.span - 1
        of_log = [failure.message.at for failure in raised if failure.message.log == log]
        explained |= {(log, at) for at in of_log if first <= at <= last}
        if not (hit.known.relations.wraps or "*" in hit.known.relations.consequence_of):
            explained.add((log, max((at for at in of_log if first - _MESSAGE <= at <= first), default=-1)))
    return [f for f in raised if not is_wrapper(f) and (f.message.log, f.message.at) not in explained]
