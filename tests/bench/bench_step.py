"""Whether `rlcheck step` names the link that a planted mistake breaks, and finds healthy steps the same.

    python tests/bench/bench_step.py [--only NAME ...] [--healthy | --faults] [--steps 1,2,10] [--jobs N]
        [--deadline-s S] [--record FILE] [--dir DIR] [--list]

Runs are those of `faults/step_table.py` (58 faults of bench_faults.py) and `faults/step_sound.py` (healthy), each as
long as its last capsule needs. N run side by side, each on its own share of the processors. DIR keeps capsules and
proofs; a run that is whole is not made again. After S seconds what runs is ended (in up to 40 s), and what is there is
counted. FILE gets one JSON line for each run: name, expected, first, ok, said, links by capsule (those that differ, are
unknown or absent; the others are the same), seconds, bytes. Exits with 1 below 53 of 58, at a healthy step that
differs or leaves more unknown than was said before, and where runs are left out.
"""

from __future__ import annotations

import argparse
import json
import queue
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.bench.faults.step_table import COUNT, OUTSIDE, Run, faults, healthy
from tests.bench.step_run import Found, Late, NoRun, Slot, examined, slots

BAR = 53
APART_S = 0.7
"""Between the starts of the first runs: each reads the same packages from the disk, and starts a Ray."""


def judged(run: Run, directory: Path, slot: Slot) -> dict[str, Any]:
    """The record of RUN, made in DIRECTORY; one that shows nothing is tried once more."""
    found, first, said = Found(), "", ""
    for _ in range(2):
        try:
            found = examined(run, directory / run.name, slot)
            first, said = found.first, found.said
            break
        except Late:
            first, said = "late", "the time was over"
            break
        except NoRun as error:
            first, said, out = "no run", str(error), (directory / run.name).with_suffix(".out")
            if run.refused and run.refused in out.read_text(encoding="utf-8", errors="replace"):
                first, said = "refused", run.refused
                break
            (directory / run.name / "done").unlink(missing_ok=True)
    unsaid = {name: why for name, why in found.unknown.items() if name not in run.unknown}
    right = first in (*run.expected, "refused") if run.mistake else not first and not unsaid
    return {
        "name": run.name,
        "kind": "fault" if run.mistake else "healthy",
        "expected": run.expected,
        "first": first,
        "ok": right,
        "said": said or "; ".join(f"{name} unknown: {why}" for name, why in unsaid.items()),
        "links": found.links,
        "seconds": found.seconds,
        "bytes": found.bytes,
    }


@contextmanager
def recorded(file: Path | None) -> Iterator[Any]:
    """A function that prints a record, and writes it to FILE, where one is given and the run had its time."""
    lock = threading.Lock()
    out = None if file is None else file.open("a", encoding="utf-8")

    def write(record: dict[str, Any]) -> None:
        with lock:
            if out is not None and record["first"] != "late":
                out.write(json.dumps(record) + "\n")
                out.flush()
            mark = "ok" if record["ok"] else record["first"] if record["first"] == "late" else "WRONG"
            took = "+".join(f"{value:.0f}" for value in record["seconds"].values()) + " s"
            print(f"{record['name']:28} {mark:6} {record['first']:20} {took:10} {record['said'][:300]}", flush=True)

    try:
        yield write
    finally:
        if out is not None:
            out.close()


def bench(runs: Sequence[Run], directory: Path, shares: Sequence[Slot], file: Path | None) -> list[dict[str, Any]]:
    """The records of RUNS, one on each of SHARES at a time."""
    free: queue.SimpleQueue[tuple[Slot, float]] = queue.SimpleQueue()
    for number, share in enumerate(shares):
        free.put((share, number * APART_S))

    with recorded(file) as write, ThreadPoolExecutor(len(shares)) as pool:

        def one(run: Run) -> dict[str, Any]:
            slot, later_s = free.get()
            try:
                slot.over.wait(later_s)
                record = judged(run, directory, slot)
            finally:
                free.put((slot, 0.0))
            write(record)
            return record

        try:
            return list(pool.map(one, runs))
        except BaseException:
            shares[0].over.set()  # of all: threads end what they run
            raise


def summed(records: Sequence[dict[str, Any]], outside: int) -> int:
    """Print what came of all, and return the exit code."""
    of_kind = Counter((record["kind"], record["ok"]) for record in records if record["first"] != "late")
    sound = [record for record in records if record["kind"] == "healthy" and record["first"] not in ("late", "no run")]
    false = sum(len(links["differs"]) > 0 for record in sound for links in record["links"].values())
    late = [record["name"] for record in records if record["first"] == "late"]
    print(f"faults: right {of_kind['fault', True]}, wrong {of_kind['fault', False]}, outside of a step {outside}")
    print(
        f"healthy: {sum(len(record['links']) for record in sound)} capsules of {len(sound)} runs, {false} that differ, "
        f"{of_kind['healthy', False]} runs that differ, leave more unknown than said, or did not end well"
    )
    if late:
        print(f"left out, as the time was over: {len(late)}: {' '.join(late)}")
    planted = of_kind["fault", True] + of_kind["fault", False] + outside
    return int(bool(of_kind["healthy", False] or late or (planted >= COUNT and of_kind["fault", True] < BAR)))


def main() -> int:
    """Run the bench, and return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--healthy", action="store_true", help="only the healthy runs")
    which.add_argument("--faults", action="store_true", help="only the planted faults")
    parser.add_argument("--steps", default="1,2,10", help="steps of faults whose capsules are kept")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side")
    parser.add_argument("--deadline-s", type=float, default=24 * 3600.0, help="seconds after which everything ends")
    parser.add_argument("--record", type=Path, default=None, help="file to which a JSON line of each run is added")
    parser.add_argument("--dir", type=Path, default=None)
    parser.add_argument("--list", action="store_true")
    options = parser.parse_args()
    planted = [] if options.healthy else faults(tuple(map(int, options.steps.split(","))))
    runs = [*planted, *([] if options.faults else healthy())]
    runs = [run for run in runs if not options.only or run.name in options.only]
    for run in runs:
        if options.list or run.outside:
            expected = "may be unknown: " + ", ".join(run.unknown) if run.unknown else ", ".join(run.expected)
            print(f"{run.name:28} {'outside: ' + OUTSIDE if run.outside else expected}")
    if options.list:
        return 0
    directory: Path = (options.dir or Path(tempfile.mkdtemp(prefix="bench-step-"))).resolve()
    directory.mkdir(parents=True, exist_ok=True)
    made = [run for run in runs if not run.outside]
    jobs = max(min(options.jobs, len(made)), 1)
    records = bench(made, directory, slots(jobs, options.deadline_s, threading.Event()), options.record)
    return summed(records, len(runs) - len(made))


if __name__ == "__main__":
    sys.exit(main())
