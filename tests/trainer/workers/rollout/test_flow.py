"""How a round of an engine is counted."""

from __future__ import annotations

import time

from rltrain.workers.rollout.flow import SLOTS, Flow


def test_a_round_says_who_ran_when() -> None:
    flow = Flow()
    flow.asked(8, 80)
    for number in range(10):
        left = 8 if number < 5 else 1
        assert flow.due() or number
        time.sleep(0.02)
        flow.sample(left, {"running": left, "waiting": 0, "kv_usage": left / 8, "preemptions": number, "other": 1})
        if number == 4:
            for _ in range(7):
                flow.ended(5)
    flow.ended(10)
    note = flow.note()
    assert (note["requests"], note["tokens"], note["passes"], note["preemptions"]) == (8, 45, 10, 9)
    assert [slot[0] for slot in note["slots"]][:: SLOTS - 1] == [8, 1]
    assert sum(slot[4] for slot in note["slots"]) == 10
    # The pass that was first holds the prompts, and counts apart; what ran until a look was there at the one before.
    (few, several), (many, most) = [pace[:2] for pace in note["paces"]]
    assert (few, several, many, most) == (1, 4, 8, 5)
    assert 0.02 <= note["first_s"] < note["wall_s"]
    assert note["most"] == 8
    assert note["lengths"][0] == 5
    assert note["lengths"][-1] == 10
