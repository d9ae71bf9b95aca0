"""A TOML file as a document, with the line of every key, which Python's own reader does not say."""

from __future__ import annotations

import importlib
import re
from typing import Any, cast

from rlcheck.facts.config import Place
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.trees import Tree

_NAME = r"[\w-]+|\"[^\"]*\"|'[^']*'"
_DOTTED = rf"(?:{_NAME})(?:\s*\.\s*(?:{_NAME}))*"
_SECTION = re.compile(rf"\s*(?P<open>\[\[?)\s*(?P<name>{_DOTTED})\s*\]\]?")
_KEY = re.compile(rf"\s*(?P<name>{_DOTTED})\s*=")


def read_toml(name: str, text: str) -> tuple[Tree, dict[str, Place]]:
    """The keys in TEXT, and where each is; NAME is what messages call it. The text `None` stands for no value.

    Raises:
        ReadError: it is no TOML, or nothing here reads any.
    """
    toml = _reader(name)
    try:
        tree = toml.loads(text)
    except (ValueError, RecursionError) as error:
        line = re.search(r"at line (\d+), column (\d+)", str(error))
        where = f":{line[1]}:{line[2]}" if line else ""
        raise ReadError(f"{name}{where}: not TOML: {str(error).split(' (at', maxsplit=1)[0]}") from None
    places: dict[str, Place] = {}
    counts: dict[str, int] = {}
    section = ""
    for number, line in enumerate(text.splitlines(), 1):
        matched = _SECTION.match(line) or _KEY.match(line)
        if matched is None:
            continue
        parts = [part.strip("\"'") for part in re.findall(_NAME, matched["name"])]
        is_list = matched.groupdict().get("open") == "[["
        if "open" in matched.groupdict():
            section = _numbered(".".join(parts), counts, opens=is_list)
            key = section
        else:
            key = f"{section}.{'.'.join(parts)}" if section else ".".join(parts)
        column = len(line) - len(line.lstrip()) + 1
        if is_list:
            places.setdefault(key.rpartition(".")[0], Place(file=name, line=number, column=column))
        places.setdefault(key, Place(file=name, line=number, column=column))
    return cast(Tree, _without_none(tree)), places


def _reader(name: str) -> Any:
    """Python's own reader, or what it was made of.

    Raises:
        ReadError: neither is here.
    """
    for module in ("tomllib", "tomli"):  # Python 3.10 has the latter, if it is installed
        try:
            return importlib.import_module(module)
        except ModuleNotFoundError:
            continue
    raise ReadError(f"{name}: reading TOML on Python 3.10 needs `pip install tomli`")


def _numbered(section: str, counts: dict[str, int], *, opens: bool) -> str:
    """SECTION with the numbers of the lists on its way, `a.0.b` where `[[a]]` came before."""
    if opens:
        counts[section] = counts.get(section, -1) + 1
        for inner in [one for one in counts if one.startswith(f"{section}.")]:
            del counts[inner]
    found, plain = "", ""
    for part in section.split("."):
        plain = f"{plain}.{part}" if plain else part
        found = f"{found}.{part}" if found else part
        if plain in counts:
            found += f".{counts[plain]}"
    return found


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _without_none(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_without_none(inner) for inner in cast("list[Any]", value)]
    if isinstance(value, str):
        return None if value == "None" else value
    return value if isinstance(value, int | float) else str(value)
