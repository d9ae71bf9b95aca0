"""One odd value at a time, in places of the documents on which each check fires and stays quiet."""

from __future__ import annotations

import importlib
import json
import random
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from rlcheck.check import Check
from rlcheck.checks import family_checks
from rlcheck.facts.base import FactMissingError
from rlcheck.facts.document import Facts
from rlcheck.families import FAMILIES
from tests.property.budget import share
from tests.property.trees import FLOATS, NUMBERS, STRINGS, Maker, fact_value, facts_type, is_fact, slots

VALUES_PER_PLACE = 6
PLACES_PER_DOCUMENT = 150
OF_CURVES = 40
"""Where most places of a document are points of curves, one like the other."""


def pool(type_: inspect.Type) -> tuple[Any, ...]:
    """The odd values of a type."""
    if isinstance(type_, inspect.UnionType):
        type_ = next(item for item in type_.types if not isinstance(item, inspect.NoneType))
    simple = {
        inspect.StrType: STRINGS,
        inspect.IntType: NUMBERS,
        inspect.FloatType: FLOATS,
        inspect.BoolType: (True, False),
    }
    if type(type_) in simple:
        return simple[type(type_)]
    if isinstance(type_, inspect.StructType) and is_fact(type_):
        missing = tuple({"missing": {"kind": kind, "reason": "x"}} for kind in ("absent", "error"))
        return ({}, *missing, *({"value": value} for value in pool(fact_value(type_))))
    if isinstance(type_, inspect.CollectionType):
        return ([], *([value] for value in pool(type_.item_type)))
    return tuple(Maker(seed).value(type_, 3) for seed in range(5))


def variants(facts: Facts, chance: random.Random, most: int) -> Iterator[Facts]:
    tree = json.loads(json.dumps(msgspec.to_builtins(facts)))
    places = list(slots(tree, facts_type()))
    for container, key, type_ in chance.sample(places, min(most, len(places))):
        was_there = isinstance(container, list) or key in container
        before = container[key] if was_there else None
        values = pool(type_)
        for value in chance.sample(values, min(VALUES_PER_PLACE, len(values))):
            container[key] = value
            yield msgspec.convert(tree, Facts)
        if was_there:
            container[key] = before
        else:
            del container[key]


def breaks(check: Check, facts: Facts) -> str:
    try:
        check.judge(facts)
    except FactMissingError:
        return ""
    except Exception:
        return f"{check.id} broke:\n{traceback.format_exc(limit=-3)}"
    return ""


@pytest.mark.parametrize("family", FAMILIES)
def test_one_odd_value_breaks_no_check(family: str) -> None:
    cases = importlib.import_module(f"tests.checks.{FAMILIES[family].topic}.cases").CASES
    chance = random.Random(family)
    most = share(OF_CURVES if family in ("DRF", "RUN") else PLACES_PER_DOCUMENT)
    tried, broken = 0, []
    for check in family_checks(family):
        for facts in cases[check.id]:
            for variant in variants(facts, chance, most):
                tried += 1
                broken += filter(None, [breaks(check, variant)])
    assert not broken, "\n".join(broken[:5])
    assert tried > share(min(1000, 400 * len(family_checks(family))))
