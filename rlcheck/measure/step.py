"""Capsules of training steps, proven in a process of its own by the trainer's plug-in `step`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from rlcheck.errors import UserError
from rlcheck.facts.step import CapsuleProof, StepFacts
from rlcheck.measure.plugin import ProbeFailed, decoded, run_probe
from rlcheck.measure.rollout.bridge import failure_of

HEAD, PROOF = "capsule.json", "proof.json"
_FILES = (HEAD, "rows.jsonl", "batch.safetensors", "weights.safetensors")
_MOST_BYTES, _MOST_PROOF_BYTES = 256 << 20, 16 << 20
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
    score: Path | None = None,
    python: Sequence[str] = (),
    stage_s: float = STAGE_S,
    on_stage: Callable[[str], None] = lambda _: None,
) -> StepFacts:
    """Recompute the steps of CAPSULES, one after the other.

    Args:
        capsules: directories.
        checkpoint: weights before the step, for capsules that hold a part of them alone.
        score: file of the user's reward function, which is run; without it none is.
        python: the interpreter that has the trainer; empty for the doctor's own.
        stage_s: longest time for one link.
        on_stage: told what is done, before it is.
    """
    request = {
        "capsules": [str(path.resolve()) for path in capsules],
        "checkpoint": None if checkpoint is None else str(checkpoint.resolve()),
        "score": None if score is None else str(score.resolve()),
    }
    digests = {str(path.resolve()): digest_of(path) for path in capsules}
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
    facts = msgspec.structs.replace(
        facts,
        capsules=tuple(msgspec.structs.replace(one, digest=digests.get(one.path, "")) for one in facts.capsules),
    )
    for proof in facts.capsules:
        with suppress(OSError):  # a capsule on a read-only disk is proven as well
            fresh = Path(proof.path) / f".{PROOF}.new"
            fresh.unlink(missing_ok=True)
            with fresh.open("xb") as file:
                file.write(msgspec.json.encode(proof))
            fresh.replace(Path(proof.path) / PROOF)
    return facts


def digest_of(capsule: Path) -> str:
    """SHA-256 over the files of CAPSULE that a proof reads; empty where they cannot be read."""
    digest = hashlib.sha256()
    files = [capsule / name for name in _FILES]
    files += sorted(file for file in (capsule / "tokenizer").rglob("*") if not file.is_dir())
    try:
        for file in files:
            if not file.exists():
                continue
            if not file.is_file() or file.stat().st_size > _MOST_BYTES:
                return ""
            digest.update(f"{file.relative_to(capsule)} {file.stat().st_size}\n".encode())
            with file.open("rb") as opened:
                while block := opened.read(1 << 20):
                    digest.update(block)
    except OSError:
        return ""
    return digest.hexdigest()


def proven_before(run: Path) -> StepFacts | None:
    """What earlier calls found of the capsules below RUN as they are now; None where they found nothing."""
    proofs: list[CapsuleProof] = []
    for file in sorted(run.glob(f"capsules/step_*/{PROOF}"), key=lambda file: _step(file.parent)):
        with suppress(OSError, ValueError):
            if not file.is_file() or file.stat().st_size > _MOST_PROOF_BYTES:
                continue
            proof = msgspec.json.decode(file.read_bytes(), type=CapsuleProof)
            if proof.digest and proof.digest == digest_of(file.parent):
                proofs.append(msgspec.structs.replace(proof, path=str(file.parent)))
    return StepFacts(capsules=tuple(proofs), seconds=sum(proof.seconds for proof in proofs)) if proofs else None
