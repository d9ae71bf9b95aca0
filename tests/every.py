"""One test over many things, which names each offender: a test for each of thousands costs more than its work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

OfOne = Callable[[Any], None]
OfAll = Callable[[], None]
LIMIT_S = 600
"""Many things on a busy machine."""


def every(things: Sequence[Any], name: Callable[[Any], str] = str) -> Callable[[OfOne], OfAll]:
    """Turn a test of one thing into a test of all THINGS; it fails with the name of each that is wrong, and why."""

    def of_all(test: OfOne) -> OfAll:
        def test_all() -> None:
            assert things, "nothing to look at"
            broken = {name(thing): reason for thing in things if (reason := _failure(test, thing))}
            assert not broken, "\n\n".join(f"{thing}: {reason}" for thing, reason in broken.items())

        test_all.__name__, test_all.__qualname__, test_all.__doc__ = test.__name__, test.__qualname__, test.__doc__
        test_all.__module__ = test.__module__
        test_all.of_one = test
        return pytest.mark.timeout(LIMIT_S)(test_all)

    return of_all


def _failure(test: OfOne, thing: Any) -> str:
    try:
        test(thing)
    except AssertionError as error:
        return str(error) or "AssertionError"
    except (Exception, pytest.fail.Exception) as error:
        return f"{type(error).__name__}: {error}"
    return ""
