"""A diagnosis against facts: confirmed, ruled out or open; and its fixes as overrides of the run's own config."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from rlcheck.checks import builtin_checks
from rlcheck.diagnose.confirm import checks_of, confirm, is_ruled_out
from rlcheck.diagnose.model import Answer, Diagnosis, Quote
from rlcheck.diagnose.recipes import params_of
from rlcheck.doctor.config_fixes import with_overrides
from rlcheck.facts.document import Facts, decode
from rlcheck.finding import Fix
from rlcheck.measure.config.fields import FIELDS, key_of
from rlcheck.measure.config.read import read_run
from rlcheck.playbook import Library, Recipe, fill
from tests.conftest import ROOT

MACHINES = ROOT / "tests" / "fixtures" / "machines"
LIBRARY = Library()


def machine(name: str) -> Facts:
    path = MACHINES / f"{name}.json"
    return decode(path.read_bytes(), str(path))[0]


def shm(**more: object) -> Diagnosis:
    fix = fill(Recipe("Start it with more", "shell", "unsafe", command="docker run --shm-size={{shm_gib}}g ..."), {})
    values = {"id": "shm-too-small", "title": "t", "status": "fail", "cause": "c", "confidence": "medium", **more}
    return Diagnosis(**{"fixes": (fix,), "consequences": ("then",), **values})  # type: ignore[arg-type]


def other(**more: object) -> Diagnosis:
    values = {"id": "another", "title": "t", "status": "fail", "cause": "c", "confidence": "low", **more}
    return Diagnosis(**values)  # type: ignore[arg-type]


def confirmed(*diagnoses: Diagnosis, by: str) -> tuple[Diagnosis, ...]:
    return confirm(Answer(diagnoses=diagnoses), (machine(by),), builtin_checks(), LIBRARY).diagnoses


def test_a_check_that_fails_confirms() -> None:
    found, _ = confirmed(shm(), other(), by="l4-container-small-shm")
    assert found.id == "shm-too-small"
    assert [(one.check, one.verdict) for one in found.confirmations] == [("SYS001", "confirmed")]
    assert "64 MiB" in found.confirmations[0].message
    assert found.confidence == "high"


def test_a_check_that_passes_rules_out_and_the_next_one_comes_first() -> None:
    first, second = confirmed(shm(), other(), by="h200-host")
    assert (first.id, second.id) == ("another", "shm-too-small")
    assert (second.confidence, is_ruled_out(second)) == ("low", True)
    # What followed belongs to whichever stands first.
    assert (first.consequences, second.consequences) == (("then",), ())
    assert first.confirmations == ()


def test_only_another_error_of_the_same_incident_takes_its_place() -> None:
    for rest in (other(incident=2), other(echo=True), other(status="warn")):
        assert [found.id for found in confirmed(shm(), rest, by="h200-host")] == ["shm-too-small", "another"]


def test_what_cannot_be_looked_at_is_open_with_the_reason() -> None:
    facts = Facts(rlcheck_version="1", node="n", collected_at="")
    (found,) = confirm(Answer(diagnoses=(shm(),)), (facts,), builtin_checks(), LIBRARY).diagnoses
    assert [one.verdict for one in found.confirmations] == ["open"]
    assert found.confirmations[0].message
    assert found.confidence == "medium"


@pytest.mark.parametrize(("node", "verdict"), [("elsewhere", "open"), ("10.0.0.7", "ruled out"), ("", "ruled out")])
def test_another_machine_rules_nothing_out(node: str, verdict: str) -> None:
    (found,) = confirmed(shm(evidence=(Quote("a.log", 1, ("x",), node=node),)), by="h200-host")
    assert [one.verdict for one in found.confirmations] == [verdict]
    assert ("but the log is of elsewhere" in found.confirmations[0].message) == (verdict == "open")


def test_facts_fill_what_the_log_could_not_tell() -> None:
    recipes = LIBRARY.get("shm-too-small").fixes
    fixes = tuple(fill(recipe, {}) for recipe in recipes)
    (found,) = confirmed(shm(fixes=fixes), by="l4-container-small-shm")
    before = [fix.command for fix in fixes if not fix.complete]
    assert before
    assert [fix.command for fix in found.fixes if not fix.complete] == []


def test_only_the_checks_of_the_playbooks_are_made() -> None:
    answer = Answer(diagnoses=(shm(), other()))
    assert [check.id for check in checks_of(answer, builtin_checks())] == ["SYS001"]


def test_a_fix_is_traced_back_to_its_recipe() -> None:
    recipe = Recipe("Use {{n}} of {{n}}", "shell", "safe", command="set {{n}} {{path}}")
    params = {"n": "4", "path": "/data/my logs"}
    assert params_of(recipe, fill(recipe, params)) == params
    assert params_of(recipe, Fix("Use 4 of 5", "shell", "safe", command="set 4 x")) is None
    assert params_of(recipe, Fix("Use 4 of 4", "advice", "safe", command="set 4 x")) is None
    assert params_of(recipe, fill(recipe, {"n": "4"})) == {"n": "4", "path": "<path>"}


# How a playbook's front matter names the fixes; `{name}` is its file.
BOOK = """---
id: {name}
title: 't'
families: [CFG]
cause: 'c'
verified: 2026-11-22
fixes:
{fixes}
basis: general
---
"""
RECIPES = {
    "literal": ("rollout.memory_utilization", "0.6", "actor_rollout_ref.rollout.gpu_memory_utilization=0.6"),
    "half": ("actor.micro_batch_size", "current/2", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4"),
    "double": ("data.max_response_length", "current*2", "data.max_response_length={double}"),
    "less": ("rollout.memory_utilization", "current-0.1", "actor_rollout_ref.rollout.gpu_memory_utilization={less}"),
    "group": ("rollout.max_model_len", "{{{{wanted}}}}", "actor_rollout_ref.rollout.max_model_len=8192"),
    "own key": ("actor.optim.grad_clip", "0.5", "{grad_clip}=0.5"),
    "role that is not there": ("critic.micro_batch_size", "current/2", "as=written"),
}
RUNS = {
    "verl": ("docs/examples/grpo-7b.sh", (),
             {"double": "6144", "less": "0.7", "grad_clip": "actor_rollout_ref.actor.optim.clip_grad"}),
    "rltrain": ("gsm8k-grpo", ("data.train_files=a", "data.val_files=b", "actor_rollout_ref.model.path=m"),
                {"double": "1024", "less": "0.4", "grad_clip": "actor_rollout_ref.actor.grad_clip"}),
}  # fmt: skip


def shown_as(run: str, name: str, tmp_path: Path, field: str, value: str, command: str) -> Fix:
    """The one fix of a playbook, worded for a run."""
    sets = f"command: '{command}', field: '{field}', value: '{value}'"
    fix = f"- {{title: 'Set {{{{wanted}}}}', kind: config, {sets}}}"
    (tmp_path / f"{name}.md").write_text(BOOK.format(name=name, fixes="  " + fix), encoding="utf-8")
    library = Library((tmp_path,))
    made = fill(library.get(name).fixes[0], {"wanted": "8192"})
    source, overrides, _ = RUNS[run]
    facts = read_run(str(ROOT / source) if "/" in source else source, overrides)
    found = other(id=name, fixes=(made,))
    return with_overrides(Answer(diagnoses=(found,)), facts, library).diagnoses[0].fixes[0]


@pytest.mark.parametrize("run", RUNS)
@pytest.mark.parametrize("name", RECIPES)
def test_fixes_are_the_configs_own_overrides(
    run: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    field, value, wanted = RECIPES[name]
    fix = shown_as(run, "book", tmp_path, field, value.format(), "as=written")
    assert fix.command == wanted.format(**RUNS[run][2])
    assert fix.kind == "config"


def test_what_the_config_has_already_is_no_command() -> None:
    facts = read_run("gsm8k-grpo", RUNS["rltrain"][1])
    name = "rollout-parallel"
    book = LIBRARY.get(name)
    recipe = Recipe("Less", "config", "safe", command="x=1", field="rollout.memory_utilization", value="0.5")
    library = Library()
    library._loaded[name] = msgspec.structs.replace(book, fixes=(recipe,))
    advice = Fix("Wait", "advice", "safe")
    answer = with_overrides(Answer(diagnoses=(other(id=name, fixes=(fill(recipe, {}), advice)),)), facts, library)
    first, last = answer.diagnoses[0].fixes
    assert first == advice
    assert (last.title, last.kind, last.command) == ("Less (gpu_memory_utilization is 0.5 already)", "advice", "")
    assert answer.notes == ("settings are worded as overrides of gsm8k-grpo.yaml (rltrain)",)


def test_a_key_that_the_framework_calls_otherwise_is_mapped() -> None:
    facts = read_run("toy-ppo", ())
    fix = Fix("x", "config", "safe", command="actor_rollout_ref.actor.optim.clip_grad=1.0 critic.strategy=fsdp2 a.b=1")
    answer = with_overrides(Answer(diagnoses=(other(id="rollout-parallel", fixes=(fix,)),)), facts, LIBRARY)
    command = answer.diagnoses[0].fixes[0].command
    assert command.startswith("actor_rollout_ref.actor.grad_clip=1.0 ")
    assert command.endswith(" a.b=1")


def test_fields_of_the_playbooks_exist() -> None:
    """And their values can be worked out: a number, a word, a group, or a step from the current value."""
    for playbook_id in LIBRARY.ids():
        for recipe in LIBRARY.get(playbook_id).fixes:
            assert not recipe.value or recipe.field, f"{playbook_id}: {recipe.title}"
            if recipe.field:
                assert recipe.kind == "config", f"{playbook_id}: {recipe.title}"
                assert recipe.value, f"{playbook_id}: {recipe.title}"
                assert recipe.field in FIELDS, f"{playbook_id}: {recipe.field}"
    assert key_of(read_run("toy-ppo", ()), "rollout.memory_utilization")
