"""For every check of the family: facts on which it fires, and facts on which it stays quiet."""

from __future__ import annotations

from typing import Any

import msgspec

from rlcheck.facts.base import absent, known
from rlcheck.facts.document import Facts
from rlcheck.facts.reward import FormScore, Outcome, Repeats, RewardFacts, Shortcut, ThreadUse
from rlcheck.facts.rollout import Failure

GOOD, BAD = (
    FormScore(form="#### {}", right=1.0, wrong=0.0, num_rows=6),
    FormScore(form="{}", right=0, wrong=0, num_rows=6),
)
WRONG = (Outcome(text="an empty answer", row="rows.jsonl:1", said="reward.py:8 raised IndexError"),)
HEALTH = RewardFacts(
    path="reward.py", function="compute_score", style="verl", data="rows.jsonl", rows=("rows.jsonl:1", "rows.jsonl:2"),
    limit_s=10.0, num_calls=257, slowest_s=0.01, slowest="100000 letters", forms=(BAD, GOOD), varies=True,
    reads_truth=known(True), repeats=known(Repeats(num_calls=24)), pickle=known(""),
    shortcuts=known((Shortcut(text="an empty answer", num_rows=6, num_full=0, mean=0.0),
                     Shortcut(text="a list of candidates", num_rows=6, num_full=0, mean=0.0, hedges=True))),
    threads=known(ThreadUse(num_threads=8, num_calls=72)),
)  # fmt: skip


def reward(**changes: Any) -> Facts:
    """A healthy function but for CHANGES."""
    return Facts(reward=known(msgspec.structs.replace(HEALTH, **changes)))


HEALTHY = reward()
FAILED = reward(num_calls=0, failure=Failure(stage="answers", kind="user", line="reward.py: there is no function"))
FULL = Shortcut(text="the form without an answer", num_rows=6, num_full=6, mean=1.0)
INVERTED = FormScore(form="#### {}", right=0.0, wrong=1.0, num_rows=6)
CASES = {
    "RWD001": (FAILED, HEALTHY),
    "RWD002": (reward(empty=WRONG), HEALTHY),
    "RWD003": (reward(raised=WRONG), HEALTHY),
    "RWD004": (reward(late=WRONG), HEALTHY),
    "RWD005": (reward(threads=known(ThreadUse(num_threads=8, num_calls=72, num_other=3, other=WRONG))), HEALTHY),
    "RWD006": (reward(pickle=known("pickle: PicklingError: a lambda")), HEALTHY),
    "RWD007": (reward(forms=(BAD, INVERTED)), HEALTHY),
    "RWD008": (reward(forms=(BAD,), reads_truth=known(False)), HEALTHY),
    "RWD009": (reward(shortcuts=known((FULL,))), HEALTHY),
    "RWD010": (reward(repeats=known(Repeats(num_calls=24, num_other=2, other=WRONG))), HEALTHY),
}
IN_THREADS_ALONE = reward(threads=known(ThreadUse(num_threads=8, num_calls=72, num_failed=72, failed=WRONG)))
HEDGES = reward(shortcuts=known((msgspec.structs.replace(FULL, hedges=True),)))
SAME_FOR_ALL = reward(forms=(BAD,), varies=False)
FORM_ALONE = reward(forms=(BAD,), style="trl", reads_truth=absent("it names no column of the data"))
OTHER_TYPE = reward(forms=(BAD,))
