"""Starting a local Ray, or joining one: with a deadline, and with errors that a user can act on."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import threading
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray import exceptions as ray_errors

from rltrain.cluster import shield
from rltrain.cluster.host import last_line
from rltrain.cluster.processes import Process, descendants, kill
from rltrain.cluster.ray_api import ray
from rltrain.cluster.ray_parts import only_what_runs_need
from rltrain.cluster.teardown import Interrupted
from rltrain.cluster.waits import Say
from rltrain.core.errors import RunFailure, UserError

START_DEADLINE_S = 120.0
PROBE_TIMEOUT_S = 5.0
WORDS_EVERY_S = 10.0
_STOPPED = "stopped by a signal while Ray started"
GIVE_UP_S = 5.0
"""How long `ray.init` may take to notice that its processes were ended; some of its waits never do."""
MAX_LOCAL_CPUS = 8
"""Ray starts an idle process per CPU that it counts; the run places nothing by CPUs, so a few are enough."""
TORCHRUN = ("TORCHELASTIC_RUN_ID", "LOCAL_RANK")
# Ray caches the token in the process: it has to be the same for every local cluster of this process.
_TOKEN = secrets.token_hex(32)


def refuse_torchrun() -> None:
    """Stop a run that torchrun started.

    Raises:
        UserError: always, when torchrun's variables are in the environment.
    """
    found = [name for name in TORCHRUN if name in os.environ]
    if found or {"RANK", "WORLD_SIZE"} <= os.environ.keys():
        name = found[0] if found else "WORLD_SIZE"
        raise UserError(
            f"started by torchrun or alike ({name} is set): Ray launches its ranks, "
            "so start `rltrain run …` once, without torchrun"
        )


def wanted_address(ray_init: dict[str, Any]) -> str | None:
    """Address of the cluster to join, or None to start one: `ray_init.address`, else RAY_ADDRESS, as in Ray."""
    address = ray_init.get("address") or os.environ.get("RAY_ADDRESS") or "local"
    return None if address == "local" else str(address)


def usable_cpus() -> int:
    """CPUs that this process may use: fewer than the machine has under SLURM and in containers."""
    return len(os.sched_getaffinity(0))


@dataclass(frozen=True)
class Started:
    """What was started to connect to Ray; nothing when a cluster was joined."""

    processes: set[Process]
    session_dir: Path | None
    """Where the local Ray keeps its logs and sockets."""


def start(
    ray_init: dict[str, Any], namespace: str, on_gpu: bool, say: Say, still: Say, fork_address: Path | None = None
) -> Started:
    """Connect this process to Ray; the workers of a local one are forked by the server at FORK_ADDRESS, if any.

    Raises:
        UserError: the cluster does not answer, is of another version, refuses us, or the arguments are wrong.
        RunFailure: a local Ray did not start.
        Interrupted: a signal came meanwhile.
    """
    address = wanted_address(ray_init)
    defaults: dict[str, Any] = {"logging_level": "ERROR", "log_to_driver": False, "namespace": namespace}
    if address is None:
        defaults |= {"include_dashboard": False, "num_cpus": min(usable_cpus(), MAX_LOCAL_CPUS)}
        defaults |= {} if on_gpu else {"num_gpus": 0}
    else:
        _probe(address)
    arguments = {**defaults, **ray_init, "address": address or "local"}
    before, sessions = descendants(os.getpid()), _sessions(ray_init)
    with (
        _environment_of_ray(address is None),
        _beside_our_package(),
        _own_signals() as signals,
        _watched_start(say, still) as timer,  # its thread takes the signals that this one does not
        shield.for_children(),
        only_what_runs_need(arguments, fork_address),
    ):
        try:
            try:
                session_dir = _init(arguments, timer)
            except _NotUpInTime:
                say("Ray's own limit of 30 s has passed, as on a busy machine: starting it once more")
                _undo(before, _sessions(ray_init) - sessions)
                session_dir = _init(arguments, timer)
            signals.check()
        except BaseException as error:
            # A plain failure of Ray's names its logs.
            _undo(before, set() if type(error) is RunFailure else _sessions(ray_init) - sessions)
            raise
    _silence_raylet()
    if address is not None:
        return Started(set(), None)
    return Started(descendants(os.getpid()) - before, session_dir)


def _undo(before: set[Process], sessions: set[Path]) -> None:
    """End what was started since BEFORE, and remove SESSIONS."""
    kill(descendants(os.getpid()) - before)
    for place in sessions:
        shutil.rmtree(place, ignore_errors=True)


def _sessions(ray_init: dict[str, Any]) -> set[Path]:
    """The session directories that Ray has made for this process; it puts the process's number into their names."""
    temporary = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    base = Path(ray_init.get("_temp_dir") or Path(temporary, "ray"))
    return set(base.glob(f"session_*_{os.getpid()}"))


class _NotUpInTime(RunFailure):
    """Ray's own limit, which nothing can change (seen in 2.60), has passed; ours has not."""


def _init(arguments: dict[str, Any], timer: _StartTimer) -> Path:
    where = arguments["address"]
    try:
        return Path(ray.init(**arguments).address_info["session_dir"])
    except (TypeError, ValueError, AssertionError) as error:
        raise UserError(f"ray_kwargs.ray_init: {last_line(error)}") from None
    except ray_errors.AuthenticationError as error:
        raise UserError(
            f"the Ray cluster at {where} asks for a token ({last_line(error)}): set RAY_AUTH_MODE=token "
            "and RAY_AUTH_TOKEN_PATH as on its head node"
        ) from None
    except (KeyboardInterrupt, SystemExit):  # Ray's own handler of SIGTERM raises the latter
        raise Interrupted(_STOPPED) from None
    except Exception as error:  # a node that is not up in 30 s is a plain one
        if timer.has_fired:
            raise RunFailure(_late()) from None
        raise _explained(where, error) from None


def _explained(where: str, error: BaseException) -> Exception:
    text = str(error)
    if "Unknown keyword argument" in text:
        return UserError(f"ray_kwargs.ray_init: {last_line(error)}")
    if "Version mismatch" in text:
        words = " ".join(text.split())
        return UserError(f"the Ray cluster at {where} runs other versions: {words}; install the same on all nodes")
    if where != "local":
        return UserError(f"no Ray cluster can be joined at {where} ({last_line(error)}): {_MEND}")
    if "address already in use" in text.lower():
        return UserError(f"Ray's port is taken ({last_line(error)}): name another in ray_kwargs.ray_init")
    if "timed out during startup" in text:
        return _NotUpInTime("Ray's own processes were not up in 30 s, twice: this machine is overloaded")
    return RunFailure(f"Ray did not start: {last_line(error)}; its logs: /tmp/ray/session_latest/logs")


_MEND = "start one with `ray start --head`, or unset RAY_ADDRESS and ray_kwargs.ray_init.address to start a local one"


def _probe(address: str) -> None:
    """Fail in seconds where Ray itself would try for a minute: a stale address, a host that is down."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), PROBE_TIMEOUT_S).close()
    except OSError as error:
        reason = error.strerror or "no answer"
        raise UserError(f"no Ray cluster answers at {address} ({reason}): {_MEND}") from None


def _late() -> str:
    return f"Ray did not start within {START_DEADLINE_S:g} s; its logs: /tmp/ray/session_latest/logs"


class _StartTimer:
    """Says that Ray is still starting, and ends what it has started when that takes too long."""

    def __init__(self, say: Say, still: Say) -> None:
        self.has_fired = False
        self.done = threading.Event()
        self._say, self._still = say, still
        self._before = descendants(os.getpid())

    def run(self) -> None:
        waited = 0.0
        while waited < START_DEADLINE_S:
            pause = min(WORDS_EVERY_S, START_DEADLINE_S - waited)
            if self.done.wait(pause):
                return
            waited += pause
            self._still(f"starting Ray ({waited:.0f} s, at most {START_DEADLINE_S:g})")
        self.has_fired = True
        # Most of Ray's own waits look whether the processes that they wait for are alive, and end.
        kill(descendants(os.getpid()) - self._before)
        if not self.done.wait(GIVE_UP_S):
            kill(descendants(os.getpid()) - self._before)  # what it has started since
            self._say(_late())
            os._exit(1)


@contextmanager
def _watched_start(say: Say, still: Say) -> Generator[_StartTimer]:
    timer = _StartTimer(say, still)
    thread = threading.Thread(target=timer.run, name="ray-start-timer", daemon=True)
    thread.start()
    try:
        yield timer
    finally:
        timer.done.set()
        thread.join()


@contextmanager
def _environment_of_ray(is_local: bool) -> Generator[None]:
    """Variables that Ray's processes inherit.

    Ray 2.59 and later asks for a token in a local cluster and writes one to the user's home; ours is of this run alone.
    Ray turns RAY_AUTH_MODE on by itself then, and has read it long before now: setting it here would be too late.
    """
    wanted = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    if is_local and "RAY_AUTH_MODE" not in os.environ:
        wanted["RAY_AUTH_TOKEN"] = _TOKEN
    before = {name: os.environ.get(name) for name in (*wanted, "RAY_AUTH_MODE")}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class _SeenSignals:
    """Signals that came, whatever became of the exception that their handler raised.

    An exception that is raised while Python runs a finalizer or an at-fork hook is printed and forgotten.
    """

    def __init__(self) -> None:
        self._read, self._write = socket.socketpair()
        self._read.setblocking(False)
        self._write.setblocking(False)
        self._before = signal.set_wakeup_fd(self._write.fileno(), warn_on_full_buffer=False)

    def check(self) -> None:
        """Raise `Interrupted` when a signal that ends runs has come."""
        try:
            seen = self._read.recv(4096)
        except BlockingIOError:
            return
        if {signal.SIGINT, signal.SIGTERM} & set(seen):
            raise Interrupted(_STOPPED)

    def close(self) -> None:
        """Watch no longer."""
        signal.set_wakeup_fd(self._before)
        self._read.close()
        self._write.close()


@contextmanager
def _beside_our_package() -> Generator[None]:
    """Work in the directory that holds this package.

    Ray puts the directory of `ray.init` first on the import path of every worker: a `datasets.py` or `rltrain.py` of
    the user's there would hide the library of that name from the workers, and from them alone.
    """
    before = Path.cwd()
    os.chdir(Path(__file__).resolve().parents[2])
    try:
        yield
    finally:
        os.chdir(before)


@contextmanager
def _own_signals() -> Generator[_SeenSignals]:
    """Watch for signals, and put our handlers back: `ray.init` replaces that of SIGTERM."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    seen = _SeenSignals()
    try:
        yield seen
    finally:
        seen.close()
        for number, handler in before.items():
            signal.signal(number, handler)


def _silence_raylet() -> None:
    """Keep "(raylet) A worker died …" off the screen: who died and why is reported by `calls.gather`, in one line.

    `log_to_driver=False` does not cover these messages, and Ray has no public switch for them (seen in 2.60).
    """
    ray._private.worker._worker_logs_enabled = False


def keep_processes() -> None:
    """Have `ray.shutdown` disconnect alone, and leave a local Ray's processes to us.

    It would send SIGTERM, which they do not see (`rltrain.cluster.shield`), and wait a second for each in turn.
    """
    node = ray._private.worker._global_node
    if node is not None:
        node.all_processes.clear()
