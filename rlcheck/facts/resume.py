"""Checkpoints of a run, as their files say: what can be resumed, from which step, and with what lost."""

from __future__ import annotations

from typing import Literal

from rlcheck.facts.base import Struct

Maker = Literal["rltrain", "verl", "transformers"]
"""Whose layout it is. `transformers`: its Trainer, and what is built on it, such as TRL."""
Part = Literal["weights", "optimizer", "schedule", "data order", "random numbers"]


class Damage(Struct, frozen=True):
    """A file of a checkpoint that cannot be what was written. `why`: in words, after the file's name."""

    file: str
    kind: Literal["missing", "empty", "cut", "changed", "unreadable"]
    why: str


class Lack(Struct, frozen=True):
    """A part of the training that a checkpoint does not hold. `raises`: its maker refuses to resume without it;
    else it starts that part over without an error."""

    part: Part
    file: str
    raises: bool = False


class Saved(Struct, frozen=True):
    """One checkpoint. `name`: its folder, from the place of all of them. `unfinished`: why it counts as half-made, ""
    if it does not. `world_sizes`: numbers of ranks for which all files are there; `needs_ranks`: it resumes on one of
    these alone. `files`, `bytes`: all that is in it."""

    step: int
    name: str
    unfinished: str = ""
    damages: tuple[Damage, ...] = ()
    lacks: tuple[Lack, ...] = ()
    world_sizes: tuple[int, ...] = ()
    needs_ranks: bool = False
    files: int = 0
    bytes: int = 0

    @property
    def whole(self) -> bool:
        """Whether its maker can load it, as far as files say."""
        return not self.unfinished and not self.damages


class ResumeFacts(Struct, frozen=True):
    """The checkpoints of one run.

    `place`: the folder that holds them. `checkpoints`: lowest step first. `tracker`: what verl's
    latest_checkpointed_iteration.txt says, cut to a line; None: there is none. `chosen`: the step that automatic resume
    takes, None: it starts from step 0, or raises `chosen_error`. `chosen_why`: how it came to that. `reached`: the last
    step that the run's own files mention; `total_steps`: of its plan, 0 unknown. `wanted_ranks`: `--ranks`, 0: not
    given. `read_all`: every file was read and held against its checksum. `notes`: what could not be looked at.
    """

    maker: Maker
    place: str
    checkpoints: tuple[Saved, ...] = ()
    tracker: str | None = None
    chosen: int | None = None
    chosen_error: str = ""
    chosen_why: str = ""
    reached: int = 0
    total_steps: int = 0
    wanted_ranks: int = 0
    read_all: bool = False
    notes: tuple[str, ...] = ()


class Answer(Struct, frozen=True, omit_defaults=False):
    """From where a run can be resumed. `step`: of the newest whole checkpoint, None: there is none; `path`: its folder.
    `automatic`: the step from which the run goes on if it is just started again, None where it raises. `ranks`: the
    numbers of ranks on which it resumes, () any. `lost`: what is not as if the run had never stopped. `words`: what to
    give the trainer to resume from there."""

    said: str
    maker: Maker
    step: int | None = None
    path: str = ""
    automatic: int | None = None
    ranks: tuple[int, ...] = ()
    lost: tuple[str, ...] = ()
    words: str = ""


def newest_whole(facts: ResumeFacts) -> Saved | None:
    """The whole checkpoint of the highest step."""
    return next((one for one in reversed(facts.checkpoints) if one.whole), None)


def at_step(facts: ResumeFacts, step: int | None) -> Saved | None:
    """The checkpoint of STEP."""
    return next((one for one in facts.checkpoints if one.step == step), None)


def chosen(facts: ResumeFacts) -> Saved | None:
    """The checkpoint that automatic resume takes; None: it starts over, or raises before it has one."""
    return at_step(facts, facts.chosen)
