"""Files of trainers, of torch's profiler and of engines, as `look` reads them."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from rlcheck.errors import UserError
from rlcheck.facts.slow import SlowFacts
from rlcheck.measure.config.model_table import sizes_by_name
from rlcheck.measure.memory.shapes import shape_of
from rlcheck.measure.slow.answer import answer
from rlcheck.measure.slow.floors import active_parameters
from rlcheck.measure.slow.look import look
from rlcheck.measure.slow.scrapes import read_scrapes
from rlcheck.measure.slow.tail import tail_of
from rlcheck.measure.slow.traces import read_trace
from tests.measure.slow import made


def test_a_pass_that_is_not_made_has_no_floor(tmp_path: Path) -> None:
    facts = look([made.verl(tmp_path, old_log_prob=0.1)], gpu="H200")
    floors = {one.name: one.floor_s for one in facts.stages}
    assert floors["old_log_prob"] == 0.0
    assert floors["update_actor"] > 0.0


def test_floors_are_operations_and_bytes_of_the_config(tmp_path: Path) -> None:
    facts = look([made.verl(tmp_path / "run")], gpu="H200")
    assert facts.device == "H200"
    floors = {one.name: one.floor_s for one in facts.stages if one.floor_s}
    shape = shape_of(sizes_by_name("Qwen/Qwen2.5-7B") or {})
    active = 7_615_616_512 - shape.embedding
    assert active_parameters(shape) == active
    forward = 614400 * (2 * active + 4 * 28 * 3584 * 600) / (8 * 0.6 * 989e12)
    assert floors["old_log_prob"] == pytest.approx(forward)
    # Forward, backward and forward again, as verl recomputes activations unless told not to.
    assert floors["update_actor"] == pytest.approx(4 * forward)
    one = (active + 64 * (200 + 500) * shape.kv_per_token) * 2 / (0.8 * 4800e9)
    # Of a prompt only the last token goes through the head.
    prefill = 2 * (active - shape.head) * 8 * 200 / (0.6 * 989e12)
    assert floors["gen"] == pytest.approx(prefill + 1000 * one, rel=1e-6)


@pytest.mark.parametrize(
    ("metrics", "cause"),
    [({"gen": 80.0, "step": 115.0, "longest": 8000.0}, "tail"), ({"reward": 40.0, "step": 95.0}, "slow reward"),
     ({"step": 100.0}, "untimed work"), ({"update_actor": 120.0, "step": 150.0}, "")],
)  # fmt: skip
def test_what_to_change_first(tmp_path: Path, metrics: dict[str, float], cause: str) -> None:
    found = answer(look([made.verl(tmp_path / "run", **metrics)], gpu="H200"))
    assert found.cause == cause
    assert found.saves_s > 0


def test_the_tail_of_lengths() -> None:
    draw = random.Random(0)
    lengths = [draw.expovariate(1 / 500) for _ in range(512)]
    tail = tail_of(lengths, 512, "")
    assert tail is not None
    assert tail.running == sum(one > 0.6 * max(lengths) for one in lengths)
    assert tail.occupied == pytest.approx(sum(lengths) / 512 / max(lengths))
    # With few places the rest fills them: nearly all are in use.
    few = tail_of([100.0] * 512, 32, "")
    assert few is not None
    assert few.occupied == pytest.approx(1.0)
    assert tail_of([5.0] * 3, 3, "") is None


def test_scrapes_in_a_row(tmp_path: Path) -> None:
    file = tmp_path / "m.txt"
    file.write_text(made.vllm(10, 0, 5, 100) + made.vllm(110, 30, 65, 200, usage=0.99))
    (one,) = read_scrapes(file)
    assert (one.scrapes, one.requests, one.preemptions, one.kv_usage) == (2, 100, 30, 0.99)
    assert one.small_passes == pytest.approx(0.6)
    file.write_text('sglang:num_running_reqs{a="b"} 4\nsglang:num_retracted_requests_total 7\nsglang:token_usage NaN\n')
    (one,) = read_scrapes(file)
    assert (one.engine, one.running, one.preemptions, one.kv_usage) == ("sglang", 4, 7, -1)


def _gpu_trace(path: Path, rank: int, own: float, wait: float) -> None:
    """Two steps: kernels of OWN ms, then a collective of WAIT ms, half of it beside a copy."""
    events: list[dict[str, Any]] = []
    for step in range(2):
        begin = step * 100.0
        events += [made.event(f"ProfilerStep#{step}", begin, begin + 100, "user_annotation"),
                   made.event("gemm", begin, begin + own), made.event("gemm_again", begin + 1, begin + own - 1),
                   made.event("ncclDevKernel_AllReduce", begin + own, begin + own + wait),
                   made.event("Memcpy HtoD", begin + own, begin + own + wait / 2, "gpu_memcpy")]  # fmt: skip
    made.trace(path, *events, rank=rank, world=2)


def test_a_trace_says_own_work_waits_and_idle_time(tmp_path: Path) -> None:
    for rank, own in enumerate((60.0, 40.0)):
        _gpu_trace(tmp_path / f"t{rank}.pt.trace.json.gz", rank, own, 90 - own)
    one, flaw = read_trace(tmp_path / "t0.pt.trace.json.gz")
    assert flaw == ""
    assert (one.rank, one.world, one.steps, one.on_gpu) == (0, 2, 2, True)
    assert [round(value, 6) for value in (one.span_s, one.busy_s, one.together_s, one.exposed_s, one.copy_s)] == [
        0.2, 0.18, 0.06, 0.03, 0.03]  # fmt: skip
    facts = look([tmp_path])
    (ranks,) = facts.ranks
    assert ranks.own == pytest.approx((0.085, 0.075))
    assert answer(facts).cause == "slow rank"


def test_what_is_cut_or_hostile_is_told(tmp_path: Path) -> None:
    made.verl(tmp_path / "run")
    traces = tmp_path / "run/traces"
    traces.mkdir()
    made.trace(traces / "whole.json", *(made.event("gemm", step, step + 1) for step in range(500)))
    data = (traces / "whole.json").read_bytes()
    (traces / "cut.json").write_bytes(data[: len(data) * 2 // 3])
    (traces / "deep.json").write_text('{"traceEvents": ' + "[" * 100_000)
    (traces / "odd.json").write_text('{"traceEvents": [{"ph": "X", "name": "a", "ts": "x", "dur": 1e400}]}')
    (traces / "none.json").write_text('{"traceEvents": []}')
    (traces / "cut.json.gz").write_bytes(b"\x1f\x8b\x08\x00")
    (tmp_path / "run/metrics.txt").write_text("vllm:num_requests_running{" + "x" * 5000 + "} 1\nvllm:a 1e999\n")
    facts = look([tmp_path / "run"])
    assert [one.source for one in facts.traces] == ["cut.json", "whole.json"]
    assert 0.3 < facts.traces[0].span_s / facts.traces[1].span_s < 0.7
    assert facts.step_s == 55.0
    for name in ("cut.json", "deep.json", "odd.json", "none.json", "metrics.txt"):
        assert any(name in line for line in facts.unread), name


@pytest.mark.parametrize("settings", [{"gpu": "X9000"}, {"config": "/nowhere.yaml"}])
def test_what_cannot_be_used_is_an_error(tmp_path: Path, settings: dict[str, str]) -> None:
    with pytest.raises(UserError):
        look([made.verl(tmp_path / "run")], **settings)  # pyright: ignore


def test_nothing_there_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    for place in (tmp_path, tmp_path / "none", Path("/dev/null")):
        with pytest.raises(UserError):
            look([place])
    assert answer(SlowFacts()).cause == ""
