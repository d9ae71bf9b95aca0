"""Whether `rlcheck step` names the link that a planted mistake breaks, from capsules of runs with that mistake.

    python tests/bench/bench_step.py [--only NAME ...] [--healthy] [--steps 1,2,10] [--dir DIR] [--list]

Runs are those of bench_faults.py, as long as the last capsule needs; a mistake that begins later begins at step 2 here.
DIR keeps capsules and proofs; one that is whole is not made again. Exits with 1 below 53 of 58, or at a healthy step
that differs.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from rlcheck.facts.step import LINKS  # noqa: E402
from tests.bench.bench_faults import NoRun, end, wait  # noqa: E402
from tests.bench.faults.table import FAULTS, HEALTHY, SUBTLE, SUBTLE_HEALTHY, Fault  # noqa: E402

INJECT = Path(__file__).parent / "faults" / "inject"
BAR, COUNT = 53, 58
ENGINE = ("engine-weights", "engine-after")
TOKENS = ("prompt-ids", "answers")
OUTSIDE = "the config asks for it, and the step does it"
"""Why a fault that is no mistake in code is called outside of a step, before the runs."""
REFUSED = {"targets-shifted": "it is no causal language model"}
"""Mistakes that set-up refuses today, before a step is made: what the run ends with."""
NO_STEP = ("killed", "slower", "slow-rank", "leak")
"""Mistakes that no number of a step shows: such runs are not made."""
EXPECTED: dict[str, tuple[str, ...]] = {
    "sync": ENGINE, "layer": ENGINE, "head": ENGINE, "norm": ENGINE, "projections": ENGINE, "stale": ENGINE,
    "temperature-raw": ("engine-log-probs",), "temperature-forgotten": ("old-log-probs",),
    "temperature-config": ("sampling", "engine-log-probs"), "template": TOKENS, "special": TOKENS,
    "responses": ("answers",), "bf16-logits-engine": ("engine-log-probs",), "bf16-logits": ("old-log-probs",),
    "bf16-engine": ("engine-log-probs",), "targets": ("old-log-probs",), "reward": ("rewards", "advantages"),
    "advantages": ("advantages",), "seeds": ("sampling",), "truncated": ("sampling", "answers"),
    "eos": ("sampling", "answers"), "lr-unseen": ("clip", "optimizer"), "spike": ("loss", "gradient"),
    "critic-detached": ("gradient", "optimizer"), "critic-others": ("update-rows", "loss"),
    "not-sharded": ("update-rows", "gradient"), "entropy": ("loss", "gradient"), "kl-sign": ("loss", "gradient"),
    "kl-reward": ("advantages",), "nan": ("loss", "gradient", "optimizer"), "weights-fixed": ("optimizer",),
    "loss-without": ("update-rows", "loss"), "subtle-01": ("reference-log-probs",),
    "subtle-02": ("update-rows", "loss"),
    "subtle-03": ("old-log-probs",), "subtle-04": ("old-log-probs",), "subtle-05": ("advantages",),
    "subtle-06": ("loss", "gradient"), "subtle-07": ("optimizer",), "subtle-08": ("old-log-probs",),
    "subtle-10": ("advantages",), "subtle-11": ("prompts", "sampling"), "subtle-12": ("gradient",),
    "subtle-13": ("update-rows", "loss", "advantages"), "subtle-14": ("answers", "rewards"), "subtle-15": ENGINE,
}  # fmt: skip
"""The links that are right, by how a fault's name begins; the longest beginning counts."""


def expected(fault: Fault) -> tuple[str, ...]:
    """The links of which one must be the first to differ; empty: none may."""
    begins = [name for name in EXPECTED if fault.name.startswith(name)]
    return EXPECTED[max(begins, key=len)] if begins else ()


def chosen() -> list[Fault]:
    """The subtle ones, those of the short bench, and of the others the first mistakes in code, to 58."""
    short = [*SUBTLE, *(fault for fault in FAULTS if not fault.extra)]
    more = [fault for fault in FAULTS if fault.extra and fault.mistake and fault.name not in NO_STEP]
    return [*short, *more[: COUNT - len(short)]]


def sooner(mistake: str) -> str:
    """MISTAKE from step 2 on, where it would begin later."""
    return re.sub(r'("step": )\d+', r"\g<1>2", mistake)


def capsules(fault: Fault, directory: Path, steps: tuple[int, ...]) -> list[Path]:
    """Make a run with FAULT in DIRECTORY, unless it is there; its capsules.

    Raises:
        NoRun: it left no capsule, or was made without its mistake.
    """
    if not (directory / "done").exists():
        shutil.rmtree(directory, ignore_errors=True)
        mark = directory.with_suffix(".mark")
        values = [*fault.overrides, f"trainer.total_training_steps={max(steps)}", "trainer.val_before_train=false",
                  f"trainer.capsule_steps=[{','.join(map(str, steps))}]", f"trainer.default_local_dir={directory}",
                  "actor_rollout_ref.actor.optim.lr_scheduler_type=constant"]  # fmt: skip
        environ = {**os.environ, "RLTRAIN_MISTAKE": sooner(fault.mistake), "RLTRAIN_MISTAKE_MARK": str(mark)}
        if fault.mistake:
            environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(INJECT), os.environ.get("PYTHONPATH"))))
        with directory.with_suffix(".out").open("w") as out:
            command = [sys.executable, "-m", "rltrain", "run", fault.recipe, "--skip-checks", *values]
            process = subprocess.Popen(command, cwd=ROOT, env=environ, stdout=out, stderr=out, start_new_session=True)
            try:
                wait(process, 0, directory / "metrics.jsonl")
            finally:
                end(process)
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)
        if fault.mistake and not mark.exists():
            raise NoRun(f"ran without its mistake, see {directory.with_suffix('.out')}")
        directory.mkdir(exist_ok=True)
        (directory / "done").touch()
    found = sorted((directory / "capsules").glob("step_*"), key=lambda place: int(place.name[5:]))
    if not found:
        raise NoRun(f"no capsule, see {directory.with_suffix('.out')}")
    return found


def first_of(found: list[Path]) -> tuple[str, str]:
    """The first link that differs in the first of these capsules where one does, and what is said of it."""
    missing = [place for place in found if not (place / "proof.json").exists()]
    if missing:
        command = [sys.executable, "-m", "rlcheck", "step", *map(str, missing), "--format", "json"]
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    for place in found:
        if not (place / "proof.json").exists():
            return "no proof", place.name
        links = {link["name"]: link for link in json.loads((place / "proof.json").read_text())["links"]}
        for name in LINKS:
            if name in links and links[name]["status"] == "differs":
                causes = "; ".join(links[name].get("causes", ()))
                return name, f"{place.name}: {links[name]['said']}" + (f" [{causes}]" if causes else "")
    return "", ""


def main() -> int:
    """Run the bench, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    parser.add_argument("--healthy", action="store_true", help="only the healthy runs")
    parser.add_argument("--steps", default="1,2,10", help="steps whose capsules are kept")
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    directory = options.dir or Path(tempfile.mkdtemp(prefix="bench-step-"))
    directory.mkdir(parents=True, exist_ok=True)
    steps = tuple(map(int, options.steps.split(",")))
    healthy = [dataclasses.replace(run, expected=()) for run in (*HEALTHY, *SUBTLE_HEALTHY)]
    faults = [] if options.healthy else chosen()
    runs = [run for run in (*faults, *healthy) if not options.only or run.name in options.only]
    right = wrong = outside = false = 0
    for run in runs:
        if options.list or (run in faults and not run.mistake):
            print(
                f"{run.name:28} {', '.join(expected(run)) if run.mistake or run in healthy else 'outside: ' + OUTSIDE}"
            )
            outside += run in faults and not run.mistake
            continue
        try:
            link, said = first_of(capsules(run, directory / run.name, steps))
        except NoRun as error:
            link, said = "no run", str(error)
            words, out = REFUSED.get(run.name), (directory / run.name).with_suffix(".out")
            if words and out.exists() and words in out.read_text(encoding="utf-8", errors="replace"):
                link, said = "refused", words
        if run in healthy:
            false += bool(link)
        elif link and link in (*expected(run), "refused"):
            right += 1
        else:
            wrong += 1
        mark = (
            "ok"
            if (run in healthy) != bool(link) and (run in healthy or link in (*expected(run), "refused"))
            else "WRONG"
        )
        print(f"{run.name:28} {mark:6} {link:20} {said[:300]}", flush=True)
    print(f"right {right} of {right + wrong + outside}, outside of a step {outside}, healthy that differ {false}")
    return int(false > 0 or (len(runs) > COUNT and right < BAR))


if __name__ == "__main__":
    sys.exit(main())
