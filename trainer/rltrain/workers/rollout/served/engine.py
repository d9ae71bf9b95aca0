"""An engine behind HTTP: requests go out when it is stepped, answers come in meanwhile, weights by calls as well."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from rltrain.config.schema import RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.hf import check_length
from rltrain.workers.rollout.protocol import Answer, Request, Sampling, WakeTag
from rltrain.workers.rollout.served.client import Client
from rltrain.workers.rollout.served.dialect import Asked, Dialect
from rltrain.workers.sync.broadcast import Address
from rltrain.workers.sync.checksum import Piece, combine
from rltrain.workers.sync.transport import Descriptor
from rltrain.workers.sync.wire import Call, unpacked_pieces

STEP_S = 0.05
"""How long a step waits for an answer."""


class ServedEngine:
    """What engines behind HTTP share; `start` and `stop` are theirs. See `RolloutEngine`."""

    def __init__(self, config: RunConfig) -> None:
        self._config = config
        self._rollout = config.actor_rollout_ref.rollout
        self._limit_s = self._rollout.start_timeout_s
        shares = config.trainer.device == "cuda" and config.actor_rollout_ref.hybrid_engine
        self._sleeps = shares and self._rollout.free_cache_engine
        self._asleep: set[WakeTag] = set()
        self._client: Client | None = None
        self._dialect: Dialect | None = None
        self._run = uuid.uuid4().hex[:8]
        """IDs of requests are this engine's own: a server may have other clients."""
        self._new: dict[str, Asked] = {}
        self._numbers: dict[str, int] = {}
        """Of what is under way, by ID."""
        self._ended: list[tuple[int, Answer]] = []
        self._event = asyncio.Event()
        self._failure: BaseException | None = None
        self._asks = 0
        self._sampled: dict[Sampling, dict[str, Any]] = {}

    def add(self, number: int, request: Request, sampling: Sampling) -> None:
        """See `Generates.add`."""
        longest = self._rollout.max_model_len
        assert longest is not None
        check_length(len(request.prompt_ids), longest)
        self.refuse(sampling, request.log_probs)
        self._asks += 1
        name = f"{self._run}-{self._asks}"
        asked = Asked(request, sampling, min(sampling.max_tokens, longest - len(request.prompt_ids)))
        self._new[name], self._numbers[name] = asked, number
        if sampling not in self._sampled:
            shared = self.dialect.parameters(asked)
            self._sampled[sampling] = {key: value for key, value in shared.items() if "seed" not in key}

    def refuse(self, sampling: Sampling, log_probs: bool) -> None:
        """Raise UserError where this server does not sample like SAMPLING, or tells no LOG_PROBS of it."""

    def step(self) -> list[tuple[int, Answer]]:
        """Send what is new, and wait a moment for answers.

        Raises:
            RunFailure: the server is gone, or refuses.
        """
        if self._new:
            batch, self._new = self._new, {}
            self.client.begin(self._ask(batch))
        if not self._ended and self._failure is None:
            self.client.run(self._wait())
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self.broke(failure)
            raise failure
        found, self._ended = self._ended, []
        return found

    def broke(self, failure: BaseException) -> None:
        """A call has failed: look whether the server is there."""

    def abort(self, numbers: Collection[int]) -> None:
        """See `Generates.abort`."""
        gone = {name for name, number in self._numbers.items() if number in set(numbers)}
        sent = [name for name in gone if name not in self._new]
        for name in gone:
            del self._numbers[name]
            self._new.pop(name, None)
        self._ended = [(number, answer) for number, answer in self._ended if number not in set(numbers)]
        if sent:
            self.client.run(self.dialect.abort(sent))

    def sampled(self, sampling: Sampling) -> dict[str, Any]:
        """See `Generates.sampled`."""
        return self._sampled.get(sampling, {})

    def connect_sync(self, address: Address, first_rank: int) -> None:
        """See `Syncs.connect_sync`."""
        self._do(Call("connect", address=address, first_rank=first_rank))

    def load_bucket(self, descriptor: Descriptor) -> None:
        """See `Syncs.load_bucket`."""
        self._do(Call("load", descriptor=descriptor))

    def checksums(self, names: Sequence[str]) -> dict[str, str]:
        """Read back in the server from the layers of each of its processes; see `rollout/readback.py`."""
        held: dict[str, list[Piece]] = defaultdict(list)
        for process in self._do(Call("pieces", names=tuple(names))):
            for name, parts in unpacked_pieces(process).items():
                held[name] += parts
        return {name: combine(held[name]) for name in names}

    def trace(self, prompt_ids: Sequence[int], num_tokens: int, file: str) -> list[int]:
        """See `Diagnoses.trace`: a server is not listened to."""
        name = self._rollout.name
        raise UserError(f"operations are not traced with actor_rollout_ref.rollout.name={name}; set name=vllm or hf")

    def wake(self, tag: WakeTag) -> None:
        """See `Syncs.wake`."""
        if tag in self._asleep:  # one that has just been started again is awake
            self.dialect.wake(tag, self._limit_s)
            self._asleep.remove(tag)

    def sleep(self) -> bool:
        """See `Syncs.sleep`. Nothing where the server has its own devices or `free_cache_engine` is off."""
        if self._sleeps and not self._asleep:
            self.dialect.sleep(self._limit_s)
            self._asleep = {"weights", "kv_cache"}
        return self._sleeps

    def reset_prefix_cache(self) -> None:
        """See `Syncs.reset_prefix_cache`."""
        try:
            self.dialect.forget_prefixes(self._limit_s)
        except RunFailure as failure:
            self.broke(failure)
            raise

    @property
    def client(self) -> Client:
        """Of the server that has started."""
        assert self._client is not None, "the engine has not started"
        return self._client

    @property
    def dialect(self) -> Dialect:
        """Of the server that has started."""
        assert self._dialect is not None, "the engine has not started"
        return self._dialect

    def _do(self, call: Call) -> list[Any]:
        try:
            return self.dialect.do(call, self._limit_s)
        except RunFailure as failure:
            self.broke(failure)
            raise

    async def _ask(self, batch: Mapping[str, Asked]) -> None:
        try:
            await self.dialect.generate(batch, self._give)
            for name in [name for name in batch if name in self._numbers]:
                self._give(name, f"{self.dialect.engine} dropped request {name}")
        except Exception as error:  # raised by the next step
            self._failure = error
        self._event.set()

    def _give(self, name: str, answer: Answer) -> None:
        number = self._numbers.pop(name, None)
        if number is not None:  # else it was aborted
            self._ended.append((number, answer))
            self._event.set()

    async def _wait(self) -> None:
        self._event.clear()
        if not self._ended and self._failure is None:
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._event.wait(), STEP_S)
        # Answers that came together go out together.
        await asyncio.sleep(0)
