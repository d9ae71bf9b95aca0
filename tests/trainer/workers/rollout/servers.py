"""Servers that a user would run: vLLM's CPU build here, with rltrain's extension or without."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rltrain.workers.rollout.served.vllm import EXTENSION
from tests.trainer.workers.rollout.tiny import MAX_MODEL_LEN

START_S = 180.0
ENVIRON = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "TORCHDYNAMO_DISABLE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "OMP_NUM_THREADS": "1",
}
WORDS = ("--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", "16", "--enforce-eager",
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
        url = f"http://127.0.0.1:{port}"
        until = time.monotonic() + START_S
        while not _is_up(url):
            assert process.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < until, log.read_text()[-3000:]
            time.sleep(0.3)
        yield url, process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    """One that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _is_up(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2) as answer:
            return answer.status == 200
    except OSError:
        return False
