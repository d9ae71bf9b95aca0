"""How a step that was run again is told."""

from __future__ import annotations

from rlcheck.report.topics.step import exhibits, headline
from tests.checks.step.cases import CHANGED, GPUS, replayed


def test_the_headline_names_the_first_quantity_or_that_all_are_the_same() -> None:
    assert headline(replayed()) == "run again: step 2; the same to the bit"
    assert headline(replayed("gradient", "after")) == "run again: step 2; step 2 differs first in: gradient"
    assert headline(replayed(devices=GPUS)) == "a micro batch on 3 devices; the same to the bit"
    other = headline(replayed("outputs", devices=GPUS))
    assert other == "a micro batch on 3 devices; GPU 2 against GPU 0 differs first in: outputs"


def test_a_table_says_each_quantity_and_what_has_changed() -> None:
    (table,) = exhibits(replayed("gradient", changed=CHANGED))
    assert table.title == "Step 2, run again: 9 s"
    assert [row[:2] for row in table.rows][1:3] == [("old-log-probs", "same"), ("gradient", "DIFFERS")]
    assert "other than in the recorded step: torch 2.9.0 -> 2.9.1" in table.notes
    assert [each.title for each in exhibits(replayed(devices=GPUS))][1] == (
        "Step 2, one micro batch on GPU 1 against GPU 0: 9 s"
    )
