"""What a run writes is explained on docs/trainer/metrics.md."""

from __future__ import annotations

import pytest

from tests.tools.test_metrics_page import OTHERS, PAGE, on_the_page
from tests.trainer.end_to_end.runs import Run

pytestmark = pytest.mark.timeout(1800)


def test_every_metric_of_a_run_is_on_its_page(whole: Run) -> None:
    metrics = {name for step in whole.steps for name in step} - set(OTHERS)
    assert len(metrics) > 80
    assert sorted(name for name in metrics if not on_the_page(name)) == []


def test_every_key_of_the_audit_record_is_on_its_page(whole: Run) -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## The audit record")[2]
    assert [key for key in whole.steps[-1]["audit"] if f"`{key}`" not in text] == []
