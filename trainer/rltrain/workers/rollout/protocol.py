"""What every rollout engine offers, and the values that cross to it: plain, picklable, without tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.transport import Descriptor

FinishReason = Literal["stop", "length"]
WakeTag = Literal["weights", "kv_cache"]
OnProgress = Callable[[int, int], None]
"""Called with (requests done, requests in all)."""


@dataclass(frozen=True)
class Request:
    """One completion to sample."""

    prompt_ids: tuple[int, ...]
    seed: int
    """Of this completion alone (`sampling.request_seed`)."""


@dataclass(frozen=True)
class Sampling:
    """How to sample, the same for all requests of a call.

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
    log_probs: bool = True
    """Compute those of the sampled tokens."""


@dataclass(frozen=True)
class Completion:
    """What was sampled for one request."""

    token_ids: tuple[int, ...]
    """Including the final end-of-sequence token, where there is one."""
    log_probs: tuple[float, ...]
    """Of each token under the distribution that it was drawn from: after temperature, min-tokens, top-k and top-p, and
    normalised again over the tokens that these leave. That is the behaviour policy, which importance weights divide by.
    The actor's own log-probabilities know the temperature alone, so the two agree where nothing is cut. Empty where
    `Sampling.log_probs` is false."""
    finish_reason: FinishReason
    prompt_ids: tuple[int, ...] = ()
    """The prompt as the engine read it; empty where the engine does not say."""
    policy_version: int = -1
    """Of the weights that the engine had loaded (`Descriptor.version`), by its own count."""


class RolloutEngine(Protocol):
    """One engine. Calls come one at a time: wake weights, load buckets, wake the KV cache, generate …, sleep."""

    def start(self) -> dict[str, Any]:
        """Make the engine, with random weights; facts about it (name, version, seconds, memory).

        Raises:
            UserError: the config asks for what the engine does not have, or the engine does not serve the model.
        """
        ...

    def generate(
        self, requests: Sequence[Request], sampling: Sampling, on_progress: OnProgress | None = None
    ) -> list[Completion]:
        """One completion for each of REQUESTS, in their order.

        Raises:
            UserError: the engine does not sample like that.
            RunFailure: a prompt is too long, or the engine returned no tokens.
        """
        ...

    def sampled(self) -> dict[str, Any]:
        """How the last call of `generate` sampled: what the engine made of `Sampling`, by its own names; plain JSON."""
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

    def connect_sync(self, address: Address, first_rank: int) -> None:
        """Join the broadcast group of weight sync; this engine's processes are members FIRST_RANK, FIRST_RANK + 1 …"""
        ...

    def load_bucket(self, descriptor: Descriptor) -> None:
        """Load a bucket of weights; return when the publisher may reuse its buffer.

        Raises:
            RunFailure: weights are missing or unknown to the engine.
        """
        ...

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Checksums (`rltrain.workers.sync.checksum`) of what the engine computes with, under the published NAMES."""
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

    def stop(self) -> None:
        """End the engine and its processes."""
        ...
