"""What can be known of the SGLang engine without SGLang; the rest is in `test_engines.py`, on a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from rltrain.core.errors import UserError
from rltrain.workers.rollout.sampling import token_log_probs
from rltrain.workers.rollout.sglang import arguments, plugin
from rltrain.workers.rollout.sglang.server import Server, part_directory
from rltrain.workers.rollout.worker import EngineWorker
from tests.trainer.workers.rollout.compare import PLAIN
from tests.trainer.workers.rollout.tiny import config_of, make_model

NEEDED = ("torch", "numpy", "math")
FOREIGN = ("pydantic", "omegaconf", "ray", "tensordict", "transformers", "aiohttp", "vllm", "psutil", "msgspec")


@pytest.mark.parametrize(("top_k", "top_p"), [(5, 1.0), (1 << 30, 0.7), (7, 0.5), (1, 1.0)])
def test_what_is_cut_is_what_our_own_sampling_cuts(top_k: int, top_p: float) -> None:
    logits = torch.randn(6, 200, generator=torch.Generator().manual_seed(1)) * 3
    sampling = PLAIN.__class__(1.0, top_p, min(top_k, 200), 0, 1, (), (), False)
    wanted = token_log_probs(logits, sampling, torch.zeros_like(logits, dtype=torch.bool)).exp()
    probs = logits.softmax(-1)
    plugin.cut(probs, torch.full((6,), top_k), torch.full((6,), top_p))
    assert (probs - wanted).abs().max() < 1e-6
    assert torch.equal(probs > 0, wanted > 0)


class Params:
    """Of a request, as SGLang has them."""

    def __init__(self, **more: Any) -> None:
        self.ignore_eos, self.stop_token_ids, self.stop_strs, self.min_new_tokens = True, None, [], 0
        vars(self).update(more)


def test_stop_tokens_count_where_the_end_of_sequence_does_not() -> None:
    def sglangs(request: Any, tokens: list[int]) -> bool:
        params = request.sampling_params
        if params.ignore_eos:
            return False
        ends = {*(params.stop_token_ids or ()), *(request.eos_token_ids or ())}
        return any(token in ends for token in tokens)

    request = SimpleNamespace(sampling_params=Params(stop_token_ids={7}), eos_token_ids={1}, tokenizer="kept")
    assert plugin.ends_by_token(sglangs, request, [7])
    assert not plugin.ends_by_token(sglangs, request, [1]), "the end of sequence is ignored"
    assert (request.sampling_params.ignore_eos, request.eos_token_ids, request.tokenizer) == (True, {1}, "kept")
    request.sampling_params = Params()
    assert not plugin.ends_by_token(sglangs, request, [7, 1])


def test_a_stop_string_within_min_tokens_does_not_count() -> None:
    letters = SimpleNamespace(decode=lambda ids: "".join(chr(97 + one) for one in ids))
    params = Params(stop_strs=["bc"], min_new_tokens=4)
    request = SimpleNamespace(sampling_params=params, tokenizer=letters, output_ids=[])
    asked: list[int] = []

    def sglangs(one: Any) -> bool:
        asked.append(len(one.output_ids))
        return True

    ended = []
    for token in [0, 1, 2, 0, 0, 1, 2]:  # abcaabc
        request.output_ids.append(token)
        ended.append(plugin.ends_by_text(sglangs, request))
    assert ended == [False] * 6 + [True]
    assert (asked, params.min_new_tokens) == ([7], 4)


def test_the_command_line() -> None:
    words = arguments.command_line({"model_path": "/m", "disable_cuda_graph": True, "x": None, "y": False}
                                   | {"cuda_graph_bs": [1, 2], "model_loader_extra_config": {"a": 1}})  # fmt: skip
    assert words == ["--model-path", "/m", "--disable-cuda-graph", "--cuda-graph-bs", "1", "2",
                     "--model-loader-extra-config", '{"a": 1}']  # fmt: skip
    with pytest.raises(UserError, match=r"engine_kwargs\.sglang\.tp_size: rltrain sets this itself"):
        arguments.with_user({}, {"tp_size": 2})


def test_reserved_arguments_are_set(tmp_path: Path) -> None:
    make_model("qwen2", tmp_path)
    ours = arguments.base(config_of(tmp_path, "sglang"), str(tmp_path), saved_weights=False, sleeps=True)
    assert arguments.RESERVED - ours.keys() == {"port", "dp_size", "pp_size", "nnodes", "api_key", "admin_api_key"}
    assert not ours["skip_tokenizer_init"] or "stop" not in ours
    late = arguments.base(config_of(tmp_path, "sglang", min_tokens=3), "", saved_weights=False, sleeps=True)
    assert (ours["skip_tokenizer_init"], late["skip_tokenizer_init"]) == (True, False)


def test_sglang_finds_our_part_and_nothing_of_our_environment() -> None:
    """As its own interpreter sees it: without the packages that the trainer has and SGLang may lack."""
    directory = part_directory()
    try:
        assert {path.name for path in directory.iterdir()} == {"rltrain", "rlcheck", "rltrain_part-1.dist-info"}
        [part] = metadata.Distribution.discover(path=[str(directory)])
        [entry] = part.entry_points.select(group="sglang.srt.plugins")
        code = f"""
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {FOREIGN}: raise ImportError(name)
sys.meta_path.insert(0, Absent())
import {entry.value.partition(":")[0]} as plugin, rltrain.workers.rollout.sglang.inside
plugin.install()  # not switched on: does nothing, and needs no SGLang
print(rltrain.__file__)
"""
        environ = {"PYTHONPATH": str(directory), "PATH": os.environ["PATH"]}
        found = subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=100, check=False
        )
        assert found.stdout.strip() == str(directory / "rltrain" / "__init__.py"), found.stderr
    finally:
        for path in sorted(directory.rglob("*")) if directory.is_dir() else []:
            if path.is_symlink() or path.is_file():
                path.unlink()


@pytest.mark.row("F20")
def test_an_engine_that_is_not_installed_is_not_replaced(tmp_path: Path) -> None:
    make_model("qwen2", tmp_path)
    worker = EngineWorker(config_of(tmp_path, "sglang"), 0)
    with pytest.raises(
        UserError, match=r"name=sglang: .*python\S* has no SGLang; name the interpreter that has it"
    ) as no:
        worker.start()
    assert "\n" not in str(no.value)
    worker.stop()


def fake_sglang(directory: Path, version: str, server: str) -> dict[str, str]:
    """A package called sglang: its environment."""
    package, info = directory / "sglang", directory / f"sglang-{version}.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: sglang\nVersion: {version}\n")
    (package / "__init__.py").touch()
    (package / "launch_server.py").write_text(server)
    return {"PYTHONPATH": str(directory)}


def test_a_version_that_is_not_driven_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"SGLang 0\.4\.6 is installed, rltrain drives >=0\.5\.12,<0\.5\.13"):
        Server("", fake_sglang(tmp_path, "0.4.6", "")).version()


def test_a_server_that_does_not_start_says_why_in_one_line(tmp_path: Path) -> None:
    words = "usage: launch_server.py [-h]\\nlaunch_server.py: error: unrecognized arguments: --max-runing-requests 3"
    server = Server("", fake_sglang(tmp_path, "0.5.12", f"import sys\nsys.exit('{words}')"))
    assert str(server.version()) == "0.5.12"
    with pytest.raises(UserError, match=r"did not start: .*unrecognized arguments: --max-runing-requests 3$") as no:
        server.start([], 60.0)
    assert "\n" not in str(no.value)
    server.stop()


def test_a_server_has_its_own_path_and_ends_with_its_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import http.server, json, os, subprocess, sys
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers()
        self.wfile.write(json.dumps([child.pid, dict(os.environ)]).encode())
http.server.HTTPServer(("127.0.0.1", int(sys.argv[-1])), Handler).serve_forever()
"""
    import json
    import urllib.request

    import psutil

    monkeypatch.setenv("PYTHONPATH", "/ours")
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    server = Server("", fake_sglang(tmp_path, "0.5.12", code))
    server.start(["--model-path", "x"], 60.0)
    try:
        with urllib.request.urlopen(f"{server.url}/x", timeout=10) as answer:
            child, environ = json.loads(answer.read())
        first, *rest = environ["PYTHONPATH"].split(os.pathsep)
        assert rest == [str(tmp_path)]
        assert Path(first, "rltrain").is_symlink()
        assert environ["RLTRAIN_SGLANG"] == "1"
        assert "PYTORCH_CUDA_ALLOC_CONF" not in environ
        assert server.is_alive()
    finally:
        server.stop()
    assert not psutil.pid_exists(child)
    assert not Path(first).exists()
