"""What the controller saw of one step that the batch does not hold: kept for its capsule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from rltrain.core.batch import Sample
from rltrain.rewards.request import RewardRequest
from rltrain.workers.rollout.protocol import Completion, Request, Sampling

Key = tuple[str, int]
"""`uid` and `sample` of a sample."""


@dataclass
class Witness:
    """One step. What greedy baselines ask for the same samples comes second: of it the texts alone are kept.

    `log_probs_of`: the engine is asked for those of one answer in so many, if for any; 0: for no more than training
    reads.
    """

    log_probs_of: int = 0
    sampling: Sampling | None = None
    requests: dict[Key, Request] = field(default_factory=dict[Key, Request])
    completions: dict[Key, Completion] = field(default_factory=dict[Key, Completion])
    texts: dict[Key, str] = field(default_factory=dict[Key, str])
    baselines: dict[Key, str] = field(default_factory=dict[Key, str])

    def generated(
        self, samples: Sequence[Sample], requests: Sequence[Request], sampling: Sampling, answers: Sequence[Completion]
    ) -> None:
        """The engines were asked REQUESTS for SAMPLES, and gave ANSWERS."""
        self.sampling = self.sampling or sampling
        if sampling != self.sampling:
            return
        for sample, request, answer in zip(samples, requests, answers, strict=True):
            self.requests[sample.uid, sample.sample] = request
            self.completions[sample.uid, sample.sample] = answer

    def scored(self, requests: Sequence[RewardRequest]) -> None:
        """The rewards were asked REQUESTS."""
        for request in requests:
            key = (request.uid, request.sample)
            texts = self.baselines if key in self.texts else self.texts
            texts.setdefault(key, request.solution_str)
