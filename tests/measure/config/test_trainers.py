"""Every trainer's configs of our own writing: read, judged without a false alarm; planted mistakes named in place."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rlcheck.checks import builtin_checks
from rlcheck.facts.base import known
from rlcheck.facts.config import ConfigFacts
from rlcheck.facts.document import Facts
from rlcheck.finding import Finding
from rlcheck.judging import judge
from rlcheck.measure.config.fields import actual
from rlcheck.measure.config.read import read_run
from rlcheck.measure.config.trainer import layout, versions
from rlcheck.measure.config.trainers import trainers
from rlcheck.playbook import Library
from rlcheck.report.topics.config import config_data
from tests.measure.config.trainers.planted import Cases, Mistake

LIBRARY = Library()
CHECKS = [check for check in builtin_checks() if check.family == "CFG"]
LEAST_MISTAKES = 10


def cases_of(name: str) -> Cases:
    return import_module(f"tests.measure.config.trainers.{name.replace('-', '_')}").CASES


ALL = {name: cases_of(name) for name in trainers()}
FILES = [(name, file) for name, cases in ALL.items() for file in cases.configs]
MISTAKES = [(name, mistake) for name, cases in ALL.items() for mistake in cases.mistakes]


def read(cases: Cases, directory: Path, file: str, *, num_gpus: int = 0, look: bool = False) -> ConfigFacts:
    run = read_run(str(directory / file), [], look=look)
    return msgspec.structs.replace(run, num_gpus=known(num_gpus)) if num_gpus else run


def written(cases: Cases, directory: Path, changed: Mistake | None = None) -> str:
    first = next(iter(cases.configs))
    for name, text in {**cases.configs, **cases.beside}.items():
        if changed is not None and name == (changed.file or first) and changed.old:
            assert changed.old in text, changed.what
            text = text.replace(changed.old, changed.new, 1)
        (directory / name).write_text(text, encoding="utf-8")
    return (changed.file or first) if changed is not None else first


def judged(run: ConfigFacts) -> dict[str, Finding]:
    return {finding.id: finding for finding in judge(Facts(config=known(run)), CHECKS, LIBRARY)}


@pytest.mark.parametrize(("name", "file"), FILES)
def test_a_config_means_what_it_says_and_no_check_fails(name: str, file: str, tmp_path: Path) -> None:
    cases = ALL[name]
    written(cases, tmp_path)
    run = read(cases, tmp_path, file)
    assert run.framework == name
    expected = cases.means[file]
    found: dict[str, Any] = {field: run.version if field == "version" else actual(run, field) for field in expected}
    assert found == expected
    assert [field for field in expected if field in run.without] == []
    assert [field for field in cases.without.get(file, ()) if field not in run.without] == []
    findings = judged(run)
    assert {id: f.message for id, f in findings.items() if f.status in ("fail", "error")} == {}
    data = config_data(run)
    assert data["framework"] == {"name": name, "version": run.version}
    assert data["keys"]["unknown"] == []
    assert data["keys"]["read"] > 5
    assert data["keys"]["table"]["age_days"] >= 0


@pytest.mark.parametrize(("name", "mistake"), MISTAKES, ids=[f"{name}: {one.what}" for name, one in MISTAKES])
def test_a_planted_mistake_is_named_with_file_and_line(name: str, mistake: Mistake, tmp_path: Path) -> None:
    cases = ALL[name]
    file = written(cases, tmp_path, mistake)
    # Paths of this machine are looked at where the mistake is one of them.
    look = mistake.id in ("CFG030", "CFG065")
    run = read(cases, tmp_path, mistake.command or file, num_gpus=mistake.num_gpus, look=look)
    finding = judged(run)[mistake.id]
    assert finding.status == mistake.status, finding
    lines = (tmp_path / file).read_text(encoding="utf-8").splitlines()
    wanted = mistake.line or mistake.new.splitlines()[0]
    number = next(number for number, line in enumerate(lines, 1) if wanted in line)
    said = [line for line in finding.details if mistake.key in line]
    assert any(f"{file}:{number}:" in line for line in said), (number, finding.details)


@pytest.mark.parametrize("name", list(ALL))
def test_each_trainer_has_enough_mistakes_and_a_config_of_each_kind(name: str) -> None:
    assert len({mistake.what for mistake in ALL[name].mistakes}) >= LEAST_MISTAKES
    assert set(ALL[name].means) == set(ALL[name].configs)


RECORDS = Path(__file__).resolve().parents[2] / "fixtures" / "trainers"
STALE = {
    "areal": {"actor.behave_imp_weight_cap", "actor.behav_imp_weight_cap"},
    "miles": {"filter-zero-reward-samples", "save-retain-interval", "--sglang-load-format dummy"},
    "nemo-rl": {
        "policy.megatron_cfg.checkpoint.fully_parallel_save_process_group",
        "policy.megatron_cfg.checkpoint.fully_parallel_load_process_group",
        "policy.megatron_cfg.checkpoint.fully_parallel_load_exchange_algo",
        "grpo.num_val_generations_per_prompt",
    },
    "openrlhf": {"prompt_max_len", "generate_max_len"},
    "roll": {"positive_loss_coef"},
    "skyrl": {
        "trainer.algorithm.overlong_buffer_len",
        "trainer.algorithm.overlong_buffer_penalty_factor",
        "trainer.placement.reward_num_nodes",
    },
    "slime": {"use-critic"},
}
"""Keys of shipped examples that the trainer itself no longer has."""
UNREAD = {"nemo-rl": {"examples/nemo_gym/nemotron-3-super-omni/super_omni_launch.sh"}}
"""Examples that are not read: the program of this one is a variable in a text that goes to another machine."""


@pytest.mark.parametrize("path", sorted(RECORDS.glob("*.json")), ids=lambda path: path.stem)
def test_every_example_of_its_repository_was_read(path: Path) -> None:
    """The record of `python -m tests.tools.trainer_examples`."""
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["trainer"] in ALL
    assert record["read"] > 10
    assert (set(record["refused"]), record["crashed"]) == (UNREAD.get(record["trainer"], set()), {})
    assert {key for keys in record["unknown"].values() for key in keys} <= STALE.get(record["trainer"], set())


@pytest.mark.parametrize("name", list(ALL))
def test_the_map_of_fields_names_keys_of_some_release(name: str) -> None:
    trainer = trainers()[name]
    kinds = {trainer.kind, *trainer.kinds.values(), *trainer.sections.values(), "launcher"}
    keys = {key for version in versions(name) for kind in kinds for key in layout(name, version, kind).keys}
    assert [key for key in (*trainer.fields.values(), *trainer.named.values()) if key not in keys] == []
    assert [new for new in trainer.moved.values() if new not in keys] == []
    assert [old for old in trainer.moved if old not in keys] == []
    run: Any = ConfigFacts()
    for field in (*trainer.fields, *trainer.named):
        role = field.partition(".")[0]
        if actual(run, role) is not None:
            actual(run, field)


def test_fields_without_a_value_are_never_judged_as_if_they_had_one(tmp_path: Path) -> None:
    written(ALL["trl"], tmp_path)
    findings = judged(read(ALL["trl"], tmp_path, "grpo.yaml"))
    assert findings["CFG040"].status == "unknown"
    assert "max_prompt_length" in findings["CFG040"].message
    assert findings["CFG071"].status == "skip"
    assert findings["CFG012"].status == "skip"


def test_an_unknown_release_makes_unknown_keys_doubtful(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("trl grpo --model_name_or_path Org/A --new_key 1\n", encoding="utf-8")
    run = read_run(str(tmp_path / "run.sh"), [], framework="trl@9.0.0", look=False)
    assert run.unsure_keys == "TRL 9.0.0 is not known, read as 1.16.0"
    assert judged(run)["CFG001"].status == "warn"
