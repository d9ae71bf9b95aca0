"""`rlcheck config` as a user calls it: one run lists everything, with places; records; what cannot be read."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SARIF = jsonschema.Draft4Validator(json.loads((ROOT / "tests/fixtures/schemas/sarif-2.1.0.json").read_text()))
BROKEN = """\
defaults:
  - ppo_trainer
  - _self_
data:
  train_batch_size: 100
  train_batchsize: 5
algorithm: {adv_estimator: grpo}
actor_rollout_ref:
  actor: {ppo_mini_batch_size: 50, ppo_micro_batch_size: 16, ppo_micro_batch_size_per_gpu: 3}
  rollout:
    name: vllm
    n: 4
    mode: sync
    tensor_model_parallel_size: 3
    log_prob_micro_batch_size_per_gpu: 1
trainer: {nnodes: 1, n_gpus_per_node: 8}
"""


def rlcheck(
    *words: str, cwd: Path | None = None, given: str = "", command: tuple[str, ...] = ("config",)
) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "rlcheck", *command, *words]
    environ = {"PATH": "/usr/bin:/bin", "COLUMNS": "80", "PYTHONPATH": str(ROOT), "LANG": "C.UTF-8"}
    return subprocess.run(line, cwd=cwd, input=given, env=environ, capture_output=True, text=True, timeout=60)


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(BROKEN)
    return path


def test_one_run_lists_everything_with_places_and_overrides(broken: Path) -> None:
    done = rlcheck("run.yaml", "--no-fs", cwd=broken.parent)
    assert done.returncode == 1, done.stderr
    for text in ("CFG001", "CFG012", "CFG018", "CFG022", "run.yaml:13:5", "use data.train_batch_size",
                 "actor_rollout_ref.rollout.mode=async", "verl 0.9.1, grpo"):  # fmt: skip
        assert text in done.stdout, text
    assert "100 prompts × n=4 = 400 samples" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


def test_sarif_points_at_lines_and_holds_to_its_schema(broken: Path) -> None:
    done = rlcheck("run.yaml", "--no-fs", "--format", "sarif", cwd=broken.parent)
    log = json.loads(done.stdout)
    SARIF.validate(log)
    found = {result["ruleId"]: result for result in log["runs"][0]["results"]}
    place = found["CFG022"]["locations"][0]["physicalLocation"]
    assert place == {"artifactLocation": {"uri": "run.yaml"}, "region": {"startLine": 13, "startColumn": 5}}
    assert "physicalLocation" not in found["CFG010"]["locations"][0], "what passed has no place"


def test_junit_names_file_and_line(broken: Path) -> None:
    done = rlcheck("run.yaml", "--no-fs", "--format", "junit", cwd=broken.parent)
    cases = {case.get("name", "")[:6]: case for case in ElementTree.fromstring(done.stdout).iter("testcase")}
    failure = cases["CFG022"].find("failure")
    assert failure is not None
    assert "run.yaml:13:5" in (failure.text or "")


def test_a_record_is_judged_like_the_config(broken: Path, tmp_path: Path) -> None:
    first = rlcheck("run.yaml", "--no-fs", "--record", "facts.json", "--format", "json", cwd=broken.parent)
    again = rlcheck("--facts", "facts.json", "--format", "json", cwd=tmp_path)
    one, other = ({f["id"]: f["message"] for f in json.loads(done.stdout)["checks"]} for done in (first, again))
    assert one == other
    assert again.returncode == 1


def test_a_healthy_line_from_standard_input() -> None:
    micro = "micro_batch_size_per_gpu=4"
    line = (
        "python3 -m verl.trainer.main_ppo \\\n actor_rollout_ref.rollout.name=vllm trainer.logger=console \\\n"
        f" actor_rollout_ref.actor.ppo_{micro} actor_rollout_ref.rollout.log_prob_{micro} critic.ppo_{micro}\n"
    )
    done = rlcheck("-", "--no-fs", given=line)
    assert done.returncode == 0, done.stdout
    assert " failed" not in done.stdout
    assert "warned" not in done.stdout


@pytest.mark.parametrize("recipe", ["toy-ppo", "toy-grpo"])
def test_recipes_are_healthy(recipe: str) -> None:
    done = rlcheck(recipe, "--no-fs")
    assert done.returncode == 0, done.stdout
    assert "✗" not in done.stdout
    assert "!" not in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nowhere.yaml"], "no file"),
        ([], "give a CONFIG"),
        (["ppo_trainer", "--framework", "trl"], "--framework"),
        (["ppo_trainer", "--facts", "x.json"], "leave CONFIG out"),
        (["ppo_trainer", "--select", "CFG999"], "CFG999"),
        ([str(ROOT / "rlcheck/data/verl_keys.json"), "--config-dir", "."], "leave --config-name"),
    ],
)
def test_what_cannot_be_read_is_one_line(words: list[str], said: str) -> None:
    done = rlcheck(*words)
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["config", "memory-profile"])
@pytest.mark.parametrize("flags", [(), ("--config-name", "mine")])
def test_a_script_is_read_against_the_directory_that_is_given(
    broken: Path, tmp_path: Path, command: str, flags: tuple[str, ...]
) -> None:
    (tmp_path / "there").mkdir()
    broken.rename(tmp_path / "there" / "mine.yaml")
    (tmp_path / "here").mkdir()
    script = tmp_path / "here" / "run.sh"
    name = "other" if flags else "mine"
    script.write_text(f"python3 -m verl.trainer.main_ppo --config-path=$HERE --config-name={name} trainer.nnodes=2\n")
    words = (command, str(script), *flags, "--format", "json")
    shape = "hidden_size=64,num_hidden_layers=2,num_attention_heads=2,vocab_size=9,intermediate_size=64"
    machine = ("--gpu", "H200", "--model-shape", shape, "actor_rollout_ref.rollout.tensor_model_parallel_size=4")
    words += machine if command == "memory-profile" else ("--no-fs",)
    with_it = rlcheck("--config-dir", str(tmp_path / "there"), "--record", "facts.json", cwd=tmp_path, command=words)
    assert with_it.stderr.startswith("wrote facts.json"), with_it.stderr
    recorded = json.loads((tmp_path / "facts.json").read_text())
    read = recorded["nodes"][0]["config"]["value"]["spec"]
    assert (read["nodes"], read["algorithm"]["adv_estimator"]) == (2, "grpo")
    without = rlcheck(cwd=tmp_path, command=words)
    assert without.returncode == 2
    assert "give its directory by --config-dir" in without.stderr


def test_an_engine_that_the_framework_does_not_have(broken: Path) -> None:
    broken.write_text(BROKEN.replace("name: vllm", "name: vlllm"))
    words = ("run.yaml", "--no-fs", "--select", "CFG070")
    done = rlcheck(*words, "--format", "json", cwd=broken.parent)
    (found,) = json.loads(done.stdout)["checks"]
    assert (done.returncode, found["status"], found["found"]) == (1, "fail", "vlllm")
    assert found["evidence"][0]["source"] == "run.yaml:11:5"
    assert found["fixes"][0]["command"] == "actor_rollout_ref.rollout.name=vllm"
    # Code of the user's own may register one.
    own = rlcheck(*words, "actor_rollout_ref.model.external_lib=mine", cwd=broken.parent)
    assert own.returncode == 0
    assert "! CFG070" in own.stdout


def test_an_empty_file_is_no_run(tmp_path: Path) -> None:
    """It would be judged as the framework's own defaults."""
    empty = tmp_path / "run.yaml"
    empty.write_text("\n")
    done = subprocess.run(
        [sys.executable, "-m", "rlcheck", "config", empty], capture_output=True, text=True, check=False
    )
    assert (done.returncode, f"{empty} is empty" in done.stderr) == (2, True)
