"""Is the odd machine named wherever it stands? Real gloo ranks, one fault at a time at random places.

    python -m tests.bench.bench_placements [--num 20] [--machines 4] [--faults stop,kill,drop,add-before,slow,interface]

Prints a line for each run and a table at the end; exits with 1 when a machine was not named, or a healthy one was.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Mapping

from rlcheck.collectives import attribution
from rlcheck.collectives.engine import Request, measure
from tests.collectives.boards import machines

FAULTS: Mapping[str, Mapping[str, str]] = {
    "stop": {"FAULT": "stop@5"},
    "kill": {"FAULT": "kill@5"},
    "sleep": {"FAULT": "sleep@5"},
    "drop": {"FAULT": "drop"},
    "add-before": {"FAULT": "add-before"},
    "add-after": {"FAULT": "add-after"},
    "slow": {"FAULT": "slow"},
    "interface": {"GLOO_SOCKET_IFNAME": "no0"},
}


def trial(fault: str, num_machines: int, odd: int) -> tuple[bool, float, str]:
    """Whether the machine `odd`, and it alone, was named, how long that took, and what was said."""
    started = time.monotonic()
    with machines(num_machines, {odd: FAULTS[fault]}) as board:
        facts = measure(board, Request(quick=True, max_bytes=1 << 20, step_timeout_s=5.0))
        name = board.seats[odd].name
    found = attribution.suspects(facts)
    named = {machine for suspect in found for machine in suspect.names}
    said = "; ".join(f"{suspect.label}: {suspect.kind}" for suspect in found)
    return named == {name}, time.monotonic() - started, said


def main() -> int:
    """Run all trials and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--num", type=int, default=20, help="placements of each fault")
    parser.add_argument("--machines", type=int, default=4)
    parser.add_argument("--faults", default=",".join(FAULTS))
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    places = random.Random(options.seed)
    rows: list[tuple[str, int, float]] = []
    for fault in options.faults.split(","):
        results = []
        for _ in range(options.num):
            odd = places.randrange(options.machines)
            ok, seconds, said = trial(fault, options.machines, odd)
            results.append((ok, seconds))
            print(f"{fault:10} at {chr(ord('a') + odd)}: {'ok ' if ok else 'BAD'} {seconds:5.1f} s  {said}", flush=True)
        rows.append((fault, sum(ok for ok, _ in results), max(seconds for _, seconds in results)))
    print(f"\n{'fault':10} named of {options.num}   longest")
    for fault, num_ok, longest in rows:
        print(f"{fault:10} {num_ok:5}         {longest:5.1f} s")
    return 0 if all(num_ok == options.num for _, num_ok, _ in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
