"""A config of some framework, read and resolved, before it is put into the words of `RunSpec`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from rlcheck.facts.config import KeyProblem, Place
from rlcheck.measure.config.picking import Picker


@dataclass
class Config:
    """What was read. Problems and notes grow while it is interpreted."""

    framework: str
    source: str
    version: str = ""
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    given: dict[str, Place] = field(default_factory=dict[str, Place])
    problems: list[KeyProblem] = field(default_factory=list[KeyProblem])
    notes: list[str] = field(default_factory=list[str])
    fallbacks: list[str] = field(default_factory=list[str])
    unsure_keys: str = ""
    """Why the keys may be others than those that are known; "" where they are not."""
    engine: str = "dp"
    """verl's model engine."""
    kind: str = ""
    """Of a trainer's configs: the command or the class that it is for."""
    before: tuple[str, ...] = ()
    """Words of the command line before the trainer's own: of accelerate, torchrun, ray."""
    launch: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keys that the trainer's command hands to its launcher."""
    launch_file: dict[str, Any] = field(default_factory=dict[str, Any])
    """Keys of the file that the launcher was given."""
    open_keys: dict[str, str] = field(default_factory=dict[str, str])
    """Keys without a value that could be read, and why: only the shell or the program knows it, or it is none."""
    open_words: list[str] = field(default_factory=list[str])
    """Words of the command that the shell alone knows, which may be any options."""

    @property
    def pick(self) -> Picker:
        """Typed access to the values."""
        return Picker(self.values)

    def problem(self, kind: str, key: str, message: str, *, instead: tuple[str, ...] = (), value: str = "") -> None:
        """Note a problem with KEY, at its place."""
        place = self.place(key)
        self.problems.append(KeyProblem(kind=kind, key=key, message=message, place=place, instead=instead, value=value))

    def place(self, key: str) -> Place:
        """Where KEY was given, or the nearest section above it that was."""
        parts = key.split(".")
        for length in range(len(parts), 0, -1):
            found = self.given.get(".".join(parts[:length]))
            if found is not None:
                return found
        return Place()


def shown(value: Any) -> str:
    """VALUE as YAML writes it, shortened."""
    words = {True: "true", False: "false"}
    if value is None:
        return "null"
    text = words[value] if isinstance(value, bool) else str(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
