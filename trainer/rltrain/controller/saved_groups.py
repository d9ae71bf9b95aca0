"""Groups in a checkpoint that were asked for and not learnt from yet, with those of their answers that are finished."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rltrain.controller import saved_answers
from rltrain.core.errors import UserError
from rltrain.workers.rollout.protocol import Completion, Request

FILE = "groups.json"
Place = tuple[int, int]
"""Group and sample."""


@dataclass(frozen=True)
class Saved:
    """What a checkpoint says of groups."""

    max_staleness: int
    admitted: int
    """Groups in all."""
    groups: Mapping[int, int]
    """Version at admission, by number, of those that were not learnt from."""
    finished: Mapping[Place, tuple[int, Completion]] = field(default_factory=dict[Place, tuple[int, Completion]])
    """Seed of the request, and the answer."""

    def answers(self, number: int, requests: Sequence[Request]) -> dict[int, Completion]:
        """To REQUESTS of group NUMBER, those that are there."""
        found = {row: self.finished.get((number, row)) for row in range(len(requests))}
        return {row: one[1] for row, one in found.items() if one is not None and one[0] == requests[row].seed}


NOTHING = Saved(0, 0, {})


def save(directory: Path, step: int, saved: Saved, answers: Mapping[Place, tuple[Request, Completion]]) -> None:
    """Write SAVED and ANSWERS of groups that are outstanding after STEP into DIRECTORY.

    Raises:
        OSError: it cannot be written.
    """
    held = {
        "max_staleness": saved.max_staleness,
        "admitted": saved.admitted,
        "groups": [list(pair) for pair in saved.groups.items()],
        "answers": [list(place) for place in answers],
    }
    (directory / FILE).write_text(json.dumps(held), encoding="utf-8")
    requests, completions = [one for one, _ in answers.values()], [one for _, one in answers.values()]
    saved_answers.save(directory, step, requests, completions)


def load(directory: Path, max_staleness: int) -> Saved:
    """What `save` wrote into DIRECTORY, for a run with MAX_STALENESS; nothing, if a run of another kind made it.

    Raises:
        UserError: it cannot be read, or its groups may be older than the run allows.
    """
    path = directory / FILE
    if not path.is_file():
        return NOTHING
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        bound, groups = int(held["max_staleness"]), {int(number): int(version) for number, version in held["groups"]}
        places = [(int(number), int(row)) for number, row in held["answers"]]
        found = saved_answers.load(directory)
        if found is None:
            raise ValueError(f"{saved_answers.FILE} is not there")
        pairs = zip(found.seeds, found.completions, strict=True)
        saved = Saved(bound, int(held["admitted"]), groups, dict(zip(places, pairs, strict=True)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(f"{path} cannot be read: {error}; go on from an earlier checkpoint") from None
    if bound > max_staleness:
        raise UserError(
            f"algorithm.max_staleness was {bound} when the run stopped and is {max_staleness} now: answers may be "
            "older than that; set it back"
        )
    return saved
