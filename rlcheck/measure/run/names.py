"""What other frameworks call a metric, and which framework wrote a run: `rlcheck/data/metric_names.json`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import msgspec

from rlcheck.facts.base import Struct
from rlcheck.facts.run import Curve
from rlcheck.tables import table

_ANY = re.compile(r"\{\}")


class Name(Struct, frozen=True, forbid_unknown_fields=True):
    """A metric under verl's name: `to`, times `scale`, plus `offset`. `why`: how the two definitions go together."""

    to: str
    scale: float = 1.0
    offset: float = 0.0
    why: str = ""


class Framework(Struct, frozen=True, forbid_unknown_fields=True):
    """How a framework names its metrics.

    `sources`: files of its repository in which the names stand. `signs`: names by which it is recognised. `prefix`:
    what some loggers put before every name. `names`: its name to verl's; `{}` stands for any text.
    """

    sources: tuple[str, ...]
    signs: tuple[str, ...]
    prefix: str = ""
    names: dict[str, Name | str] = {}
    left_out: dict[str, str] = {}
    """Names that look like one of verl's and do not mean the same, and why."""
    settings: dict[str, str] = {}
    """verl's keys to what stands for them, `{}` for the value; empty: it has verl's keys."""


def frameworks() -> dict[str, Framework]:
    """The frameworks that are known, by name."""
    return table("metric_names", dict[str, Framework])


def framework_of(names: Iterable[str]) -> str:
    """The framework with the most of its signs among NAMES; "" if no two of any are there."""
    there = set(names)
    counts = {name: _num_signs(framework, there) for name, framework in frameworks().items()}
    best = max(counts, key=counts.__getitem__)
    return best if counts[best] >= 2 else ""


def filed(curves: Mapping[str, Curve], framework: str) -> dict[str, Curve]:
    """CURVES of FRAMEWORK under verl's names, in their order; a name without a counterpart stays.

    A curve that has verl's name already is not displaced by one that is renamed.
    """
    known = frameworks().get(framework)
    if known is None or not (known.names or known.prefix):
        return dict(curves)
    found: dict[str, Curve] = {}
    for name, curve in curves.items():
        target = _target(name, known)
        if target is None or target.to in curves or target.to in found:
            found[name] = curve
        else:
            found[target.to] = _renamed(curve, name, target)
    return dict(sorted(found.items()))


def worded(framework: str, override: str) -> str:
    """The OVERRIDE `key=value` of verl in the words of FRAMEWORK; "" where it has no such setting.

    What is no override, or is one already in the framework's own words, stays as it is.
    """
    known, (key, equals, value) = frameworks().get(framework), override.partition("=")
    if known is None or framework == "verl" or not known.names or not equals or "." not in key:
        return override
    own = known.settings.get(override.lstrip("+")) or known.settings.get(key.lstrip("+"), "")
    return own.replace("{}", value)


def _renamed(curve: Curve, name: str, target: Name) -> Curve:
    values = curve.values
    if (target.scale, target.offset) != (1.0, 0.0):
        values = tuple(value * target.scale + target.offset for value in values)
    return Curve(steps=curve.steps, values=values, nonfinite=curve.nonfinite, name=name)


def _num_signs(framework: Framework, there: set[str]) -> int:
    return sum(sign in there or f"{framework.prefix}{sign}" in there for sign in framework.signs)


def _target(name: str, framework: Framework) -> Name | None:
    """What NAME of FRAMEWORK is filed under; None: it stays."""
    for plain in (name, name.removeprefix(framework.prefix)):
        direct = framework.names.get(plain)
        if direct is not None:
            return _name(direct)
        for pattern, target in _patterns(framework):
            match = pattern.fullmatch(plain)
            if match:
                return _filled(_name(target), match[1])
    return None


def _name(target: Name | str) -> Name:
    return Name(to=target) if isinstance(target, str) else target


def _filled(target: Name, text: str) -> Name:
    return msgspec.structs.replace(target, to=_ANY.sub(lambda _: text, target.to))


def _patterns(framework: Framework) -> list[tuple[re.Pattern[str], Name | str]]:
    found = [(name, target) for name, target in framework.names.items() if "{}" in name]
    return [(re.compile("(.+)".join(map(re.escape, name.split("{}")))), target) for name, target in found]
