"""Bounded staleness: prompts go in, and groups of answers are learnt from as they finish, none of them too old.

    engines   answers, without a pause but for weights …
    ranks     learn of B groups | learn of B groups | …

At each step the engines take the weights that the last one made, while answers are being written; then as many prompts
go in as the bound lets in, and B groups that have finished come out (`Window` says which). The policy that wrote the
oldest token of an answer is `algorithm.max_staleness` versions behind at most (Fu et al. 2025, arXiv:2505.24298). Which
groups make a step depends on who was faster: unlike `Loop` and `OneStepOff`, it is no function of seed and step.
"""

from __future__ import annotations

from collections.abc import Iterable

from rltrain.controller.buffer import Buffer
from rltrain.controller.loop import Loop
from rltrain.data.schema import Row


class Bounded(Loop):
    """As `Loop`, which learns in the same way.

    Args:
        buffer: the groups that were asked for and are not learnt from yet.
        others: as of `Loop`.
    """

    buffer: Buffer

    def train(self, prompts: Iterable[tuple[int, list[Row]]]) -> None:
        """As `Loop.train`; PROMPTS are taken up to `algorithm.max_staleness` steps ahead."""
        coming = iter(prompts)
        with self.buffer.generating():
            for step in self.buffer.steps():
                self._callbacks.on_step_begin(step)
                self._clock.announce("step")
                self.buffer.admit(step, coming)
                batch, metrics = self.buffer.take(step)
                self.improve(step, batch, metrics)
