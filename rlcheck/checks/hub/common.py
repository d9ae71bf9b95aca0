"""What the checks of this family share: the flags as the libraries read them, and sizes in words."""

from __future__ import annotations

from rlcheck.facts.base import need
from rlcheck.facts.document import Facts
from rlcheck.facts.hub import HubFacts
from rlcheck.text import GIB, MIB

TRUE = frozenset({"1", "ON", "YES", "TRUE"})
FALSE = frozenset({"0", "OFF", "NO", "FALSE", ""})


def hub(facts: Facts) -> HubFacts:
    """The section."""
    return need(facts.hub)


def variable(facts: Facts, name: str) -> str | None:
    """A recorded environment variable, or None when it is not set."""
    return (facts.environ.value or {}).get(name)


def is_true(value: str | None) -> bool:
    """Whether huggingface_hub and datasets take `value` as yes: any other word counts as no."""
    return value is not None and value.upper() in TRUE


def is_offline(facts: Facts) -> bool:
    """Whether the Hub client makes no call: `HF_HUB_OFFLINE` decides unless empty, else `TRANSFORMERS_OFFLINE`."""
    return is_true(variable(facts, "HF_HUB_OFFLINE") or variable(facts, "TRANSFORMERS_OFFLINE"))


def num_models(facts: Facts) -> int:
    """Models seen in the cache; 0 when there is none or it was not possible to look."""
    contents = hub(facts).contents.value
    return contents.num_models if contents is not None else 0


def size(num_bytes: float) -> str:
    """A size for a reader."""
    if num_bytes >= GIB:
        return f"{num_bytes / GIB:.1f} GiB"
    return f"{num_bytes / MIB:.1f} MiB" if num_bytes >= MIB else f"{num_bytes:.0f} bytes"


def age(seconds: float) -> str:
    """An age for a reader."""
    if seconds >= 2 * 86400:
        return f"{seconds / 86400:.0f} days"
    return f"{seconds / 3600:.0f} h" if seconds >= 2 * 3600 else f"{max(0.0, seconds) / 60:.0f} min"
