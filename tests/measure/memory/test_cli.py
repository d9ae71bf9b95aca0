"""`rlcheck memory-profile` as a user types it."""

from __future__ import annotations

import json
import os
import re
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT, base_environ, in_terminal, rlcheck
from tests.measure.memory.samples import QWEN

VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=256 "
    "data.max_prompt_length=1024 data.max_response_length=1024 actor_rollout_ref.model.path={model} "
    "actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=4 "
    "actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.n=8 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=8 "
    "actor_rollout_ref.rollout.tensor_model_parallel_size=1 trainer.n_gpus_per_node=8"
)
MOST_TIMES_BARE = 5.0
STACK = {"torch", "ray", "vllm", "transformers", "pydantic", "omegaconf", "matplotlib", "rltrain"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the config.json of a 7B model, and nothing else."""
    directory = tmp_path_factory.mktemp("model")
    (directory / "config.json").write_text(json.dumps(QWEN))
    return directory


@pytest.fixture(scope="module")
def script(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("scripts") / "run.sh"
    path.write_text("set -x\n" + VERL.format(model=model).replace(" actor_", " \\\n    actor_") + " $@\n")
    return path


def prediction(*arguments: str | Path, stdin: bytes = b"") -> dict[str, Any]:
    done = rlcheck("memory-profile", *arguments, "--format", "json", stdin=stdin)
    assert done.code in (0, 1), done.err
    return json.loads(done.out)["data"]["memory"]


def test_a_run_of_seven_billion_parameters(script: Path) -> None:
    found = prediction(script, "--gpu", "H200")
    assert found["gpu_bytes"] == 143771 << 20
    assert found["parameters"]["actor"] == pytest.approx(7.62e9, rel=0.01)
    names = [phase["name"] for phase in found["phases"]]
    assert {"load", "rollout", "weight sync", "actor update", "actor step"} <= set(names)
    assert found["limits"]["kv_tokens"] > 0


def test_the_same_from_standard_input_a_line_and_a_file(script: Path, model: Path) -> None:
    line = VERL.format(model=model)
    from_file = prediction(script, "--gpu", "H200")
    assert prediction("-", "--gpu", "H200", stdin=line.encode())["phases"] == from_file["phases"]
    assert prediction(line, "--gpu", "H200")["phases"] == from_file["phases"]


def test_overrides_and_machine_options_count(script: Path) -> None:
    small = prediction(script, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1", "--gpu", "H200")
    large = prediction(script, "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=8", "--gpu", "H200")
    assert _phase(small, "actor update") < _phase(large, "actor update")
    wide = prediction(script, "--gpu", "H200", "--nodes", "4", "--gpus-per-node", "4")
    assert (wide["num_nodes"], wide["gpus_per_node"]) == (4, 4)
    assert _phase(wide, "actor step") < _phase(large, "actor step")


def _phase(found: dict[str, Any], name: str) -> int:
    phase = next(one for one in found["phases"] if one["name"] == name)
    return sum(owner["num_bytes"] for owner in phase["owners"])


@pytest.mark.row("F10")
def test_what_does_not_fit_fails_with_what_to_type(script: Path) -> None:
    done = rlcheck("memory-profile", script, "--gpu", "a100-40gb", "--gpus-per-node", "1", "--format", "json")
    report = json.loads(done.out)
    found = report["data"]["memory"]
    assert done.code == 1
    assert not found["fits"]
    assert "MEM001" in {check["id"] for check in report["checks"] if check["status"] == "fail"}
    assert found["changes"]
    overrides = [o for change in found["changes"] for o in change["overrides"]]
    assert all("." in o.partition("=")[0] and "=" in o for o in overrides)


@pytest.mark.row("F10")
def test_the_first_change_that_fits_does_when_it_is_typed(script: Path) -> None:
    four = "trainer.n_gpus_per_node=4"
    found = prediction(script, four, "--gpu", "a100-40gb")
    assert not found["fits"]
    change = next(one for one in found["changes"] if one.get("fits"))
    again = prediction(script, four, *change["overrides"], "--gpu", "a100-40gb")
    assert again["fits"], change


def test_a_terminal_of_eighty_columns(script: Path) -> None:
    done = in_terminal("memory-profile", script, "--gpu", "H200", columns=80)
    assert [line for line in done.out.splitlines() if len(_plain(line)) > 80] == []
    assert "actor update" in done.out
    assert in_terminal("memory-profile", script, "--gpu", "H200", "--ascii", columns=80).out.isascii()


def _plain(line: str) -> str:
    return re.sub("\x1b\\[[0-9;]*[mK]", "", line)


def test_help_fits_a_terminal() -> None:
    done = in_terminal("memory-profile", "--help", columns=80)
    assert done.code == 0
    assert max(len(line) for line in done.out.splitlines()) <= 80


def test_a_model_without_files_by_its_shape(tmp_path: Path, model: Path) -> None:
    line = VERL.format(model="Nobody/Has-This-7B")
    assert "--model-shape" in rlcheck("memory-profile", line, "--gpu", "H200").error_line
    shaped = prediction(line, "--gpu", "H200", "--model-shape", model / "config.json")
    assert shaped["parameters"]["actor"] > 7e9


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give a CONFIG"),
        (["no-such.yaml", "--gpu", "H200"], "no-such.yaml"),
        (["CONFIG", "--gpu", "h300"], "--gpu 80GiB"),
        (["CONFIG", "--gpu", "a100"], "a100-80gb or a100-40gb"),
        (["CONFIG", "--gpu-mem", "lots"], "write it like 80GiB"),
        (["CONFIG", "--gpu", "H200", "--host-mem", "much"], "write it like 80GiB"),
        (["CONFIG", "--gpu", "H200", "--plot", "memory.gif"], "ends in .png or .html"),
        (["CONFIG", "--gpu", "H200", "--plot", "/no/such/place/memory.html"], "no directory"),
        (["CONFIG", "--gpu", "H200", "--measure"], "leave --gpu and --gpu-mem out"),
        (["CONFIG", "--facts", "x.json"], "leave CONFIG and --measure out"),
        (["CONFIG", "--gpu", "H200", "--select", "MEM999"], "MEM999"),
        (["CONFIG", "--gpu", "H200", "data.max_prompt_length=0"], "max_prompt_length is 0"),
        (["CONFIG", "--gpu", "H200", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=-5"], "gpu is -5; it must"),
        (["CONFIG", "--gpu", "H200", "actor_rollout_ref.rollout.gpu_memory_utilization=90"], "a share of the GPU"),
        (
            ["CONFIG", "--gpu", "H200", "actor_rollout_ref.rollout.tensor_model_parallel_size=16"],
            "it must be at most 8",
        ),
        (["CONFIG", "--gpu", "H200", "actor_rollout_ref.rollout.max_num_seqs=0"], "max_num_seqs is 0; it must be"),
        (["CONFIG", "--gpu", "H200", "actor_rollout_ref.model.lora_rank=-1"], "lora_rank is -1; it must be at least 0"),
    ],
)
def test_wrong_options_are_one_line(arguments: list[str], said: str, script: Path) -> None:
    done = rlcheck("memory-profile", *(str(script) if word == "CONFIG" else word for word in arguments))
    assert done.code == 2
    assert said in done.error_line


@pytest.mark.skipif(os.path.exists("/dev/nvidiactl"), reason="there is an NVIDIA GPU here")
def test_without_a_gpu_it_asks_which_one(script: Path) -> None:
    assert "--gpu H200" in rlcheck("memory-profile", script).error_line


def test_a_record_is_judged_again(script: Path, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    first = rlcheck("memory-profile", script, "--gpu", "H200", "--record", record, "--format", "json")
    again = rlcheck("memory-profile", "--facts", record, "--format", "json")
    assert json.loads(again.out)["data"] == json.loads(first.out)["data"]
    empty = tmp_path / "empty.json"
    rlcheck("collect", "-o", empty)
    assert "no prediction in it" in rlcheck("memory-profile", "--facts", empty).error_line


def test_the_picture_is_written(script: Path, tmp_path: Path) -> None:
    done = rlcheck("memory-profile", script, "--gpu", "H200", "--plot", tmp_path / "memory.html")
    assert f"wrote {tmp_path / 'memory.html'}" in done.err
    assert "actor update" in (tmp_path / "memory.html").read_text()


def test_it_answers_at_once(script: Path) -> None:
    """Processor time against that of a bare start with the same libraries, each the best of several."""
    bare = min(_cpu_s([sys.executable, "-c", "import typer, msgspec, yaml, rich.console"]) for _ in range(4))
    options = ("--gpu", "a100-40gb", "--gpus-per-node", "1")
    command = [sys.executable, "-m", "rlcheck", "memory-profile", str(script), *options]
    ratio = min(_cpu_s(command) for _ in range(4)) / bare
    assert ratio <= MOST_TIMES_BARE


def _cpu_s(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=base_environ(), capture_output=True, timeout=60, check=False)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_it_imports_no_training_stack(script: Path) -> None:
    code = (
        "import io, sys\n"
        "sys.stdout = io.StringIO()\n"
        "sys.argv = ['rlcheck', 'memory-profile', sys.argv[1], '--gpu', 'H200']\n"
        "from rlcheck.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(sorted({STACK!r} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(script)], env=base_environ(), cwd=ROOT, capture_output=True,
                          text=True, timeout=60, check=True)  # fmt: skip
    assert done.stderr.strip().splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", ["vlllm", "hf", ""])
def test_an_engine_that_nobody_knows_is_no_engine_without_a_cache(model: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "run.sh"
    engine = f"actor_rollout_ref.rollout.name={name} " if name else ""
    line = VERL.format(model=model).replace("actor_rollout_ref.rollout.name=vllm ", engine)
    path.write_text("set -x\n" + line.replace(" actor_", " \\\n    actor_") + "\n")
    done = rlcheck("memory-profile", path, "--gpu", "H100-80GB")
    assert done.code == 2
    assert done.out == ""
    assert len(done.err.splitlines()) == 1
    assert "its memory is not" in done.err
    assert "to plan with one: actor_rollout_ref.rollout.name=vllm" in done.err
    assert not name or f"run.sh:6:5: no rollout engine {name} is known" in done.err
    assert rlcheck("memory-profile", path, "--gpu", "80GiB", "actor_rollout_ref.rollout.name=sglang").code in (0, 1)
    assert rlcheck("memory-profile", path, "actor_rollout_ref.rollout.name=vllm", "--gpu", "H100-80GB").code in (0, 1)
