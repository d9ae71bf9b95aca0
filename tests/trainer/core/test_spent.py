"""Where the time of a call goes."""

from __future__ import annotations

import time

from rltrain.core.spent import Span, Spent


def test_a_call_is_its_own_work_and_time_together() -> None:
    spent = Spent()

    def call() -> str:
        with spent.together():
            time.sleep(0.05)
        spent.later(lambda: 0.01)
        end = time.thread_time() + 0.05
        while time.thread_time() < end:
            pass
        return "done"

    value, span = spent.timed(call)
    assert value == "done"
    assert 0.06 <= span.together_s < 0.06 + span.wall_s - 0.1 + 0.02
    assert span.cpu_s >= 0.05
    assert span.own_s + span.together_s == span.wall_s
    _, again = spent.timed(lambda: None)
    assert again.together_s == 0
    both = Span()
    both.add(span)
    both.add(again)
    assert (both.calls, both.longest_s) == (2, span.wall_s)
