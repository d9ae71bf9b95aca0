"""Real engines through the command: hf and vLLM on a toy, a real vLLM server, and configs that do not start."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from rltrain.config import load
from rltrain.toy.make import make_toy
from tests.conftest import base_environ, rlcheck

pytestmark = pytest.mark.timeout(300)
HAS_VLLM = importlib.util.find_spec("vllm") is not None
needs_vllm = pytest.mark.skipif(not HAS_VLLM, reason="vLLM is not installed here")
SERVER_S = 200.0


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights, and its tokenizer."""
    return make_toy(load("toy-grpo", ()), tmp_path_factory.mktemp("rollout") / "toy").model


def tried(*words: str | Path, code: int = 0, **env: str | None) -> tuple[dict[str, Any], dict[str, str]]:
    """The report of `rlcheck rollout`, and the status of each check."""
    done = rlcheck("rollout", *words, "-f", "json", env={"OMP_NUM_THREADS": "1", **env}, timeout=250)
    assert done.code == code, done.out + done.err
    report = json.loads(done.out)
    return report, {check["id"]: check["status"] for check in report["checks"]}


@pytest.mark.row("F20")
def test_hf_on_a_toy() -> None:
    report, statuses = tried("toy-grpo", "actor_rollout_ref.rollout.name=hf")
    assert {id for id, status in statuses.items() if status == "pass"} >= {f"ROL00{n}" for n in range(1, 7)}
    assert statuses["ROL007"] == "skip"
    stages, ends = report["exhibits"][:2]
    assert {"config", "first generation"} <= {row[0] for row in stages["rows"]}
    assert ends["notes"] == ["template: <|user|>copy 1872<|assistant|>"]


@pytest.mark.row("F20")
def test_a_config_that_the_engine_refuses_is_one_finding() -> None:
    words = ("toy-grpo", "actor_rollout_ref.rollout.name=hf", "toy.model.model_type=t5")
    report, statuses = tried(*words, code=1)
    assert statuses["ROL001"] == "fail"
    found = next(check["found"] for check in report["checks"] if check["id"] == "ROL001")
    assert "toy.model" in found
    assert "Traceback" not in json.dumps(report["checks"])


@pytest.mark.row("F20")
def test_an_engine_that_hangs_is_ended_in_time() -> None:
    _, statuses = tried("toy-grpo", "actor_rollout_ref.rollout.name=hf", "--timeout", "0.2", code=1)
    assert statuses["ROL001"] == "fail"
    assert statuses["ROL003"] == "unknown"


@needs_vllm
def test_vllm_of_a_verl_config(model: Path, tmp_path: Path) -> None:
    """As verl would start it: the rollout section goes through the same plug-in."""
    config = tmp_path / "verl.yaml"
    rollout = {"name": "vllm", "dtype": "float32", "max_model_len": 32, "max_num_seqs": 4, "n": 2}
    config.write_text(yaml.safe_dump({
        "defaults": ["ppo_trainer", "_self_"],
        "data": {"max_prompt_length": 16, "max_response_length": 6},
        "actor_rollout_ref": {"model": {"path": str(model)}, "rollout": rollout},
    }))  # fmt: skip
    report, statuses = tried(config)
    assert {id for id, status in statuses.items() if status == "pass"} >= {f"ROL00{n}" for n in range(1, 7)}
    assert {"engine import", "engine start"} <= {row[0] for row in report["exhibits"][0]["rows"]}


def verl_with(tmp_path: Path, model: Path, engine: str) -> Path:
    """A config of verl, with the engine of this name."""
    config = tmp_path / "verl.yaml"
    parts = {"model": {"path": str(model)}, "rollout": {"name": engine}}
    config.write_text(yaml.safe_dump({"defaults": ["ppo_trainer", "_self_"], "actor_rollout_ref": parts}))
    return config


def test_an_engine_that_is_not_installed_does_not_start(model: Path, tmp_path: Path) -> None:
    report, statuses = tried(verl_with(tmp_path, model, "sglang"), code=1)
    assert statuses["ROL001"] == "fail"
    assert statuses["ROL003"] == "unknown"
    assert "has no SGLang; name the interpreter that has it" in json.dumps(report["checks"])


def test_an_engine_that_cannot_be_started_here_is_said_to_be(model: Path, tmp_path: Path) -> None:
    report, statuses = tried(verl_with(tmp_path, model, "trtllm"))
    assert statuses["ROL001"] == "unknown"
    assert "trtllm" in json.dumps(report["checks"])


@dataclass
class Launched:
    """A server that is starting."""

    url: str
    process: subprocess.Popen[bytes]
    log: Path


@pytest.fixture(scope="module", autouse=True)
def launched(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Launched | None]:
    """A real vLLM server of the CPU build, started at once: it comes up while the other tests of this file run."""
    if not HAS_VLLM or not any("server" in getattr(item, "fixturenames", ()) for item in request.session.items):
        yield None
        return
    log = tmp_path_factory.mktemp("server") / "log"
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = ["--model", str(model), "--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port)]
    words += ["--enforce-eager", "--max-model-len", "32", "--max-num-seqs", "4", "--dtype", "float32"]
    environ = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "TORCHDYNAMO_DISABLE": "1"}
    environ |= {"VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "OMP_NUM_THREADS": "1"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *words],
            env=base_environ(environ), stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        yield Launched(f"http://127.0.0.1:{port}", process, log)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@pytest.fixture(scope="module")
def server(launched: Launched | None) -> str:
    """Its URL, once it is up."""
    if launched is None:
        pytest.skip("vLLM is not installed here")
    until = time.monotonic() + SERVER_S
    while not _is_up(launched.url):
        assert launched.process.poll() is None, launched.log.read_text()[-3000:]
        assert time.monotonic() < until, launched.log.read_text()[-3000:]
        time.sleep(0.3)
    return launched.url


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False


def test_a_real_vllm_server(server: str, tmp_path: Path) -> None:
    record = tmp_path / "record.json"
    _, statuses = tried(server, "--record", record)
    assert {id for id, status in statuses.items() if status in ("fail", "warn", "unknown", "error")} == set()
    assert {"ROL003", "ROL004", "ROL005", "ROL006", "ROL011", "ROL012", "ROL013"} <= {
        id for id, status in statuses.items() if status == "pass"
    }
    facts = json.loads(record.read_bytes())
    rollout = facts["nodes"][0]["rollout"]["value"]
    assert rollout["engine"] == "vllm"
    assert rollout["server"]["value"]["max_model_len"]["value"] == 32
    assert rollout["log_probs"]["value"]["num_tokens"] == rollout["log_probs"]["value"]["num_log_probs"] > 10
    assert not rollout["is_server"] or rollout["server"]["value"]["endpoints"]["value"]["/update_weights"]


def test_nothing_on_the_server_was_changed(server: str) -> None:
    with urllib.request.urlopen(f"{server}/is_sleeping", timeout=10) as answer:
        assert json.loads(answer.read()) == {"is_sleeping": False}
