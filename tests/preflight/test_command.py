"""`rlcheck preflight` and the start of `rltrain run`, with real parts: healthy, each link broken, interrupted."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from rltrain.config import load
from rltrain.toy.make import make_toy
from tests.conftest import EQUAL, base_environ, in_terminal, rlcheck

pytestmark = pytest.mark.timeout(300)
HF = "actor_rollout_ref.rollout.name=hf"
QUIET = {"OMP_NUM_THREADS": "1", **EQUAL}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, and its tokenizer."""
    return make_toy(load("toy-grpo", ()), tmp_path_factory.mktemp("preflight") / "toy").model


def rows(path: Path, *more: str) -> Path:
    row = {
        "prompt": [{"role": "user", "content": "copy 12"}],
        "data_source": "copy",
        "reward_model": {"style": "rule", "ground_truth": "12"},
    }
    lines = [json.dumps({**row, "prompt": [{"role": "user", "content": f"copy {n}"}]}) for n in range(64)]
    path.write_text("\n".join([*lines, *more]) + "\n")
    return path


def went(*words: str | Path, code: int) -> tuple[dict[str, Any], dict[str, dict[str, Any]], str]:
    """The report, its links, and what was said on standard error."""
    done = rlcheck("preflight", *words, "-f", "json", env=QUIET, timeout=250)
    assert done.code == code, done.out + done.err
    report = json.loads(done.out)
    return report, {link["link"]: link for link in report["data"]["preflight"]}, done.err


def failed(report: dict[str, Any]) -> dict[str, str]:
    return {finding["id"]: finding["playbook"] for finding in report["checks"] if finding["status"] == "fail"}


@pytest.mark.row("F68")
def test_a_healthy_run_up_to_a_real_step(tmp_path: Path) -> None:
    record = tmp_path / "facts.json"
    report, links, said = went("toy-ppo", HF, "--smoke", "--record", record, code=0)
    verdicts = {name: link["verdict"] for name, link in links.items()}
    assert (verdicts.pop("memory"), verdicts.pop("rehearse")) == ("does not apply", "left out")
    assert set(verdicts.values()) == {"holds"}, links
    statuses = {finding["id"]: finding["status"] for finding in report["checks"]}
    assert (statuses["ROL002"], statuses["RUN001"], statuses["RUN002"]) == ("pass", "pass", "pass")
    assert all(link["seconds"] > 0 for name, link in links.items() if name in ("machine", "rollout", "smoke"))
    lines = said.splitlines()
    assert [line.split(": ")[1] for line in lines[:-1]] == [link["title"] for link in links.values()]
    (node,) = json.loads(record.read_text())["nodes"]
    assert node["smoke"]["value"]["metrics"]["actor/grad_norm"] > 0
    assert {"collectives", "rollout", "config"} <= set(node)


@pytest.mark.row("F68")
def test_a_bad_row_leaves_the_step_untried(model: Path, tmp_path: Path) -> None:
    data = rows(tmp_path / "rows.jsonl", '{"prompt": [')
    words = (HF, f"data.train_files=[{data}]", f"data.val_files=[{data}]", "toy=null", "sft_warmup.steps=0",
             f"actor_rollout_ref.model.path={model}")  # fmt: skip
    report, links, _ = went("toy-grpo", *words, "--smoke", "--skip", "collectives", "--skip", "rollout", code=1)
    assert links["data"]["verdict"] == "fails"
    assert "data-lines" in failed(report).values()
    assert links["rollout"]["reason"] == "--skip rollout"
    assert links["smoke"]["verdict"] == "not tried"
    assert "(cache and data)" in links["smoke"]["reason"]


def test_a_fault_of_the_config_and_a_gpu_that_is_too_small() -> None:
    report, links, _ = went("toy-grpo", "--smoke", "trainer.sede=1", "--gpu-mem", "1GiB", "--skip", "collectives",
                            code=1)  # fmt: skip
    assert failed(report)["CFG001"] == "config-unknown-key"
    assert failed(report)["MEM001"] == "run-does-not-fit"
    assert links["memory"]["verdict"] == "fails", "memory is judged whatever the config is"
    assert links["rollout"]["reason"] == "because of CFG001 (config)"
    assert links["smoke"]["reason"].startswith("because of CFG001")


def verl(directory: Path, model: Path) -> tuple[str | Path, ...]:
    """A config of verl's; what verl would say to the engine hf is not what is tried here."""
    data = rows(directory / "rows.jsonl")
    config = directory / "verl.yaml"
    config.write_text(yaml.safe_dump({
        "defaults": ["ppo_trainer", "_self_"],
        "algorithm": {"adv_estimator": "grpo"},
        "data": {"train_files": str(data), "val_files": str(data), "train_batch_size": 8, "max_prompt_length": 16,
                 "max_response_length": 6},
        "actor_rollout_ref": {
            "model": {"path": str(model)},
            "actor": {"ppo_mini_batch_size": 8, "ppo_micro_batch_size_per_gpu": 8},
            "rollout": {"name": "hf", "n": 2, "log_prob_micro_batch_size_per_gpu": 8},
            "ref": {"log_prob_micro_batch_size_per_gpu": 8},
        },
        "trainer": {"n_gpus_per_node": 1, "nnodes": 1, "logger": ["console"]},
    }))  # fmt: skip
    return config, "--smoke", "--skip", "collectives", "--skip", "data", "--ignore", "CFG"


def test_a_config_of_verl_goes_up_to_the_step(model: Path, tmp_path: Path) -> None:
    _, links, _ = went(*verl(tmp_path, model), code=0)
    assert links["rollout"]["verdict"] == "holds"
    assert links["smoke"]["verdict"] == "does not apply"
    assert "start verl itself with trainer.total_training_steps=1" in links["smoke"]["reason"]


@pytest.mark.row("F68")
def test_an_engine_that_does_not_start(model: Path, tmp_path: Path) -> None:
    """Its weights were cut short by whoever copied them."""
    broken = tmp_path / "model"
    shutil.copytree(model, broken)
    (weights,) = broken.glob("*.safetensors")
    weights.write_bytes(weights.read_bytes()[:100])
    report, links, _ = went(*verl(tmp_path, broken), code=1)
    assert failed(report)["ROL001"] == "rollout-engine-start"
    assert links["smoke"]["verdict"] == "not tried"
    assert "ROL001" in links["smoke"]["reason"]


def test_the_page_fits_a_terminal() -> None:
    done = in_terminal("preflight", "toy-ppo", "--quick", columns=80, env={"NO_COLOR": "1"})
    lines = done.out.splitlines()
    assert max(map(len, lines)) <= 80
    assert done.code == 0, done.out
    assert any("one training step" in line and "--smoke makes one" in line for line in lines)
    assert "waiting for" not in lines[-1]


def test_nothing_to_read_is_one_line() -> None:
    assert "give a CONFIG" in rlcheck("preflight").error_line
    assert "no-such-config" in rlcheck("preflight", "no-such-config").error_line
    assert "give its memory: --gpu 80GiB" in rlcheck("preflight", "toy-ppo", "--gpu", "nonsense").error_line


def test_an_interrupt_ends_everything() -> None:
    """In the middle of the trial step, which has Ray and ranks of its own."""
    words = ["toy-grpo", HF, "--smoke", "--skip", "collectives", "--skip", "rollout"]
    with tempfile.TemporaryDirectory(prefix="pf") as scratch:  # the sockets of Ray take no long path
        environ = base_environ({**QUIET, "TMPDIR": scratch})
        process = subprocess.Popen([sys.executable, "-m", "rlcheck", "preflight", *words], env=environ,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)  # fmt: skip
        started = _once_ray_is_up(process)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 130
        assert said.decode().splitlines()[-1] == "rlcheck: interrupted"
        _, alive = psutil.wait_procs(started, timeout=10)
        assert not [one for one in alive if one.status() != psutil.STATUS_ZOMBIE]
        assert not list(Path(scratch).glob("rlcheck-preflight-*"))


def _once_ray_is_up(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """What PROCESS has started by then."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()
        started = psutil.Process(process.pid).children(recursive=True)
        if any(_is_raylet(one) for one in started):
            return started
        time.sleep(0.2)
    process.kill()
    raise AssertionError("no Ray came up")


def _is_raylet(process: psutil.Process) -> bool:
    try:
        return "raylet" in process.name()
    except psutil.Error:
        return False
