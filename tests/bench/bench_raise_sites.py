"""Errors of the installed stack, explained by its source alone: the share with line, guard and settings right.

    python -m tests.bench.bench_raise_sites [--seed N] [--sites N] [--reach N] [--moved] [--recorded] [-v]

Draws raise sites by seed from the installed packages and makes the traceback of each: by reaching the raise in a child
process where that works, else as Python would print it. `rlcheck diagnose` then reads it without any playbook. With
--moved every line number is 37 too high and no code is quoted, as with another version. What is right is read by
`tests/bench/raise_sites.py`, which shares no code with the doctor: the raise itself, its nearest condition, and every
argument, field and config key in that condition and the message, each with its value where the message shows one.
With --recorded nothing is installed where the log is read: the record of releases answers, which knows files and no
lines, the nearest conditions, and of the settings those that decide or are shown.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import site as installed
import statistics
import subprocess
import sys
import tempfile
from datetime import date
from importlib import metadata
from pathlib import Path

import msgspec

from rlcheck.diagnose.answer import diagnose
from rlcheck.diagnose.condense import read_logs
from rlcheck.diagnose.model import Diagnosis
from rlcheck.diagnose.signatures import Index, load
from rlcheck.diagnose.source.installed import environment
from rlcheck.playbook import Library
from tests.bench.raise_sites import PACKAGES, Site, draw

ROOT = Path(__file__).resolve().parents[2]
_LIMIT_S = 240


def reached(sites: list[Site], enough: int) -> None:
    """Fill in the tracebacks of those that a call reaches, one process a package, until ENOUGH are."""
    by_key = {(site.file, site.line): site for site in sites}
    for package in PACKAGES:
        mine = [site for site in sites if site.file.split("/")[0] == package]
        if not mine or sum(bool(site.reached) for site in sites) >= enough:
            continue
        environ = {**os.environ, "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        with tempfile.TemporaryDirectory() as directory, tempfile.TemporaryFile() as out:
            command = [sys.executable, "-m", "tests.bench.raise_sites"]
            try:
                subprocess.run(command, input=msgspec.json.encode(mine), stdout=out, stderr=subprocess.DEVNULL,
                               cwd=directory, env=environ, timeout=_LIMIT_S, check=False)  # fmt: skip
            except subprocess.TimeoutExpired:
                print(f"{package}: not all tried within {_LIMIT_S} s", file=sys.stderr)
            out.seek(0)
            for line in out.read().decode().splitlines():
                file, number, text = json.loads(line)
                by_key[file, number].reached = text


def traceback_of(site: Site, moved: bool) -> str:
    """What Python prints: the real traceback where there is one."""
    text = site.reached or (
        'Traceback (most recent call last):\n  File "/opt/run/train.py", line 12, in main\n    step()\n'
        f'  File "/opt/env/lib/python3.11/site-packages/{site.file}", line {site.line}, in {site.function}\n'
        f"    {site.source}\n{site.kind}: {site.message}\n"
    )
    if not moved:
        return text
    text = re.sub(r", line (\d+), in", lambda match: f", line {int(match[1]) + 37}, in", text)
    return re.sub(r"(  File .*\n)(?:    .*\n)+", r"\1", text)


def judged(site: Site, found: Diagnosis | None) -> tuple[bool, bool, bool]:
    """Whether line, guard and settings are right."""
    here = found.site if found is not None else None
    if here is None or (here.file, here.line or site.line) != (site.file, site.line):
        return False, False, False
    said = [one for one in here.conditions if not one.startswith(("for ", "except", "case "))]
    wanted = _bare(f"not {site.guard}" if site.denied else site.guard)
    if site.guard:
        guard = bool(said) and wanted.startswith(_bare(said[-1].removesuffix(" ...")))
    else:
        guard = all(one.startswith("not (") for one in said)
    names = {one.name.rpartition(".")[2] for one in here.settings}
    text = (Path(installed.getsitepackages()[0]) / site.file).read_text(encoding="utf-8", errors="replace")
    there = all(re.search(rf"\b{re.escape(one.name)}", text) for one in here.settings if one.kind != "limit")
    said_values = {one.name: one.value for one in here.settings if one.origin in ("", "log")}
    if site.reached:
        values = all(value in site.reached for value in said_values.values())
    else:
        values = all(said_values.get(name, value) == value for name, value in site.values.items())
    return True, guard, set(site.settings) <= names and there and values


def _bare(text: str) -> str:
    """TEXT without what says nothing: white space, quotes, brackets, commas at an end."""
    return re.sub(r"[\s()'\",\\]|(?<![\w])[rfb](?=['\"])", "", text)


def cold(sites: list[Site], path: Path) -> str:
    """Processor time of the whole command, playbooks included, on the tracebacks out of the five largest files."""
    root, times = Path(installed.getsitepackages()[0]), list[float]()
    for site in sorted(sites, key=lambda site: -(root / site.file).stat().st_size)[:5]:
        path.write_text(traceback_of(site, False), encoding="utf-8")
        before = sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
        subprocess.run([sys.executable, "-m", "rlcheck", "diagnose", str(path)], stdout=subprocess.DEVNULL, check=False)
        times.append(sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - before)
    return f"cold start {statistics.median(times):.2f} s of processor time, at most {max(times):.2f} s"


def _versions(sites: list[Site]) -> str:
    used = sorted({site.file.split("/")[0] for site in sites})
    return ", ".join(f"{name} {metadata.version(metadata.packages_distributions()[name][0])}" for name in used)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sites", type=int, default=100)
    parser.add_argument("--reach", type=int, default=100, help="stop trying when so many are reached")
    parser.add_argument("--moved", action="store_true")
    parser.add_argument("--recorded", action="store_true")
    parser.add_argument("-v", action="store_true", dest="verbose")
    options = parser.parse_args()
    sites = draw(Path(installed.getsitepackages()[0]), options.sites, random.Random(options.seed))
    reached(sites, options.reach)
    here = environment()
    where = msgspec.structs.replace(here, sites=()) if options.recorded else msgspec.structs.replace(here, records="")
    index, nothing, library = load(), Index(()), Library()
    rows: list[tuple[bool, bool, bool]] = []
    answered = wrong = 0
    before = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    with tempfile.TemporaryDirectory() as directory:
        for site in sites:
            path = Path(directory) / "run.log"
            path.write_text(traceback_of(site, options.moved), encoding="utf-8")
            answer = diagnose(read_logs([str(path)], index), nothing, library, where)
            found = answer.diagnoses[0] if answer.diagnoses else None
            rows.append(judged(site, found))
            answered += found is not None
            wrong += found is not None and not rows[-1][0]
            if options.verbose and not all(rows[-1]):
                print(f"{site.file}:{site.line} {rows[-1]} {found and found.site}\n   {site}")
        seconds = (resource.getrusage(resource.RUSAGE_SELF).ru_utime - before) / len(sites)
        started = cold(sites, Path(directory) / "run.log")
    real = [row for row, site in zip(rows, sites, strict=True) if site.reached]
    for name, some in (("all", rows), ("reached", real)):
        line, guard, setting = (sum(row[at] for row in some) for at in range(3))
        every = sum(all(row) for row in some)
        print(f"{name:8} {len(some)} sites: line {line}, guard {guard}, settings {setting}, all three {every}")
    print(f"{date.today()}, seed {options.seed}{', moved' * options.moved}; {_versions(sites)}")
    print(f"answered {answered}, of them at another place {wrong}; {seconds * 1000:.0f} ms of processor time each")
    print(started)


if __name__ == "__main__":
    main()
