"""The settings that NCCL will see, from the environment and from its configuration files, and what is known of them."""

from __future__ import annotations

from collections.abc import Iterable

from rlcheck import tables
from rlcheck.check import Evidence, evidence
from rlcheck.facts.base import Struct, value_or
from rlcheck.facts.document import Facts

PREFIXES = ("NCCL_", "RCCL_", "TORCH_NCCL_", "GLOO_")


class Variable(Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of one variable.

    `kind` is int, bool, enum, list, level, algo, path, str or "" (not judged). `values` are the words or numbers that
    it takes, `min` and `max` the bounds. `since` is the first NCCL that reads it ("" for very old or unknown),
    `deprecated` and `removed` the release of each. `reader` is who reads it: "" for NCCL, else torch, gloo, rccl,
    plugin, build or `nobody`. `debugging` marks those that NVIDIA says not to keep in production.
    """

    kind: str = ""
    values: tuple[str, ...] = ()
    min: int | None = None
    max: int | None = None
    default: str = ""
    since: str = ""
    deprecated: str = ""
    removed: str = ""
    replacement: str = ""
    reader: str = ""
    dead: str = ""
    danger: str = ""
    debugging: bool = False
    secret: bool = False
    source: str = ""


class BadVersion(Struct, frozen=True, forbid_unknown_fields=True):
    """A range of NCCL versions with a known defect. `static_only` ones hit torch builds that link NCCL statically."""

    range: str
    problem: str
    source: str
    severity: str = "info"
    static_only: bool = False


class Table(Struct, frozen=True):
    """The curated table of variables and versions."""

    variables: dict[str, Variable]
    prefixes: dict[str, str] = {}
    versions: tuple[BadVersion, ...] = ()


class Setting(Struct, frozen=True):
    """A setting as NCCL will see it, and where it comes from ("environment" or `file:line`)."""

    name: str
    value: str
    where: str


def table() -> Table:
    """Return the table, read only when some setting is there to be judged."""
    return tables.table("nccl_env", Table)


def settings(facts: Facts) -> dict[str, Setting]:
    """Every setting of NCCL, RCCL, torch's NCCL layer and gloo. The environment wins over files, as in NCCL."""
    found: dict[str, Setting] = {}
    for name, value in value_or(facts.environ, {}).items():
        if name.startswith(PREFIXES):
            found[name] = Setting(name=name, value=value, where="environment")
    for setting in file_settings(facts):
        found.setdefault(setting.name, setting)
    return found


def file_settings(facts: Facts) -> list[Setting]:
    """The settings in configuration files, in the order in which NCCL reads them; the first of a name wins."""
    if facts.nccl.value is None:
        return []
    rocm = uses_rccl(facts)
    return [
        Setting(name=setting.name, value=setting.value, where=f"{file.path}:{setting.line}")
        for file in facts.nccl.value.conf_files
        if file.origin == "NCCL_CONF_FILE" or file.path.endswith("rccl.conf") == rocm
        for setting in value_or(file.settings, ())
    ]


def uses_rccl(facts: Facts) -> bool:
    """Whether torch here is built for ROCm, so that RCCL and not NCCL reads the settings."""
    if facts.python.value is None or facts.python.value.torch.value is None:
        return False
    return bool(facts.python.value.torch.value.hip)


def settings_evidence(found: Iterable[Setting]) -> tuple[Evidence, ...]:
    """Settings as evidence: name, value (cut) and where each was set."""
    return tuple(evidence(f"environ.{setting.name}", setting.value[:80], setting.where) for setting in found)


def value_of(found: dict[str, Setting], name: str) -> str:
    """The value of `name` without surrounding space, "" when it is not set."""
    return found[name].value.strip() if name in found else ""


def number_of(found: dict[str, Setting], name: str) -> int | None:
    """The number that NCCL's strtoll would read from `name`, or None when it is not set or empty."""
    text = value_of(found, name)
    return as_number(text) if text else None


def as_number(text: str) -> int:
    """`text` as C's strtoll with base 0 reads it: 0x is hexadecimal, what follows a number is dropped, words are 0."""
    digits = ""
    body = text.strip().lstrip("+-")
    base, body = (16, body[2:]) if body[:2].lower() == "0x" else (10, body)
    for char in body[:24]:
        if char not in ("0123456789abcdefABCDEF" if base == 16 else "0123456789"):
            break
        digits += char
    value = int(digits, base) if digits else 0
    return -value if text.strip().startswith("-") else value


def is_number(text: str) -> bool:
    """Whether the whole of `text` is a decimal or hexadecimal number."""
    body = text.strip().lstrip("+-")
    if body[:2].lower() == "0x":
        return bool(body[2:]) and all(char in "0123456789abcdefABCDEF" for char in body[2:])
    return body.isascii() and body.isdecimal()


def show(setting: Setting) -> str:
    """`NCCL_DEBUG=INFO (environment)`; long values are cut and secrets hidden."""
    known = table().variables.get(setting.name)
    value = (
        "***" if known and known.secret else setting.value if len(setting.value) <= 80 else setting.value[:77] + "..."
    )
    return f"{setting.name}={value} ({setting.where})"
