"""From logs to the answer: what failed, why, how to verify and how to fix it; or that nobody knows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from rlcheck.diagnose.decode import decoded, filled
from rlcheck.diagnose.echoes import unexplained
from rlcheck.diagnose.failures import Failure, failures
from rlcheck.diagnose.hits import Hit, hits
from rlcheck.diagnose.lines import Message, read_line
from rlcheck.diagnose.model import Answer, CondensedLog, Confidence, Diagnosis, Quote, Unknown
from rlcheck.diagnose.prefixes import learnt
from rlcheck.diagnose.ranking import Ranked, rank
from rlcheck.diagnose.signatures import Index
from rlcheck.diagnose.source.installed import Environment
from rlcheck.diagnose.survived import Course, own_words
from rlcheck.finding import Fix
from rlcheck.playbook import Library, PlaybookError, fill

_PLACE = re.compile(r"<[a-z_]+>")
"""A parameter that is not known."""
_MOST_QUOTES = 3
_MOST_LINES = 6
_LONGEST_VALUE = 40
_MOST_WORDS = 5
_CONFIDENCE: dict[int, Confidence] = {3: "high", 2: "medium", 1: "low"}


def diagnose(
    logs: Sequence[CondensedLog], index: Index, library: Library, sources: Environment | None = None
) -> Answer:
    """What `logs` show, all problems included; the best stands first.

    A failure that no playbook knows is explained by the source that raised it, where SOURCES have it. Otherwise
    `diagnoses` is empty and `unknown` says where it shows. Neither is set when nothing failed.
    """
    messages = [own_words(_messages(log, number)) for number, log in enumerate(logs)]
    found = [failure for log in messages for failure in failures(log)]
    every = [hit for log in messages for hit in hits(log, index)]
    problems = [one for one in rank(every, messages, found) if one.best.signature.status != "info"]
    course = Course(messages, found, every)
    problems.sort(key=lambda one: (one.echo, course.survived_all(one.hits)))
    strange = _unknown(problems, found, every, course)
    remarks = dict.fromkeys(hit.id for hit in every if hit.signature.status == "info" or (strange and _warns(hit)))
    unknown, explained = _strange(strange, logs, messages, sources) if strange else (None, ())
    return Answer(
        diagnoses=explained if strange else _diagnoses(problems, logs, messages, library, course),
        unknown=unknown,
        remarks=tuple(_title(library, playbook_id) for playbook_id in remarks),
        notes=tuple(f"{log.name}: {log.problem}" for log in logs if log.problem),
        files=len(logs),
        lines=sum(log.total_lines or len(log.lines) for log in logs),
        bytes=sum(log.total_bytes for log in logs),
    )


def _messages(log: CondensedLog, number: int) -> list[Message]:
    prefixes = learnt([line.text for line in log.lines])
    return [read_line(line, number, at, prefixes) for at, line in enumerate(log.lines)]


def _unknown(
    problems: Sequence[Ranked], found: Sequence[Failure], every: Sequence[Hit], course: Course
) -> list[Failure]:
    """The failures that nobody knows, if nothing but them can be the cause."""
    if course.went_on:
        return []
    causes = [one for one in problems if not one.echo]
    # One step may be that of a process which had not yet noticed.
    if any(one.best.signature.status == "fail" and not course.survived_all(one.hits, steps=2) for one in causes):
        return []
    last = [failure for failure in found if not course.survived(failure.message)]
    loose = [failure for failure in unexplained(found, every) if failure in last]
    if problems and not causes:
        return loose
    known = {(hit.message.log, hit.message.at) for hit in every}
    return loose or [failure for failure in last if (failure.message.log, failure.message.at) not in known]


def _warns(hit: Hit) -> bool:
    return hit.signature.status == "warn"


def _strange(
    strange: Sequence[Failure],
    logs: Sequence[CondensedLog],
    messages: Sequence[Sequence[Message]],
    sources: Environment | None,
) -> tuple[Unknown | None, tuple[Diagnosis, ...]]:
    """The first failure of STRANGE, or what SOURCES say of it and of those that came after it."""
    ordered = sorted(strange, key=lambda failure: not (failure.raised and failure.root))
    first, raised = ordered[0], None
    if sources is not None:
        from rlcheck.diagnose.source.explain import explain  # few logs need it, and it brings a parser

        explained, raised = explain(ordered, messages, sources, lambda lines: _quote(lines, logs))
        if explained:
            return None, explained
    lines = [first.message] if first.frame is None else [first.frame, first.message]
    return Unknown(evidence=(_quote(lines, logs),), hints=_hints(first, messages), raised=raised), ()


def _hints(first: Failure, messages: Sequence[Sequence[Message]]) -> tuple[str, ...]:
    """What to collect so that somebody can know."""
    hints: list[str] = []
    if first.frame is None and first.raised:
        hints.append("the lines above the exception: its traceback is not in this log")
    if any("ray" in message.whole.lower() for log in messages for message in log[:200]):
        hints.append("the logs of the worker itself: <Ray session>/logs/worker-*.err, raylet.out")
    if any("NCCL" in message.whole or "torch.distributed" in message.whole for log in messages for message in log):
        hints.append("a run with NCCL_DEBUG=INFO and TORCH_DISTRIBUTED_DEBUG=DETAIL, with the logs of all ranks")
    if "CUDA" in first.message.whole:
        hints.append("a run with CUDA_LAUNCH_BLOCKING=1, which names the call that failed")
    return (*hints, "rlcheck env on the machine of the run, and the run's config for rlcheck config")


def _diagnoses(
    problems: Sequence[Ranked],
    logs: Sequence[CondensedLog],
    messages: Sequence[Sequence[Message]],
    library: Library,
    course: Course,
) -> tuple[Diagnosis, ...]:
    made: list[Diagnosis] = []
    roots: set[int] = set()
    for one in problems:
        followed = () if one.incident in roots else _followers(one, problems, library)
        roots.add(one.incident)
        diagnosis = _diagnosis(one, logs, messages, library, followed)
        if diagnosis is not None and course.went_on and course.survived_all(one.hits) and diagnosis.status == "fail":
            diagnosis = msgspec.structs.replace(diagnosis, status="warn")
        if diagnosis is not None:
            made.append(diagnosis)
    return tuple(made)


def _followers(root: Ranked, problems: Sequence[Ranked], library: Library) -> tuple[str, ...]:
    """The titles of what followed from `root`; another reading of the same lines did not."""
    its_lines = {(hit.message.log, hit.message.at) for hit in root.hits}
    echoes = [one for one in problems if one.echo and one.incident == root.incident]
    return tuple(
        _title(library, one.best.id)
        for one in echoes
        if not any((hit.message.log, hit.message.at) in its_lines for hit in one.hits)
    )


def _diagnosis(
    one: Ranked,
    logs: Sequence[CondensedLog],
    messages: Sequence[Sequence[Message]],
    library: Library,
    followed: tuple[str, ...],
) -> Diagnosis | None:
    try:
        book = library.get(one.best.id)
    except PlaybookError:
        return None  # the index is newer than the playbooks: the others must still be shown
    groups = _groups(one)
    params = {"python": "python3", **decoded(groups)}
    return Diagnosis(
        id=book.id,
        title=book.title,
        status=one.best.signature.status,
        cause=filled(book.cause, {name: value for name, value in params.items() if not _is_quotation(value, groups)}),
        confidence="low" if one.echo else _CONFIDENCE[one.best.signature.specificity],
        verify=book.verify,
        fixes=_usable(tuple(fill(recipe, params) for recipe in book.fixes)),
        sources=book.sources,
        evidence=_evidence(one, logs, messages),
        incident=one.incident,
        echo=one.echo,
        consequences=followed,
        seen=_seen(one),
        grounds=book.basis,
        next=book.next,
    )


def _is_quotation(value: str, groups: Mapping[str, str]) -> bool:
    """Whether VALUE is a sentence of the log: that is quoted as evidence only."""
    return len(value) > _LONGEST_VALUE and value.count(" ") >= _MOST_WORDS and value in groups.values()


def _usable(fixes: tuple[Fix, ...]) -> tuple[Fix, ...]:
    """Without those that say nothing, as what they are about is not in the log: all of the command, or of the title."""
    said = tuple(fix for fix in fixes if not _PLACE.search(fix.title) and not _PLACE.fullmatch(fix.command))
    return said or fixes


def _groups(one: Ranked) -> dict[str, str]:
    """What the best hit says, and what the other hits of the same playbook add."""
    groups = dict(one.best.groups)
    for hit in one.hits:
        for name, value in hit.groups.items():
            groups.setdefault(name, value)
    return groups


def _evidence(one: Ranked, logs: Sequence[CondensedLog], messages: Sequence[Sequence[Message]]) -> tuple[Quote, ...]:
    shown = [one.best, *(hit for hit in one.hits if hit.message.text != one.best.message.text)][:_MOST_QUOTES]
    quotes: list[Quote] = []
    for hit in shown:
        log = messages[hit.message.log]
        lines = log[hit.message.at : hit.message.at + min(hit.span, _MOST_LINES)]
        quotes.append(_quote(lines, logs, hit.groups.get("node", "")))
    return tuple(dict.fromkeys(quotes))


def _quote(lines: Sequence[Message], logs: Sequence[CondensedLog], about: str = "") -> Quote:
    """ABOUT: the node that the line is about, which need not be the one that wrote it."""
    told = lines[-1]
    return Quote(
        file=logs[told.log].name,
        line=lines[0].number,
        text=tuple(line.whole for line in lines),
        rank=told.rank,
        node=about or told.node,
        pid=told.pid,
        time=told.time,
    )


def _seen(one: Ranked) -> str:
    ranks = sorted({hit.message.rank for hit in one.hits if hit.message.rank}, key=lambda rank: (len(rank), rank))
    nodes = sorted({hit.message.node for hit in one.hits if hit.message.node})
    words = [f"{len(one.hits)} times"] if len(one.hits) > 1 else []
    words += [f"rank{'s' * (len(ranks) > 1)} {', '.join(ranks[:8])}{' …' * (len(ranks) > 8)}"] if ranks else []
    words += [f"node{'s' * (len(nodes) > 1)} {', '.join(nodes[:4])}{' …' * (len(nodes) > 4)}"] if nodes else []
    return ", ".join(words)


def _title(library: Library, playbook_id: str) -> str:
    try:
        return library.get(playbook_id).title
    except PlaybookError:
        return playbook_id
