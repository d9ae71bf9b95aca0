"""One measurement of `rlcheck drift`, and a table of all:

drift_gpu.py measure RECORD CONFIG [--batch-invariant] [--operations] [key=value ...]
drift_gpu.py table RECORD...
"""

from __future__ import annotations

import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from rlcheck import __version__
from rlcheck.cli.facts_files import recorded, write_record
from rlcheck.facts.base import Fact, known
from rlcheck.facts.document import Facts
from rlcheck.facts.drift import DriftFacts, OperationGap
from rlcheck.measure.config.whole import read_whole
from rlcheck.measure.drift.bridge import DriftOptions, examine_drift


def measure(record: Path, config: str, overrides: Sequence[str], batch_invariant: bool, operations: bool) -> None:
    """Start both sides, compare them, write RECORD; nothing is changed and tried again."""
    begun = time.monotonic()

    def tell(stage: str) -> None:
        print(f"  {time.monotonic() - begun:5.0f} s  {stage}", flush=True)

    options = DriftOptions(
        num_prompts=32, explain=False, operations=operations, batch_invariant=batch_invariant, budget_s=1.0
    )
    with tempfile.TemporaryDirectory(prefix="drift-") as directory:
        run = read_whole(config, tuple(overrides))
        found = examine_drift(run, config, overrides, directory, options, start_s=240.0, stage_s=120.0, on_stage=tell)
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    write_record(
        record,
        [Facts(rlcheck_version=__version__, node=socket.gethostname(), collected_at=now, drift=known(found))],
    )
    show(record.stem, found)


def show(name: str, found: DriftFacts) -> None:
    """What was found, in some lines."""
    mode = "batch-invariant" if found.batch_invariant else "as it is"
    print(f"{name}: {found.engine} {found.engine_version}, {found.rollout_dtype} and {found.train_dtype}, {mode}")
    if found.failure is not None:
        print(f"  failed in '{found.failure.stage}': {found.failure.line}")
        for line in found.failure.tail[-12:]:
            print(f"    {line}")
    gap = found.gap.value
    if gap is None:
        print(f"  not measured: {_why(found.gap)}")
    else:
        print(
            f"  {gap.num_tokens} tokens: |dp| mean {gap.probs_diff_mean:.3g} max {gap.probs_diff_max:.3g} std "
            f"{gap.probs_diff_std:.3g}; |d log p| mean {gap.log_probs_diff_mean:.3g} max {gap.log_probs_diff_max:.3g}"
        )
        print(
            f"  k1 {gap.kl:.3g} k3 {gap.k3_kl:.3g} ratio {gap.is_mean:.4f} +- {gap.is_std:.3g} ESS {gap.ess:.4f} "
            f"corr {gap.corr} slope {gap.slope}"
        )
    operations = found.operations.value
    if operations is None:
        print(f"  operations: {_why(found.operations)}")
    else:
        show_operations(operations)
    for note in found.notes:
        print(f"  note: {note}")
    print("  " + ", ".join(f"{stage.name} {stage.seconds:.0f} s" for stage in found.stages), flush=True)


def _why(fact: Fact[Any]) -> str:
    return "not asked for" if fact.missing is None else fact.missing.reason


def show_operations(operations: Sequence[OperationGap]) -> None:
    """Where the difference enters first, and what each kind of operation adds by itself over all layers."""
    first = next((one for one in operations if one.input_equal and not one.equal), None)
    entry = "nowhere: all are equal to the bit" if first is None else f"layer {first.layer}, {first.name}"
    print(f"  the difference enters first in: {entry}")
    kinds: dict[str, list[OperationGap]] = {}
    for one in operations:
        kinds.setdefault(one.name, []).append(one)
    print(f"  {'operation':26} {'differ':>7} {'by itself':>9} {'own, relative':>13} {'own max':>9} {'in all':>9}")
    for name, ones in kinds.items():
        scale = sum(one.scale for one in ones) / len(ones) or 1.0
        own = sum(one.own_mean_diff or 0.0 for one in ones) / len(ones) / scale
        whole = sum(one.mean_diff for one in ones) / len(ones) / scale
        largest = max(one.own_max_diff or 0.0 for one in ones)
        differ, alone = sum(not one.equal for one in ones), sum(bool(one.own_max_diff) for one in ones)
        print(f"  {name:26} {differ:3}/{len(ones):<3} {alone:5}/{len(ones):<3} {own:13.2e} {largest:9.2e} {whole:9.2e}")


def table(records: Sequence[Path]) -> None:
    """All records again, one after the other."""
    for record in records:
        for facts in recorded(record):
            if facts.drift.value is not None:
                show(record.stem, facts.drift.value)


def main(words: Sequence[str]) -> None:
    options = [word for word in words if word.startswith("--")]
    command, *rest = [word for word in words if not word.startswith("--")]
    if command == "table":
        table([Path(word) for word in rest])
    else:
        record, config, *overrides = rest
        measure(Path(record), config, overrides, "--batch-invariant" in options, "--operations" in options)


if __name__ == "__main__":
    main(sys.argv[1:])
