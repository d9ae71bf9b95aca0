"""What a hostile or unlucky user gives to `rlcheck slow`: no crash, no accusation, no all-clear that was not earned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from rlcheck.checks import family_checks
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts
from rlcheck.facts.slow import EngineUse, SlowFacts
from rlcheck.measure.slow import look as looking
from rlcheck.measure.slow.answer import answer, slow_rank
from rlcheck.measure.slow.clock import read_clock
from rlcheck.measure.slow.floors import Batch, engines_of, floors
from rlcheck.measure.slow.limits import Speed
from rlcheck.measure.slow.look import look
from rlcheck.measure.slow.scrapes import read_scrapes
from rlcheck.measure.slow.traces import read_trace
from tests.measure.slow import made


def clock_of(path: Path, own: list[tuple[float, ...]]) -> Path:
    """A clock in which the ranks work OWN seconds, step by step."""
    lines: list[str] = []
    for number, row in enumerate(own):
        spans = {"ranks": list(range(len(row))), "wall_s": [max(row)] * len(row), "queued_s": [0.0] * len(row),
                 "together_s": [max(row) - one for one in row]}  # fmt: skip
        lines.append(json.dumps({"step": number + 1, "train": {"update_actor": spans}}))
    path.write_text("\n".join(lines) + "\n")
    return path


def named(path: Path, *, warm: bool = True) -> set[int]:
    return {rank for one in read_clock(path, warm=warm).ranks if (rank := slow_rank(one)) is not None}


def test_a_rank_that_is_slow_in_the_last_steps_of_a_long_run_is_named(tmp_path: Path) -> None:
    clock = clock_of(tmp_path / "clock.jsonl", [(1.0, 1.0)] * 900 + [(1.0, 1.4)] * 30)
    assert named(clock) == {1}
    assert named(clock_of(tmp_path / "clock.jsonl", [(1.0, 1.4)] * 30 + [(1.0, 1.0)] * 900)) == set()


def test_noise_is_no_slow_rank(tmp_path: Path) -> None:
    """Slower in half of the steps, whatever the median says; or by what costs next to nothing."""
    assert named(clock_of(tmp_path / "clock.jsonl", [(1.0, 1.1), (1.0, 1.0)] * 4 + [(1.0, 1.1)])) == set()
    spans = {"ranks": [0, 1], "wall_s": [10.0, 10.0], "together_s": [9.6, 9.5], "queued_s": [0.0, 0.0]}
    lines = [json.dumps({"step": step, "train": {"update_actor": spans}}) for step in range(1, 9)]
    (tmp_path / "clock.jsonl").write_text("\n".join(lines))
    assert named(tmp_path / "clock.jsonl") == set()


@pytest.mark.parametrize(
    "change",
    [{"paces": [[1, 1, 0], [1, 1, -1]]}, {"paces": [[1, 1e308, 1e308]]}, {"slots": [[-1, -1, -1, -1, -1]] * 20},
     {"requests": -7}, {"preemptions": 10**30}, {"first_s": -1}, {"tokens": "many"}, {"lengths": [1e400]}],
)  # fmt: skip
def test_a_line_that_cannot_be_is_said_and_left_out(tmp_path: Path, change: dict[str, Any]) -> None:
    file = made.clock(tmp_path / "clock.jsonl")
    lines = file.read_text().splitlines()
    odd = json.loads(lines[4])
    odd["rounds"][0] |= change
    lines[4] = json.dumps(odd).replace("Infinity", "1e400")
    file.write_text("\n".join(lines))
    found = read_clock(file)
    assert found.notes == ["clock.jsonl: 1 lines are cut, or none of rltrain's clock"]
    assert found.floor_s == pytest.approx(2.1)


def test_a_rank_without_a_processor_is_not_accused_and_that_is_said(tmp_path: Path) -> None:
    """Whether its host or the machine of the test is busy cannot be known: no all-clear without a word, either."""
    place = made.verl(tmp_path / "run")
    spans = {"ranks": [0, 1], "wall_s": [10.0, 10.0], "together_s": [5.0, 0.0], "queued_s": [0.1, 5.1]}
    lines = [json.dumps({"step": step, "train": {"update_actor": spans}}) for step in range(1, 9)]
    (place / "clock.jsonl").write_text("\n".join(lines))
    facts = look([place])
    (check,) = (check for check in family_checks("SLO") if check.id == "SLO007")
    verdict = check.judge(Facts(slow=known(facts)))
    assert verdict.status == "pass"
    assert "rank 1 waits 5.1 s for a processor, others 0.1 s" in verdict.message


def test_a_fleet_that_changes_size_is_not_compared(tmp_path: Path) -> None:
    """Resumed on more ranks: rows of different lengths are no columns."""
    assert named(clock_of(tmp_path / "clock.jsonl", [(1.0, 1.5)] * 4 + [(1.0, 1.0, 1.0)] * 4)) == set()


def test_preemptions_without_an_ended_request_are_no_all_clear(tmp_path: Path) -> None:
    file = tmp_path / "m.txt"
    file.write_text(made.vllm(0, 0) + made.vllm(0, 900, usage=1.0))
    facts = look([file])
    assert answer(facts).cause == "KV preemption"
    assert "while no request ended" in answer(facts).said


def test_hostile_counters_are_left_out(tmp_path: Path) -> None:
    file = tmp_path / "m.txt"
    label = '{engine="0"}'
    file.write_text(f"vllm:num_preemptions_total{label} 1e300\nvllm:num_requests_running{label} -5\nvllm:x{label} 1\n")
    (one,) = read_scrapes(file)
    assert (one.preemptions, one.running) == (-1, -1)


@pytest.mark.parametrize("rank", [10**30, -3, True, "0", None, 1.5])
def test_a_rank_that_is_none_is_not_known(tmp_path: Path, rank: Any) -> None:
    trace = made.trace(tmp_path / "t.json", made.event("gemm", 0, 1), rank=rank, world=rank)
    found, _ = read_trace(trace)
    assert (found.rank, found.world) == (-1, 0)


def test_time_in_no_stage_is_not_judged_where_a_trainer_times_more_than_is_read(tmp_path: Path) -> None:
    """SkyRL times its log-probabilities under a name of its own: they are no data loader."""
    run = tmp_path / "run"
    run.mkdir()
    row = {"timing/step": 100.0, "timing/generate": 40.0, "timing/policy_train": 20.0, "trainer/epoch": 0,
           "reward/avg_raw_reward": 0.5, "loss/avg_final_rewards": 0.5, "policy/policy_entropy": 1.0,
           "policy/policy_loss": 0.1, "policy/policy_lr": 1e-6, "timing/fwd_logprobs_values_reward": 38.0}  # fmt: skip
    (run / "metrics.jsonl").write_text("\n".join(json.dumps(row | {"step": step}) for step in range(1, 9)))
    facts = look([run])
    assert (facts.framework, facts.other_s) == ("skyrl", 40.0)
    assert answer(facts).cause == ""


def test_without_a_floor_nothing_is_called_fast(tmp_path: Path) -> None:
    facts = look([made.verl(tmp_path / "run")])
    assert "no floor is known to judge it by" in answer(facts).said
    floored = answer(
        look([made.verl(tmp_path / "other", gen=8.0, update_actor=10.0, old_log_prob=3.0, step=23.0)], gpu="H200")
    ).said
    assert "by their floors" in floored
    assert answer(SlowFacts(engines=(EngineUse("m.txt"),), read=("m.txt",))).said.startswith("nothing slow is found in")


def test_a_folder_without_end_is_left_after_a_while_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made.verl(tmp_path / "run")
    for number in range(60):
        (tmp_path / f"run/{number}.json").write_text("{}")
    monkeypatch.setattr(looking, "_MOST_FILES", 50)
    assert any("after 50 files" in line for line in look([tmp_path / "run"]).unread)
    monkeypatch.setattr(looking, "_MOST_S", -1.0)
    assert any("after 0 files" in line for line in look([tmp_path / "run"]).unread)


def test_ten_thousand_files(tmp_path: Path) -> None:
    run = made.verl(tmp_path / "run")
    (run / "many").mkdir()
    for number in range(10_000):
        (run / f"many/{number}.json").write_text('{"traceEvents": []}' if number < 300 else "{}")
    facts = look([run])
    assert facts.step_s == 55.0
    # Of 300 that are like traces each is said, none is an error.
    assert len(facts.unread) >= 128
    doc = Facts(slow=known(facts))
    assert all(check.judge(doc) for check in family_checks("SLO"))


SPEED = Speed(tflops=989, gb_s=4800, source="nvidia")


def test_an_engine_that_keeps_narrower_numbers_has_a_lower_floor(tmp_path: Path) -> None:
    """Decoding is bound by bytes: weights and cache of one byte each halve it."""
    found: list[float] = []
    for kind in ("", "quantization: fp8, engine_kwargs: {vllm: {kv_cache_dtype: fp8}}, "):
        config = tmp_path / "c.yaml"
        config.write_text(made.CONFIG.replace("rollout: {name: vllm,", f"rollout: {{name: vllm, {kind}"))
        asked = looking.read_run(str(config), ())
        found.append(floors(asked, Batch(512, 200, 1000, 2000), "H200", SPEED)["gen"].seconds)
    assert found[1] == pytest.approx(found[0] / 2, rel=0.25)


def test_all_nodes_of_the_engines_count(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(
        made.CONFIG.replace("  rollout: {", "  hybrid_engine: false\n  rollout: {nnodes: 2, n_gpus_per_node: 8, ")
    )
    assert engines_of(looking.read_run(str(config), ()).spec) == 16
