"""How long `rlcheck env` takes beside the tools that only dump, in one run on one machine.

    python tests/bench/bench_env.py [--python PATH] [--rounds N]

PATH is the interpreter whose environment has torch (and vllm); it must have rlcheck installed, too. Commands are
taken in turns, so that a noisy machine is noisy for all of them; medians of wall time are printed, and the ratios.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time

COMMANDS = {
    "rlcheck env": ("-m", "rlcheck", "env"),
    "rlcheck --help": ("-m", "rlcheck", "--help"),
    "torch collect_env": ("-m", "torch.utils.collect_env"),
    "vllm collect_env": ("-m", "vllm.collect_env"),
    "transformers env": ("-m", "transformers.cli.transformers", "env"),
    "python -c pass": ("-c", "pass"),
}


def once(python: str, arguments: tuple[str, ...]) -> float | None:
    """Wall seconds of one cold process, or None when it does not run in this environment."""
    # Where it is set, a checkout is compiled at each start, and an installed torch is not.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    done = subprocess.run([python, *arguments], capture_output=True, timeout=300, check=False, env=environ)
    seconds = time.perf_counter() - started
    return seconds if (done.returncode in (0, 1) and done.stdout) or arguments == ("-c", "pass") else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for round_number in range(options.rounds + 1):
        for name, arguments in COMMANDS.items():
            # The slow ones do not need as many rounds to have a median.
            if round_number > 3 and times[name] and times[name][0] > 3:
                continue
            seconds = once(options.python, arguments)
            if seconds is not None and round_number > 0:  # the first round warms the page cache
                times[name].append(seconds)
    base = statistics.median(times["rlcheck env"])
    for name, values in times.items():
        if values:
            median = statistics.median(values)
            print(f"{name:20} {median:7.3f} s   {median / base:6.2f} x rlcheck env   ({len(values)} runs)")
        else:
            print(f"{name:20} does not run in this environment")


if __name__ == "__main__":
    main()
