"""Every metric is on docs/trainer/metrics.md, and every metric there exists."""

from __future__ import annotations

import json
import re
from functools import lru_cache

import torch

from rltrain.algos.metrics import data_metrics, rollout_diff_metrics
from rltrain.algos.rejection import rollout_rs_kept
from rltrain.algos.rollout_correction import rollout_is_weights
from rltrain.config.schema import RolloutCorrectionConfig
from rltrain.controller.callbacks.words import COLUMNS
from tests.tools.pages import ROOT

PAGE = ROOT / "docs" / "trainer" / "metrics.md"
RECORDED = ROOT / "docs" / "pictures" / "toy-ppo" / "metrics.jsonl"
OTHERS = ("step", "audit", "nonfinite")


@lru_cache(maxsize=1)
def documented() -> tuple[str, ...]:
    """Names in code on the page that have a slash in them; SOURCE, PART and N stand for anything."""
    return tuple(re.findall(r"`([a-z_\-]+(?:/[A-Za-z_@][\w@]*)+)`", PAGE.read_text(encoding="utf-8")))


def on_the_page(metric: str) -> bool:
    """Whether METRIC, as a run writes it, is explained."""
    holes = {"SOURCE": r".+", "PART": r".+", "N": r"\d+"}
    for name in documented():
        pattern = re.sub(r"SOURCE|PART|\bN\b", lambda found: holes[found[0]], re.escape(name))
        if re.fullmatch(pattern, metric):
            return True
    return False


def test_every_metric_of_a_recorded_run() -> None:
    steps = [json.loads(line) for line in RECORDED.read_text(encoding="utf-8").splitlines()]
    metrics = {name for step in steps for name in step} - set(OTHERS)
    assert len(metrics) > 80
    assert sorted(name for name in metrics if not on_the_page(name)) == []


def test_every_key_of_the_audit_record() -> None:
    last = json.loads(RECORDED.read_text(encoding="utf-8").splitlines()[-1])
    text = PAGE.read_text(encoding="utf-8").partition("## The audit record")[2]
    assert [key for key in last["audit"] if f"`{key}`" not in text] == []


def test_every_metric_that_is_computed_from_a_batch() -> None:
    fields = {
        name: torch.rand(2, 3)
        for name in ("token_level_scores", "token_level_rewards", "advantages", "returns", "values")
    }
    mask = torch.ones(2, 3, dtype=torch.bool)
    fields |= {"response_mask": mask, "attention_mask": torch.ones(2, 5, dtype=torch.bool)}
    metrics = data_metrics(fields, 4, 4)
    old, rollout = -torch.rand(2, 3), -torch.rand(2, 3)
    metrics |= rollout_diff_metrics(old, rollout, mask)
    for level in ("token", "sequence"):
        config = RolloutCorrectionConfig(rollout_is=level, rollout_is_batch_normalize=True)
        metrics |= rollout_is_weights(old, rollout, mask, config)[1]
    config = RolloutCorrectionConfig(
        rollout_is="token", rollout_is_threshold="0.5_2.0", rollout_rs="token_k1", rollout_rs_threshold=2
    )
    metrics |= rollout_is_weights(old, rollout, mask, config)[1] | rollout_rs_kept(old, rollout, mask, config)[1]
    assert sorted(name for name in metrics if not on_the_page(name)) == []


def test_every_name_in_the_source() -> None:
    """Strings of the trainer that look like a metric's name; what stands in braces may be anything."""
    families = {name.split("/")[0] for name in documented()}
    unknown: set[str] = set()
    for path in (ROOT / "trainer").rglob("*.py"):
        for name in re.findall(r'"([a-z_\-]+(?:/[\w{}@.\-]+)+)"', path.read_text(encoding="utf-8")):
            # `{…}` in an f-string: try the name with each of the page's own words in its place.
            pattern = re.sub(r"\\\{[^{}]*\\\}", r"[\\w@/{}]+", re.escape(name))
            known = on_the_page(name) or any(re.fullmatch(pattern, one) for one in documented())
            if name.split("/")[0] in families and not known:
                unknown.add(f"{path.name}: {name}")
    assert unknown == set()


def test_every_metric_on_the_page_exists() -> None:
    """Its last word is in the source."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "trainer").rglob("*.py"))
    lost = []
    for name in documented():
        if name.startswith(("samples/", "logs/", "tests/", "timing_s/*")):
            continue
        last = re.split(r"[/@]", name.removesuffix("@N"))[-1]
        if not re.search(rf"\b{re.escape(last)}\b|_{re.escape(last)}\b", source) and not _made_of(last, source):
            lost.append(name)
    assert lost == []


def _made_of(name: str, source: str) -> bool:
    """Whether NAME is put together in an f-string: its end, behind a prefix of the source's own."""
    words = name.split("_")
    ends = ("_".join(words[cut:]) for cut in range(1, len(words)))
    return any(f'"{end}"' in source for end in ends) or f'"{name.removesuffix("_gb")}"' in source


def test_the_columns_of_the_table_are_explained() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("## The table in the terminal")[2].partition("## ")[0]
    missing = [column.title for column in COLUMNS if column.metric and f"`{column.metric}`" not in text]
    assert missing == []


def test_the_check_can_fail() -> None:
    assert on_the_page("reward/toy/copy/digits/mean")
    assert on_the_page("val-core/openai/gsm8k/reward/mean@4")
    assert not on_the_page("actor/unheard_of")
