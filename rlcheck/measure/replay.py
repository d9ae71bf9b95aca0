"""Captured steps, run again by the trainer's plug-in `replay` in a process of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from rlcheck.facts.step import StepFacts
from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe
from rlcheck.measure.rollout.bridge import failure_of

START_S = 900.0
"""Longest silence: Ray and the models start, and one step is trained."""
TOTAL_S = 7200.0


def again(
    capsules: Sequence[Path],
    checkpoint: Path | None = None,
    *,
    each_device: bool = False,
    python: Sequence[str] = (),
    stage_s: float = START_S,
    on_stage: Callable[[str], None] = lambda _: None,
) -> StepFacts:
    """Run the steps of CAPSULES again, one after the other.

    Args:
        capsules: directories.
        checkpoint: what the step began with, for capsules that hold a part of it alone.
        each_device: run the first micro batch on every device of this machine, in the place of the whole step.
        python: the interpreter that has the trainer; empty for the doctor's own.
        stage_s: longest silence.
        on_stage: told what is done, before it is.
    """
    request = {
        "capsules": [str(path.resolve()) for path in capsules],
        "checkpoint": None if checkpoint is None else str(checkpoint.resolve()),
        "each_device": each_device,
    }
    with tempfile.TemporaryDirectory(prefix="rlcheck-replay-") as directory:
        try:
            found = run_probe(
                python,
                "replay",
                request,
                stage_timeout_s=stage_s,
                total_timeout_s=max(TOTAL_S, stage_s),
                on_stage=lambda stage, done, total: on_stage(stage),
                # Models and logs are made there, and go with it.
                environ=os.environ | {"TMPDIR": directory},
            )
            return decoded(found, StepFacts, "not run again")
        except ProbeFailed as error:
            failure = failure_of(error)
            return msgspec.structs.replace(error.facts(StepFacts, f"not reached: {failure.line}"), failure=failure)
