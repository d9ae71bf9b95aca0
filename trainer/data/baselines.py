"""What a policy that is blind to its prompt can score: the yardsticks beside a validation reward."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from trainer.data.schema import Row

Scorer = Callable[[Sequence[str], Sequence[Row]], Sequence[float]]
"""Rewards of answers, one for each row."""

NUM_COMMON_ANSWERS = 8


def best_constant_answer(rows: Sequence[Row], score: Scorer) -> tuple[str, float]:
    """The best answer found that is the same for all ROWS, and its mean reward.

    Tried are the commonest ground truths and, for each length, the string of the commonest character of each position:
    the latter is the best there is for a reward that counts right positions.
    """
    truths = [str(row.ground_truth) for row in rows]
    candidates = [truth for truth, _ in Counter(truths).most_common(NUM_COMMON_ANSWERS)]
    longest = "".join(
        Counter(truth[i] for truth in truths if len(truth) > i).most_common(1)[0][0]
        for i in range(max(len(truth) for truth in truths))
    )
    candidates += [longest[:length] for length in sorted({len(truth) for truth in truths})]
    means = {answer: sum(score([answer] * len(rows), rows)) / len(rows) for answer in dict.fromkeys(candidates)}
    best = max(means, key=lambda answer: means[answer])
    return best, means[best]


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
