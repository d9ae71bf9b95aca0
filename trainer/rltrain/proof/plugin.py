"""The measuring plug-in `step`: the chain of each capsule, link by link."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import torch

from rlcheck.facts.rollout import Failure, StageTime
from rlcheck.facts.step import LINKS, CapsuleProof, Link, StepFacts
from rltrain.proof import (
    anchor,
    links_advantages,
    links_data,
    links_forward,
    links_gradient,
    links_optimizer,
    links_rewards,
    links_trl,
    links_update,
    links_verl,
)
from rltrain.proof.compare import Unknown
from rltrain.proof.model import CannotBuild, saved_weights
from rltrain.proof.read import BadCapsule, one_line, read
from rltrain.proof.reference import Reference

Tell = Callable[[dict[str, Any]], None]
_SMALL = 20_000_000
"""Parameters below which one thread is faster than two that wait for each other."""
PROOFS: Mapping[str, Callable[[Reference], Link]] = {
    "prompts": links_data.prompts,
    "prompt-ids": links_data.prompt_ids,
    "sampling": links_data.sampling,
    "start-weights": lambda ref: anchor.start_weights(ref.case),
    "engine-weights": links_forward.engine_weights,
    "answers": links_data.answers,
    "engine-log-probs": links_forward.engine_log_probs,
    "old-log-probs": links_forward.old_log_probs,
    "reference-log-probs": links_forward.reference_log_probs,
    "values": links_forward.values,
    "rewards": links_rewards.rewards,
    "advantages": links_advantages.advantages,
    "update-rows": links_update.update_rows,
    "update-log-probs": links_update.update_log_probs,
    "loss": links_update.loss,
    "gradient": links_gradient.gradient,
    "clip": links_optimizer.clip,
    "optimizer": links_optimizer.optimizer,
    "engine-after": links_forward.engine_after,
}
OTHERS: Mapping[str, Mapping[str, Callable[[Reference], Link]]] = {"trl": links_trl.PROOFS, "verl": links_verl.PROOFS}
"""Links of other trainers that are judged otherwise."""


def run(request: Mapping[str, Any], tell: Tell) -> dict[str, Any]:
    """Prove capsules.

    Args:
        request: `capsules`, directories; `checkpoint`: of the weights that the step began with, or null; `score`: the
            file of the user's reward function, or null.
        tell: called with `{"stage": …}` before each link, and with `{"partial": …}` after it.

    Returns:
        `rlcheck.facts.step.StepFacts` as plain data.
    """
    begun, proofs, stages = time.monotonic(), list[CapsuleProof](), list[StageTime]()
    failure: Failure | None = None
    try:
        saved = None if not request.get("checkpoint") else saved_weights(Path(request["checkpoint"]))
        for path in sorted((Path(each) for each in request["capsules"]), key=_step):
            tell({"stage": f"reading {path.name}"})
            ref = Reference(read(path), saved, None if not request.get("score") else Path(request["score"]))
            if ref.size < _SMALL:
                torch.set_num_threads(1)

            def so_far(proof: CapsuleProof, before: tuple[CapsuleProof, ...] = tuple(proofs)) -> None:
                tell({"partial": {"capsules": msgspec.to_builtins((*before, proof))}})

            proof = prove(ref, tell, so_far)
            proofs.append(proof)
            stages.append(StageTime(name=path.name, seconds=proof.seconds))
            tell({"partial": {"capsules": msgspec.to_builtins(proofs), "stages": msgspec.to_builtins(stages)}})
    except (BadCapsule, CannotBuild) as error:
        failure = Failure(stage="reading", kind="capsule", line=one_line(error))
    seconds = round(time.monotonic() - begun, 1)
    return msgspec.to_builtins(
        StepFacts(capsules=tuple(proofs), stages=tuple(stages), seconds=seconds, failure=failure)
    )


def _step(path: Path) -> tuple[str, int]:
    number = path.name.rpartition("_")[2]
    return str(path.parent), int(number) if number.isascii() and number.isdigit() else 0


def prove(ref: Reference, tell: Tell, so_far: Callable[[CapsuleProof], None] = lambda _: None) -> CapsuleProof:
    """Judge each link of one capsule; SO_FAR is told the proof after each, those to come as not reached."""
    begun, step, links = time.monotonic(), ref.case.head.step, list[Link]()
    for name in LINKS:
        tell({"stage": f"step {step}: {name}"})
        links.append(_judged(ref, name))
        rest = [Link(name=each, status="unknown", said="it was not reached") for each in LINKS[len(links) :]]
        so_far(_proof(ref, [*links, *rest], time.monotonic() - begun))
    return _proof(ref, links, time.monotonic() - begun)


def _proof(ref: Reference, links: list[Link], seconds: float) -> CapsuleProof:
    head = ref.case.head
    notes = head.missing
    if head.not_finite:
        more = f" and {len(head.not_finite) - 3} more" if len(head.not_finite) > 3 else ""
        notes = (*notes, f"gradients that were not finite: {'; '.join(head.not_finite[:3])}{more}")
    if len(ref.case.rows) > len(ref.tokens):
        notes = (*notes, f"{len(ref.tokens)} of {len(ref.case.rows)} rows were read: the model is large")
    return CapsuleProof(
        path=str(ref.case.path),
        step=head.step,
        trainer=head.trainer,
        rows=head.rows,
        proven_rows=len(ref.tokens),
        links=tuple(links),
        seconds=round(seconds, 2),
        notes=notes,
    )


def _judged(ref: Reference, name: str) -> Link:
    try:
        own = OTHERS.get(ref.case.head.trainer, {})
        link = (own.get(name) or PROOFS[name])(ref)
        if link.status == "same" and not link.compared:
            return Link(name=name, status="unknown", said=link.said or "there was nothing to compare")
        return link
    except (Unknown, CannotBuild, BadCapsule) as error:
        return Link(name=name, status="unknown", said=one_line(error))
    except Exception as error:  # a capsule that contradicts itself in a way nobody thought of
        kind = type(error).__name__
        return Link(name=name, status="unknown", said=one_line(f"it could not be recomputed: {kind}: {error}"))
