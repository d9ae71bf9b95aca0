"""Whatever the machine answers: no probe raises, and what it returns can be written, read and judged."""

from __future__ import annotations

import re
import tempfile
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlcheck import judging
from rlcheck.facts.base import Fact, known
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.hygiene import made_safe
from rlcheck.measure.machine.context import ProbeContext
from rlcheck.measure.machine.registry import PROBES, Probe
from tests.conftest import write_command
from tests.property.budget import cases
from tests.property.machines import OddMachine
from tests.property.test_documents import DOCTOR
from tests.property.trees import STRINGS

pytestmark = pytest.mark.timeout(900)
SEEDS = st.integers(0, 2**32)
EMPTY = tempfile.mkdtemp(prefix="rlcheck-empty-root-")
TOOLS = (
    "nvidia-smi",
    "dmesg",
    "lspci",
    "rocm-smi",
    "rocminfo",
    "gcc",
    "g++",
    "cc",
    "ldconfig",
    "timedatectl",
    "chronyc",
    "ray",
    "df",
    "ip",
)


def collected(probe: Probe, context: ProbeContext) -> Fact[Any]:
    """What the probe returned, which must be fit to be written."""
    value = probe.load()(context)
    fact = value if isinstance(value, Fact) else known(value)
    safe = made_safe(probe.section, fact)
    # A number that no kernel would say may cost the section; anything else that cannot be written is the probe's fault.
    assert safe.missing is None or not re.search("can hold: (?!an integer beyond)", safe.missing.reason), safe.missing
    return safe


def assert_sound(probe: Probe, context: ProbeContext) -> None:
    fact = collected(probe, context)
    facts = Facts(**{probe.section: fact})
    (again,) = decode(encode((facts,)))
    assert again == facts, "a facts file changes the section"
    mine = [check for check in DOCTOR.checks if any(need.split(".")[0] == probe.section for need in check.needs)]
    for check, finding in zip(mine, judging.judge(facts, mine, DOCTOR.library), strict=True):
        if finding.status == "error":
            try:
                check.judge(facts)
            except Exception:
                pytest.fail(f"{check.id} broke:\n{traceback.format_exc(limit=-3)}")


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.section)
def test_a_machine_that_answers_oddly(probe: Probe) -> None:
    @cases("fake machines")
    @given(SEEDS, st.sampled_from((0.0, 0.5, 0.9)), st.booleans())
    def search(seed: int, calm: float, deep: bool) -> None:
        # Another interpreter: its scan is an answer like any other. The doctor's own is looked at on a real disk.
        assert_sound(probe, OddMachine(seed, calm, EMPTY, python=("python3",), deep=deep))

    search()


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.section)
def test_an_empty_machine(probe: Probe, tmp_path: Path) -> None:
    """No /proc, no /sys, no commands, no variables."""
    assert_sound(probe, ProbeContext(tmp_path, {}))
    assert_sound(probe, ProbeContext(tmp_path / "nothing", {"PATH": "/nowhere", "HOME": "/nowhere"}))


@cases("fake tools")
@given(
    st.binary(max_size=200) | st.sampled_from(STRINGS).map(lambda text: text.encode("utf-8", "replace")),
    st.integers(0, 3),
)
def test_tools_that_print_anything(output: bytes, code: int) -> None:
    with tempfile.TemporaryDirectory() as directory:
        (Path(directory) / "output").write_bytes(output)
        for tool in TOOLS:
            write_command(Path(directory), tool, f"cat {directory}/output; cat {directory}/output >&2; exit {code}")
        for device in ("dev/nvidiactl", "dev/nvidia0", "proc/driver/nvidia/version"):
            path = Path(directory) / "root" / device
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(output)
        context = ProbeContext(Path(directory) / "root", {"PATH": f"{directory}:/bin", "HOME": directory})
        for probe in PROBES:
            if probe.section in ("nvidia", "rocm", "system"):
                assert_sound(probe, context)
