"""The process of SGLang's server: an interpreter of its own, rltrain's part beside it, and its end."""

from __future__ import annotations

import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO

import psutil
from packaging.specifiers import SpecifierSet
from packaging.version import InvalidVersion, Version

import rlcheck
import rltrain
from rltrain.core.errors import RunFailure, UserError

VERSIONS = ">=0.5.12,<0.5.13"
"""Those that this part of rltrain was written for, and tried with."""
LOOK_S = 60.0
_POLL_S = 0.1
_END_S = 10.0
_ALLOCATOR = ("PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF")
"""Meant for the training ranks; expandable segments and SGLang's memory saver exclude each other."""
_VERSION = "import importlib.metadata as m, sys\nsys.stdout.write(m.version('sglang'))"
_NOISE = re.compile(
    r"^\s*(?:File \"|\^+$|Traceback|During handling|The above exception|warnings\.warn|\[20\d\d-.*WARNING)"
)


class Server:
    """One server on this host.

    Args:
        python: the interpreter that has SGLang; empty: this one.
        environ: variables for it beside those of this process. With an interpreter or a PYTHONPATH of its own, the
            PYTHONPATH of this process is not passed on: its packages are not the server's.
    """

    def __init__(self, python: str, environ: Mapping[str, str]) -> None:
        self._python = python or sys.executable
        inherited = {} if python or "PYTHONPATH" in environ else {"PYTHONPATH": os.environ.get("PYTHONPATH", "")}
        here = {name: value for name, value in os.environ.items() if name not in _ALLOCATOR}
        self._environ = {**here, "PYTHONPATH": "", **inherited, **environ}
        self._process: subprocess.Popen[bytes] | None = None
        self._directory: Path | None = None
        self._log: IO[bytes] | None = None
        self.url = ""

    def version(self) -> Version:
        """Of the SGLang that the interpreter has.

        Raises:
            UserError: there is none, or one that rltrain does not drive.
        """
        try:
            found = subprocess.run(
                [self._python, "-c", _VERSION], env=self._environ, capture_output=True, timeout=LOOK_S, check=False
            )
            version = Version(found.stdout.decode().strip())
        except (OSError, InvalidVersion, subprocess.TimeoutExpired) as error:
            raise UserError(
                f"actor_rollout_ref.rollout.name=sglang: {self._python} has no SGLang; name the interpreter that has it"
                " (actor_rollout_ref.rollout.engine_kwargs.sglang.python), install it, or set name=vllm or hf"
            ) from error
        if not SpecifierSet(VERSIONS).contains(version, prereleases=True):
            raise UserError(
                f"actor_rollout_ref.rollout.name=sglang: SGLang {version} is installed, rltrain drives {VERSIONS}; "
                "install one of those, or set name=vllm"
            )
        return version

    def start(self, words: Sequence[str], timeout_s: float, log: Path | None = None) -> None:
        """Start it with WORDS, and wait until it answers.

        Args:
            words: of its command line, without a port.
            timeout_s: longest wait.
            log: where it writes; null: into a file of its own that goes with it.

        Raises:
            UserError: it ended instead, in its own words.
            RunFailure: it is not there in time.
        """
        self._directory = part_directory()
        port = _free_port()
        self.url = f"http://127.0.0.1:{port}"
        path = os.pathsep.join(filter(None, (str(self._directory), self._environ["PYTHONPATH"])))
        own = {
            "PYTHONPATH": path,
            "RLTRAIN_SGLANG": "1",
            "RLTRAIN_SGLANG_WARD": str(os.getpid()),
            # All requests of a call begin in one pass of the scheduler, so that the same calls compute the same.
            "SGLANG_ENABLE_COLOCATED_BATCH_GEN": "1",
            # Longer than the model's own length by what SGLang keeps for itself.
            "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",
        }
        self._log = (log or self._directory / "server.log").open("ab+")
        self._process = subprocess.Popen(
            [self._python, "-m", "sglang.launch_server", *words, "--port", str(port)],
            env=self._environ | own,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=self._log,
        )
        deadline = time.monotonic() + timeout_s
        while not self._answers(port):
            if self._process.poll() is not None:
                raise UserError(f"actor_rollout_ref.rollout.name=sglang: the server did not start: {self.last_words()}")
            if time.monotonic() > deadline:
                raise RunFailure(f"the sglang server did not answer within {timeout_s:g} s: {self.last_words()}")
            time.sleep(_POLL_S)

    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    def last_words(self) -> str:
        """The last line of its log that says something, in one line."""
        if self._log is None:
            return "it has not been started"
        self._log.flush()
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - 20_000))
        lines = self._log.read().decode("utf-8", "replace").splitlines()
        said = [line.strip() for line in lines if line.strip() and not _NOISE.match(line)]
        errors = [line for line in said if re.search(r"error:|Error\b|Exception\b", line)]
        return " ".join((errors or said or ["it said nothing"])[-1].split())[:400]

    def stop(self) -> None:
        """End it and its processes at once: it has nothing to save."""
        process, self._process = self._process, None
        if process is not None:
            with suppress(psutil.Error):
                family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
                for one in family:
                    with suppress(psutil.Error):
                        one.kill()
                psutil.wait_procs(family, _END_S)
            with suppress(subprocess.TimeoutExpired):
                process.wait(_END_S)
        if self._log is not None:
            self._log.close()
            self._log = None
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = None

    def _answers(self, port: int) -> bool:
        """Whether it serves: it opens its port when its model is there. /health would first generate a token."""
        import http.client

        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
        try:
            connection.request("GET", "/model_info")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


def part_directory() -> Path:
    """A directory for SGLang's PYTHONPATH: rltrain, rlcheck, their name as a plugin of SGLang, and nothing else.

    The server has an environment of its own, in which rltrain need not be installed, and whose packages this one's must
    not hide.
    """
    directory = Path(tempfile.mkdtemp(prefix="rltrain-sglang-"))
    for package in (rltrain, rlcheck):  # the first imports its version from the second
        (directory / package.__name__).symlink_to(Path(str(package.__file__)).parent)
    info = directory / "rltrain_part-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: rltrain-part\nVersion: 1\n")
    (info / "entry_points.txt").write_text(
        "[sglang.srt.plugins]\nrltrain = rltrain.workers.rollout.sglang.plugin:install\n"
    )
    return directory


def _free_port() -> int:
    """A port that nobody listens on, as is the one 10,000 above it, which SGLang takes for gRPC."""
    for port in random.sample(range(20_000, 50_000), 100):
        with suppress(OSError), socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", port))
            second.bind(("127.0.0.1", port + 10_000))
            return port
    raise RunFailure("no free port for the sglang server between 20000 and 50000")
