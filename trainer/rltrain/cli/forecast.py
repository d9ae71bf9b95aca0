"""What `rltrain run --dry-run` predicts of asynchrony: from an earlier run's lengths and speeds, for this placement."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from rlcheck.report.tables import table_lines
from rltrain.cluster.placement import Placement
from rltrain.config.engines import ENGINES
from rltrain.config.schema import RunConfig
from rltrain.controller.forecast import Forecast, Shape, forecast
from rltrain.core.errors import UserError
from rltrain.records.run_dir import RunDir
from rltrain.records.speeds import Speeds, read_speeds

_WIDTH = 80
_BOUNDS = (1, 2, 4)
_MOST_SPLITS = 4


def forecast_lines(config: RunConfig, placement: Placement, named: str) -> list[str]:
    """What asynchrony would give against taking turns on the same devices, and whether it loses.

    Args:
        config: resolved.
        placement: of its ranks and engines.
        named: the run directory with the records; "": that of CONFIG, if a run was there.

    Raises:
        UserError: NAMED has no records that serve.
    """
    rollout = config.actor_rollout_ref.rollout
    if ENGINES[rollout.name].is_elsewhere:
        return ["unknown: the engines are servers elsewhere, whose devices are not this run's"]
    own = Path(config.trainer.default_local_dir)
    if not named and not RunDir(own).clock.is_file():
        return [
            "unknown: it is predicted from the answer lengths and speeds of an earlier run;",
            "name its directory by --speeds RUN_DIR (run.json, metrics.jsonl, clock.jsonl)",
        ]
    path = Path(named).expanduser() if named else own
    actor = config.actor_rollout_ref.model.path or (config.toy.model if config.toy else {})
    try:
        speeds = read_speeds(path, rollout.tensor_model_parallel_size, actor)
    except UserError as error:
        if named:
            raise
        return [f"unknown: {error}"]
    return list(_lines(config, placement, speeds, path))


def _lines(config: RunConfig, placement: Placement, speeds: Speeds, path: Path) -> Iterator[str]:
    mean = sum(one.mean for one in speeds.rounds) / len(speeds.rounds)
    longest = max(one.values[-1] for one in speeds.rounds)
    yield f"from {speeds.steps} steps of {path}: answers of {mean:,.0f} tokens, the longest {longest:,.0f};"
    ran, least = speeds.paces[-1]
    yield (
        f"passes of {least * 1e3:.3g} ms with {ran:.0f} answers; training {speeds.train_s * 1e6:.3g} us a token and "
        f"rank; new weights {speeds.sync_s:.3g} s"
    )
    together, splits = _shapes(config, placement)
    if not splits:
        yield "one device cannot be split: asynchrony needs devices for rollout (hybrid_engine=false)"
        return
    base = forecast(speeds, together, 0)
    bounds = sorted({*_BOUNDS, config.algorithm.max_staleness} - {0})
    best = {
        bound: max(((forecast(speeds, shape, bound), shape) for shape in splits), key=lambda one: one[0].tokens_per_s)
        for bound in bounds
    }
    rows = [_row("together", 0, base, base)]
    rows += [
        _row(f"{shape.ranks} + {shape.engines * _devices(config)}", bound, found, base)
        for bound, (found, shape) in best.items()
    ]
    header = ("ranks + rollout", "max_staleness", "s a step", "tokens/s", "gain", "ranks idle", "engines idle")
    yield from table_lines(header, rows, _WIDTH)
    yield _verdict(best, base)
    if placement.device == "cpu":
        yield "as if cores were enough for both sides at once"
    elif len(splits) > 1:
        yield f"of {len(splits)} splits of the same GPUs the best is shown; training is taken to scale with its ranks"


def _devices(config: RunConfig) -> int:
    """Of an engine."""
    return config.actor_rollout_ref.rollout.tensor_model_parallel_size


def _shapes(config: RunConfig, placement: Placement) -> tuple[Shape, list[Shape]]:
    """Taking turns on all devices, and the splits of them: that of CONFIG, or where it has none, those that can be."""
    rollout, size = config.actor_rollout_ref.rollout, _devices(config)
    ranks, engines = len(placement.train), len(placement.rollout)

    def shape(ranks: int, engines: int) -> Shape:
        return Shape(ranks, engines, rollout.max_num_seqs, config.data.train_batch_size, rollout.n)

    apart = not config.actor_rollout_ref.hybrid_engine
    if placement.device == "cpu":  # a slot there is only a number
        return shape(ranks, engines), [shape(ranks, engines)]
    devices = ranks + engines * size if apart else ranks
    together = shape(devices, max(devices // size, 1))
    if apart:
        return together, [shape(ranks, engines)]
    most = (devices - 1) // size
    counts = sorted({-(-most * part // _MOST_SPLITS) for part in range(1, _MOST_SPLITS + 1)} - {0})
    return together, [shape(devices - count * size, count) for count in counts]


def _row(where: str, bound: int, found: Forecast, base: Forecast) -> list[str]:
    idle = ["", ""] if found is base else [f"{found.training_idle:.0%}", f"{found.rollout_idle:.0%}"]
    gain = found.tokens_per_s / base.tokens_per_s
    return [where, str(bound), f"{found.step_s:.3g}", f"{found.tokens_per_s:.0f}", f"x{gain:.2f}", *idle]


def _verdict(best: dict[int, tuple[Forecast, Shape]], base: Forecast) -> str:
    gains = {bound: found.tokens_per_s / base.tokens_per_s for bound, (found, _) in best.items()}
    losing = [str(bound) for bound, gain in gains.items() if gain < 1]
    if len(losing) == len(gains):
        return f"asynchrony loses here: {max(gains.values()) - 1:.0%} at best; leave algorithm.max_staleness=0"
    loses: Sequence[str] = [f"loses with {', '.join(losing)}"] if losing else []
    top = max(gains, key=gains.__getitem__)
    return "; ".join([f"algorithm.max_staleness={top} gains most, {gains[top] - 1:+.0%}", *loses])
