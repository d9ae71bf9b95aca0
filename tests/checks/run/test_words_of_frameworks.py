"""Fixes of a run's findings name the settings of the framework that made the run, and no other's."""

from __future__ import annotations

import re

import msgspec
import pytest

from rlcheck import judging
from rlcheck.checks import family_checks
from rlcheck.doctor.run_fixes import in_own_words
from rlcheck.facts.base import known, need
from rlcheck.facts.document import Facts
from rlcheck.facts.run import RunFacts
from rlcheck.finding import Finding
from rlcheck.measure.run.names import frameworks, worded
from rlcheck.playbook import Library
from tests.checks.run.cases import CASES
from tests.checks.run.learning_cases import OTHER_FIRES
from tests.checks.run.synthetic import curve

CHECKS = {check.id: check for check in family_checks("RUN")}
VERLS = re.compile(r"(?:actor_rollout_ref|algorithm|data|critic|trainer)\.\w+")
FIRES = [(id, fires) for id, (fires, _) in CASES.items()] + [
    (id, one) for id, many in OTHER_FIRES.items() for one in many
]


def judged(id: str, facts: Facts) -> Finding:
    (found,) = in_own_words(judging.judge(facts, (CHECKS[id],), Library()), facts)
    return found


def of(facts: Facts, framework: str) -> Facts:
    if facts.run.value is None:
        return facts
    return msgspec.structs.replace(facts, run=known(msgspec.structs.replace(need(facts.run), framework=framework)))


@pytest.mark.parametrize("framework", ["trl", "openrlhf", "skyrl"])
def test_no_fix_has_keys_of_verl(framework: str) -> None:
    seen: set[str] = set()
    for id, facts in FIRES:
        found = judged(id, of(facts, framework))
        commands = [fix.command for fix in found.fixes if fix.kind == "config"]
        assert not [command for command in commands if VERLS.search(command)], (id, commands)
        seen.update(commands)
    if frameworks()[framework].settings:
        assert len(seen) >= 5, seen


@pytest.mark.parametrize("framework", ["verl", "rltrain"])
def test_runs_with_verls_keys_keep_them(framework: str) -> None:
    commands = [fix.command for id, facts in FIRES for fix in judged(id, of(facts, framework)).fixes]
    assert sum(bool(VERLS.search(command)) for command in commands) >= 10


def test_groups_without_signal_in_trls_words() -> None:
    """What a newcomer with TRL is told of: its own number of answers; and that it draws no other prompts."""
    fixes = judged("RUN014", of(CASES["RUN014"][0], "trl")).fixes
    assert any(re.fullmatch(r"num_generations=\d+", fix.command) for fix in fixes), fixes
    assert next(fix.title for fix in fixes if "dynamic sampling" in fix.title).endswith("(trl has no such setting)")
    assert any(
        fix.command == "--dynamic_filtering" for fix in judged("RUN014", of(CASES["RUN014"][0], "openrlhf")).fixes
    )


def test_nan_in_trls_words() -> None:
    fixes = judged("RUN010", of(CASES["RUN010"][0], "trl")).fixes
    assert {"bf16=True", "learning_rate=1e-6"} <= {fix.command for fix in fixes}
    assert not any(fix.title.endswith("(trl has no such setting)") for fix in fixes)


@pytest.mark.parametrize("name", sorted(frameworks()))
def test_settings_stand_for_keys_of_verl(name: str) -> None:
    for key, words in frameworks()[name].settings.items():
        assert "." in key
        if "=" in key:
            assert worded(name, f"+{key}") == words
            assert worded(name, key.replace("bfloat16", "float16")) == ""
            continue
        assert words.count("{}") == (words != "--dynamic_filtering")
        assert worded(name, f"+{key}=3") == words.replace("{}", "3")
    assert worded(name, "learning_rate=1e-6") == "learning_rate=1e-6"


def capped(framework: str, tokens: float) -> Facts:
    """A run all of whose answers end at the limit, of a model that no config says is tiny."""
    steps = 40
    levels = {"response_length/mean": tokens, "response_length/max": tokens, "response_length/min": tokens,
              "response_length/clip_ratio": 1.0}  # fmt: skip
    curves = {name: curve([level] * steps) for name, level in levels.items()}
    curves["critic/score/mean"] = curve([0.1 + 0.01 * (step % 5) for step in range(steps)])
    curves["critic/score/max"] = curve([1.0] * steps)
    run = RunFacts(framework=framework, num_steps=steps, first_step=1, last_step=steps, curves=curves)
    return Facts(run=known(run))


@pytest.mark.parametrize(
    ("framework", "command"),
    [
        ("trl", "max_completion_length=512"),
        ("openrlhf", "--generate_max_len=512"),
        ("verl", "data.max_response_length=512"),
    ],
)
def test_a_limit_of_a_few_tokens_is_raised_first(framework: str, command: str) -> None:
    found = judged("RUN022", capped(framework, 16.0))
    assert found.status in ("fail", "warn")
    assert found.fixes[0].command == command
    assert "16 tokens" in found.fixes[0].title
    assert judged("RUN022", capped(framework, 1024.0)).fixes[0].command != command
