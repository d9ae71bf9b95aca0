"""Runs a reward function from a file that the user named, in a process of its own: a capsule names none that is run.

The lower half is that process: the standard library alone, started as `python -c SOURCE`.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import importlib.util
import inspect
import json
import math
import numbers
import os
import random
import selectors
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

Scored = tuple[float, dict[str, float]]
"""A score, and what else the function reports."""
MODULE = "rlcheck_score"
START_S, TOTAL_S = 120.0, 540.0
"""Longest time to load the file or for one answer, and in all."""


class NoScore(Exception):
    """Why there are no scores, in one line."""


def scores(
    file: Path, name: str, calls: Sequence[Mapping[str, Any]], seeds: Sequence[str], row_s: float, batch: bool = False
) -> list[Any]:
    """What the function NAME of FILE returns for each of CALLS, its keyword arguments, each after a seed from SEEDS.

    BATCH: a call is of many rows, as TRL makes it, with functions to log by.

    Raises:
        NoScore: it cannot be loaded or called, raised, returned no number, or took longer than ROW_S seconds.
    """
    job = {"file": str(file), "name": name, "calls": calls, "seeds": seeds, "batch": batch}
    source = Path(__file__).read_text(encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, "-c", source],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        return _answers(process, json.dumps(job).encode() + b"\n", file, len(calls), min(row_s, START_S))
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()


def _answers(process: subprocess.Popen[bytes], job: bytes, file: Path, count: int, row_s: float) -> list[Any]:
    assert process.stdin is not None
    assert process.stdout is not None
    begun, found, held = time.monotonic(), list[Any](), b""
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(job)
        process.stdin.flush()
    loaded = False
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(found) < count:
            limit = min(row_s if loaded else START_S, begun + TOTAL_S - time.monotonic())
            if not selector.select(max(limit, 0.0)):
                raise NoScore(f"{file}: {f'row {len(found)}' if loaded else 'it'} took longer than {limit:.0f} s")
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                where = f"at row {len(found)}" if loaded else "while it was loaded"
                raise NoScore(f"{file}: its process ended {where} with status {process.wait()}")
            *lines, held = (held + chunk).split(b"\n")
            for line in lines:
                answer = json.loads(line)
                if "error" in answer:
                    raise NoScore(f"row {len(found)}: {answer['error']}" if loaded else answer["error"])
                if loaded:
                    found.append(answer["found"])
                loaded = True
    return found


# The process that runs the function


def main() -> None:
    """Read the job, load the function, call it, answer line by line."""
    sys.path[:1] = [entry for entry in sys.path[:1] if entry]
    out = os.dup(1)
    os.dup2(2, 1)

    def answer(**line: Any) -> None:
        data = json.dumps(line).encode() + b"\n"
        while data:
            data = data[os.write(out, data) :]

    job = json.loads(sys.stdin.buffer.readline())
    home = os.getcwd()
    try:
        with contextlib.suppress(ImportError):  # before the first seed, so that its generator exists
            importlib.import_module("numpy.random")
        function = load(job["file"], job["name"])
        answer(loaded=True)
        logs = {"log_extra": _unlogged, "log_metric": _unlogged} if job["batch"] else {}
        for call, seed in zip(job["calls"], job["seeds"], strict=True):
            os.chdir(home)
            _settle(seed)
            answer(found=read(_called(function, {**call, **logs}, job["file"])))
    except NoScore as error:
        answer(error=" ".join(str(error).split())[:300])
    os._exit(0)


def _unlogged(*_: Any) -> None:
    return None


def _called(function: Callable[..., Any], call: Mapping[str, Any], file: str) -> Any:
    try:
        return function(**call)
    except BaseException as error:  # sys.exit() is no score either
        raise NoScore(f"{_place(error, file)} raised {_words(error)}") from None


def load(file: str, name: str) -> Callable[..., Any]:
    """The function NAME of FILE.

    Raises:
        NoScore: there is none.
    """
    path = Path(file)
    sys.path.append(str(path.parent))
    spec = importlib.util.spec_from_file_location(MODULE, path)
    if spec is None or spec.loader is None:
        raise NoScore(f"{path} is no Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[MODULE] = module
    try:
        spec.loader.exec_module(module)
    except SyntaxError as error:
        raise NoScore(f"{error.filename or path}:{error.lineno}: {error.msg}") from None
    except BaseException as error:
        raise NoScore(f"{_place(error, file)} raised {_words(error)}") from None
    function = vars(module).get(name)
    if not callable(function):
        own = sorted(key for key, value in vars(module).items() if inspect.isfunction(value))
        raise NoScore(f"{path} has no function '{name}'; it has {', '.join(own) or 'none'}")
    return function


def read(answer: Any) -> Any:
    """A number, or a dict with `score`, as `Scored`; a list of numbers or None, of a function that takes a whole batch.

    Raises:
        NoScore: it is neither.
    """
    if isinstance(answer, (list, tuple)):
        listed = cast("Sequence[Any]", answer)
        return [None if one is None else _number(one, "returned, in its list,") for one in listed]
    if not isinstance(answer, Mapping):
        return _number(answer, "returned"), {}
    values = {str(key): _plain(value) for key, value in cast("Mapping[Any, Any]", answer).items()}
    if "score" not in values:
        raise NoScore(f"it returned a dict without 'score', with {sorted(values)}")
    others = {key: float(value) for key, value in values.items() if isinstance(value, numbers.Real) and key != "score"}
    return _number(values["score"], "returned, as 'score',"), others


def _plain(value: Any) -> Any:
    item = getattr(value, "item", None)
    return item() if callable(item) and getattr(value, "ndim", 0) == 0 else value


def _number(value: Any, how: str) -> float:
    plain = _plain(value)
    if not isinstance(plain, numbers.Real) or not math.isfinite(plain):
        raise NoScore(f"it {how} {type(value).__name__} {str(plain)[:40]}, which is no finite number")
    return float(plain)


def _settle(seed: str) -> None:
    """As the trainer does before each call: a function that draws random numbers draws the same ones."""
    number = int.from_bytes(hashlib.blake2b(seed.encode("utf-8", "replace"), digest_size=4).digest(), "big")
    random.seed(number)
    for module, name in (("numpy.random", "seed"), ("torch", "manual_seed")):
        if (library := sys.modules.get(module)) is not None:
            vars(library)[name](number)


def _place(error: BaseException, file: str) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{file}:{lines[-1]}" if lines else file


def _words(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    except Exception:
        return type(error).__name__


if __name__ == "__main__":
    main()
