"""Which rows the audit reads again: where a fault in packing can be."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from rltrain.workers.fsdp.micro import MicroSize, cut
from rltrain.workers.fsdp.split import deal


@dataclass(frozen=True)
class Place:
    """Where a row of the batch was read."""

    row: int
    """Of the batch."""
    rank: int
    micro_batch: int
    position: int
    """Rows before it in its micro batch."""


def places(lengths: Sequence[int], data_ranks: int, size: MicroSize, balance: bool) -> list[list[Place]]:
    """Where each row of a batch is read in a pass without update, by rank. LENGTHS: tokens of the rows."""
    return [
        [
            Place(rows[one], rank, number, position)
            for number, group in enumerate(cut([lengths[row] for row in rows], size))
            for position, one in enumerate(group)
        ]
        for rank, rows in enumerate(deal(lengths, data_ranks, balance))
    ]


def choose(found: Sequence[Sequence[Place]], seed: int) -> list[Place]:
    """One row for each rank to read again: of FOUND (`places`), drawn by SEED.

    Nothing precedes the first row of a micro batch, so nothing can leak into it: rows that follow others are taken,
    of the rank itself if it has any, else of another. Where all micro batches are of one row, any row.
    """
    generator = random.Random(seed)
    everywhere = [place for rank in found for place in rank]
    followers = [place for place in everywhere if place.position]
    chosen: list[Place] = []
    for rank in found:
        own = [place for place in rank if place.position]
        chosen.append(generator.choice(own or followers or everywhere))
    return chosen
