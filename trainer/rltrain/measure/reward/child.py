"""The process that loads a user's reward function and calls it; started and ended by `trial`.

It is told a `Job` and answers in lines of JSON: `{"ready": …}` once the function is loaded, `{"start": N}` before a
call of mode serial, `{"call": N, …}` after each, `{"end": true}`.
"""

from __future__ import annotations

import dis
import importlib
import inspect
import json
import os
import pickle
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType, ModuleType
from typing import Any, cast

from rltrain.core.errors import UserError
from rltrain.measure.reward.calls import Call, Job, Said
from rltrain.rewards.custom import BadReward, CustomFunction, Raised, load_file, own_functions, raised, read_answer
from rltrain.rewards.request import RewardRequest
from rltrain.rewards.spec import CustomSpec
from rltrain.rewards.wire import Inbox

DEFAULT_NAME = "compute_score"
SWITCH_S = 1e-5
"""How long a thread keeps the interpreter: short, so that what threads can do to each other happens here."""
_KEY = re.compile(r"custom_reward_function(\.\w+)?: ")

Tell = Callable[[dict[str, Any]], None]
Score = Callable[[Call], float | None]


def main(channel: int) -> None:
    """Do the job that comes through the socket CHANNEL, a file descriptor."""
    with socket.socket(fileno=channel) as connection:
        lock = threading.Lock()

        def tell(line: dict[str, Any]) -> None:
            with lock:
                connection.sendall(json.dumps(line).encode() + b"\n")

        try:
            _work(_receive(connection), tell)
        except UserError as error:
            tell({"failed": _KEY.sub("", str(error), count=1)})
    # A function may have left threads that never end: do not wait for them.
    os._exit(0)


def _receive(connection: socket.socket) -> Job:
    inbox = Inbox()
    while (message := inbox.take()) is None:
        data = connection.recv(1 << 20)
        if not data:
            os._exit(0)
        inbox.add(data)
    return message[0]


def _work(job: Job, tell: Tell) -> None:
    module = load_file(job.path)
    name = job.name or _meant(module, job.path)
    function = vars(module).get(name)
    if not callable(function):
        own = ", ".join(own_functions(module)) or "none"
        raise UserError(f"{job.path} has no function '{name}' (its own: {own}); name one with --name")
    style = _style(function)
    if style == "trl":
        score = _of_trl(function, job)
    else:
        custom = CustomFunction(CustomSpec(job.path, name, 1.0, job.arguments), function)
        score = _of_verl(custom)
    tell({"ready": {"function": name, "style": style, "reads_truth": reads(function, "ground_truth"),
                    "names": list(_names(function))}})  # fmt: skip
    if job.mode == "pickle":
        tell({"pickle": _pickled(function, module)})
    elif job.mode == "threads":
        sys.setswitchinterval(SWITCH_S)
        with ThreadPoolExecutor(job.num_threads) as pool:
            for number, call in enumerate(job.calls):
                pool.submit(_tell_one, tell, score, number, call)
    else:
        for number, call in enumerate(job.calls):
            tell({"start": number})
            _tell_one(tell, score, number, call)
    tell({"end": True})


def _tell_one(tell: Tell, score: Score, number: int, call: Call) -> None:
    tell({"call": number, **vars(_said(score, call))})


def _meant(module: ModuleType, path: str) -> str:
    """The function that a trainer would take, or the only one that looks like a reward.

    Raises:
        UserError: there are several, or none.
    """
    own = own_functions(module)
    if DEFAULT_NAME in vars(module):
        return DEFAULT_NAME
    like = [name for name in own if {"completions", "solution_str"} & set(_names(vars(module)[name]))]
    if len(like) != 1:
        has = f"its functions are {', '.join(own)}" if own else "it defines no function"
        raise UserError(f"{path} has no function '{DEFAULT_NAME}', and {has}; name the reward with --name")
    return like[0]


def _names(function: Callable[..., Any]) -> tuple[str, ...]:
    try:
        return tuple(inspect.signature(function).parameters)
    except (TypeError, ValueError):
        return ()


def _style(function: Callable[..., Any]) -> str:
    return "trl" if "completions" in _names(function) else "verl"


def reads(function: Callable[..., Any], name: str) -> bool | None:
    """Whether the code of FUNCTION loads its argument NAME at all; None where that cannot be seen."""
    if not isinstance(function, FunctionType) or "__wrapped__" in vars(function):
        return None
    code = function.__code__
    if "locals" in code.co_names:
        return None
    if name not in code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]:
        return None
    if name in code.co_cellvars:
        return True
    loads = (one.argval for one in dis.get_instructions(code) if "LOAD" in one.opname)
    return any(value == name or (isinstance(value, tuple) and name in value) for value in loads)


def _said(score: Score, call: Call) -> Said:
    started, me = time.perf_counter(), os.getpid()
    try:
        value = score(call)
        said = Said("none") if value is None else Said("score", value)
    except Raised as error:
        said = Said("raised", words=str(error))
    except BadReward as error:
        said = Said("empty", words=str(error))
    if os.getpid() != me:  # the function forked, and its copy came back from the call as well
        os._exit(0)
    return Said(said.kind, said.score, said.words, time.perf_counter() - started)


def _of_verl(custom: CustomFunction) -> Score:
    def score(call: Call) -> float:
        sample = call.sample
        request = RewardRequest(sample.source, call.solution, sample.truth, dict(sample.extra))
        return custom.score(request)[0]

    return score


def _of_trl(function: Callable[..., Any], job: Job) -> Score:
    """Called as GRPOTrainer does: lists of one, and every other column of the row by its name."""

    def score(call: Call) -> float | None:
        sample = call.sample
        chat = [{"role": "assistant", "content": call.solution}]
        prompt: Any = sample.question if sample.is_plain else [dict(message) for message in sample.messages]
        columns = {name: [value] for name, value in sample.columns.items() if name not in ("prompt", "completion")}
        arguments = {"prompts": [prompt], "completions": [call.solution if sample.is_plain else chat], **columns}
        try:
            answer: Any = function(**arguments, completion_ids=[[]], trainer_state=None, **job.arguments)
        except BaseException as error:  # sys.exit() too is an answer that is none
            raise raised(error, job.path) from None
        shown = str(answer)[:80]
        scores = cast("list[Any]", answer) if isinstance(answer, list) else []
        if len(scores) != 1:
            raise BadReward(f"{job.path} returned {shown}, must be a list of one number for one completion")
        first = scores[0]
        return None if first is None else read_answer(first)[0]

    return score


def _pickled(function: Callable[..., Any], module: ModuleType) -> str:
    """Why FUNCTION cannot be sent to another process, by name or (as Ray does) with its code; "" where it can."""
    try:
        pickle.dumps(function)
    except Exception as error:
        return f"pickle: {type(error).__name__}: {error}"
    try:
        cloudpickle: Any = importlib.import_module("cloudpickle")
    except ImportError:
        return ""
    cloudpickle.register_pickle_by_value(module)
    try:
        cloudpickle.dumps(function)
    except Exception as error:
        return f"cloudpickle, as Ray sends functions: {type(error).__name__}: {error}"
    return ""
