"""One step off: the answers of step k + 1 are generated while the ranks learn from those of step k.

    engines   answer 1 | answer 2   | answer 3   | …     with weights 0, 0, 1, 2 …
    ranks              | learn of 1 | learn of 2 | …     which makes weights 1, 2 …

So from step 2 on the policy that answered is one update behind the one that learns (`training/policy_staleness`), and a
step takes as long as the slower of the two sides, not as both (asynchronous RLHF: Noukhovitch et al. 2024,
arXiv:2410.18252). Weights go in between two rounds of answers, while nothing is under way. What is computed is a
function of seed and step: no clock decides which weights an answer is from.
"""

from __future__ import annotations

from collections.abc import Iterable

from rltrain.controller.ahead import Ahead
from rltrain.controller.loop import Loop
from rltrain.data.schema import Row


class OneStepOff(Loop):
    """As `Loop`, which learns in the same way.

    Args:
        ahead: answers prompts while other things happen.
        others: as of `Loop`.
    """

    ahead: Ahead

    def train(self, prompts: Iterable[tuple[int, list[Row]]]) -> None:
        """As `Loop.train`; PROMPTS of a step are taken a step before it."""
        coming = iter(prompts)
        upcoming = next(coming, None)
        while upcoming is not None:
            (step, rows), upcoming = upcoming, next(coming, None)
            self._callbacks.on_step_begin(step)
            self._clock.announce("step")
            answered = self.ahead.finish(step, rows)
            if upcoming is not None:
                self.ahead.begin(*upcoming)
            batch, metrics = self.ahead.score(answered)
            self.improve(step, batch, metrics | self.ahead.measure(step))
