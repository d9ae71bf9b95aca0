"""One call that fails does not end a run: it is made again; what fails for good is an error or a counted default."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from rltrain.controller.filter_metric import filter_metric
from rltrain.controller.reward_manager import RewardManager
from rltrain.core.clock import Clock
from rltrain.core.errors import UserError
from rltrain.rewards.pool import RewardPool
from rltrain.rewards.process import Child
from tests.trainer.controller.build import batch
from tests.trainer.rewards.support import requests, run_config, write

ONCE = """
mark = pathlib.Path(__file__).with_name(solution_str)
first = not mark.exists()
mark.touch()
if first and solution_str.startswith("bad"):
    {fault}
return float(len(solution_str))
"""
FAULTS = {"raises": "raise ValueError('busy')", "hangs": "time.sleep(60)", "dies": "os._exit(3)", "text": "return 'no'"}
ANSWERS = ("a", "bad1", "bb", "bad2", "c")


@pytest.mark.parametrize("num_processes", [1, 2])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_call_that_fails_once_costs_a_retry(tmp_path: Path, fault: str, num_processes: int) -> None:
    path = write(tmp_path, ONCE.format(fault=FAULTS[fault]), head="import os, pathlib, time")
    settings = run_config(custom=path, timeout_s=1.0, num_processes=num_processes, max_retries=1)
    with RewardPool(settings) as pool:
        assert [one.score for one in pool.score(requests(*ANSWERS))] == [1.0, 4.0, 2.0, 4.0, 1.0]
        assert pool.num_retries == 2
        assert [one.score for one in pool.score(requests(*ANSWERS))] == [1.0, 4.0, 2.0, 4.0, 1.0]
        assert pool.num_retries == 2, "not again"


def test_another_child_dies_while_one_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, ONCE.format(fault=FAULTS["dies"]), head="import os, pathlib, time")
    with RewardPool(run_config(custom=path, num_processes=2, max_retries=2)) as pool:
        renew = pool._renew  # pyright: ignore[reportPrivateUsage]
        killed: list[int] = []

        def kill_others_and_renew(child: Child) -> Child:
            for other in [] if killed else pool._children:  # pyright: ignore[reportPrivateUsage]
                if other is not child:
                    killed.append(other.pid)
                    os.kill(other.pid, signal.SIGKILL)
                    os.waitid(os.P_PID, other.pid, os.WEXITED | os.WNOWAIT)
            return renew(child)

        monkeypatch.setattr(pool, "_renew", kill_others_and_renew)
        assert [one.score for one in pool.score(requests(*ANSWERS))] == [1.0, 4.0, 2.0, 4.0, 1.0]
        assert len(killed) == 1


@pytest.mark.parametrize("fault", FAULTS)
def test_what_always_fails_is_an_error_or_a_counted_default(tmp_path: Path, fault: str) -> None:
    path = write(tmp_path, f"if solution_str[0] == 'b':\n    {FAULTS[fault]}\nreturn 1.0", head="import os, time")
    common = {"custom": path, "timeout_s": 0.5, "max_retries": 1}
    with RewardPool(run_config(**common)) as pool, pytest.raises(UserError, match=r"sample 0-1/0") as error:
        pool.score(requests(*ANSWERS))
    assert "\n" not in str(error.value)
    with RewardPool(run_config(**common, default_score=-0.5)) as pool:
        results = pool.score(requests(*ANSWERS))
    assert [one.score for one in results] == [1.0, -0.5, -0.5, -0.5, 1.0]
    assert [dict(one.parts) for one in results[:2]] == [{"custom": 1.0}, {"failed": 1.0}]


def test_defaults_and_retries_are_metrics_and_the_filter_knows_them(tmp_path: Path) -> None:
    path = write(tmp_path, "assert ground_truth == 'a'\nreturn 1.0")
    settings = run_config(custom=path, max_retries=1, default_score=0.0)
    with RewardPool(settings) as pool:
        scored, metrics = RewardManager(settings, pool, None, Clock()).score(batch())
    assert (metrics["reward/failed"], metrics["reward/retries"]) == (1.0, 1.0)
    assert scored["token_level_scores"].sum(-1).tolist() == [1.0, 0.0, 1.0]
    assert filter_metric(scored.samples, settings) == [1.0, 0.0, 1.0]


def test_without_a_fault_there_is_nothing_to_count(tmp_path: Path) -> None:
    settings = run_config(custom=write(tmp_path, "return 1.0"))
    with RewardPool(settings) as pool:
        _, metrics = RewardManager(settings, pool, None, Clock()).score(batch())
    assert not {"reward/failed", "reward/retries"} & metrics.keys()


def test_a_function_may_be_async(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text(
        "import asyncio\n\n"
        "async def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    await asyncio.sleep(0.01)\n"
        "    return {'score': len(solution_str), 'acc': solution_str == 'a'}\n"
    )
    with RewardPool(run_config(custom=path)) as pool:
        results = pool.score(requests("a", "bbb"))
    assert [(one.score, one.parts["custom/acc"]) for one in results] == [(1.0, 1.0), (3.0, 0.0)]


def test_an_async_function_that_hangs_or_raises_is_named(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text(
        "import asyncio\n\n"
        "async def compute_score(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    await asyncio.sleep(60 * (solution_str == 'hang'))\n"
        "    raise ValueError('judge is away')\n"
    )
    with RewardPool(run_config(custom=path, timeout_s=0.5, max_retries=0)) as pool:
        with pytest.raises(UserError, match=r"reward\.py:5 raised ValueError: judge is away"):
            pool.score(requests("a"))
        with pytest.raises(UserError, match=r"took longer than reward_model\.timeout_s"):
            pool.score(requests("hang"))
