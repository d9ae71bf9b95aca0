"""A run's files as `RunFacts`."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from rlcheck.facts.base import Fact, absent, known
from rlcheck.facts.run import AuditStep, Curve, RunFacts, SampleRow
from rlcheck.measure.run.jsonl import Lines, read_lines
from rlcheck.measure.run.locate import METRICS, Sources, locate
from rlcheck.measure.run.names import filed, framework_of
from rlcheck.measure.run.samples import read_samples
from rlcheck.measure.run.series import CurveError, Series, as_step, without_collector
from rlcheck.measure.run.settings import Record, read_config, read_record, total_steps
from rlcheck.measure.run.tensorboard import read_events
from rlcheck.measure.run.trainer_state import logged_name, read_state

__all__ = ["CurveError", "read_training"]

_RLTRAIN, _SFT = "rltrain", "rltrain-sft"
_REWARDS = frozenset(("critic/score/mean", "critic/rewards/mean"))


def read_training(path: Path, now: float | None = None) -> RunFacts:
    """The run at PATH: its directory, its metrics in JSON lines, an event file, or a `trainer_state.json`.

    Args:
        path: of several runs below a directory the one that was written last is read, and a note says so.
        now: seconds since 1970, for `idle_s`; None: the clock's.

    Raises:
        CurveError: nothing there can be read as metrics. One line: what, where, what to give instead.
    """
    try:
        with without_collector():
            return _Reading(locate(path), time.time() if now is None else now).facts()
    except OSError as error:
        raise CurveError(f"{path} cannot be read: {error.strerror or error}") from None


class _Reading:
    """Reads the files of one run."""

    def __init__(self, sources: Sources, now: float) -> None:
        self._sources = sources
        self._now = now
        self._notes = list(sources.notes)
        self._audit: list[tuple[int, dict[str, Any]]] = []
        self._planned = 0

    def facts(self) -> RunFacts:
        """All of it."""
        sources = self._sources
        written = sources.written()
        record = read_record(sources.root) if sources.record else Record(settings=read_config(sources.root))
        curves = self._curves()
        framework = (_SFT if record.kind == "sft" else _RLTRAIN) if sources.record else framework_of(curves)
        if not framework and curves and _REWARDS.isdisjoint(curves):
            self._notes.append(_unnamed(curves))
        curves = filed(curves, framework)
        ranks = self._ranks(framework)
        if not curves and ranks:
            curves = {name: next(curve for curve in by_rank if _has(curve)) for name, by_rank in ranks.items()}
        if not curves:
            raise CurveError(self._nothing(record))
        steps = _usual_steps(curves.values())
        return RunFacts(
            source=self._place(),
            framework=framework,
            files=tuple(_relative(file, sources.root) for file in sources.metrics()),
            outcome=record.outcome,
            error=record.error,
            idle_s=known(max(0.0, self._now - written)) if written else absent("the metrics' time is not known"),
            num_steps=len(steps),
            first_step=steps[0],
            last_step=max(max(curve.steps[-1:] + curve.nonfinite[-1:]) for curve in curves.values()),
            total_steps=total_steps(record.settings) or self._planned,
            settings=record.settings,
            curves=curves,
            ranks=ranks,
            samples=self._samples(record.settings),
            audit=_audit(self._audit),
            notes=(*self._notes, *([record.note] if record.note else [])),
        )

    def _place(self) -> str:
        files = self._sources.metrics()
        return str(self._sources.root if self._sources.record or len(files) != 1 else files[0])

    def _curves(self) -> dict[str, Curve]:
        """Under the names that the run gave them."""
        sources, series = self._sources, Series()
        for path in sources.lines:
            self._take(path, read_lines(path, series))
        if not sources.lines and not sources.ranks:
            if sources.state is not None:
                self._planned = read_state(sources.state, series)
            self._notes += read_events(sources.events, series)
            if sources.state is not None:
                series.rename(logged_name)
        return series.curves()

    def _take(self, path: Path, lines: Lines) -> None:
        self._audit += lines.audit
        self._notes += [f"{path.name}: {note}" for note in lines.notes]
        if lines.num_bad:
            self._notes.append(
                f"{path.name}: {lines.num_bad} lines are no JSON objects (the first: line {lines.first_bad}) "
                "and were left out"
            )
        if lines.num_without_step:
            self._notes.append(f"{path.name}: {lines.num_without_step} lines name no step and were left out")

    def _ranks(self, framework: str) -> dict[str, tuple[Curve, ...]]:
        """Metrics that each rank wrote; a rank that lacks one has an empty curve."""
        by_rank: list[dict[str, Curve]] = []
        for path in self._sources.ranks.values():
            series = Series()
            self._take(path, read_lines(path, series))
            curves = series.curves()
            by_rank.append(filed(curves, framework or framework_of(curves)))
        names = sorted({name for curves in by_rank for name in curves})
        return {name: tuple(curves.get(name, Curve()) for curves in by_rank) for name in names}

    def _nothing(self, record: Record) -> str:
        """Why there is no run to look at."""
        if not self._sources.record:
            return f"{self._place()} holds no metric with a step; give the directory of a run that has one"
        how = ": ".join(filter(None, (record.outcome, record.error))) or METRICS
        return f"{self._place()}: the run wrote no metrics{' yet' if record.outcome == 'running' else ''} ({how})"

    def _samples(self, settings: Mapping[str, Any]) -> Fact[tuple[SampleRow, ...]]:
        named = settings.get("trainer.rollout_data_dir")
        place = Path(named) if isinstance(named, str) and Path(named).is_dir() else self._sources.samples
        rows = read_samples(place) if place is not None else ()
        return known(rows) if rows else absent("the run wrote down no samples")


def _unnamed(curves: Iterable[str]) -> str:
    """What cannot be judged of CURVES that no known trainer wrote."""
    names = sorted(curves)
    if any(name.endswith("rewards/margins") for name in names):
        return "preference training (rewards/margins) is not judged: the checks are of reinforcement learning"
    shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
    return (
        f"no trainer that is known writes metrics of these names ({shown}): only those that have verl's names are "
        "judged; write the others under verl's names, critic/score/mean for the reward first"
    )


def _has(curve: Curve) -> bool:
    return bool(curve.steps or curve.nonfinite)


def _usual_steps(curves: Iterable[Curve]) -> list[int]:
    """The steps that most of CURVES have; validation before the first step, or every few steps, is not training."""
    steps = [curve.steps if not curve.nonfinite else tuple(sorted(curve.steps + curve.nonfinite)) for curve in curves]
    counts = Counter((one[0], one[-1], len(one)) for one in steps)
    usual = max(counts, key=lambda key: (counts[key], key[2]))
    return next(list(one) for one in steps if (one[0], one[-1], len(one)) == usual)


def _relative(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _audit(entries: list[tuple[int, dict[str, Any]]]) -> Fact[tuple[AuditStep, ...]]:
    """The audit records by step, the last of each."""
    last = dict(entries)
    if not last:
        return absent("the run kept no audit record (trainer.audit=true)")
    return known(tuple(_audit_step(step, last[step]) for step in sorted(last)))


def _audit_step(step: int, entry: Mapping[str, Any]) -> AuditStep:
    rescored, recomputed = _mapping(entry.get("rescored")), _mapping(entry.get("recomputed"))
    tokens, optimizer_steps = as_step(entry.get("response_tokens")), as_step(entry.get("optimizer_steps"))
    losses, adam_steps = _items(entry.get("shard_losses")), as_step(entry.get("adam_steps"))
    truths = [_mapping(one) for one in _items(entry.get("truth_scored"))]
    loss_tokens = _number(entry.get("loss_tokens"))
    return AuditStep(
        step=step,
        response_tokens=-1 if tokens is None else tokens,
        loss_tokens=-1.0 if loss_tokens is None else loss_tokens,
        optimizer_steps=-1 if optimizer_steps is None else optimizer_steps,
        parameter_hashes=tuple(map(str, _items(entry.get("parameter_sha256")))),
        shard_hashes=tuple(map(str, _items(entry.get("shard_sha256")))),
        shard_losses=tuple(number for loss in losses if (number := _number(loss)) is not None),
        reward=_number(rescored.get("reward")),
        reward_again=_number(rescored.get("again")),
        recomputed_max_diff=_number(recomputed.get("max_abs_diff")),
        adam_steps=-1 if adam_steps is None else adam_steps,
        truths=tuple(
            (str(one.get("ground_truth", "")), reward)
            for one in truths
            if (reward := _number(one.get("reward"))) is not None
        ),
    )


def _mapping(value: object) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, dict) else {}


def _items(value: object) -> list[Any]:
    return cast("list[Any]", value) if isinstance(value, list) else []


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None
