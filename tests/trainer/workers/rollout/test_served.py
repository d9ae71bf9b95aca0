"""Engines behind HTTP: a recorded SGLang server, a real vLLM server without rltrain's part, and what is no server."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil
import pytest
import torch

from rltrain.config.schema import RunConfig
from rltrain.core.errors import RunFailure, UserError
from rltrain.workers.rollout.protocol import Completion
from rltrain.workers.rollout.saved import SavedEngineWorker
from rltrain.workers.rollout.served import sglang, vllm
from rltrain.workers.rollout.served.dialect import Asked
from rltrain.workers.rollout.served.remote import RemoteEngine
from rltrain.workers.rollout.worker import EngineWorker
from rltrain.workers.sync import plan
from rltrain.workers.sync.bucket import Manifest
from rltrain.workers.sync.transport import Descriptor
from tests.tools.record_server import Exchange, Middle
from tests.trainer.workers.rollout import scenario
from tests.trainer.workers.rollout.child import Child
from tests.trainer.workers.rollout.compare import PLAIN, requests
from tests.trainer.workers.rollout.servers import free_port, vllm_server
from tests.trainer.workers.rollout.tiny import config_of, make_model

pytestmark = pytest.mark.timeout(400)
RECORD = Path(__file__).parents[3] / "fixtures" / "sglang" / "0.5.12.json"
HANDLE = {"GPU-1": (torch.Tensor, (256,), (1,), 0, torch.UntypedStorage, torch.uint8, 0, b"\0handle", 512, 0, False)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    make_model("qwen2", directory)
    return directory


def remote(directory: Path, url: str, **rollout: Any) -> RunConfig:
    return config_of(directory, "remote", engine_kwargs={"remote": {"url": url}}, **rollout)


def described(manifest: Manifest) -> Descriptor:
    """A bucket that nobody has filled."""
    return Descriptor("cuda_ipc", plan(manifest, 1 << 30)[0], HANDLE, version=3)


def test_a_recorded_server_is_asked_and_read_as_it_was(model: Path) -> None:
    """The whole walk, on the answers of SGLang 0.5.12 on a GPU (`python -m tests.tools.record_server`)."""
    record = json.loads(RECORD.read_text())
    recorded = [Exchange(**one) for one in record["exchanges"]]
    sums: dict[str, str] = record["found"]["checksums"]
    whole = described([(name, (4,), torch.bfloat16) for name in sums])
    with Middle(exchanges=list(recorded)) as middle:
        engine = RemoteEngine(scenario.config_of(model, middle.url), str(model))
        found = scenario.walk(engine, [whole], described([("odd", (4,), torch.bfloat16)]))
        engine.stop()
    assert found == record["found"]
    assert (middle.unexpected, middle.exchanges) == ([], [])
    before = {one.body for one in recorded if one.path == "/generate"}
    now = {body for _, path, body in middle.heard if path == "/generate"}
    assert {_nameless(one) for one in now} == {_nameless(one) for one in before}, "asked as then"


def _nameless(body: str) -> str:
    return json.dumps({**json.loads(body), "rid": []}, sort_keys=True)


def test_what_the_record_says_holds_together() -> None:
    """Of the real server: seeds decide, log-probabilities are of what is left, ends are where they belong."""
    found = json.loads(RECORD.read_text())["found"]
    assert found["facts"]["seeds"]
    assert found["cuts"]
    assert all(len(one["tokens"]) > 8 for one in found["late"])
    assert any(one["reason"] == "stop" and one["tokens"][-1] in range(2, 20) for one in found["stop token"])
    assert all(not set(one["tokens"][:-1]) & set(range(2, 20)) for one in found["stop token"])
    assert [one["log_probs"] is not None for one in found["plain"]] == [True, False] * 3
    assert {tuple(map(tuple, one["versions"])) for one in found["plain"]} == {((0, -1),)}
    assert found["left"] == [0]
    assert "no weight" in found["odd"]


ASKED = Asked(requests(1)[0], PLAIN, 16)
META: dict[str, Any] = {"id": "x", "finish_reason": {"type": "stop"}, "weight_version": "default"}


@pytest.mark.parametrize(
    ("event", "words"),
    [
        ({"output_ids": [5], "meta_info": META | {"finish_reason": {"type": "abort", "message": "too\nlong"}}},
         "sglang returned 1 tokens for a prompt of 3 (abort: too long)"),
        ({"output_ids": [], "meta_info": META}, "sglang returned 0 tokens for a prompt of 3"),
        ({"output_ids": [5], "meta_info": META}, "sglang returned no log-probabilities"),
        ({"output_ids": [5], "meta_info": META | {"output_token_logprobs": [[-1.0, 6, None]]}}, "other tokens"),
    ],
)  # fmt: skip
def test_an_answer_of_sglang_that_is_none_says_so(event: dict[str, Any], words: str) -> None:
    answer = sglang.answer_of(event, ASKED, ())
    assert isinstance(answer, str)
    assert words in answer
    assert "\n" not in answer


def test_a_choice_of_vllm_that_is_none_says_so() -> None:
    cut = vllm.answer_of({"token_ids": [5], "finish_reason": "abort", "stop_reason": None}, ASKED)
    assert cut == "vllm returned 1 tokens for a prompt of 3 (finish reason: abort, stop reason: None)"
    assert vllm.answer_of({"token_ids": [5], "finish_reason": "stop"}, ASKED) == "vllm returned no log-probabilities"
    whole = vllm.answer_of({"token_ids": [5], "finish_reason": "stop", "logprobs": {"token_logprobs": [-0.5]}}, ASKED)
    assert isinstance(whole, Completion)
    assert (whole.token_ids.tolist(), whole.versions) == ([5], ())


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({}, r"engine_kwargs\.remote: takes a url and nothing else, .*got url=''"),
        ({"url": "10.0.0.5:30000"}, r"got url='10\.0\.0\.5:30000'"),
        ({"url": "http://a", "timeout": 3}, r"got timeout"),
    ],
)
def test_a_url_is_needed_and_nothing_else(model: Path, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        EngineWorker(config_of(model, "remote", engine_kwargs={"remote": keys}), 0)


def test_nobody_answers(model: Path) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(UserError, match=rf"remote\.url: the server at {url}: GET /v1/models: Cannot connect") as no:
        EngineWorker(remote(model, url), 0).start()
    assert "\n" not in str(no.value)


def test_a_server_of_something_else(model: Path) -> None:
    answers = [Exchange("GET", "/v1/models", "", 200, "application/json", '{"data": [{"owned_by": "library"}]}')]
    with Middle(exchanges=answers) as middle, pytest.raises(UserError, match="of library: neither vLLM nor SGLang"):
        EngineWorker(remote(model, middle.url), 0).start()


@pytest.fixture(scope="module")
def plain(model: Path) -> Iterator[tuple[str, Popen[bytes]]]:
    """A server as anybody starts it."""
    with vllm_server(model, model / "server.log") as running:
        yield running


def test_a_server_without_our_part_is_good_for_evaluation(plain: tuple[str, Popen[bytes]], model: Path) -> None:
    url, _ = plain
    with pytest.raises(
        UserError, match=r"takes no weights, so it is good for evaluation alone; .*--worker-extension-cls"
    ) as no:
        EngineWorker(remote(model, url), 0).start()
    assert "\n" not in str(no.value)
    with pytest.raises(UserError, match=r"takes 192 tokens, actor_rollout_ref\.rollout\.max_model_len is 4096"):
        SavedEngineWorker(remote(model, url, max_model_len=4096), 0).start()
    worker = SavedEngineWorker(remote(model, url), 0)
    facts = worker.start()
    assert (facts["engine"], facts["seeds"], facts["log_probs_of_what_is_left"]) == ("vllm", True, False)
    answers = worker.generate(requests(5), PLAIN)
    assert all(answer.log_probs is not None and len(answer.token_ids) > 0 for answer in answers)
    cut = replace(PLAIN, top_k=3)
    with pytest.raises(UserError, match=r"not of the distribution that it draws from .*--logprobs-mode"):
        worker.generate(requests(1), cut)
    assert worker.generate([replace(requests(1)[0], log_probs=False)], cut)[0].log_probs is None
    worker.stop()


def test_a_server_that_dies_ends_the_wait_with_its_name(plain: tuple[str, Popen[bytes]], model: Path) -> None:
    url, process = plain
    worker = SavedEngineWorker(remote(model, url, max_retries=0), 0)
    worker.start()
    worker.submit(list(enumerate(requests(12))), replace(PLAIN, max_tokens=140, ignore_eos=True))
    worker.collect(0.0)
    os.killpg(process.pid, signal.SIGKILL)
    begun = time.monotonic()
    with pytest.raises(RunFailure, match=rf"the server at {url}: POST /v1/completions: ") as failure:
        list(iter(lambda: worker.collect(5.0), None))
    assert time.monotonic() - begun < 30
    assert "\n" not in str(failure.value)
    worker.stop()


PLAYER = """
import sys, time
sys.path[:0] = {path!r}
import json
from pathlib import Path
from aiohttp import web
from tests.tools.record_server import Exchange, Middle
exchanges = [Exchange(**one) for one in json.loads(Path({record!r}).read_text())["exchanges"]]
middle = Middle(exchanges=exchanges + [Exchange("GET", "/model_info", "", 200, "application/json", "{{}}")] * 9)
middle.port = int(sys.argv[-1])
with middle:
    time.sleep(600)
"""


def test_an_engine_ends_with_its_server(model: Path, tmp_path: Path) -> None:
    """So that the run finds it dead, and starts it again. The server plays the record of a real one."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang" / "__init__.py").touch()
    (tmp_path / "sglang-0.5.12.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.12\n"
    (tmp_path / "sglang-0.5.12.dist-info" / "METADATA").write_text(metadata)
    player = PLAYER.format(path=[path for path in sys.path if path], record=str(RECORD))
    (tmp_path / "sglang" / "launch_server.py").write_text(player)
    keys = {"sglang": {"environ": {"PYTHONPATH": str(tmp_path)}}}
    child = Child()
    try:
        facts = child.make(config_of(model, "sglang", engine_kwargs=keys))
        assert (facts["engine"], facts["engine_version"]) == ("sglang", "0.5.12")
        [server] = [one for one in psutil.Process(child.pid).children() if "launch_server" in " ".join(one.cmdline())]
        server.kill()
        child.begin("reset_prefix_cache")
        assert child.wait(60) == 1
        assert not psutil.pid_exists(server.pid)
    finally:
        child.kill()
