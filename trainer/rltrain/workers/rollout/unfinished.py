"""Answers that are begun and taken out of the engine: how they go on from their tokens so far, and are whole again."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from rltrain.core.trajectory import FloatArray, IntArray, Spans, float_array, id_tuple, int_array
from rltrain.workers.rollout.protocol import Completion, Request, Sampling, SoFar


@dataclass(frozen=True, eq=False)
class Unfinished:
    """What one request has so far, of all the weights that wrote on it."""

    token_ids: IntArray
    log_probs: FloatArray | None
    versions: Spans

    @classmethod
    def nothing(cls) -> Unfinished:
        """Before the first token."""
        return cls(int_array(), None, ())

    def grown(self, more: SoFar, version: int) -> Unfinished:
        """This and MORE behind it, which weights of VERSION wrote."""
        if not len(more.token_ids):
            return self
        return Unfinished(
            int_array(np.concatenate([self.token_ids, more.token_ids])),
            _joined(self.log_probs, more.log_probs, len(self.token_ids)),
            self._spans(((0, version),)),
        )

    def rest(self, request: Request, sampling: Sampling) -> tuple[Request, Sampling]:
        """What asks for the rest of the answer to REQUEST. Its draws are others than those of the first part."""
        done = len(self.token_ids)
        if not done:
            return request, sampling
        rest = replace(
            request, prompt_ids=request.prompt_ids + id_tuple(self.token_ids), seed=seed_behind(request.seed, done)
        )
        least, most = max(sampling.min_tokens - done, 0), sampling.max_tokens - done
        return rest, replace(sampling, min_tokens=least, max_tokens=most)

    def completed(self, rest: Completion) -> Completion:
        """The whole answer that ends with REST."""
        done = len(self.token_ids)
        if not done:
            return rest
        return Completion(
            int_array(np.concatenate([self.token_ids, rest.token_ids])),
            _joined(self.log_probs, rest.log_probs, done),
            rest.finish_reason,
            rest.prompt_ids[: len(rest.prompt_ids) - done],
            self._spans(rest.versions),
        )

    def _spans(self, more: Spans) -> Spans:
        found = list(self.versions)
        for first, version in more:
            if not found or found[-1][1] != version:
                found.append((first + len(self.token_ids), version))
        return tuple(found)


def seed_behind(seed: int, done: int) -> int:
    """The seed of what follows the first DONE tokens of the answer with SEED, 0 <= seed < 2^31."""
    return int.from_bytes(hashlib.sha256(f"{seed}+{done}".encode()).digest()[:4], "big") >> 1


def _joined(first: FloatArray | None, second: FloatArray | None, done: int) -> FloatArray | None:
    """Both, of which the first has DONE values; None where they were not asked for."""
    if second is None or (first is None and done):
        return None
    return second if first is None else float_array(np.concatenate([first, second]))
