"""Interpolations resolve as OmegaConf resolves them."""

from __future__ import annotations

from typing import Any

import pytest
from omegaconf import OmegaConf

from rlcheck.measure.config.interpolate import Resolver

TREES: list[dict[str, Any]] = [
    {"a": {"b": 3, "c": "${.b}", "d": "${..e}"}, "e": "x${a.b}y", "f": "${a.c}"},
    {"a": {"b": "${c}"}, "c": {"d": [1, "${e}"]}, "e": 2.5},
    {"a": "${oc.select:no.such,7}", "b": "${oc.select:no.such,null}", "c": "${oc.select:no.such,${d}}", "d": "q"},
    {"a": "${oc.env:RUNS_TEST_SET}", "b": "${oc.env:RUNS_TEST_UNSET,none}/x", "c": "${oc.decode:'[1, 2]'}"},
    {"a": {"b": {"c": 1}}, "d": "${a.b}", "e": "${d.c}", "f": ["${a.b.c}"]},
    {"a": "${oc.select:b.c,false}", "b": {"c": True}, "d": "${oc.select:b.x,[1,2]}"},
]


@pytest.mark.parametrize("tree", TREES)
def test_as_omegaconf(tree: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RUNS_TEST_SET", "here")
    monkeypatch.delenv("RUNS_TEST_UNSET", raising=False)
    resolver = Resolver(tree, {"RUNS_TEST_SET": "here"})
    assert resolver.resolved() == OmegaConf.to_container(OmegaConf.create(tree), resolve=True)
    assert (resolver.wrong, resolver.unresolved) == ({}, {})


def test_what_has_no_value_stays_and_is_said() -> None:
    tree = {"a": "${b}", "b": "${a}", "c": "${no.such}", "d": "${now:%Y}", "e": "${oc.env:NOT_SET}", "f": "${f2.x}",
            "f2": {"x": 1}, "g": "${oc.env:X"}  # fmt: skip
    resolver = Resolver(tree, {})
    found = resolver.resolved()
    assert found["f"] == 1
    assert {key for key in tree if key not in ("f", "f2")} == set(resolver.wrong) | set(resolver.unresolved)
    assert resolver.wrong["a"] == "refers to itself"
    assert resolver.wrong["c"] == "names `no.such`, which is not there"
    assert found["d"] == "${now:%Y}"


def test_a_section_that_holds_a_circle_spoils_no_other_key() -> None:
    tree: dict[str, Any] = {"a": {"s": "${b.s}"}, "b": {"s": {"x": "${a.s.x}", "y": 1}}}
    resolver = Resolver(tree, {})
    assert resolver.resolved()["a"]["s"]["y"] == 1
    assert set(resolver.wrong) == {"b.s.x"}
