"""A user's reward function: loaded from a file, called as verl calls it, its answer held to what a reward can be."""

from __future__ import annotations

import asyncio
import importlib.util
import inspect
import math
import numbers
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from rltrain.core.errors import UserError
from rltrain.rewards.request import RewardRequest, one_line
from rltrain.rewards.spec import CustomSpec

MODULE = "rltrain_custom_reward"
EXPECTED = "(data_source, solution_str, ground_truth, extra_info=None, **reward_kwargs)"


class BadReward(Exception):
    """What a function did that gives no reward."""


class Raised(BadReward):
    """It raised."""


class CustomFunction:
    """The function of SPEC, ready to be called; FUNCTION is given where it is loaded already.

    Raises:
        UserError: the file cannot be imported, has no such function, or the function cannot be called as verl calls it.
    """

    def __init__(self, spec: CustomSpec, function: Callable[..., Any] | None = None) -> None:
        self._spec = spec
        self._function = function or load_function(spec)
        _check_signature(self._function, spec)

    def score(self, request: RewardRequest) -> tuple[float, dict[str, float]]:
        """The score, and the other numbers of the function's answer.

        Raises:
            BadReward: it raised, or its answer is no finite number and no dict with one as `score`.
        """
        try:
            answer = self._function(
                data_source=request.data_source,
                solution_str=request.solution_str,
                ground_truth=request.ground_truth,
                extra_info=request.extra_info,
                **self._spec.reward_kwargs,
            )
            if inspect.isawaitable(answer):
                answer = asyncio.run(_awaited(answer))
        except BaseException as error:  # sys.exit() too is an answer that is none
            raise raised(error, self._spec.path) from None
        try:
            return read_answer(answer)
        except BadReward as error:
            raise BadReward(f"{self._start()} {error}") from None

    def _start(self) -> str:
        try:
            line = inspect.getsourcelines(self._function)[1]
        except (OSError, TypeError):
            return self._spec.path
        return f"{self._spec.path}:{line}"


def read_answer(answer: Any) -> tuple[float, dict[str, float]]:
    """The score and the other numbers in what a function returned.

    Raises:
        BadReward: there is no finite score in it.
    """
    if not isinstance(answer, Mapping):
        return _number(answer, "returned"), {}
    values = {str(key): value for key, value in cast("Mapping[Any, Any]", answer).items()}
    if "score" not in values:
        raise BadReward(f"returned a dict without 'score', with {sorted(values)}")
    score = _number(values.pop("score"), "returned, as 'score',")
    numeric = {key: value for key, value in values.items() if isinstance(_plain(value), numbers.Real)}
    return score, {key: _number(value, f"returned, as '{key}',") for key, value in numeric.items()}


def _plain(value: Any) -> Any:
    """VALUE, where it is a NumPy scalar as Python's own; NumPy is looked at only if the function imported it."""
    numpy: Any = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _number(value: Any, how: str) -> float:
    plain = _plain(value)
    if not isinstance(plain, numbers.Real):
        raise BadReward(f"{how} {_kind(value)}, must be one number or a dict with the number 'score'")
    number = float(plain)
    if not math.isfinite(number):
        raise BadReward(f"{how} {number}, must be finite")
    return number


def _kind(value: Any) -> str:
    if value is None:
        return "None"
    try:
        shown = one_line(repr(value), 40)
    except Exception:
        shown = "?"
    return f"{type(value).__name__} {shown}"


async def _awaited(answer: Awaitable[Any]) -> Any:
    return await answer


def raised(error: BaseException, path: str) -> Raised:
    """ERROR in words, with the line of the file at PATH that it passed last."""
    return Raised(f"{_place(error, path)} raised {_words(error)}")


def load_function(spec: CustomSpec) -> Callable[..., Any]:
    """The function of SPEC.

    Raises:
        UserError: the file cannot be imported, or has no such function.
    """
    module = load_file(spec.path)
    function = vars(module).get(spec.name)
    if not callable(function):
        own = own_functions(module)
        has = f"it has {', '.join(own)}" if own else "it has none"
        raise UserError(f"custom_reward_function.name: {spec.path} has no function '{spec.name}'; {has}")
    return function


def own_functions(module: ModuleType) -> tuple[str, ...]:
    """Names of the functions that a file of `load_file` defines itself."""
    own = (name for name, value in vars(module).items() if inspect.isfunction(value) and value.__module__ == MODULE)
    return tuple(sorted(own))


def load_file(name: str) -> ModuleType:
    """The Python file NAME, imported: its code runs.

    Raises:
        UserError: it cannot be imported.
    """
    path = Path(name)
    if not path.is_file():
        raise UserError(f"custom_reward_function.path: there is no file {path}")
    sys.path.append(str(path.parent))  # at the end: its neighbours must not shadow the standard library
    module_spec = importlib.util.spec_from_file_location(MODULE, path)
    if module_spec is None or module_spec.loader is None:
        raise UserError(f"custom_reward_function.path: {path} is no Python file (its name must end in .py)")
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[MODULE] = module
    try:
        module_spec.loader.exec_module(module)
    except SyntaxError as error:
        where = f"{error.filename or path}:{error.lineno}"
        raise UserError(f"custom_reward_function.path: {where}: {error.msg}") from None
    except BaseException as error:
        raise UserError(f"custom_reward_function.path: {raised(error, name)}") from None
    return module


def _check_signature(function: Callable[..., Any], spec: CustomSpec) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a built-in that tells nothing about itself
        return
    try:
        signature.bind(data_source="", solution_str="", ground_truth="", extra_info={}, **spec.reward_kwargs)
    except TypeError as error:
        raise UserError(
            f"custom_reward_function: {spec.name}{signature} in {spec.path} cannot be called as "
            f"{spec.name}{EXPECTED} with reward_kwargs {sorted(spec.reward_kwargs)}: {error}"
        ) from None


def _place(error: BaseException, path: str) -> str:
    """`file:line` of the deepest frame in the user's file; the file alone where none is."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    return f"{path}:{lines[-1]}" if lines else path


def _words(error: BaseException) -> str:
    try:
        message = str(error)
    except Exception:  # a user's exception class may be broken too
        message = ""
    return f"{type(error).__name__}: {one_line(message, 200)}" if message else type(error).__name__
