"""What rollout engines offer, and the values that cross to them: plain and picklable, arrays of NumPy.

An engine says by its methods what it can do: every one `Generates`; one whose weights the trainer sets `Syncs`; one
whose answers may go on with other weights `Continues`; one that can be looked into `Diagnoses`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from rltrain.core.trajectory import BoolArray, FloatArray, IntArray, Spans, Trajectory, int_array
from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.transport import Descriptor

FinishReason = Literal["stop", "length"]
WakeTag = Literal["weights", "kv_cache"]


@dataclass(frozen=True)
class Request:
    """One completion to sample."""

    prompt_ids: tuple[int, ...]
    seed: int
    """Of this completion alone (`sampling.request_seed`)."""
    log_probs: bool = True
    """Compute those of the sampled tokens. They cost an engine time, and change no draw."""


@dataclass(frozen=True)
class Sampling:
    """How to sample.

    `temperature` 0 is greedy: the likeliest token is taken, and its log-probability is that of the model's own
    distribution (temperature 1), since under a greedy policy it would always be 0.
    """

    temperature: float
    top_p: float
    top_k: int
    """-1: all tokens."""
    min_tokens: int
    max_tokens: int
    stop: tuple[str, ...]
    """Strings that end a completion; their tokens stay in it."""
    stop_token_ids: tuple[int, ...]
    """Tokens that end a completion, like that of the end of sequence; they stay in it."""
    ignore_eos: bool


@dataclass(frozen=True, eq=False)
class Completion:
    """What was sampled for one request."""

    token_ids: IntArray
    """`[N]`, including the final end-of-sequence token, where there is one."""
    log_probs: FloatArray | None
    """`[N]`: of each token under the distribution that it was drawn from: after temperature, min-tokens, top-k and
    top-p, and normalised again over the tokens that these leave. That is the behaviour policy, which importance weights
    divide by. The actor's own log-probabilities know the temperature alone, so the two agree where nothing is cut. None
    where the request did not ask for them."""
    finish_reason: FinishReason
    prompt_ids: IntArray = field(default_factory=int_array)
    """The prompt as the engine read it; empty where the engine does not say."""
    versions: Spans = ()
    """Of the weights that the engine had loaded (`Descriptor.version`), by its own count."""

    def trajectory(self) -> Trajectory:
        """An answer of one turn, as training reads it."""
        mask: BoolArray = np.broadcast_to(np.array(True), self.token_ids.shape)
        truncated = self.finish_reason == "length"
        return Trajectory(self.token_ids, mask, self.log_probs, self.versions, truncated, self.prompt_ids)


@dataclass(frozen=True, eq=False)
class SoFar:
    """The beginning of an answer: as in `Completion`."""

    token_ids: IntArray
    log_probs: FloatArray | None


Numbered = Sequence[tuple[int, Request]]
"""Requests under the numbers by which their answers are known."""
Answer = Completion | str
"""What the engine sampled, or why it gave the request up."""


@runtime_checkable
class Counts(Protocol):
    """An engine that says how busy it is."""

    def counters(self) -> dict[str, float]:
        """As `rltrain.workers.rollout.flow.COUNTERS` names them; those that it does not know are left out."""
        ...


class Generates(Protocol):
    """Samples completions, many at a time. `stream.Stream` drives it, from one thread."""

    def add(self, number: int, request: Request, sampling: Sampling) -> None:
        """Take REQUEST in under NUMBER; nothing is computed yet.

        Raises:
            UserError: the engine does not sample like that.
            RunFailure: the prompt is too long.
        """
        ...

    def step(self) -> list[tuple[int, Answer]]:
        """Go on for a moment, such as one token of each; what has ended in it. Those are forgotten here."""
        ...

    def abort(self, numbers: Collection[int]) -> None:
        """Forget requests; nothing comes of them."""
        ...

    def sampled(self, sampling: Sampling) -> dict[str, Any]:
        """What the engine made of SAMPLING when it was last asked for it, by its own names; plain JSON, or empty."""
        ...


@runtime_checkable
class Syncs(Protocol):
    """Takes weights from the training ranks. Calls come while nothing is generated."""

    def connect_sync(self, address: Address, first_rank: int) -> None:
        """Join the broadcast group of weight sync; this engine's processes are members FIRST_RANK, FIRST_RANK + 1 …"""
        ...

    def load_bucket(self, descriptor: Descriptor) -> None:
        """Load a bucket of weights; return when the publisher may reuse its buffer.

        Raises:
            RunFailure: weights are missing or unknown to the engine.
        """
        ...

    def wake(self, tag: WakeTag) -> None:
        """Bring back device memory for weights (contents undefined until loaded) or the KV cache."""
        ...

    def sleep(self) -> bool:
        """Give device memory back, if this engine can; whether its weights are forgotten and must be loaded again."""
        ...

    def reset_prefix_cache(self) -> None:
        """Forget cached prefixes: keys and values of other weights."""
        ...


@runtime_checkable
class Continues(Protocol):
    """Says what it has of answers that it has not ended, so that they can go on elsewhere, or with other weights."""

    def so_far(self, numbers: Collection[int]) -> Mapping[int, SoFar]:
        """Of each request of NUMBERS, all of them under way; empty where no token is there yet."""
        ...


@runtime_checkable
class Diagnoses(Protocol):
    """Can be looked into."""

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Checksums (`rltrain.workers.sync.checksum`) of what the engine computes with, under the published NAMES."""
        ...

    def trace(self, prompt_ids: Sequence[int], num_tokens: int, file: str) -> list[int]:
        """Read PROMPT_IDS (4 at least), sample NUM_TOKENS greedily, and write what each operation gave on the way.

        FILE (safetensors) gets `[tokens, features]` under the names of `rltrain.tracing.names`, for all tokens but the
        last, and `log_probs` of the token that follows each.

        Returns:
            The prompt and what was sampled.

        Raises:
            UserError: this engine, or this setting of it, cannot be listened to.
            RunFailure: the sequence is too long.
        """
        ...


class RolloutEngine(Generates, Protocol):
    """One engine. Calls come one at a time."""

    def start(self) -> dict[str, Any]:
        """Make the engine, with random weights; facts about it (name, version, seconds, memory).

        Raises:
            UserError: the config asks for what the engine does not have, or the engine does not serve the model.
        """
        ...

    def stop(self) -> None:
        """End the engine and its processes."""
        ...
