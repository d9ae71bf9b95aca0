"""Collecting: probes that hang, raise or return nonsense cost their own section and never the report's time."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from rlcheck.facts.base import MissingKind, absent, known, missing
from rlcheck.facts.document import SECTIONS, Facts, decode, encode
from rlcheck.measure.machine import gather as gather_module
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.gather import gather
from rlcheck.measure.machine.registry import Probe
from tests.conftest import base_environ

CONTEXT = ProbeContext("/nowhere", {})


@pytest.fixture
def probe() -> Iterator[Callable[..., Probe]]:
    """Makes a probe of a function."""
    made: list[str] = []

    def make(section: str, collect: Callable[[ProbeContext], Any], deadline_s: float = 5.0) -> Probe:
        module = types.ModuleType(f"made_up_probe_{section}")
        module.collect = collect  # type: ignore[attr-defined]
        sys.modules[module.__name__] = module
        made.append(module.__name__)
        return Probe(section, module.__name__, deadline_s)

    yield make
    for name in made:
        del sys.modules[name]


MakeProbe = Callable[..., Probe]


def raising(error: BaseException) -> Callable[[ProbeContext], Any]:
    def collect(context: ProbeContext) -> Any:
        raise error

    return collect


def test_values_and_facts_are_taken_as_they_are(probe: MakeProbe) -> None:
    facts = gather(CONTEXT, [
        probe("environ", lambda context: {"A": "1"}),
        probe("a", lambda context: known([1, 2])),
        probe("b", lambda context: absent("not here")),
    ])  # fmt: skip
    assert facts.environ == known({"A": "1"})
    assert facts.plugins == {"a": known([1, 2]), "b": absent("not here")}
    assert facts.node
    assert facts.collected_at.endswith("+00:00")


def test_what_was_not_asked_for_is_not_collected() -> None:
    facts = gather(CONTEXT, [])
    assert facts.plugins == {}
    for section in SECTIONS:
        fact = getattr(facts, section)
        assert fact.missing is not None
        assert fact.missing.kind is MissingKind.NOT_COLLECTED


@pytest.mark.parametrize("error", [RuntimeError("broken"), SystemExit(3), RecursionError(), MemoryError()])
def test_a_probe_that_raises_costs_its_section(error: BaseException, probe: MakeProbe) -> None:
    started = time.monotonic()
    facts = gather(CONTEXT, [probe("a", raising(error)), probe("b", lambda context: known(1))])
    assert time.monotonic() - started < 10
    assert facts.plugins["b"] == known(1)
    reason = facts.plugins["a"].missing
    assert reason is not None
    assert reason.kind is MissingKind.ERROR
    assert reason.reason.startswith(f"the a probe failed: {type(error).__name__}")


def test_a_module_that_cannot_be_imported_costs_its_section() -> None:
    facts = gather(CONTEXT, [Probe("a", "no_such_module_of_ours")])
    reason = facts.plugins["a"].missing
    assert reason is not None
    assert "ModuleNotFoundError" in reason.reason


@pytest.mark.parametrize("value", [object(), float("nan"), {"x": {1: object()}}, 2**80, "a\udcff"])
def test_the_document_can_always_be_written(value: Any, probe: MakeProbe) -> None:
    facts = gather(CONTEXT, [probe("a", lambda context: value), probe("b", lambda context: known("fine"))])
    (again,) = decode(encode((facts,)))
    assert again.plugins["b"] == known("fine")


def test_a_probe_that_hangs_costs_its_deadline_only(probe: MakeProbe) -> None:
    waiting: list[tuple[str, ...]] = []
    started = time.monotonic()
    facts = gather(
        CONTEXT,
        [probe("a", lambda context: time.sleep(60), deadline_s=1.2), probe("b", lambda context: known(1))],
        progress=waiting.append,
    )
    assert 1.2 <= time.monotonic() - started < 20
    assert facts.plugins == {
        "a": missing(MissingKind.TIMEOUT, "the a probe did not finish within 1.2 s"),
        "b": known(1),
    }
    assert waiting
    assert set(waiting) == {("a",)}


def test_the_timeout_bounds_every_deadline(probe: MakeProbe) -> None:
    started = time.monotonic()
    facts = gather(CONTEXT, [probe(name, lambda context: time.sleep(60)) for name in "abcdef"], timeout_s=0.5)
    assert time.monotonic() - started < 20
    assert all(fact.missing and fact.missing.kind is MissingKind.TIMEOUT for fact in facts.plugins.values())


def test_an_answer_after_the_deadline_is_not_waited_for(probe: MakeProbe) -> None:
    def late(context: ProbeContext) -> Any:
        time.sleep(0.6)
        return known(1)

    facts = gather(CONTEXT, [probe("a", late, deadline_s=0.2), probe("b", lambda context: time.sleep(1) or known(2))])
    assert facts.plugins["a"].missing is not None
    assert facts.plugins["b"] == known(2)


def test_probes_run_side_by_side(probe: MakeProbe) -> None:
    barrier = threading.Barrier(5, timeout=30)
    facts = gather(CONTEXT, [probe(name, lambda context: known(barrier.wait() >= 0)) for name in "abcde"])
    assert all(fact == known(True) for fact in facts.plugins.values())


def test_no_thread_can_be_started(probe: MakeProbe, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit on processes that is reached is something to report, not to die of."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(gather_module.threading.Thread, "start", refuse)
    facts = gather(CONTEXT, [probe("a", lambda context: known(1)), probe("b", raising(OSError("x")))])
    assert facts.plugins["a"] == known(1)
    assert facts.plugins["b"].missing is not None


def test_the_process_ends_although_a_thread_hangs() -> None:
    code = """
import sys, time, types
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.gather import gather
from rlcheck.measure.machine.registry import Probe
module = types.ModuleType("stuck")
module.collect = lambda context: time.sleep(1000)
sys.modules["stuck"] = module
print(gather(ProbeContext(), [Probe("a", "stuck", 0.3)]).plugins["a"].missing.kind.value)
"""
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", code], env=base_environ(), capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "timeout\n", "")
    assert time.monotonic() - started < 30


def test_no_name_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> str:
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(gather_module.socket, "gethostname", refuse)
    assert isinstance(gather(CONTEXT, []), Facts)
