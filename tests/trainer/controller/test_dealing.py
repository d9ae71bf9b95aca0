"""Requests go to the engine with the least work, neighbours together; nothing is lost with an engine."""

from __future__ import annotations

from rltrain.controller.dealing import Dealing
from rltrain.workers.rollout.protocol import Request


def requests(*groups: int, length: int = 10) -> list[tuple[int, Request]]:
    """Groups of so many requests with one prompt each."""
    prompts = [(group,) * length for group, count in enumerate(groups) for _ in range(count)]
    return [(number, Request(prompt, number)) for number, prompt in enumerate(prompts)]


def test_one_engine_gets_all_at_once_and_in_order() -> None:
    dealing = Dealing([0], max_num_seqs=2)
    dealing.add(requests(4, 4), 100)
    assert dealing.hand_out() == {0: list(range(8))}
    assert dealing.hand_out() == {}


def test_groups_stay_together_and_go_to_the_least_work() -> None:
    dealing = Dealing([0, 1], max_num_seqs=100)
    dealing.add(requests(*[2] * 8), 100)
    assert dealing.hand_out() == {0: [0, 1, 4, 5, 8, 9, 12, 13], 1: [2, 3, 6, 7, 10, 11, 14, 15]}
    for number in (0, 1, 4):
        assert dealing.finished(0, number)
    dealing.add([(90, Request((1,), 0)), (91, Request((2,), 0)), (92, Request((3,), 0))], 100)
    assert dealing.hand_out() == {0: [90, 91, 92]}


def test_few_prompts_are_spread() -> None:
    dealing = Dealing([0, 1], max_num_seqs=100)
    dealing.add(requests(16), 100)
    assert {rank: len(numbers) for rank, numbers in dealing.hand_out().items()} == {0: 8, 1: 8}


def test_what_does_not_fit_goes_to_who_is_free_first() -> None:
    dealing = Dealing([0, 1], max_num_seqs=4)
    dealing.add(requests(*[1] * 20), 100)
    first = dealing.hand_out()
    assert {rank: len(numbers) for rank, numbers in first.items()} == {0: 5, 1: 5}
    for number in first[1][:3]:
        dealing.finished(1, number)
    assert {rank: len(numbers) for rank, numbers in dealing.hand_out().items()} == {1: 3}
    assert (dealing.in_flight(0), dealing.in_flight(1)) == (5, 5)


def test_a_long_piece_waits_for_an_empty_engine_and_no_longer() -> None:
    dealing = Dealing([0, 1], max_num_seqs=1)
    dealing.add(requests(30, 30), 100)
    first = dealing.hand_out()
    assert {rank: len(numbers) for rank, numbers in first.items()} == {0: 8, 1: 8}
    assert dealing.hand_out() == {}
    for number in first[0]:
        dealing.finished(0, number)
    assert list(dealing.hand_out()) == [0]


def test_what_a_lost_engine_had_goes_to_the_others_first() -> None:
    dealing = Dealing([0, 1], max_num_seqs=100)
    dealing.add(requests(*[1] * 8), 100)
    assert dealing.hand_out()[0] == [0, 2, 4, 6]
    dealing.finished(0, 2)
    dealing.lost([0])
    assert dealing.engines == [1]
    assert dealing.hand_out() == {1: [0, 4, 6]}
    assert not dealing.finished(0, 2), "an answer is taken once"
    dealing.back([0])
    dealing.add([(50, Request((1,), 0))], 100)
    assert dealing.hand_out() == {0: [50]}


def test_an_only_engine_gets_its_own_again() -> None:
    dealing = Dealing([0], max_num_seqs=2)
    dealing.add(requests(1, 1, 1), 100)
    dealing.hand_out()
    dealing.finished(0, 1)
    dealing.lost([0])
    assert dealing.hand_out() == {}
    dealing.back([0])
    assert dealing.hand_out() == {0: [0, 2]}
    assert [dealing.finished(0, number) for number in (0, 2)] == [True, True]
    assert dealing.is_over


def test_what_is_dropped_is_nowhere() -> None:
    dealing = Dealing([0, 1], max_num_seqs=2)
    dealing.add(requests(*[1] * 6), 100)
    dealing.hand_out()
    assert dealing.drop(range(6)) == {0: [0, 2], 1: [1, 3]}
    assert dealing.is_over
    assert dealing.hand_out() == {}
