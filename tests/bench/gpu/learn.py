"""Whether training learns: supervised, then GRPO, beside supervised training that goes on. For learn.sh.

    python tests/bench/gpu/learn.py OUT [--work DIR] [--limit-s S] [--share] [--toy]

Parts, each of which is left out if WORK has it already: `sft`; `rl` to its half, ended by SIGINT, and `rl` resumed to
its end; `continued`, supervised training that goes on from the same checkpoint for as many seconds as both RL commands
took from their start to their end; `scored`, what that has led to on RL's held-out problems. The record is written
after each part. Its bars: at most 0.5 before RL, at least 0.9 after it, in at most 8 minutes of RL. Exit code 1: one is
missed, or a part has not ended in time. `continued` has the second GPU, at the same time; with `--share` that of RL;
else it comes after RL. `--toy`: the recipes for a CPU.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rltrain.config import load
from rltrain.records.run_dir import read_steps

BEFORE, AFTER, RL_S = 0.5, 0.9, 480.0
"""The bars: held-out pass@1 before RL, at most, and after it, at least; seconds of RL, at most."""
SFT_S = 170.0
"""Supervised training is ended after so long, whatever it has learnt by then."""
POLL_S, GRACE_S = 0.5, 45.0
"""Between two looks at a run; for it to end after SIGINT."""
INTERRUPTED = 130
SHOWN = ("val/reward/mean", "val/reward/best_constant", "val/reward/shuffled", "critic/score/mean")

Steps = list[dict[str, Any]]
Until = Callable[[Steps, float], bool]


@dataclass
class Bench:
    """Where things are, how much time is left, and what has been found."""

    out: Path
    work: Path
    limit_s: float
    sft: str
    rl: str
    begun: float = field(default_factory=time.monotonic)
    record: dict[str, Any] = field(default_factory=dict[str, Any])
    lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def left_s(self) -> float:
        """Seconds until everything must have ended."""
        return self.limit_s - (time.monotonic() - self.begun)

    def note(self, name: str, **found: Any) -> None:
        """Put FOUND under NAME of the record, and write it."""
        with self.lock:
            self.record[name] = found
            text = json.dumps(self.record, indent=1)
            (self.work / "record.json").write_text(text, encoding="utf-8")
            (self.out / "record.json").write_text(text, encoding="utf-8")
        shown = {key: value for key, value in found.items() if key != "curve"}
        print(f"{time.monotonic() - self.begun:6.0f} s  {name}: {json.dumps(shown)}", flush=True)

    def command(
        self, name: str, run: str, *arguments: str, gpu: int = 0, spare_s: float = GRACE_S, until: Until
    ) -> int:
        """Run `rltrain ARGUMENTS` into the directory RUN until it ends or UNTIL(its steps, seconds) holds: then SIGINT.

        SIGINT as well when only SPARE_S are left. Its metrics are copied as they come. Returns the exit code; -9: it
        had to be killed.
        """
        metrics, began = self.work / run / "metrics.jsonl", time.monotonic()
        values = ("--skip-checks", f"trainer.default_local_dir={self.work / run}", "trainer.logger=[console]")
        environ = {**os.environ, "CUDA_VISIBLE_DEVICES": str(gpu)} if has_gpu() else dict(os.environ)
        with (self.out / f"{name}.txt").open("w", encoding="utf-8") as printed:
            print(f"{time.monotonic() - self.begun:6.0f} s  {name} begins", flush=True)
            process = subprocess.Popen(
                [sys.executable, "-m", "rltrain", *arguments, *values],
                stdout=printed, stderr=printed, stdin=subprocess.DEVNULL, env=environ, start_new_session=True,
            )  # fmt: skip
            asked: float | None = None
            while process.poll() is None:
                time.sleep(POLL_S)
                now = time.monotonic()
                if metrics.exists():
                    shutil.copyfile(metrics, self.out / f"{run}.jsonl")
                if asked is None and (self.left_s < spare_s or until(read_steps(metrics), now - began)):
                    asked = now
                    process.send_signal(signal.SIGINT)
                if asked is not None and now - asked > GRACE_S:
                    os.killpg(process.pid, signal.SIGKILL)
        if metrics.exists():
            shutil.copyfile(metrics, self.out / f"{run}.jsonl")
        return process.wait()


def has_gpu() -> bool:
    """Whether this machine has a GPU."""
    return num_gpus() > 0


def num_gpus() -> int:
    """GPUs of this machine."""
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
    except OSError:
        return 0
    return sum(line.startswith("GPU ") for line in listed.splitlines())


def newest(run: Path) -> Path | None:
    """The last complete checkpoint of RUN."""
    found = sorted(run.glob("checkpoints/global_step_*/complete.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None


def supervised(bench: Bench) -> None:
    """Part `sft`."""
    if newest(bench.work / "sft"):
        return
    began = time.monotonic()
    code = bench.command("sft", "sft", "sft", bench.sft, until=lambda _steps, seconds: seconds > SFT_S)
    steps = read_steps(bench.work / "sft" / "metrics.jsonl")
    losses = [step["val/loss"] for step in steps if "val/loss" in step]
    seconds = round(time.monotonic() - began, 1)
    bench.note("sft", code=code, seconds=seconds, steps=len(steps) - 1, val_loss=losses, parameters=parameters(bench))


def parameters(bench: Bench) -> int:
    """Of the model."""
    from safetensors import safe_open

    total = 0
    for file in (bench.work / "sft" / "toy" / "model").glob("*.safetensors"):
        opened: Any = safe_open(str(file), "pt")
        with opened as tensors:
            for key in tensors.keys():  # noqa: SIM118 - not a dict
                size = 1
                for length in tensors.get_slice(key).get_shape():
                    size *= length
                total += size
    return total


def reinforced(bench: Bench, start: Path) -> None:
    """Part `rl`: to the half, and from there to the end."""
    if bench.record.get("rl", {}).get("code") == 0:
        return
    total = load(bench.rl, [f"actor_rollout_ref.model.path={start}"]).trainer.total_training_steps or 0
    metrics = bench.work / "rl" / "metrics.jsonl"
    seen: dict[int, float] = {}
    # What an earlier call took counts, too.
    began = time.monotonic() - bench.record.get("rl", {}).get("seconds", 0.0)

    def watched(half: bool) -> Until:
        def until(steps: Steps, _seconds: float) -> bool:
            for step in steps:
                seen.setdefault(int(step["step"]), round(time.monotonic() - began, 1))
            return half and bool(steps) and steps[-1]["step"] >= total // 2

        return until

    arguments = ("run", bench.rl, f"actor_rollout_ref.model.path={start}", "trainer.resume_mode=auto")
    if bench.record.get("rl-first", {}).get("last_step", 0) < total // 2:
        first = bench.command("rl-first", "rl", *arguments, until=watched(half=True))
        half = int(read_steps(metrics)[-1]["step"])
        bench.note("rl-first", code=first, seconds=round(time.monotonic() - began, 1), last_step=half)
    second = bench.command("rl-second", "rl", *arguments, until=watched(half=False))
    seconds, steps = time.monotonic() - began, read_steps(metrics)
    said = re.search(
        r"going on from .*?\(step (\d+) of", (bench.out / "rl-second.txt").read_text(encoding="utf-8"), re.S
    )
    curve = [
        {"step": int(one["step"]), "seconds": seen.get(int(one["step"])), **{k: one[k] for k in SHOWN if k in one}}
        for one in steps
    ]
    bench.note(
        "rl",
        code=second, seconds=round(seconds, 1), steps=int(steps[-1]["step"]), total=total,
        resumed_at=int(said[1]) if said else None,
        seconds_first=bench.record["rl-first"]["seconds"], shared_operands=shared_operands(bench), curve=curve,
    )  # fmt: skip


def shared_operands(bench: Bench) -> int:
    """Operands that are in more than one of: demonstrations, training prompts, held-out prompts."""
    files = (
        bench.work / "sft" / "toy" / "sft.jsonl",
        *(bench.work / "rl" / "toy" / f"{n}.jsonl" for n in ("train", "val")),
    )
    one, other, third = (
        {
            operand
            for line in file.read_text(encoding="utf-8").splitlines()
            for operand in json.loads(line)["prompt"][0]["content"].split("+")
        }
        for file in files
    )
    return len(one & other | one & third | other & third)


def continued(bench: Bench, start: Path, gpu: int, done: Callable[[float], bool]) -> None:
    """Part `continued`: until DONE(seconds since its start) holds."""
    if bench.record.get("continued"):
        return
    began = time.monotonic()
    values = (f"trainer.resume_mode={start}", "trainer.total_epochs=100000", "trainer.save_freq=1000000")
    code = bench.command(
        "continued", "continued", "sft", bench.sft, *values, gpu=gpu, until=lambda _steps, seconds: done(seconds)
    )
    steps = read_steps(bench.work / "continued" / "metrics.jsonl")
    losses = [step["val/loss"] for step in steps if "val/loss" in step]
    last, seconds = int(steps[-1]["step"]) if steps else 0, round(time.monotonic() - began, 1)
    bench.note("continued", code=code, seconds=seconds, last_step=last, val_loss=losses)


def scored(bench: Bench, name: str, model: Path | None, gpu: int, *values: str) -> None:
    """Part NAME: pass@1 of MODEL on RL's held-out problems, by an RL run of one step, whose step 0 says it."""
    if model is None or bench.record.get(name) or bench.left_s < 60:
        return
    step = (
        "trainer.total_training_steps=1",
        "trainer.save_freq=-1",
        "trainer.test_freq=-1",
        "trainer.resume_mode=disable",
    )
    arguments = ("run", bench.rl, f"actor_rollout_ref.model.path={model}", *step, *values)
    code = bench.command(name, name, *arguments, gpu=gpu, spare_s=10, until=lambda steps, _seconds: bool(steps))
    steps = read_steps(bench.work / name / "metrics.jsonl")
    bench.note(name, code=code, **{key: steps[0][key] for key in SHOWN if steps and key in steps[0]})


def everything(bench: Bench, share: bool) -> None:
    """All parts in order; supervised training goes on beside RL if there is a second GPU, or with SHARE."""
    supervised(bench)
    start = newest(bench.work / "sft")
    if start is None:
        return
    if share or num_gpus() > 1:
        gpu = 0 if share else 1
        ended = threading.Event()
        beside = threading.Thread(target=lambda: continued(bench, start, gpu, lambda _seconds: ended.is_set()))
        beside.start()
        reinforced(bench, start)
        ended.set()
        beside.join()
    else:
        reinforced(bench, start)
        if bench.left_s > bench.record["rl"]["seconds"] + GRACE_S:
            continued(bench, start, 0, lambda seconds: seconds >= bench.record["rl"]["seconds"])
    greedy = [f"actor_rollout_ref.rollout.val_kwargs.{value}" for value in ("n=1", "do_sample=false", "temperature=0")]
    scored(bench, "scored", newest(bench.work / "continued"), 0)
    scored(bench, "greedy-sft", start, 0, *greedy)
    scored(bench, "greedy-continued", newest(bench.work / "continued"), 0, *greedy)


def missed(record: dict[str, Any]) -> list[str]:
    """The bars that are not met, and the parts that are not there."""
    rl = record.get("rl", {})
    curve = [point["val/reward/mean"] for point in rl.get("curve", []) if "val/reward/mean" in point]
    if not curve or rl["steps"] < rl["total"]:
        return ["RL did not come to its end"]
    other = record.get("scored", {}).get("val/reward/mean")
    bars = {
        f"before RL {curve[0]:.3f} > {BEFORE}": curve[0] <= BEFORE,
        f"after RL {curve[-1]:.3f} < {AFTER}": curve[-1] >= AFTER,
        f"RL took {rl['seconds']:.0f} s > {RL_S:.0f}": rl["seconds"] <= RL_S,
        f"the first half ended with exit code {record['rl-first']['code']}": record["rl-first"]["code"] == INTERRUPTED,
        f"it went on after step {rl['resumed_at']}": rl["resumed_at"] == record["rl-first"]["last_step"],
        f"{rl['shared_operands']} operands are shared": rl["shared_operands"] == 0,
        "supervised training that goes on was not scored": other is not None,
        "supervised training had less time than RL": record.get("continued", {}).get("seconds", 0) >= rl["seconds"] - 5,
    }
    print(f"held-out pass@1: before RL {curve[0]:.3f}, after {curve[-1]:.3f}, SFT for the same time {other}")
    return [words for words, held in bars.items() if not held]


def main() -> int:
    """Run what is left; 1 if a bar is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--work", type=Path, default=Path("/tmp/learn"))
    parser.add_argument("--limit-s", type=float, default=565.0)
    parser.add_argument("--share", action="store_true", help="RL and supervised training at once on one GPU")
    parser.add_argument("--toy", action="store_true", help="the recipes for a CPU")
    options = parser.parse_args()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # behind a script's `&` the commands would ignore it
    names = ("toy-add-sft", "toy-add-grpo") if options.toy else ("arithmetic-sft", "arithmetic-grpo")
    bench = Bench(options.out, options.work, options.limit_s, *names)
    for place in (bench.out, bench.work):
        place.mkdir(parents=True, exist_ok=True)
    if (earlier := bench.work / "record.json").exists():
        bench.record.update(json.loads(earlier.read_text(encoding="utf-8")))
    bench.note("machine", gpus=gpu_names(), recipes=names)
    everything(bench, options.share)
    said = missed(bench.record)
    print("\n".join(f"missed: {line}" for line in said) or "every bar is met")
    return 1 if said else 0


def gpu_names() -> list[str]:
    """As the driver gives them."""
    if not has_gpu():
        return []
    query = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    return subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    sys.exit(main())
