"""Answers in a checkpoint: those that the next step learns from, made by weights that no checkpoint holds any more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from rltrain.core.errors import UserError
from rltrain.core.trajectory import float_array, int_array
from rltrain.workers.rollout.protocol import Completion, FinishReason, Request

FILE = "answers.npz"


@dataclass(frozen=True, eq=False)
class Saved:
    """The answers of one step."""

    step: int
    seeds: tuple[int, ...]
    completions: tuple[Completion, ...]

    def fits(self, step: int, requests: Sequence[Request]) -> bool:
        """Whether they are of STEP, and answer REQUESTS: a seed names run, step, prompt and sample."""
        return step == self.step and self.seeds == tuple(one.seed for one in requests)


def save(directory: Path, step: int, requests: Sequence[Request], completions: Sequence[Completion]) -> None:
    """Write COMPLETIONS, which answer REQUESTS of STEP, into DIRECTORY.

    Raises:
        OSError: it cannot be written.
    """
    log_probs = [float_array() if one.log_probs is None else one.log_probs for one in completions]
    versions = [np.asarray([number for span in one.versions for number in span], np.int64) for one in completions]
    fields: dict[str, NDArray[Any]] = {
        "step": np.asarray(step),
        "seeds": np.asarray([one.seed for one in requests], np.int64),
        "reasons": np.asarray([one.finish_reason for one in completions]),
        "has_log_probs": np.asarray([one.log_probs is not None for one in completions]),
        **_packed("tokens", [one.token_ids for one in completions]),
        **_packed("prompts", [one.prompt_ids for one in completions]),
        **_packed("log_probs", log_probs),
        **_packed("versions", versions),
    }
    np.savez(directory / FILE, allow_pickle=False, **fields)


def load(directory: Path) -> Saved | None:
    """What `save` wrote into DIRECTORY; None: a run of another kind made the checkpoint.

    Raises:
        UserError: it cannot be read.
    """
    path = directory / FILE
    if not path.is_file():
        return None
    try:
        with np.load(path, allow_pickle=False) as file:
            held = dict(file)
        parts = [_unpacked(held, name) for name in ("tokens", "prompts", "log_probs", "versions")]
        reasons: list[FinishReason] = held["reasons"].tolist()
        completions = tuple(
            Completion(
                int_array(tokens),
                float_array(log_probs) if is_there else None,
                reason,
                int_array(prompt),
                tuple((int(first), int(version)) for first, version in versions.reshape(-1, 2)),
            )
            for tokens, prompt, log_probs, versions, is_there, reason in zip(
                *parts, held["has_log_probs"].tolist(), reasons, strict=True
            )
        )
        return Saved(int(held["step"]), tuple(held["seeds"].tolist()), completions)
    except (OSError, ValueError, KeyError, BadZipFile) as error:
        raise UserError(f"{path} cannot be read: {error}; go on from an earlier checkpoint") from None


def _packed(name: str, parts: Sequence[NDArray[Any]]) -> dict[str, NDArray[Any]]:
    lengths = np.array([len(one) for one in parts], np.int64)
    return {name: np.concatenate(parts) if parts else np.array((), np.int32), f"{name}_lengths": lengths}


def _unpacked(held: dict[str, NDArray[Any]], name: str) -> list[NDArray[Any]]:
    lengths = held[f"{name}_lengths"]
    return np.split(held[name], np.cumsum(lengths)[:-1]) if len(lengths) else []
