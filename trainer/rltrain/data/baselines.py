"""What a policy that is blind to its prompt can score: the yardsticks beside a validation reward."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from rltrain.data.schema import Row

Scorer = Callable[[Sequence[str], Sequence[Row]], Sequence[float]]
"""Rewards of answers, one for each row."""

# They bound what is scored, once a run, to 8 x 256 answers: a reward function may take seconds for each.
MAX_CANDIDATES = 8
MAX_COMPOSED = 4
"""Of the candidates; the others are ground truths."""
MAX_COMPOSED_LENGTH = 64
"""Characters: rewards that count right positions are for short answers."""
MAX_ROWS = 256


def best_constant_answer(rows: Sequence[Row], score: Scorer) -> tuple[str, float]:
    """The best answer found that is the same for all ROWS, and its mean reward.

    At most MAX_CANDIDATES are tried: for each of the commonest lengths the string of the commonest character of each
    position (the best there is for a reward that counts right positions), and the commonest ground truths. Of more
    than MAX_ROWS rows, MAX_ROWS are scored, always the same ones: the mean is then an estimate.
    """
    truths = [str(row.ground_truth) for row in rows]
    composed = _composed(truths)
    common = [truth for truth, _ in Counter(truths).most_common(MAX_CANDIDATES - len(composed))]
    scored = rows if len(rows) <= MAX_ROWS else random.Random("best constant").sample(rows, MAX_ROWS)
    means = {
        answer: sum(score([answer] * len(scored), scored)) / len(scored)
        for answer in dict.fromkeys([*common, *composed])
    }
    best = max(means, key=lambda answer: means[answer])
    return best, means[best]


def _composed(truths: Sequence[str]) -> list[str]:
    lengths = Counter(len(truth) for truth in truths if len(truth) <= MAX_COMPOSED_LENGTH)
    common = sorted(length for length, _ in lengths.most_common(MAX_COMPOSED))
    longest = "".join(
        Counter(truth[i] for truth in truths if len(truth) > i).most_common(1)[0][0]
        for i in range(max(common, default=0))
    )
    return [longest[:length] for length in common]


def shuffled_pairing(num_rows: int, seed: int) -> list[int]:
    """For each row another one, each taken once: answer i is scored against the truth of row `pairing[i]`.

    Source: Sattolo 1986, "An algorithm to generate a random cyclic permutation".

    Raises:
        ValueError: there are not two rows.
    """
    if num_rows < 2:
        raise ValueError(f"{num_rows} rows cannot be paired with others")
    pairing, draw = list(range(num_rows)), random.Random(f"shuffled pairing {seed}")
    for last in range(num_rows - 1, 0, -1):
        other = draw.randrange(last)
        pairing[last], pairing[other] = pairing[other], pairing[last]
    return pairing
