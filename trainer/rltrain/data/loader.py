"""Batches of rows in an order that depends on seed and epoch alone, from any position."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, Generic, Protocol, TypeVar

from rltrain.core.batch import Batch, Sample
from rltrain.core.errors import UserError
from rltrain.data.dataset import FileMark
from rltrain.data.order import permutation
from rltrain.data.schema import Row

START_AFRESH = "start over with trainer.resume_mode=disable"


R = TypeVar("R")
S_co = TypeVar("S_co", covariant=True)


class Rows(Protocol[S_co]):
    """A data set: `rltrain.data.dataset.Dataset`, `rltrain.data.sft.SftDataset`."""

    @property
    def files(self) -> Sequence[FileMark]:
        """What it was read from."""
        ...

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> S_co: ...


class Loader(Generic[R]):
    """Endless iterator of lists of `batch_size` rows, epoch after epoch, each row once an epoch.

    The last rows of an epoch that fill no batch are dropped.
    """

    noun = "rows"

    def __init__(self, dataset: Rows[R], batch_size: int, seed: int, shuffle: bool) -> None:
        """Start before the first batch of epoch 0.

        Raises:
            UserError: the data set does not fill one batch.
        """
        if len(dataset) < batch_size:
            raise UserError(
                f"the training data has {len(dataset)} rows, fewer than one batch of {batch_size}; "
                f"lower data.train_batch_size or give more rows"
            )
        self.dataset, self.batch_size, self.seed, self.shuffle = dataset, batch_size, seed, shuffle
        self.epoch = 0
        self.batches_done = 0
        """In this epoch."""
        self._order = self._order_of(0)

    @property
    def num_steps_per_epoch(self) -> int:
        """Batches in an epoch."""
        return len(self.dataset) // self.batch_size

    @property
    def num_dropped_per_epoch(self) -> int:
        """Rows that fill no batch (others in each epoch, if shuffled)."""
        return len(self.dataset) % self.batch_size

    def line(self) -> str:
        """For the console."""
        text = f"{self.num_steps_per_epoch} steps of {self.batch_size} {self.noun} an epoch"
        dropped = self.num_dropped_per_epoch
        return f"{text}, {dropped} rows that fill no batch dropped in each" if dropped else text

    def __iter__(self) -> Iterator[list[R]]:
        return self

    def __next__(self) -> list[R]:
        if self.batches_done == self.num_steps_per_epoch:
            self.epoch, self.batches_done = self.epoch + 1, 0
            self._order = self._order_of(self.epoch)
        start = self.batches_done * self.batch_size
        self.batches_done += 1
        indices = self._order[start : start + self.batch_size]
        return [self._row(index) for index in indices]

    def _row(self, index: int) -> R:
        return self.dataset[index]

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch given out, and what it holds for; plain JSON values."""
        return {
            "epoch": self.epoch,
            "batches_done": self.batches_done,
            "settings": self._settings(),
            "files": [dataclasses.asdict(file) for file in self.dataset.files],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from STATE.

        Raises:
            UserError: the data or what orders it is not what it was; the message names the file or the key.
        """
        self._same_files(state["files"])
        for key, now in self._settings().items():
            was = state["settings"][key]
            if was != now:
                raise UserError(
                    f"{key} was {was} when the run stopped and is {now} now; set it back, or {START_AFRESH}"
                )
        self.epoch, self.batches_done = state["epoch"], state["batches_done"]
        self._order = self._order_of(self.epoch)

    def _settings(self) -> dict[str, int | bool]:
        return {"data.train_batch_size": self.batch_size, "data.seed": self.seed, "data.shuffle": self.shuffle}

    def _same_files(self, before: list[dict[str, Any]]) -> None:
        # By position, not by name: a data set may move between two runs.
        now = self.dataset.files
        if len(before) != len(now):
            raise UserError(
                f"the run had {len(before)} data files when it stopped and has {len(now)} now; "
                f"name the same ones in data.train_files, or {START_AFRESH}"
            )
        for was, file in zip(before, now, strict=True):
            if was["sha256"] != file.sha256:
                raise UserError(
                    f"{file.path} changed since the run stopped ({was['num_rows']} rows then, {file.num_rows} now), "
                    f"or the tokenizer, its chat template or data.* did: put it back, or {START_AFRESH}"
                )

    def _order_of(self, epoch: int) -> list[int]:
        if not self.shuffle:
            return list(range(len(self.dataset)))
        return permutation(len(self.dataset), f"epoch {epoch} of seed {self.seed}")


class PromptLoader(Loader[Row]):
    """`Loader` of prompts. A row's `uid` is `EPOCH-INDEX`."""

    noun = "prompts"

    def _row(self, index: int) -> Row:
        return dataclasses.replace(self.dataset[index], uid=f"{self.epoch}-{index}")


def to_prompt_batch(rows: Sequence[Row]) -> Batch:
    """A batch that describes ROWS and has no tensors yet."""
    return Batch.of(
        [
            Sample(
                uid=row.uid,
                index=row.index,
                place=row.place,
                data_source=row.data_source,
                prompt_text=row.prompt_text,
                messages=row.messages,
                ground_truth=row.ground_truth,
                extra_info=row.extra_info,
                prompt_ids=row.prompt_ids,
            )
            for row in rows
        ]
    )
