"""Values of a config by dotted key, each as what it should be: what is not so counts as not given.

That a value is of the wrong type is said elsewhere (`type` problems); here nothing is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

T = TypeVar("T")

_SPELLINGS = {
    "fp32": "float32",
    "float": "float32",
    "torch.float32": "float32",
    "bf16": "bfloat16",
    "torch.bfloat16": "bfloat16",
    "fp16": "float16",
    "half": "float16",
    "torch.float16": "float16",
}


def usual_dtype(name: str) -> str:
    """The data type NAME as torch spells it."""
    return _SPELLINGS.get(name, name)


@dataclass(frozen=True)
class Picker:
    """Reads `values`, whose keys are dotted; mappings of the user's own are values too."""

    values: Mapping[str, Any]

    def raw(self, key: str) -> Any:
        """What is there; None where nothing is."""
        if key in self.values:
            return self.values[key]
        above, _, last = key.rpartition(".")
        section = self.values.get(above) if above else None
        return cast("dict[str, Any]", section).get(last) if isinstance(section, dict) else None

    @overload
    def whole(self, key: str, default: int) -> int:
        """The value, or the default."""

    @overload
    def whole(self, key: str, default: None = None) -> int | None:
        """The value, or None."""

    def whole(self, key: str, default: int | None = None) -> int | None:
        """An integer of 64 bits; 8.0 and "8" are 8."""
        number = self.number(key)
        fits = number is not None and abs(number) < 1 << 63 and number == int(number)
        return int(number) if number is not None and fits else default

    @overload
    def number(self, key: str, default: float) -> float:
        """The value, or the default."""

    @overload
    def number(self, key: str, default: None = None) -> float | None:
        """The value, or None."""

    def number(self, key: str, default: float | None = None) -> float | None:
        """A finite number."""
        value = self.raw(key)
        if isinstance(value, bool):
            return default
        if isinstance(value, str):
            try:
                value = float(value)
            except ValueError:
                return default
        return value if isinstance(value, int | float) and abs(value) != float("inf") and value == value else default

    def flag(self, key: str, default: bool = False) -> bool:
        """True or false; the words in quotes as well."""
        value = self.raw(key)
        if isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        return value if isinstance(value, bool) else default

    @overload
    def text(self, key: str, default: str) -> str:
        """The value, or the default."""

    @overload
    def text(self, key: str, default: None = None) -> str | None:
        """The value, or None."""

    def text(self, key: str, default: str | None = None) -> str | None:
        """Text; what was never given (`???`) is not there."""
        value = self.raw(key)
        return value if isinstance(value, str) and value != "???" else default

    def dtype(self, key: str, default: str) -> str:
        """A data type, as torch spells it."""
        return usual_dtype(self.text(key, default))

    def words(self, key: str) -> tuple[str, ...]:
        """A list of texts; one text is a list of itself."""
        value = self.raw(key)
        if isinstance(value, str):
            return () if value == "???" else (value,)
        return tuple(str(item) for item in cast("list[Any]", value)) if isinstance(value, list | tuple) else ()

    def words_or_text(self, key: str, default: str) -> str | tuple[str, ...]:
        """A list of texts, or one text as it is."""
        value = self.raw(key)
        return self.words(key) if isinstance(value, list | tuple) else self.text(key, default)

    def mapping(self, key: str) -> dict[str, Any]:
        """A mapping, put together from the keys below where it was taken apart."""
        value = self.raw(key)
        found = dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}
        for name, inner in self.values.items():
            if name.startswith(f"{key}."):
                found[name[len(key) + 1 :]] = inner
        return found

    def first(self, read: Callable[[str], T | None], *keys: str) -> T | None:
        """The value of the first of KEYS that has one."""
        return next((value for key in keys if (value := read(key)) is not None), None)
