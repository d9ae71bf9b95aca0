"""A real vLLM server: what it has in place of the checkpoint's weights or tokenizer is named, and health passes."""

# Transformers are typed in part.
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from rlcheck.checks import family_checks
from rlcheck.facts.base import FactMissingError, known
from rlcheck.facts.document import Facts
from rlcheck.measure.canary import Asked, examine_canary
from tests.conftest import base_environ
from tests.trainer.workers.rollout.tiny import make_model

pytestmark = [
    # Not imported here: that takes ten CPU seconds, and the server is a process of its own.
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="vllm is not installed"),
    # The server starts within the first test.
    pytest.mark.timeout(600),
]
TENSOR = "model.layers.1.mlp.down_proj.weight"
START_S = 300.0


def _save(model: Any, like: Path, directory: Path) -> None:
    model.save_pretrained(directory)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(like / name, directory / name)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`served`, `other`; `new` and `before`, of which `served` has one tensor of `before`; `lora`; `split`."""
    root = tmp_path_factory.mktemp("models")
    make_model("qwen2", root / "served", 0)
    make_model("qwen2", root / "other", 1)
    served, other = (AutoModelForCausalLM.from_pretrained(root / n, dtype=torch.float32) for n in ("served", "other"))
    with torch.no_grad():
        dict(other.named_parameters())[TENSOR].copy_(dict(served.named_parameters())[TENSOR])
        dict(served.named_parameters())[TENSOR].normal_(0, 0.15)
    _save(served, root / "served", root / "new")
    _save(other, root / "served", root / "before")
    shutil.copytree(root / "served", root / "split")
    words: dict[str, Any] = json.loads((root / "split" / "tokenizer.json").read_text())
    vocabulary = words["model"]["vocab"]
    vocabulary["e"], vocabulary["f"] = vocabulary["f"], vocabulary["e"]
    (root / "split" / "tokenizer.json").write_text(json.dumps(words))
    _adapter(root)
    return root


def _adapter(root: Path) -> None:
    peft = pytest.importorskip("peft")
    model = AutoModelForCausalLM.from_pretrained(root / "served", dtype=torch.float32)
    model = peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"]))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, 0, 0.2)
    model.save_pretrained(root / "lora")


@pytest.fixture(scope="module")
def server(models: Path) -> Iterator[str]:
    """Its URL; it serves `served` without LoRA, in development mode, in which it says its dtype."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    words = [
        "--model",
        models / "served",
        "--port",
        port,
        "--dtype",
        "float32",
        "--max-model-len",
        192,
        "--enforce-eager",
    ]
    environ = base_environ({"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_SERVER_DEV_MODE": "1"})
    with (models / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *map(str, words)],
            env=environ, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        _wait(f"http://127.0.0.1:{port}/health", process, models / "server.log")
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START_S
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, f"no server within {START_S:g} s: {log.read_text()[-3000:]}"
            time.sleep(0.5)


def _verdicts(asked: Asked) -> dict[str, tuple[str, str]]:
    facts = examine_canary(asked)
    assert facts.failure is None, facts.failure
    found: dict[str, tuple[str, str]] = {}
    for check in family_checks("CAN"):
        try:
            verdict = check.judge(Facts(canary=known(facts)))
            found[check.id] = verdict.status, verdict.headline + verdict.found
        except FactMissingError as error:
            found[check.id] = "skip", str(error)
    return found


def test_a_healthy_server_passes(server: str, models: Path) -> None:
    for _ in range(2):
        found = _verdicts(Asked(server, models / "served", earlier=(models / "other",)))
        assert {status for status, _ in found.values()} == {"pass"}, found


@pytest.mark.parametrize(
    ("checkpoint", "more", "check", "said"),
    [("other", {"earlier": "served"}, "CAN002", "has the weights of an earlier checkpoint"),
     ("new", {"earlier": "before"}, "CAN002", TENSOR),
     ("served", {"adapter": "lora"}, "CAN002", "without the LoRA adapter"),
     ("split", {}, "CAN004", "others for")],
)  # fmt: skip
def test_what_the_server_has_is_named(
    server: str, models: Path, checkpoint: str, more: dict[str, str], check: str, said: str
) -> None:
    earlier = (models / more["earlier"],) if "earlier" in more else ()
    adapter = models / more["adapter"] if "adapter" in more else None
    found = _verdicts(Asked(server, models / checkpoint, adapter, earlier))
    assert found[check][0] == "fail", found
    assert said in found[check][1]
    assert [id for id, (status, _) in found.items() if status == "fail"] == [check]
