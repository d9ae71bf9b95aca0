"""For RUN013: answers that come back, word for word, at the next step."""

from __future__ import annotations

from collections import defaultdict
from itertools import pairwise

from rlcheck.check import Verdict, evidence, fail
from rlcheck.checks.run.behaviour import ENTROPY, REWARD
from rlcheck.checks.run.common import drawn, samples_of
from rlcheck.facts.run import RunFacts, SampleRow
from rlcheck.measure.run.limits import limit
from rlcheck.measure.run.look import steps_words

_LEAST_PAIRS, _LEAST_STEPS = 20, 3


def repeated(run: RunFacts) -> Verdict | None:
    """Answers to equal prompts that equal the one at the same place of the step before, far more than the others do."""
    by_step: dict[int, dict[str, list[SampleRow]]] = defaultdict(lambda: defaultdict(list))
    for row in samples_of(run):
        by_step[row.step][row.prompt].append(row)
    same, others, pairs, chances, steps = 0, 0, 0, 0, list[int]()
    example = ""
    for before, after in pairwise(sorted(by_step)):
        for prompt, rows in by_step[after].items():
            old = [row.response for row in by_step[before].get(prompt, ())]
            new = [row.response for row in rows]
            if not prompt or not old or len(old) != len(new):
                continue
            steps.append(after)
            equal = [text for text, was in zip(new, old, strict=True) if text == was]
            example = next(iter(equal), example)
            same, pairs = same + len(equal), pairs + len(new)
            others += sum(text == was for i, text in enumerate(new) for j, was in enumerate(old) if i != j)
            chances += len(new) * (len(new) - 1)
    usual = others / chances if chances else 0.0
    if pairs < _LEAST_PAIRS or len(set(steps)) < _LEAST_STEPS:
        return None
    if not chances or same / pairs < max(limit("repeated_share"), limit("repeated_factor") * usual):
        return None
    found = f"{same / pairs:.0%} of {pairs} answers are word for word those of the step before, at the same place"
    return fail(
        "answers to a prompt that are drawn again at each step",
        f"{found}; at another place {usual:.1%} are, {steps_words(min(steps), max(steps))}: prompts and random streams"
        " are the same from step to step",
        headline="Each step draws the answers of the step before again",
        details=(f"{' '.join(example.split())[:80]!r} again", *drawn(run, *ENTROPY[:1], REWARD[0])),
        evidence=(evidence("run.samples", f"{same} of {pairs}", "samples of one prompt in consecutive steps"),),
        params={"again": "step"},
    )
