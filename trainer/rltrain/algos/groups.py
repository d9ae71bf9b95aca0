"""Statistics within the groups of samples that share a prompt."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


def group_slots(group_ids: Tensor) -> Tensor:
    """GROUP_IDS int64 `[B]`, any numbers, as numbers 0 … number of groups - 1."""
    ordered = group_ids.sort().values
    first = torch.ones_like(ordered, dtype=torch.bool)
    first[1:] = ordered[1:] != ordered[:-1]
    return torch.searchsorted(ordered[first], group_ids)


@dataclass(frozen=True)
class Groups:
    """Which rows belong together. Rows that are not present count nowhere and get 0."""

    slots: Tensor
    """int64 `[B]`: number of the row's group, 0 … number of groups - 1."""
    present: Tensor
    """bool `[B]`"""

    @classmethod
    def of(cls, group_ids: Tensor, present: Tensor) -> Groups:
        """The groups that GROUP_IDS `[B]` names, in whatever order their rows lie."""
        return cls(group_slots(group_ids), present)

    def sizes(self, like: Tensor) -> Tensor:
        """Number of present rows in each row's group, `[B]`, in the dtype of LIKE."""
        return self.sums(torch.ones_like(like))

    def sums(self, values: Tensor) -> Tensor:
        """Sum of VALUES `[B]` over each row's group, `[B]`."""
        kept = torch.where(self.present, values, torch.zeros_like(values))
        return torch.zeros_like(values).index_add(0, self.slots, kept)[self.slots]

    def centred(self, values: Tensor) -> Tensor:
        """VALUES `[B]` minus the mean of each row's group, `[B]`.

        Measured from the group's smallest value, so that equal values give exactly 0: a rounding error would be blown
        up by the division by their standard deviation. A group of one gives 0.
        """
        far = torch.full_like(values, torch.inf)
        lowest = far.scatter_reduce(0, self.slots, torch.where(self.present, values, far), "amin")
        shifted = values - lowest[self.slots]
        means = self.sums(shifted) / self.sizes(values).clamp(min=1)
        return torch.where(self.present, shifted - means, torch.zeros_like(values))
