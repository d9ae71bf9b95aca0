"""Servers that a user would run: vLLM, here its CPU build, and SGLang on a GPU; with rltrain's part or without."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rltrain.workers.rollout.served.vllm import EXTENSION
from rltrain.workers.rollout.sglang.server import part_directory
from tests.trainer.workers.rollout.tiny import DEVICE, DTYPE, MAX_MODEL_LEN

START_S = 300.0
SGLANG_WORDS = ("--dtype", DTYPE, "--context-length", str(MAX_MODEL_LEN + 8), "--max-running-requests", "16",
                "--mem-fraction-static", "0.2", "--enable-memory-saver", "--sampling-backend", "pytorch",
                "--disable-piecewise-cuda-graph", "--skip-server-warmup", "--log-level", "warning")  # fmt: skip
SGLANG_ENVIRON = {"SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1"}
ENVIRON = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1",
}
WORDS = ("--dtype", DTYPE, "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "16", "--enforce-eager",
         "--no-enable-chunked-prefill", "--max-num-batched-tokens", "4096")  # fmt: skip
TRAINED = ("--worker-extension-cls", EXTENSION, "--logprobs-mode", "processed_logprobs")
"""What makes it good for training."""


@contextmanager
def vllm_server(
    model: Path, log: Path, *words: str, environ: Mapping[str, str] | None = None
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """URL and process of a server for MODEL, once it is up; ended at the end of the block."""
    port = free_port()
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(model), "--port", str(port)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--host", "127.0.0.1", *WORDS, *words],
            env={**os.environ, **ENVIRON, **(environ or {})}, stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}", process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def sglang_server(model: Path, log: Path, *words: str, environ: Mapping[str, str] | None = None) -> Iterator[str]:
    """URL of a server of SGLang for MODEL, started as a user would; ENVIRON switches on rltrain's part."""
    keys, part = sglang_keys(), part_directory()
    port, path = free_port() % 30_000 + 20_000, [str(part), str(keys.get("environ", {}).get("PYTHONPATH", ""))]
    command = [keys.get("python", sys.executable), "-m", "sglang.launch_server", "--model-path", str(model)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            [*command, "--port", str(port), *SGLANG_WORDS, *words],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path), **SGLANG_ENVIRON, **(environ or {})},
            stdout=out, stderr=out, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(f"http://127.0.0.1:{port}", process, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(part)


def sglang_keys(**more: object) -> dict[str, Any]:
    """`engine_kwargs.sglang` with the environment that SGLANG_PYTHON and SGLANG_PYTHONPATH name, and MORE."""
    path, python = os.environ.get("SGLANG_PYTHONPATH"), os.environ.get("SGLANG_PYTHON")
    own = ({"python": python} if python else {}) | ({"environ": {"PYTHONPATH": path}} if path else {})
    return {**own, **more}


@contextmanager
def server_for(engine: str, model: Path, log: Path) -> Iterator[str]:
    """URL of a server of ENGINE that is good for training."""
    if engine == "sglang":
        with sglang_server(model, log, environ={"RLTRAIN_SGLANG": "1"}) as url:
            yield url
        return
    sleeps = ("--enable-sleep-mode", "--gpu-memory-utilization", "0.2") if DEVICE == "cuda" else ()
    with vllm_server(model, log, *TRAINED, *sleeps, environ={"VLLM_SERVER_DEV_MODE": "1"}) as (url, _):
        yield url


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Return when the server at URL says that it is well."""
    until = time.monotonic() + START_S
    while not _is_up(url):
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < until, log.read_text()[-3000:]
        time.sleep(0.3)


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
