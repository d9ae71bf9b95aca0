"""Runs that others have published, labelled before the doctor saw them: fetch them, judge them, keep the verdicts.

`python -m tests.tools.published_runs CACHE` clones each repository below CACHE (no files of it are kept here), takes
the file at its commit, runs `rlcheck run` on it and prints the verdict beside the label; `--record` writes the verdicts
and the day to `tests/fixtures/published_runs/runs.json`. A repository that is in CACHE as `owner+name` is not cloned.
The label is what a reader said of the curves alone: healthy, sick, foreign (no reinforcement learning), no metrics,
or cannot say.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

RECORD = Path(__file__).parents[1] / "fixtures" / "published_runs" / "runs.json"
LABELS = ("healthy", "sick", "foreign", "no metrics", "cannot say")
_TIMEOUT_S = 600


@dataclass
class Published:
    """One run. `group`: the set in which it was gathered. `refused`: why it cannot be read; empty if it can."""

    id: str
    group: int
    repo: str
    commit: str
    path: str
    trainer: str
    label: str
    reason: str
    refused: str = ""
    fails: list[str] = field(default_factory=list[str])
    warns: list[str] = field(default_factory=list[str])


def load() -> tuple[str, list[Published]]:
    """The day of the record, and its runs."""
    record: dict[str, Any] = json.loads(RECORD.read_text())
    return record["judged"], [Published(**run) for run in record["runs"]]


def fetch(run: Published, cache: Path) -> bytes:
    """The file of RUN at its commit.

    Raises:
        subprocess.CalledProcessError: the repository or the commit is gone.
    """
    place = cache / run.repo.replace("/", "+")
    if not place.is_dir():
        address = f"https://github.com/{run.repo}"
        command = ["git", "clone", "-q", "--filter=blob:none", "--no-checkout", address, str(place)]
        subprocess.run(command, check=True, timeout=_TIMEOUT_S)
    where = place / "repo" if (place / "repo").is_dir() else place
    command = ["git", "-C", str(where), "show", f"{run.commit}:{run.path}"]
    return subprocess.run(command, check=True, capture_output=True, timeout=_TIMEOUT_S).stdout


def judge(run: Published, content: bytes) -> None:
    """Write to RUN what `rlcheck run` says of CONTENT."""
    with tempfile.TemporaryDirectory() as place:
        file = Path(place) / Path(run.path).name
        file.write_bytes(content)
        command = [sys.executable, "-m", "rlcheck", "run", str(file), "--format", "json"]
        found = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_TIMEOUT_S)
        run.fails, run.warns, run.refused = [], [], ""
        if not found.stdout.strip():
            run.refused = found.stderr.strip().replace(f"{place}/", "").removeprefix("rlcheck: ")
            return
    checks: list[dict[str, Any]] = json.loads(found.stdout)["checks"]
    run.fails = [check["id"] for check in checks if check["status"] == "fail"]
    run.warns = [check["id"] for check in checks if check["status"] == "warn"]


def main() -> None:
    """Fetch, judge and print all runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("cache", type=Path, help="directory of clones")
    parser.add_argument("--record", action="store_true", help="write the verdicts")
    chosen = parser.parse_args()
    _, runs = load()
    for run in runs:
        judge(run, fetch(run, chosen.cache))
        words = run.refused or f"fails {','.join(run.fails) or '-'} warns {','.join(run.warns) or '-'}"
        sys.stdout.write(f"{run.group} {run.id:36} {run.label:10} {words}\n")
    false = [run.id for run in runs if run.label == "healthy" and (run.fails or run.refused)]
    sys.stdout.write(f"healthy: {sum(run.label == 'healthy' for run in runs)}, failed or refused of these: {false}\n")
    if chosen.record:
        record = {"judged": date.today().isoformat(), "runs": [asdict(run) for run in runs]}
        RECORD.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
