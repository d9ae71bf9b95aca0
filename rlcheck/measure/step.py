"""Capsules of training steps, proven in a process of its own by the trainer's plug-in `step`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.step import CapsuleProof, StepFacts
from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe
from rlcheck.measure.rollout.bridge import failure_of

HEAD, PROOF = "capsule.json", "proof.json"
STAGE_S = 600.0
"""One link of one capsule."""
TOTAL_S = 3600.0


def capsules_of(paths: Sequence[Path]) -> tuple[Path, ...]:
    """The capsules that PATHS name: each a capsule, a run directory, or its `capsules`; in the order of their steps.

    Raises:
        UserError: a path that holds none.
    """
    found: list[Path] = []
    for path in paths:
        if path.name == HEAD:
            path = path.parent
        if (path / HEAD).is_file():
            found.append(path)
            continue
        within = [head.parent for place in (path, path / "capsules") for head in place.glob(f"step_*/{HEAD}")]
        if not within:
            reason = "no capsule of a step in it" if path.is_dir() else "no such directory"
            raise UserError(f"{path}: {reason}; rltrain run CONFIG --capsule STEP keeps one in RUN_DIR/capsules")
        found += sorted(within, key=_step)
    return tuple(dict.fromkeys(found))


def _step(capsule: Path) -> int:
    number = capsule.name.rpartition("_")[2]
    return int(number) if number.isdigit() else 0


def prove(
    capsules: Sequence[Path],
    checkpoint: Path | None = None,
    *,
    python: Sequence[str] = (),
    stage_s: float = STAGE_S,
    on_stage: Callable[[str], None] = lambda _: None,
) -> StepFacts:
    """Recompute the steps of CAPSULES, one after the other.

    Args:
        capsules: directories.
        checkpoint: weights before the step, for capsules that hold a part of them alone.
        python: the interpreter that has the trainer; empty for the doctor's own.
        stage_s: longest time for one link.
        on_stage: told what is done, before it is.
    """
    request = {
        "capsules": [str(path.resolve()) for path in capsules],
        "checkpoint": None if checkpoint is None else str(checkpoint.resolve()),
    }
    try:
        found = run_probe(
            python,
            "step",
            request,
            stage_timeout_s=stage_s,
            total_timeout_s=max(TOTAL_S, stage_s),
            on_stage=lambda stage, done, total: on_stage(stage),
        )
        facts = decoded(found, StepFacts, "not proven")
    except ProbeFailed as error:
        failure = failure_of(error)
        return msgspec.structs.replace(error.facts(StepFacts, f"not reached: {failure.line}"), failure=failure)
    for proof in facts.capsules:
        with suppress(OSError):  # a capsule on a read-only disk is proven as well
            fresh = Path(proof.path) / f".{PROOF}.new"
            fresh.unlink(missing_ok=True)
            with fresh.open("xb") as file:
                file.write(msgspec.json.encode(proof))
            fresh.replace(Path(proof.path) / PROOF)
    return facts


def proven_before(run: Path) -> StepFacts | None:
    """What earlier calls found of the capsules below RUN; None where they found nothing."""
    proofs: list[CapsuleProof] = []
    for file in sorted(run.glob(f"capsules/step_*/{PROOF}"), key=lambda file: _step(file.parent)):
        with suppress(OSError, ValueError):
            proofs.append(msgspec.json.decode(file.read_bytes(), type=CapsuleProof))
    return StepFacts(capsules=tuple(proofs), seconds=sum(proof.seconds for proof in proofs)) if proofs else None
