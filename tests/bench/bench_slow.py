"""Five slownesses, planted in real runs on this machine: does `rlcheck slow` name each, and how near is its floor?

    python -m tests.bench.bench_slow [--only tail,kv,reward,data,rank,link] [--record FILE] [--dir DIR]

| fault | planted in |
|---|---|
| tail | rltrain: answers end where the model says so; without: as many tokens, all answers equally long |
| kv | rltrain on vLLM: a KV cache for a third of the requests; without: vLLM's own |
| reward | rltrain: a reward function that sleeps; without: one that does not |
| data | torch's DataLoader, traced by torch's profiler: rows that take long to make; without: rows that do not |
| rank | rltrain: one of two ranks works half as long again (bench_slow_rank); without: other steps of the run |
| link | two gloo ranks in network namespaces, traced: a link of 2 MB/s; without: an unhindered one |

`rank` and `link` are two forms of the fifth. For each, the command's answer of the faulty run is beside what is
measured: `predicted_s` is the floor of generation (tail, kv) and `measured_s` what a run without the fault takes
for as many tokens, beside it at the same time; for the others `predicted_s` is what a step would be shorter by, and
`measured_s` what the fault takes of a step. Prints a line for each; exits with 1 when one is not named, the healthy
run is given that name, or predicted and measured are further apart than 30 %.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from rlcheck.measure.slow.look import look
from tests.bench.bench_slow_rank import Slowed, pids_of, steps_in, wait_for
from tests.conftest import EQUAL

ROOT = Path(__file__).resolve().parents[2]
JOB = Path(__file__).with_name("slow_job.py")
ENVIRON = {**os.environ, **EQUAL, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "trainer")))}
WITHIN = 0.3
STEPS = 7
SETTLED = 2
LIMIT_S = 800.0
TOY = ("toy-ppo", "trainer.save_freq=-1", "trainer.test_freq=-1", "trainer.val_before_train=false",
       "trainer.audit=false", "trainer.capsule_steps=[]", "algorithm.adv_estimator=grpo",
       "actor_rollout_ref.actor.optim.lr=1e-9", "data.train_batch_size=64",
       "actor_rollout_ref.actor.ppo_mini_batch_size=64", "actor_rollout_ref.rollout.n=2")  # fmt: skip
HF = ("actor_rollout_ref.rollout.name=hf",)
MEAN = 25
"""Tokens of an answer in the long run of `tail`, about."""
LONG = ("toy.model.max_position_embeddings=512", "data.max_response_length=256")
REWARD = """import time
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    time.sleep({seconds})
    return float(len(solution_str) % 2)
"""


def start(place: Path, *words: str, steps: int) -> subprocess.Popen[str]:
    """A run of rltrain in PLACE, whose words go to PLACE.log."""
    command = [sys.executable, "-m", "rltrain", "run", *TOY, *words, f"trainer.total_training_steps={steps}",
               f"trainer.default_local_dir={place}"]  # fmt: skip
    with place.with_suffix(".log").open("w") as log:
        return subprocess.Popen(command, cwd=ROOT, env=ENVIRON, stdout=log, stderr=log, text=True)


def side_by_side(folder: Path, faulty: Sequence[str], healthy: Sequence[str]) -> None:
    """A faulty run of STEPS steps, and beside it one without the fault for as long: a busy machine slows both alike."""
    longer = start(folder / "healthy", *healthy, steps=100_000)
    try:
        run = start(folder / "faulty", *faulty, steps=STEPS)
        try:
            if run.wait(LIMIT_S):
                raise SystemExit(f"{folder}/faulty: {run.returncode}; see {folder}/faulty.log")
        finally:
            end(run)
        if longer.poll() is not None:
            raise SystemExit(f"{folder}/healthy: {longer.returncode}; see {folder}/healthy.log")
    finally:
        end(longer)


def end(run: subprocess.Popen[Any]) -> None:
    """End RUN as Ctrl-C does, if it is there."""
    if run.poll() is None:
        run.send_signal(signal.SIGINT)
        run.wait(120)


def steps_of(place: Path) -> list[dict[str, Any]]:
    """Metrics by step, the settled ones."""
    lines = [json.loads(line) for line in (place / "metrics.jsonl").read_text().splitlines()]
    return [one for one in lines if one["step"] > SETTLED]


def middle(steps: list[dict[str, Any]], name: str) -> float:
    """The median of a metric."""
    return statistics.median(float(one[name]) for one in steps)


def answered(*paths: Path) -> dict[str, Any]:
    """What `rlcheck slow` says of PATHS."""
    command = [sys.executable, "-m", "rlcheck", "slow", *map(str, paths), "--format", "json"]
    done = subprocess.run(command, cwd=ROOT, env=ENVIRON, capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}: {done.returncode}\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return json.loads(done.stdout)["data"]["slow"]


def step_in(*traces: Path) -> float:
    """Seconds of a step in traces of ranks."""
    return statistics.median(one.span_s / one.steps for one in look(traces).traces)


def outcome(
    cause: str, faulty: Mapping[str, Any], healthy: Mapping[str, Any], predicted: float, measured: float
) -> dict[str, Any]:
    """A case's record."""
    return {"cause": cause, "named": faulty["cause"], "said": faulty["said"], "healthy": healthy["cause"],
            "predicted_s": round(predicted, 4), "measured_s": round(measured, 4),
            "ratio": round(predicted / measured, 3)}  # fmt: skip


def tail(folder: Path) -> dict[str, Any]:
    """Answers of a random model: their lengths are drawn, most are short. Beside it as many tokens in even answers."""
    even = (*LONG[:1], f"data.max_response_length={MEAN}", "actor_rollout_ref.rollout.ignore_eos=true")
    side_by_side(folder, (*HF, *LONG), (*HF, *even))
    faulty, healthy = answered(folder / "faulty"), answered(folder / "healthy")
    tokens = middle(steps_of(folder / "faulty"), "response_length/mean")
    measured = middle(steps_of(folder / "healthy"), "timing_s/gen") * tokens / MEAN
    return outcome("tail", faulty, healthy, faulty["floor_s"], measured)


def kv(folder: Path) -> dict[str, Any]:
    """Equally long answers, and blocks of the cache for about a third of the requests."""
    words = ("toy.model.max_position_embeddings=512", "data.max_response_length=160",
             "actor_rollout_ref.rollout.ignore_eos=true", "actor_rollout_ref.rollout.name=vllm",
             "+actor_rollout_ref.rollout.engine_kwargs.vllm.block_size=32")  # fmt: skip
    few = "+actor_rollout_ref.rollout.engine_kwargs.vllm.num_gpu_blocks_override=235"
    side_by_side(folder, (*words, few), words)
    faulty, healthy = answered(folder / "faulty"), answered(folder / "healthy")
    return outcome("KV preemption", faulty, healthy, faulty["floor_s"],
                   middle(steps_of(folder / "healthy"), "timing_s/gen"))  # fmt: skip


def reward(folder: Path) -> dict[str, Any]:
    """A function of the user's that waits for something."""
    words: dict[str, tuple[str, ...]] = {}
    for name, seconds in (("faulty", 0.2), ("healthy", 0.0)):
        file = folder / f"{name}.py"
        file.write_text(REWARD.format(seconds=seconds))
        words[name] = (
            *HF,
            f"custom_reward_function.path={file}",
            "reward_model.rules=[]",
            "reward_model.rescore=false",
        )
    side_by_side(folder, words["faulty"], words["healthy"])
    faulty, healthy = answered(folder / "faulty"), answered(folder / "healthy")
    with_it, without = (middle(steps_of(folder / name), "timing_s/reward") for name in ("faulty", "healthy"))
    return outcome("slow reward", faulty, healthy, faulty["saves_s"], with_it - without)


def data(folder: Path) -> dict[str, Any]:
    """A training loop whose data set takes long for a row; it says itself how long for the rows of a step."""
    waited: dict[str, float] = {}
    for name, seconds in (("faulty", "0.01"), ("healthy", "0")):
        words = [sys.executable, str(JOB), "data", seconds, str(folder / f"{name}.json")]
        done = subprocess.run(words, check=True, timeout=LIMIT_S, capture_output=True, text=True)
        waited[name] = float(done.stdout.split()[-1])
    faulty, healthy = answered(folder / "faulty.json"), answered(folder / "healthy.json")
    return outcome("data loading", faulty, healthy, faulty["saves_s"], waited["faulty"])


def rank(folder: Path) -> dict[str, Any]:
    """One of two ranks works half as long again; the same run without it gives the measure."""
    place = folder / "run"
    run = start(place, *HF, "data.train_batch_size=256", steps=100_000)
    try:
        clock = place / "clock.jsonl"
        wait_for(clock, 4, run)
        victim, begin = random.Random(0).randrange(2), len(steps_in(clock)) + 1
        wait_for(clock, begin + 12, run)
        between = len(steps_in(clock)) + 1
        with Slowed(pids_of(place)[victim], 50.0) as slowed:
            wait_for(clock, between + 12, run)
    finally:
        end(run)
    planted = slowed.stopped_s / (len(steps_in(clock)) - between)
    parts = {"healthy": (begin, begin + 12), "faulty": (between, between + 12)}
    for name, (first, last) in parts.items():
        part = folder / name
        part.mkdir()
        for file in ("clock.jsonl", "metrics.jsonl", "run.json"):
            lines = (place / file).read_text().splitlines(keepends=True)
            (part / file).write_text("".join(lines[first:last] if file != "run.json" else lines))
    faulty, healthy = answered(folder / "faulty"), answered(folder / "healthy")
    faulty["cause"] += f" {victim}" if f"rank {victim} works" in faulty["said"] else ""
    return outcome(f"slow rank {victim}", faulty, healthy, faulty["saves_s"], planted)


def link(folder: Path) -> dict[str, Any]:
    """Two ranks that reduce gradients over a network that is then made slow."""
    from tests.multinode.netns import network

    with network(2) as nodes:
        for name in ("healthy", "faulty"):
            with ExitStack() as stack:
                if name == "faulty":
                    stack.enter_context(nodes[0].throttle(nodes[1], 2))
                    stack.enter_context(nodes[1].throttle(nodes[0], 2))
                words = [sys.executable, JOB, "link", nodes[0].address]
                running = [
                    node.popen([*words, str(number), folder / f"{name}-rank{number}.json"])
                    for number, node in enumerate(nodes)
                ]
                codes = [process.wait(LIMIT_S) for process in running]
                if any(codes):
                    raise SystemExit(f"link, {name}: exit codes {codes}")
    traces = {name: [folder / f"{name}-rank{number}.json" for number in (0, 1)] for name in ("faulty", "healthy")}
    faulty, healthy = answered(*traces["faulty"]), answered(*traces["healthy"])
    return outcome(
        "network", faulty, healthy, faulty["saves_s"], step_in(*traces["faulty"]) - step_in(*traces["healthy"])
    )


CASES: Mapping[str, Callable[[Path], dict[str, Any]]] = {
    "tail": tail, "kv": kv, "reward": reward, "data": data, "rank": rank, "link": link,
}  # fmt: skip


def is_right(one: Mapping[str, Any]) -> bool:
    """Whether the fault was named, in the faulty run alone, and the prediction holds."""
    named = one["named"] == one["cause"] and not one["cause"].startswith(one["healthy"] or "-")
    return named and abs(one["ratio"] - 1) <= WITHIN


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default=",".join(CASES))
    parser.add_argument("--record", type=Path)
    parser.add_argument("--dir", type=Path, help="an empty folder for the runs, which are then kept")
    options = parser.parse_args()
    folder = (options.dir or Path(tempfile.mkdtemp(prefix="slow-"))).absolute()
    found: list[dict[str, Any]] = []
    try:
        for name in options.only.split(","):
            (folder / name).mkdir(parents=True)
            begun = time.monotonic()
            one = {"fault": name, **CASES[name](folder / name), "took_s": round(time.monotonic() - begun)}
            print(json.dumps(one), "" if is_right(one) else "WRONG", flush=True)
            found.append(one)
    finally:
        if options.dir is None:
            shutil.rmtree(folder, ignore_errors=True)
    said = f"{sum(map(is_right, found))} of {len(found)} named, with what they cost within {WITHIN:.0%}"
    print(said)
    if options.record:
        lines = [json.dumps({"date": time.strftime("%Y-%m-%d"), "said": said}), *map(json.dumps, found)]
        options.record.write_text("\n".join(lines) + "\n")
    return not all(map(is_right, found))


if __name__ == "__main__":
    sys.exit(main())
