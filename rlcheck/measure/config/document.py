"""A YAML (or JSON, or TOML) document as a tree, with the place of every key and what is wrong with its form."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, cast

import yaml

from rlcheck.facts.config import KeyProblem, Place
from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.toml import read_toml
from rlcheck.measure.config.trees import Tree, recordable

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Deeper than any config; anchors can make a node its own descendant.
_MAX_DEPTH = 40
# Signs that open a level, beyond which a text is looked through for its depth before it is read.
_MANY_SIGNS = 1000
# Nodes of one document. Aliases of aliases multiply; the largest config of a framework has a few thousand.
_MAX_NODES = 200_000
# As YAML 1.2 and OmegaConf read numbers: PyYAML's own rules take 1e-6 for text.
_FLOAT = re.compile(
    r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9_]+(?:[eE][-+]?[0-9]+)?"
    r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)"
)
_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
# Longer numbers are text; Python itself refuses to read them.
_MAX_DIGITS = 400
# Whole numbers of other bases, which YAML files have and Hydra's overrides do not.
_BASES = re.compile(r"([-+]?)0(?:x([0-9a-fA-F_]+)|b([01_]+)|([0-7_]+))")
_WORDS: dict[str, Any] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON"), True),
    **dict.fromkeys(("false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF"), False),
}


@dataclass
class Document:
    """What a text holds."""

    name: str
    tree: Tree = field(default_factory=dict[str, Any])
    places: dict[str, Place] = field(default_factory=dict[str, Place])
    problems: list[KeyProblem] = field(default_factory=list[KeyProblem])


def parse(name: str, text: str) -> Document:
    """The document in TEXT; NAME is what messages call it.

    Raises:
        ReadError: it is no YAML, or holds no mapping.
    """
    if name.endswith(".toml"):
        return Document(name, *read_toml(name, text))
    root = _compose(name, text)
    document = Document(name)
    if root is None:
        return document
    if not isinstance(root, yaml.MappingNode):
        line = root.start_mark.line + 1
        raise ReadError(f"{name}:{line}: expected keys such as `trainer:`, found one value; give a config file")
    document.tree = _Builder(document).mapping(root, "", 0)
    return document


def value_of(text: str) -> Any:
    """One value in YAML's flow form, as an override gives it.

    Raises:
        ReadError: it is none.
    """
    node = _compose("the value", text)
    if node is None:
        return None
    return _Builder(Document("")).value(node, "", 0)


def scalar_of(text: str) -> Any:
    """A plain (unquoted) scalar: null, true or false, a number, or the text itself."""
    if text in _WORDS:
        return _WORDS[text]
    if _INT.fullmatch(text) and len(text) <= _MAX_DIGITS:
        return recordable(int(text.replace("_", "")))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", "").lower().replace(".inf", "inf").replace(".nan", "nan"))
    return text


def _of_base(text: str) -> Any:
    """A plain scalar of a file, which may be written as 0x10, 0b1 or 010."""
    matched = _BASES.fullmatch(text) if len(text) <= _MAX_DIGITS else None
    for digits, base in zip(matched.groups()[1:] if matched else (), (16, 2, 8), strict=False):
        if digits and digits.strip("_"):
            return recordable(int(f"{matched[1] if matched else ''}{digits.replace('_', '')}", base))
    return scalar_of(text)


def _compose(name: str, text: str) -> yaml.Node | None:
    compose = cast("Callable[..., yaml.Node | None]", yaml.compose)  # pyright: ignore[reportUnknownMemberType]
    try:
        _refuse_depths(name, text)
        return compose(text, Loader=_Loader)
    except yaml.MarkedYAMLError as error:
        raise ReadError(_not_yaml(name, text, error)) from None
    except (yaml.YAMLError, RecursionError) as error:
        raise ReadError(
            f"{name}: not YAML: {str(error).splitlines()[0] if str(error) else 'nested too deep'}"
        ) from None


def _refuse_depths(name: str, text: str) -> None:
    """The C library composes nodes by recursion, and a depth of 100 000 ends the process; events come one by one."""
    if sum(text.count(sign) for sign in ("[", "{", "- ", "? ")) < _MANY_SIGNS:
        return
    parse_events = cast("Callable[..., Iterable[yaml.Event]]", yaml.parse)  # pyright: ignore[reportUnknownMemberType]
    depth = 0
    for event in parse_events(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > _MAX_DEPTH:
            raise ReadError(f"{name}:{event.start_mark.line + 1}: nested deeper than any config; is it one?")


def _not_yaml(name: str, text: str, error: yaml.MarkedYAMLError) -> str:
    mark = error.problem_mark
    why = error.problem or error.context or "it cannot be parsed"
    if mark is None:
        return f"{name}: not YAML: {why}"
    lines = text.splitlines()
    line = lines[mark.line] if mark.line < len(lines) else ""
    tab = "\t" in line[: len(line) - len(line.lstrip())]
    hint = "; the line is indented by a tab, write spaces" if tab else ""
    return f"{name}:{mark.line + 1}:{mark.column + 1}: not YAML: {why}{hint}"


@dataclass
class _Builder:
    """Turns nodes into values and notes where keys are."""

    document: Document
    count: int = 0

    def mapping(self, node: yaml.MappingNode, prefix: str, depth: int) -> Tree:
        self._guard(node, depth)
        tree: Tree = {}
        merged: Tree = {}
        for key_node, value_node in cast("list[tuple[yaml.Node, yaml.Node]]", node.value):
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag == "tag:yaml.org,2002:merge":
                self._merge(merged, value_node, prefix, depth)
                continue
            name = self._name(key_node, prefix)
            if name is None:
                continue
            key = f"{prefix}{name}"
            place = self._place(key_node)
            if name in tree:
                before = self.document.places.get(key, Place())
                what = f"given twice; line {before.line} is overruled by this one"
                self._problem("syntax", key, what, place)
                self._forget(key)
            self.document.places[key] = place
            tree[name] = self.value(value_node, f"{key}.", depth + 1)
        return {**merged, **tree}

    def value(self, node: yaml.Node, prefix: str, depth: int) -> Any:
        self._guard(node, depth)
        if isinstance(node, yaml.MappingNode):
            return self.mapping(node, prefix, depth)
        if isinstance(node, yaml.SequenceNode):
            items = cast("list[yaml.Node]", node.value)
            return [self.value(item, f"{prefix}{number}.", depth + 1) for number, item in enumerate(items)]
        scalar = cast(yaml.ScalarNode, node)
        if scalar.style in ("'", '"', "|", ">"):
            return str(scalar.value)
        return _of_base(str(scalar.value))

    def _name(self, node: yaml.Node, prefix: str) -> str | None:
        if not isinstance(node, yaml.ScalarNode):
            self._problem(
                "syntax", prefix.rstrip(".") or "the top level", "a key is a list or a mapping", self._place(node)
            )
            return None
        name = str(node.value)
        if node.style is None and not isinstance(scalar_of(name), str):
            # `n:` and `on:` are words of YAML; frameworks that mean a key write it in quotes, and so read it as text.
            return name or "null"
        return name

    def _merge(self, merged: Tree, node: yaml.Node, prefix: str, depth: int) -> None:
        nodes = cast("list[yaml.Node]", node.value) if isinstance(node, yaml.SequenceNode) else [node]
        for one in nodes:
            if isinstance(one, yaml.MappingNode):
                merged |= {
                    name: value for name, value in self.mapping(one, prefix, depth + 1).items() if name not in merged
                }

    def _guard(self, node: yaml.Node, depth: int) -> None:
        self.count += 1
        if depth > _MAX_DEPTH or self.count > _MAX_NODES:
            raise ReadError(
                f"{self.document.name}:{node.start_mark.line + 1}: nested deeper than any config; is it one?"
            )

    def _place(self, node: yaml.Node) -> Place:
        return Place(file=self.document.name, line=node.start_mark.line + 1, column=node.start_mark.column + 1)

    def _problem(self, kind: str, key: str, message: str, place: Place) -> None:
        self.document.problems.append(KeyProblem(kind=kind, key=key, message=message, place=place))

    def _forget(self, key: str) -> None:
        places = self.document.places
        for name in [name for name in places if name.startswith(f"{key}.")]:
            del places[name]
