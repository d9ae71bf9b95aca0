"""Secrets planted wherever a config and its command line can hold them: none may stay in what a run leaves behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from rltrain.cli.eval import run as evaluate
from rltrain.cli.requests import EvalRequest
from rltrain.config import RunConfig, load
from rltrain.core.errors import UserError
from rltrain.records import run_record
from rltrain.records.checkpoints import CheckpointStore
from rltrain.records.redaction import hidden_keys, redacted, redacted_command
from rltrain.records.run_dir import RunDir

KWARGS = "custom_reward_function.reward_kwargs"
RAY = "ray_kwargs.ray_init"
PLANTED = (
    "trainer.wandb_proxy=http://ann:QPROXY@proxy:3128",
    f"{KWARGS}.api_key=QKEY",
    f"{KWARGS}.judge.url=https://bob:Q@T@judge:8000/v1?model=m&token=QQUERY",
    f"{KWARGS}.judge.headers={{Authorization: Bearer QAUTH}}",
    f"++{KWARGS}.passwords=[QONE, 7031]",
    f"{KWARGS}.credentials={{user: QUSER, inner: {{of: QINNER}}}}",
    f"{KWARGS}.hosts=['http://c:QLIST@one', 'http://two']",
    f"{RAY}._redis_password=QREDIS",
    f"{RAY}.runtime_env.env_vars.OPENAI_API_KEY=QENV",
)
SECRETS = (
    "ann",
    "QPROXY",
    "QKEY",
    "Q@T",
    "bob",
    "QQUERY",
    "QAUTH",
    "QONE",
    "7031",
    "QUSER",
    "QINNER",
    "QLIST",
    "QREDIS",
    "QENV",
)
GIVEN_AGAIN = [
    f"{KWARGS}.api_key",
    f"{KWARGS}.judge.url",
    f"{KWARGS}.judge.headers.Authorization",
    f"{KWARGS}.passwords",
    f"{KWARGS}.credentials.user",
    f"{KWARGS}.credentials.inner.of",
    f"{KWARGS}.hosts",
    f"{RAY}._redis_password",
    f"{RAY}.runtime_env.env_vars.OPENAI_API_KEY",
]
HARMLESS = (
    f"{KWARGS}.bonus=0.2",
    f"{KWARGS}.max_tokens=7032",
    f"{KWARGS}.eos_token=</s>",
    f"{KWARGS}.token=true",
    f"{KWARGS}.api_key_name=PUBLIC",
    f"{KWARGS}.separator='***'",
    f"{KWARGS}.mail=ann@example.org",
    "actor_rollout_ref.rollout.stop_token_ids=[5, 6]",
    "trainer.default_local_dir=/home/public/runs",
)


def recorded(path: Path) -> tuple[RunConfig, RunDir]:
    """The record of a run that was given all of PLANTED and HARMLESS."""
    config, directory = load("toy-ppo", (*PLANTED, *HARMLESS)), RunDir(path)
    directory.create()
    command = ["/opt/bin/rltrain", "run", "toy-ppo", *PLANTED, *HARMLESS]
    chosen = ["some.path = http://d:QCHOSEN@host"]
    run_record.write_record(
        directory, run_record.describe(config, command=command, chosen=chosen, preflight={"skipped": True})
    )
    return config, directory


def test_the_record_holds_no_secret_and_all_else(tmp_path: Path) -> None:
    config, directory = recorded(tmp_path)
    run_record.finish(directory, "failed", error="no answer of http://ann:QPROXY@proxy:3128", steps=3)
    text = directory.record.read_text()
    assert [secret for secret in (*SECRETS, "QCHOSEN") if secret in text.replace("ann@example.org", "")] == []
    record = json.loads(text)
    assert record["error"] == "no answer of http://***@proxy:3128"
    assert record["steps"] == 3
    assert config.trainer.wandb_proxy == "http://ann:QPROXY@proxy:3128", "the run keeps it"
    kwargs = record["config"]["custom_reward_function"]["reward_kwargs"]
    assert kwargs["judge"]["url"] == "https://***@judge:8000/v1?model=m&token=***"
    assert kwargs["hosts"] == ["http://***@one", "http://two"]
    assert set(HARMLESS) <= set(record["command"])
    expected: Any = config.model_dump(mode="json")
    for each in (expected, record["config"]):
        del each["trainer"]["wandb_proxy"], each["ray_kwargs"]["ray_init"]
        for name in ("api_key", "judge", "passwords", "credentials", "hosts"):
            del each["custom_reward_function"]["reward_kwargs"][name]
    assert record["config"] == expected


@pytest.mark.parametrize("recipe", ["toy-ppo", "toy-grpo"])
def test_a_recipe_has_nothing_to_hide(recipe: str) -> None:
    config = load(recipe).model_dump(mode="json")
    assert redacted(config) == config
    assert list(hidden_keys(config)) == []


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("trainer.wandb_proxy=ann:pa55@proxy:3128", "trainer.wandb_proxy=***@proxy:3128"),
        ("+a.keys={api-key: x, n: 1}", '+a.keys={"api-key": "***", "n": 1}'),
        ("a.api_keys[0]=x", "a.api_keys[0]=***"),
        ("a.secret=[broken", "a.secret=***"),
        ("a.secret=", "a.secret="),
        ("http://ann:pa55@host/my.yaml", "http://***@host/my.yaml"),
        ("a.url=git+https://host/repo@v1", "a.url=git+https://host/repo@v1"),
        ("a.b={c: [1,2] }", "a.b={c: [1,2] }"),
        ("~a.secret", "~a.secret"),
        ("--skip-checks", "--skip-checks"),
    ],
)
def test_an_argument_keeps_what_is_no_secret(typed: str, kept: str) -> None:
    assert redacted_command([typed]) == [kept]
    assert redacted_command([kept]) == [kept]


def test_an_evaluation_says_in_one_line_what_it_must_be_given_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy of wandb is not among it: an evaluation tells wandb nothing."""
    config, directory = recorded(tmp_path / "run")
    place = CheckpointStore(directory.checkpoints, None).save(3, {}, lambda _: None).path
    with pytest.raises(UserError, match="holds no secrets; give again") as error:
        evaluate(EvalRequest(place))
    wanted = str(error.value).partition("was given: ")[2].split()
    assert sorted(wanted) == sorted(f"{key}=VALUE" for key in GIVEN_AGAIN)
    seen = list[RunConfig]()
    monkeypatch.setattr("rltrain.cli.eval._rewards", lambda config, *_: seen.append(config) or [[1.0]])
    assert evaluate(EvalRequest(place, tuple(f"{key}={yaml_of(config, key)}" for key in GIVEN_AGAIN))) == 0
    assert seen[0].custom_reward_function == config.custom_reward_function
    assert seen[0].ray_kwargs == config.ray_kwargs
    assert seen[0].trainer.wandb_proxy is None


def yaml_of(config: RunConfig, key: str) -> str:
    """The value of KEY in CONFIG, as an override gives it."""
    value: Any = config.model_dump(mode="json")
    for part in key.split("."):
        value = value[part]
    return yaml.safe_dump(value, default_flow_style=True).removesuffix("\n...\n").strip()
