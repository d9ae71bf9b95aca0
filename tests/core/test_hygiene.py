"""Whatever a probe returns can be written and read again."""

from __future__ import annotations

from typing import Any

import pytest

from rlcheck.facts.base import Fact, MissingKind, known
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.hygiene import made_safe
from rlcheck.facts.platform import PlatformFacts
from rlcheck.facts.system import Limit, Limits, SystemFacts
from tests.core.samples import FACTS


def test_undecodable_bytes_are_replaced() -> None:
    fact = made_safe("platform", known(PlatformFacts(kernel="a\udcffb")))
    assert fact.value == PlatformFacts(kernel="a\ufffdb")
    environ = made_safe("environ", known({"A\udc80": "\ud800"}))
    assert environ.value == {"A\ufffd": "\ufffd"}
    assert decode(encode((Facts(platform=fact, environ=environ),)))[0].environ == environ


@pytest.mark.parametrize("value", [object(), {1, object()}, {"f": lambda: 0}, {"x": 2**70}, [-(2**65)], {(): 1}])
def test_what_json_cannot_hold_is_missing(value: Any) -> None:
    fact = made_safe("acme", known(value))
    assert fact.value is None
    assert fact.missing is not None
    assert fact.missing.kind is MissingKind.ERROR
    assert fact.missing.reason.startswith("the acme probe returned what no facts file can hold")


def test_numbers_up_to_64_bits_are_kept() -> None:
    system = SystemFacts(limits=Limits(nofile=known(Limit(soft=2**64 - 1, hard=-(2**63)))))
    assert made_safe("system", known(system)).value == system
    too_large = SystemFacts(limits=Limits(nofile=known(Limit(soft=2**64))))
    assert made_safe("system", known(too_large)).value is None


def test_a_number_that_is_none_is_missing() -> None:
    from rlcheck.facts.python import ImportTest, PythonFacts

    python = PythonFacts(imports=known((ImportTest(module="m", seconds=float("nan"), ok=True),)))
    assert made_safe("python", known(python)).value is None


def test_what_is_sound_is_left_alone() -> None:
    fact: Fact[Any] = FACTS.platform
    assert made_safe("platform", fact) is fact
    assert made_safe("platform", Fact()) == Fact()
