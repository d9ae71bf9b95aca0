"""What a served engine needs of one kind of server."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from rltrain.workers.rollout.protocol import Answer, Request, Sampling, WakeTag
from rltrain.workers.sync.wire import Call


@dataclass(frozen=True)
class Asked:
    """One request on its way to a server."""

    request: Request
    sampling: Sampling
    most: int
    """Tokens that its answer may have: what `max_model_len` leaves of `max_tokens`."""


@dataclass(frozen=True)
class Description:
    """What a server says of itself."""

    version: str
    model: str
    """As requests name it."""
    max_model_len: int
    """0: it does not say."""
    tensor_parallel: int
    """0: it does not say."""
    loads_weights: bool
    """It runs rltrain's part, which loads weights and reads them back."""
    sleeps: bool
    """It can give its memory back."""


Give = Callable[[str, Answer], None]
"""Told the answer of a request, by its ID."""


class Dialect(Protocol):
    """How one kind of server is spoken to."""

    engine: str
    """vllm, sglang."""
    weights_advice: str
    """How to start one so that it takes weights."""
    draw_advice: str
    """How to start one so that its log-probabilities are of the distribution that it draws from."""

    def describe(self) -> Description:
        """Ask the server what it is.

        Raises:
            RunFailure: it does not answer.
        """
        ...

    def parameters(self, asked: Asked) -> dict[str, Any]:
        """The parameters of a request, by the server's own names."""
        ...

    async def generate(self, batch: Mapping[str, Asked], give: Give) -> None:
        """Ask for a BATCH of requests by their IDs, and GIVE each answer as it comes."""
        ...

    async def abort(self, ids: Sequence[str]) -> None:
        """Let the server forget requests, where closing their connection does not do it."""
        ...

    def do(self, call: Call, timeout_s: float) -> list[Any]:
        """Let rltrain's part in the server do CALL; what each of its processes answers.

        Raises:
            RunFailure: with the words of the process that could not.
        """
        ...

    def sleep(self, timeout_s: float) -> None:
        """Give the device's memory back; nothing is generated. Weights are forgotten."""
        ...

    def wake(self, tag: WakeTag, timeout_s: float) -> None:
        """Bring memory back."""
        ...

    def forget_prefixes(self, timeout_s: float) -> None:
        """Forget cached prefixes.

        Raises:
            RunFailure: requests are running.
        """
        ...
