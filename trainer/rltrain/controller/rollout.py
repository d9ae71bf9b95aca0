"""Rollout and training on the same devices: the order in which weights, caches and training state change places.

    free torch's cache -> wake weights -> sync, if the actor has moved on -> wake KV cache -> generate … -> sleep

It is a context manager, so that the order cannot be got wrong. Roles that the config offloads are on the host all the
while (`rltrain.workers.fsdp.sharded_model`): a sync brings the actor's shards to the device one tensor at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from transformers import PreTrainedTokenizerBase

from rltrain.config.schema import RunConfig
from rltrain.controller.asked import asked_rows
from rltrain.controller.assemble import assemble, decoded, pad_of
from rltrain.controller.engine_group import EngineGroup
from rltrain.controller.generation import Finished
from rltrain.controller.train_group import TrainGroup
from rltrain.controller.witness import Witness
from rltrain.core.batch import Batch, Sample
from rltrain.core.clock import Clock
from rltrain.workers.rollout.protocol import Completion, Request, Sampling
from rltrain.workers.rollout.sampling import request_seed


@dataclass(frozen=True)
class Asked:
    """Requests for one answer to each of some samples."""

    samples: Sequence[Sample]
    requests: Sequence[Request]
    sampling: Sampling
    log_probs: frozenset[int]
    """Rows of which training is to see the engine's log-probabilities."""


OnAnswered = Callable[[Mapping[int, Sample]], None]
"""Told again and again which samples have their answers, by their rows."""


class Rollout:
    """The training ranks and the engines of one run."""

    def __init__(
        self,
        config: RunConfig,
        train_group: TrainGroup,
        engine_group: EngineGroup,
        tokenizer: PreTrainedTokenizerBase,
        clock: Clock,
    ) -> None:
        self._config = config
        self._train_group = train_group
        self._engine_group = engine_group
        self._tokenizer = tokenizer
        self._clock = clock
        self.witness: Witness | None = None
        """Is told of what is generated, while a step is kept."""
        self.on_weights: Callable[[], None] | None = None
        """Called when the engines have taken weights."""
        self.land: Callable[[], None] = _nothing
        """Called before they do: waits for what is under way, which is answered by the weights that it began with."""

    @contextmanager
    def phase(self) -> Generator[Rollout]:
        """Engines awake with the actor's weights, and asleep again at the end."""
        with self.weights_awake():
            with self._clock.stage("update_weights"):
                self._engine_group.wake("kv_cache")
            yield self

    @contextmanager
    def weights_awake(self) -> Generator[None]:
        """As `phase`, without room for generating."""
        self.land()
        with self._clock.stage("update_weights"):
            self._train_group.free_cache()
            self._engine_group.wake("weights")
            self._engine_group.take_weights()
        if self.on_weights is not None:
            self.on_weights()
        yield
        with self._clock.stage("reshard"):
            self._engine_group.sleep()

    def generate(
        self,
        samples: Sequence[Sample],
        sampling: Sampling,
        step: int,
        on_answered: OnAnswered | None = None,
        learnt: bool = True,
    ) -> Batch:
        """One answer to each of SAMPLES; STEP goes into the seed of each request.

        The batch does not depend on the order in which answers finish. ON_ANSWERED hears of them as they do. Of those
        that are not LEARNT from, the engine is asked for tokens alone.

        Raises:
            RunFailure: an engine failed, or did not answer in time.
        """
        texts, asked = dict[int, str](), self.ask(samples, sampling, step, learnt)

        def hear(finished: Sequence[Finished]) -> None:
            new = self.texts(finished)
            texts.update(new)
            if on_answered is not None:
                on_answered({row: replace(samples[row], response_text=text) for row, text in new.items()})

        with self._clock.stage("gen"):
            completions = self._engine_group.generate(asked.requests, sampling, hear)
            if self.witness is not None:
                self.witness.generated(samples, asked.requests, sampling, completions)
            return self.batch(asked, completions, texts)

    def ask(self, samples: Sequence[Sample], sampling: Sampling, step: int, learnt: bool = True) -> Asked:
        """The requests of `generate`."""
        config = self._config
        asked = asked_rows(config, len(samples), step, samples[0].uid) if learnt else frozenset[int]()
        # More of them go into a capsule that holds the model whole; the batch is the same as if it were not kept.
        one_in = self.witness.log_probs_of if self.witness is not None and asked else 0
        requests = [
            Request(
                tuple(one.prompt_ids),
                request_seed(config.trainer.seed, step, one.uid, one.sample),
                row in asked or (one_in > 0 and row % one_in == 0),
            )
            for row, one in enumerate(samples)
        ]
        return Asked(samples, requests, sampling, asked)

    def texts(self, finished: Sequence[Finished]) -> dict[int, str]:
        """Of the answers FINISHED, by their rows."""
        found = decoded(self._tokenizer, [answer.token_ids for _, answer in finished]) if finished else []
        return {row: text for (row, _), text in zip(finished, found, strict=True)}

    def batch(self, asked: Asked, completions: Sequence[Completion], texts: Mapping[int, str]) -> Batch:
        """The answers COMPLETIONS to ASKED, in their order, which read TEXTS."""
        told = [replace(sample, response_text=texts[row]) for row, sample in enumerate(asked.samples)]
        trajectories = [
            one.trajectory() if row in asked.log_probs else replace(one, log_probs=None).trajectory()
            for row, one in enumerate(completions)
        ]
        return assemble(told, trajectories, pad_of(self._tokenizer))


def _nothing() -> None:
    """Nothing is under way."""


def train_sampling(config: RunConfig) -> Sampling:
    """How experience is sampled: `actor_rollout_ref.rollout`."""
    rollout = config.actor_rollout_ref.rollout
    return Sampling(
        temperature=rollout.temperature,
        top_p=rollout.top_p,
        top_k=rollout.top_k,
        min_tokens=rollout.min_tokens,
        max_tokens=config.data.max_response_length,
        stop=rollout.stop,
        stop_token_ids=rollout.stop_token_ids,
        ignore_eos=rollout.ignore_eos,
    )


def val_sampling(config: RunConfig) -> Sampling:
    """How validation samples: `rollout.val_kwargs`; greedy unless `do_sample`."""
    settings = config.actor_rollout_ref.rollout.val_kwargs
    return _other(config, settings.temperature if settings.do_sample else 0.0, settings.top_p, settings.top_k)


def greedy_sampling(config: RunConfig) -> Sampling:
    """The likeliest tokens: ReMax's baseline."""
    return _other(config, 0.0, 1.0, -1)


def _other(config: RunConfig, temperature: float, top_p: float, top_k: int) -> Sampling:
    return replace(train_sampling(config), temperature=temperature, top_p=top_p, top_k=top_k, ignore_eos=False)
