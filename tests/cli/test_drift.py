"""`rlcheck drift` as a user types it: on runs that are read, on records, and what it asks the measurement for."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck.cli.drift import is_run, run
from rlcheck.cli.facts_files import document
from rlcheck.cli.requests.configs import DriftRequest
from rlcheck.cli.requests.report import Format, ReportRequest
from rlcheck.facts.base import known
from rlcheck.facts.document import Facts, decode, encode
from rlcheck.facts.drift import Bin, DriftFacts, Gap, OperationGap, TokenGap, Variant
from rlcheck.facts.run import Curve
from rlcheck.measure.drift import bridge
from rlcheck.measure.drift.bands import noise
from rlcheck.measure.run.read import read_training
from rlcheck.report.pages.drift_plots import write_plot
from tests.checks.drift.cases import explained, failed, measured
from tests.checks.run.synthetic import healthy_curves
from tests.cli.made_runs import write_run
from tests.cli.test_run import COLOUR
from tests.conftest import in_terminal, rlcheck
from tests.report.test_run_page import Reader

WORST = TokenGap(token="\u202e</td>\n", token_id=5, position=3, rollout_prob=0.9, train_prob=0.1, before="a" * 50,
                 after="שלום", prompt="long")  # fmt: skip
OPERATIONS = (
    OperationGap(name="embedding", equal=True, input_equal=True),
    OperationGap(name="input norm", layer=0, max_diff=1e-3, scale=0.5, input_equal=True),
    OperationGap(name="q projection", layer=0, max_diff=2e-3, scale=0.7),
)
DRIFT = "training/rollout_probs_diff_mean"


def flat(value: float, steps: int = 40) -> Curve:
    return Curve(steps=tuple(range(1, steps + 1)), values=(value,) * steps)


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """From step 21 on both sides are far apart."""
    curves = healthy_curves()
    size = Curve(steps=tuple(range(1, 41)), values=tuple(1e-8 if n < 21 else 0.02 * (n - 20) for n in range(1, 41)))
    logs = Curve(steps=size.steps, values=tuple(value * 3 for value in size.values))
    return write_run(
        tmp_path_factory.mktemp("drift") / "run", {**curves, DRIFT: size, "training/rollout_log_probs_diff_mean": logs}
    )


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A measurement with everything in it."""
    facts = explained(
        Variant(name="fp32", title="float32 on both sides", overrides=("a.dtype=float32",), removes=True, gap=Gap()),
        Variant(name="tp", title="one GPU", error="there is one"),
        worst=(WORST,),
        operations=known(OPERATIONS),
        points=((-1.0, -1.1), (-2.0, -2.5), (-0.1, -0.1)),
        histogram=(Bin(low=0, high=1e-6, num_tokens=5), Bin(low=1e-6, high=1e-3, num_tokens=50)),
        by_kind={"short": Gap(num_tokens=10, probs_diff_mean=0.02)},
        by_position=(Bin(low=0, high=1, num_tokens=9, probs_diff_mean=0.01),
                     Bin(low=1, high=4, num_tokens=9, probs_diff_mean=0.04)),
    )  # fmt: skip
    path = tmp_path_factory.mktemp("drift") / "record.json"
    path.write_bytes(encode((msgspec.structs.replace(facts, node="n"),)))
    return path


def test_a_run_is_read_and_only_its_drift_is_judged(frozen: Path) -> None:
    done = rlcheck("drift", frozen)
    assert done.code == 1
    assert done.out.splitlines()[1].startswith("first: DRF00")
    assert "|p - p'|, mean" in done.out
    assert "reward" not in done.out.partition("Rollout against training: ")[2]
    report = json.loads(rlcheck("drift", frozen, "-f", "json").out)
    assert {check["family"] for check in report["checks"]} == {"DRF"}
    assert not [check["id"] for check in report["checks"] if check["id"] >= "DRF020"]


def test_a_run_without_a_metric_of_it_says_which_setting_writes_one(tmp_path: Path) -> None:
    done = rlcheck("drift", write_run(tmp_path / "run", healthy_curves()))
    assert done.code == 0
    assert "calculate_log_probs=true" in done.out


def test_a_measurement_is_shown_with_everything(record: Path) -> None:
    done = in_terminal("drift", "--facts", record, columns=80)
    assert max(len(line) for line in COLOUR.sub("", done.out).splitlines()) <= 80
    text = " ".join(COLOUR.sub("", rlcheck("drift", "--facts", record).out).split())
    assert "a problem above" in text
    assert "removes it float32 on both sides" in text
    assert "not tried one GPU there is one" in text
    assert "to have it so: a.dtype=float32" in text
    assert "0 input norm 0.001 0.5 enters here" in text
    assert "1 of 3 operations are equal to the bit" in text
    assert "0.9000 0.1000" in text
    assert "1 to 3 9 0.04" in text
    assert "\u202e" not in done.out
    assert rlcheck("drift", "--facts", record, "--ascii").out.isascii()


def test_a_measurement_that_failed_says_where() -> None:
    from rlcheck.report.topics.drift import headline

    facts = failed("died", "the engine died")
    assert facts.drift.value is not None
    assert headline(facts).endswith("failed")


def test_a_plot_as_a_page(record: Path, frozen: Path, tmp_path: Path) -> None:
    page = tmp_path / "drift.html"
    assert rlcheck("drift", "--facts", record, "--plot", page).code in (0, 1)
    text = page.read_text()
    read = Reader(text)
    assert read.count["figure"] == 3
    assert read.count["circle"] == 3
    assert not read.loads
    assert "&lt;/td&gt;" in text
    rlcheck("drift", frozen, "--plot", page)
    assert Reader(page.read_text()).count["figure"] == 3


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib is not installed here")
def test_a_plot_as_a_picture(record: Path, frozen: Path, tmp_path: Path) -> None:
    (facts,) = decode(record.read_bytes())
    for number, one in enumerate((facts, document(run=known(read_training(frozen))))):
        picture = tmp_path / f"{number}.png"
        write_plot(one, picture)
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size > 10_000


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "give a CONFIG to measure, a RUN_DIR to read"),
        (("{run}", "--all"), "--all: needs a CONFIG"),
        (("{run}", "data.seed=1"), "data.seed=1: needs a CONFIG"),
        (("x", "--facts", "{record}"), "leave CONFIG or RUN_DIR out"),
        (("{run}", "--plot", "x.pdf"), ".png or .html"),
    ],
)
def test_what_cannot_be_done_is_one_line(frozen: Path, record: Path, words: tuple[str, ...], why: str) -> None:
    done = rlcheck("drift", *(word.format(run=frozen, record=record) for word in words))
    assert done.code == 2, done.out
    assert why in done.error_line


def test_what_is_a_run_and_what_a_config(tmp_path: Path) -> None:
    assert is_run(str(tmp_path))
    assert is_run("metrics.jsonl")
    assert is_run("logs/events.out.tfevents.123.host")
    assert is_run("checkpoint-5/trainer_state.json")
    assert not is_run("toy-ppo")
    assert not is_run("train.yaml")
    assert not is_run("run.sh")


def test_the_options_reach_the_measurement(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    asked: dict[str, Any] = {}

    def examine(run: Any, source: str, overrides: Any, directory: str, options: Any, **more: Any) -> DriftFacts:
        asked.update(source=source, overrides=overrides, options=options, is_there=Path(directory).is_dir(), **more)
        drift = measured().drift.value
        assert drift is not None
        return drift

    monkeypatch.setattr(bridge, "examine_drift", examine)
    report = ReportRequest(Format.JSON, tmp_path / "report.json", record=tmp_path / "record.json")
    request = DriftRequest("toy-grpo", ("data.seed=3",), num_prompts=7, try_all=True, operations=True,
                           start_timeout_s=33, budget_s=44, report=report)  # fmt: skip
    run(request)
    options = asked["options"]
    assert (options.num_prompts, options.try_all, options.operations, options.budget_s) == (7, True, True, 44)
    assert dict(options.noise)["float32"] == noise(
        "float32", "float32", "cpu" if not Path("/dev/nvidiactl").exists() else "cuda"
    )
    assert (asked["source"], asked["overrides"], asked["start_s"]) == ("toy-grpo", ("data.seed=3",), 33)
    assert asked["is_there"]
    written = json.loads((tmp_path / "report.json").read_text())
    assert {check["id"] for check in written["checks"]} >= {"DRF020", "DRF025"}
    assert (tmp_path / "record.json").exists()


def test_an_empty_document_has_no_table() -> None:
    from rlcheck.report.topics.drift import exhibits, headline

    assert exhibits(Facts()) == ()
    assert headline(Facts()) == ""
