"""Which groups of answers may be asked for, and which are learnt from next. Pure: no clock, no torch.

A group is the answers to one prompt. Groups are numbered in the order of the data, B of them make a step, and version v
of the policy is that which v steps have made.

- Admission by capacity (AReaL: Fu et al. 2025, arXiv:2505.24298): at version v, at most (S + v + 1) B groups in all.
- A group that was admitted at version v0 is learnt from at version v0 + S at the latest: its deadline.
- Nothing is dropped, so that long answers are not rarer in training than short ones. A step takes groups in the order
  in which they finished, and waits for those without which a later deadline would be missed.

So a step is possible at every version: of the groups with a deadline of d or before, at most (d - v + 1) B are left at
version v. Admission keeps that (no more than (S + 1) B are there at all), and each step leaves at most (d - v) B.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass
class _Group:
    version: int
    """At its admission."""
    picked: int | None = None
    """The version at which it was picked for a step."""


class Window:
    """Groups from their admission until they were learnt from.

    Args:
        per_step: B, groups that a step learns from.
        max_staleness: S, versions.
        version: steps that are finished.
        admitted: groups in all, those of before a restart too.
    """

    def __init__(self, per_step: int, max_staleness: int, version: int = 0, admitted: int = 0) -> None:
        self._per_step, self._max_staleness = per_step, max_staleness
        self.admitted = admitted
        """Groups in all: the number of the next one."""
        self._groups: dict[int, _Group] = {}
        self._finished: list[int] = []
        """Those that wait to be picked, in the order in which they finished."""
        self._picks: list[int] = []
        self._version = version

    def room(self, version: int) -> int:
        """Groups that may be admitted at VERSION."""
        return (self._max_staleness + version + 1) * self._per_step - self.admitted

    def admit(self, number: int, version: int) -> None:
        """Group NUMBER is asked for at VERSION; one of before a restart comes back with its version of then."""
        self._groups[number] = _Group(version)
        self.admitted = number + 1

    def pass_over(self, number: int) -> None:
        """Group NUMBER was learnt from before a restart."""
        self.admitted = number + 1

    def finish(self, number: int) -> None:
        """All answers of group NUMBER are there."""
        self._finished.append(number)

    def picks(self, version: int) -> Sequence[int]:
        """The groups of the step that begins at VERSION, as far as they are known; B of them are all.

        The list only grows, as groups finish. When it is asked for at a newer version, the last step's are gone.
        """
        if version != self._version:
            self._version, self._picks = version, []
            self._groups = {number: one for number, one in self._groups.items() if one.picked is None}
        needed = self._needed()
        while (number := self._next(needed)) is not None:
            group = self._groups[number]
            group.picked = version
            self._finished.remove(number)
            self._picks.append(number)
            for deadline in needed:
                needed[deadline] -= self._deadline(group) <= deadline
        return self._picks

    def outstanding(self, version: int) -> dict[int, int]:
        """Groups that were not learnt from when VERSION was made, with their versions at admission."""
        return {
            number: one.version for number, one in self._groups.items() if one.picked is None or one.picked >= version
        }

    @property
    def unpicked(self) -> tuple[int, int]:
        """Groups that no step has picked: those that are finished, and those that are not."""
        return len(self._finished), sum(one.picked is None for one in self._groups.values()) - len(self._finished)

    def _next(self, needed: dict[int, int]) -> int | None:
        """The first of the finished with which the step still meets every deadline, if it has room."""
        free = self._per_step - len(self._picks) - 1
        if free < 0:
            return None
        # The groups of one deadline are among those of the next, so that a pick counts for all later ones: as many must
        # follow as the deadline asks for that asks for the most.
        fits = {
            version: free >= max(0, *(left - (version + self._max_staleness <= end) for end, left in needed.items()))
            for version in {self._groups[number].version for number in self._finished}
        }
        return next((number for number in self._finished if fits[self._groups[number].version]), None)

    def _needed(self) -> dict[int, int]:
        """By deadline: how many of the groups that are due by then the step must pick (below 0: that many need not)."""
        counts = Counter(self._deadline(one) for one in self._groups.values() if one.picked is None)
        return {
            end: sum(count for deadline, count in counts.items() if deadline <= end)
            - (end - self._version) * self._per_step
            for end in range(self._version, self._version + self._max_staleness + 1)
        }

    def _deadline(self, group: _Group) -> int:
        return group.version + self._max_staleness
