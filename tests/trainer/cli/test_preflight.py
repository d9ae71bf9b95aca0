"""What is asked of the doctor before a run, and what is said where it is not asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrain.cli.preflight import Origin, Preflight, examine, refuse_unknown
from rltrain.config import Machine, load, resolve
from rltrain.core.errors import RunFailure, UserError
from tests.trainer.config import SMALL

TIMEOUT_S = 20.0
HUGE = ("toy.model.hidden_size=1048576", "toy.model.intermediate_size=1048576")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("select = [", "not valid TOML"),
        ("nonsense = 3\n", "nonsense"),
        ("[[ignore]]\nid = 'NOSUCH'\n", "NOSUCH"),
    ],
)
def test_settings_that_cannot_be_used_are_named(
    text: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rlcheck.toml").write_text(text)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"rlcheck's settings: .*") as caught:
        examine(resolve(load(SMALL), Machine("cpu", 0, 2)), Origin(SMALL), (), TIMEOUT_S)
    assert said in str(caught.value)


def test_a_waiver_names_a_check() -> None:
    refuse_unknown(["MEM001", "GPU011"])
    with pytest.raises(UserError, match="--ignore: no check or family 'nosuch'"):
        refuse_unknown(["MEM001", "nosuch"])


def test_a_skipped_preflight_is_said_and_recorded() -> None:
    skipped = Preflight(True, ("GPU011",))
    assert "what is wrong with this machine now shows late" in skipped.line()
    assert "\n" not in skipped.line()
    assert skipped.record() == {"skipped": True, "ignored": ["GPU011"], "links": [], "findings": []}


def test_states_that_cannot_fit_stop_the_run() -> None:
    with pytest.raises(RunFailure, match=r"MEM001: .*or waive it with --ignore MEM001"):
        examine(resolve(load(SMALL, HUGE), Machine("cpu", 0, 2)), Origin(SMALL, HUGE), (), TIMEOUT_S)
