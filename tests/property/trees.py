"""Documents made from the types of the facts themselves, so that a new field is covered without anybody's doing.

Everything is made of JSON data (`msgspec.to_builtins` of a document) and converted at the end, as if read from a file.
"""

from __future__ import annotations

import functools
import importlib
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import inspect

from rlcheck.facts.base import Fact, MissingKind
from rlcheck.facts.document import Facts, decode
from rlcheck.families import FAMILIES
from tests.conftest import ROOT

FIXTURES = ROOT / "tests" / "fixtures"
MACHINES = sorted((FIXTURES / "machines").glob("*.json"))
RECORDS = sorted((FIXTURES / "records").glob("*.json"))
STRINGS = (
    "",
    " ",
    "\n",
    "\x00",
    "\x1b[31m",
    "a\nb\tc",
    "\u202e",
    "\U0001f600",
    "字" * 50,
    "x" * 5000,
    "-1",
    "0",
    "1e999",
    "nan",
    "inf",
    "0x10",
    "99999999999999999999999",
    "1.2.3",
    "2.11.0+cu130",
    "2.11.0a0+gitabc",
    "v1",
    "1.0.dev0+local.1",
    "1!2.0",
    "1..2",
    "==1",
    "not a version",
    "1.2.3.4.5.6.7.8.9",
    "٣.٤",
    "unknown",
    "None",
    "null",
    "true",
    "/",
    "//",
    "~",
    ".",
    "..",
    "/a b/c",
    "/" * 300,
    "a=b",
    "=",
    "==",
    ";",
    "torch>=2 ; python_version < '3'",
    "torch[",
    "torch @ file:///x",
    "torch>=",
    ">=2,<",
    "a[b,c]>=1; extra == 'x'",
    "0-3,5",
    "0-",
    "3-1",
    "-",
    "0-99999999",
    ",,,",
    "1,1,1",
    "eth0",
    "^docker0",
    "=eth0:1",
    "mlx5_0:1,mlx5_1",
    "GPU-deadbeef",
    "MIG-x/1/2",
    "00000000:0F:00.0",
    "0000:0f:00.0",
    "127.0.0.1",
    "::1",
    "fe80::1%eth0",
    "10.0.0.0/8",
    "999.1.1.1",
    "[::1]:80",
    "http://[",
    "http://u:p@h:x",
    "tcp://host:99999",
    "$(reboot)",
    "'",
    '"',
    "`",
    "\\",
    "{{x}}",
    "{}",
    "%s",
    "*",
    "a" * 64,
    "cp312-cp312-manylinux_2_28_x86_64",
    "py3-none-any",
    "gfx942",
    "gfx90a:sramecc+:xnack-",
    "sm_90",
    "9.0+PTX",
    "compute_90a",
    "12.8",
    "cu128",
    "libcudart.so.12",
    "0302",
    "ffff",
    "zz",
    "2026-11-21T00:00:00+00:00",
    "unlimited",
    "max",
    "-9223372036854775808",
)
NUMBERS = (
    0,
    1,
    -1,
    2,
    3,
    7,
    8,
    10,
    64,
    100,
    255,
    1000,
    4096,
    65535,
    2**20,
    2**30,
    2**31 - 1,
    2**31,
    2**32,
    2**36,
    2**40,
    2**53 + 1,
    2**62,
    2**63 - 1,
    2**63,
    2**64 - 1,
    -2,
    -(2**31),
    -(2**63),
)
FLOATS = (0.0, -0.0, 1.0, 0.5, -1.0, 1e-9, 5e-324, 60.0, 1e6, 1e18, 1e300, 1.7e308, -1e308)


@functools.cache
def machines() -> tuple[Any, ...]:
    """The recorded machines, as JSON data."""
    return tuple(msgspec.to_builtins(facts) for path in (*MACHINES, *RECORDS) for facts in decode(path.read_bytes()))


@functools.cache
def documents() -> tuple[Any, ...]:
    """The recorded machines, and of every check the document on which it fires: small, and a step away from odd."""
    cases = [importlib.import_module(f"tests.checks.{FAMILIES[family].topic}.cases").CASES for family in FAMILIES]
    fires = [msgspec.to_builtins(case[0]) for family in cases for _, case in sorted(family.items())]
    return (*machines(), *json.loads(json.dumps(fires)))


@functools.cache
def words() -> tuple[str, ...]:
    """Every string that stands in a recorded machine: put elsewhere, it is almost right."""

    def walk(tree: Any) -> Iterator[str]:
        if isinstance(tree, str):
            yield tree
        elif isinstance(tree, dict):
            for key, value in tree.items():
                yield key
                yield from walk(value)
        elif isinstance(tree, list | tuple):
            for item in tree:
                yield from walk(item)

    return tuple(sorted({word for machine in machines() for word in walk(machine) if len(word) < 200}))


@functools.cache
def variables() -> tuple[str, ...]:
    """Names of environment variables that checks may look at."""
    rules = json.loads((ROOT / "rlcheck" / "data" / "environ.json").read_text())
    recorded = {name for machine in machines() for name in machine.get("environ", {}).get("value", {})}
    return tuple(sorted({*rules["exact"], *recorded}))


class Maker:
    """Makes data of any type, from a seed."""

    def __init__(self, seed: int, depth: int = 6) -> None:
        self.random = random.Random(seed)
        self.depth = depth

    def value(self, type_: inspect.Type, depth: int = 0) -> Any:
        """Some value of `type_`."""
        if isinstance(type_, inspect.StructType):
            return self._struct(type_, depth)
        if isinstance(type_, inspect.DictType):
            keys = variables() if isinstance(type_.value_type, inspect.StrType) else words()
            size = self._size(depth)
            return {
                self.random.choice(keys) if self.random.random() < 0.8 else self.text(): self.value(
                    type_.value_type, depth + 1
                )
                for _ in range(size)
            }
        if isinstance(type_, inspect.TupleType):
            return [self.value(item, depth + 1) for item in type_.item_types]
        if isinstance(type_, inspect.CollectionType):
            return [self.value(type_.item_type, depth + 1) for _ in range(self._size(depth))]
        return self._simple(type_, depth)

    def _simple(self, type_: inspect.Type, depth: int) -> Any:
        if isinstance(type_, inspect.UnionType):
            return self.value(
                self.random.choice([t for t in type_.types if not isinstance(t, inspect.NoneType)]), depth
            )
        if isinstance(type_, inspect.StrType):
            return self.text()
        if isinstance(type_, inspect.BoolType):
            return self.random.random() < 0.5
        if isinstance(type_, inspect.IntType):
            return self.random.choice(NUMBERS) if self.random.random() < 0.7 else self.random.randrange(-5, 300)
        if isinstance(type_, inspect.FloatType):
            return self.random.choice(FLOATS)
        if isinstance(type_, inspect.EnumType):
            return self.random.choice(list(type_.cls)).value
        if isinstance(type_, inspect.LiteralType):
            return self.random.choice(type_.values)
        assert isinstance(type_, inspect.AnyType), f"no values of {type_} are made yet: teach Maker about it"
        return self._anything(depth)

    def text(self) -> str:
        """A hostile string, or one that would be right elsewhere."""
        chance = self.random.random()
        if chance < 0.45:
            return self.random.choice(STRINGS)
        if chance < 0.9:
            return self.random.choice(words())
        return "".join(
            chr(self.random.choice((self.random.randrange(0xD800), self.random.randrange(128)))) for _ in range(9)
        )

    def _anything(self, depth: int) -> Any:
        if depth < self.depth and self.random.random() < 0.4:
            items = [self._anything(depth + 1) for _ in range(3)]
            return items if self.random.random() < 0.5 else {self.text(): item for item in items}
        return self.random.choice([None, True, 0, 1.5, self.text(), self.random.choice(NUMBERS)])

    def _struct(self, type_: inspect.StructType, depth: int) -> dict[str, Any]:
        if is_fact(type_):
            return self._fact(type_, depth)
        # Facts themselves get every section; below, fields are left out now and then.
        keep = 1.0 if depth == 0 else 0.85
        return {
            field.name: self.value(field.type, depth + 1)
            for field in type_.fields
            if field.required or self.random.random() < keep
        } | ({"schema_version": "2.0"} if type_.cls is Facts else {})

    def _fact(self, type_: inspect.StructType, depth: int) -> dict[str, Any]:
        chance = self.random.random()
        if chance < 0.75:
            return {"value": self.value(fact_value(type_), depth)}
        if chance < 0.8:
            return {}
        return {"missing": {"kind": self.random.choice(list(MissingKind)).value, "reason": self.text()}}

    def _size(self, depth: int) -> int:
        return self.random.choice((0, 1, 1, 2, 3, 8 if depth < 4 else 1))


def is_fact(type_: inspect.StructType) -> bool:
    """Whether this is `Fact[...]`."""
    return getattr(type_.cls, "__origin__", type_.cls) is Fact


def fact_value(type_: inspect.StructType) -> inspect.Type:
    """The type inside of a `Fact`."""
    return next(field.type for field in type_.fields if field.name == "value")


@functools.cache
def facts_type() -> inspect.StructType:
    """The type of a document."""
    type_ = inspect.type_info(Facts)
    assert isinstance(type_, inspect.StructType)
    return type_


def slots(tree: Any, type_: inspect.Type) -> Iterator[tuple[Any, Any, inspect.Type]]:
    """Every place in `tree` that could hold something else of its type: container, key, type."""
    if isinstance(type_, inspect.UnionType):
        type_ = next(t for t in type_.types if not isinstance(t, inspect.NoneType))
    if isinstance(type_, inspect.StructType) and isinstance(tree, dict):
        for field in type_.fields:
            if field.name not in ("schema_version", "kind"):
                yield tree, field.name, field.type
                if field.name in tree:
                    yield from slots(tree[field.name], field.type)
    elif isinstance(type_, inspect.DictType) and isinstance(tree, dict):
        for key in tree:
            yield tree, key, type_.value_type
            yield from slots(tree[key], type_.value_type)
    elif isinstance(type_, inspect.CollectionType) and isinstance(tree, list):
        for index, item in enumerate(tree):
            yield tree, index, type_.item_type
            yield from slots(item, type_.item_type)


def changed(document: Any, seeds: list[int]) -> Facts:
    """A document with one change for each seed."""
    tree = json.loads(json.dumps(document))
    for seed in seeds:
        maker = Maker(seed)
        # Sections first: else a list of a thousand distributions would draw nearly all changes to itself.
        fields = facts_type().fields[5:]
        there = [field for field in fields if field.name in tree]
        section = maker.random.choice(there if there and maker.random.random() < 0.9 else fields)
        inside = [(tree, section.name, section.type), *slots(tree.get(section.name), section.type)]
        container, key, type_ = maker.random.choice(inside)
        if section.name == "environ" and maker.random.random() < 0.9:
            container, key, type_ = (
                tree.setdefault("environ", {}).setdefault("value", {}),
                maker.random.choice(variables()),
                inspect.StrType(),
            )
        container[key] = maker.value(type_, 3)
    return msgspec.convert(tree, Facts)


def made(seed: int) -> Facts:
    """A document of nothing but random values."""
    return msgspec.convert(Maker(seed).value(facts_type()), Facts)


def with_section(machine: Any, section: str, seed: int) -> Facts:
    """A recorded machine with one section replaced by random values."""
    type_ = next(field.type for field in facts_type().fields if field.name == section)
    return msgspec.convert({**machine, section: Maker(seed).value(type_, 1)}, Facts)
