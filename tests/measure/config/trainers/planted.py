"""What a module of cases holds: configs, what they mean, and mistakes with the check that must name them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Mistake:
    """A mistake: in `file` (the first one where empty) OLD becomes NEW; check `id` must fail and name `key`.

    `line`: a text of the line that must be named, NEW where empty. `num_gpus`: of the machine. `status`: of the check.
    """

    what: str
    old: str
    new: str
    id: str
    key: str
    file: str = ""
    line: str = ""
    num_gpus: int = 0
    status: str = "fail"
    command: str = ""


@dataclass(frozen=True)
class Cases:
    """`configs`: text by file name; `command`: what is given to rlcheck for each, where that is not the file.

    `beside`: files that the configs read.
    `means`: fields of the run by file, `without`: fields that must have no value.
    """

    configs: dict[str, str]
    means: dict[str, dict[str, Any]]
    mistakes: tuple[Mistake, ...]
    without: dict[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    beside: dict[str, str] = field(default_factory=dict[str, str])
    command: dict[str, str] = field(default_factory=dict[str, str])
