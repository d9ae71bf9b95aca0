"""Batches through real child processes: order, weights, sources, determinism, speed."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from rltrain.core.errors import UserError
from rltrain.rewards.pool import RewardPool
from tests.conftest import base_environ
from tests.trainer.rewards.support import request, requests, run_config, write


def test_parts_are_weighted_and_order_is_kept(tmp_path: Path) -> None:
    path = write(tmp_path, "return {'score': len(solution_str), 'acc': solution_str == ground_truth, 'note': 'x'}")
    rules = ({"kind": "exact", "weight": 2.0}, {"kind": "digits", "name": "share", "weight": 0.5})
    texts = ["12", "1x", "", *(str(n) for n in range(100))]
    with RewardPool(run_config(*rules, custom=path, custom_weight=10.0, num_processes=2)) as pool:
        results = pool.score(requests(*texts, truth="12"))
    assert results[0].parts == {"exact": 1.0, "share": 1.0, "custom": 2.0, "custom/acc": 1.0}
    assert results[0].score == 2.0 + 0.5 + 20.0
    assert results[1].parts == {"exact": 0.0, "share": 0.5, "custom": 2.0, "custom/acc": 0.0}
    assert [result.parts["custom"] for result in results] == [float(len(text)) for text in texts]
    assert all(0 < result.seconds < 5 for result in results)


def test_rules_apply_by_source_and_a_source_without_any_is_an_error() -> None:
    rules = (
        {"kind": "exact", "data_sources": ["a"]},
        {"kind": "digits", "data_sources": ["a", "b"]},
    )
    with RewardPool(run_config(*rules)) as pool:
        results = pool.score([request(source="a"), request(source="b")])
        assert [set(result.parts) for result in results] == [{"exact", "digits"}, {"digits"}]
        with pytest.raises(UserError, match=r"nothing scores data_source 'c' of sample 0-7/0"):
            pool.score([request(source="a"), request(source="c", index=7)])


def test_with_a_reward_model_alone_nothing_is_started() -> None:
    with RewardPool(run_config(enable=True)) as pool:
        pool.check()
        assert [(r.score, r.parts) for r in pool.score(requests("a", "b"))] == [(0.0, {}), (0.0, {})]


def test_math_runs_in_a_child_with_its_own_limit(tmp_path: Path) -> None:
    with RewardPool(run_config({"kind": "math"}, timeout_s=4.0, num_processes=2)) as pool:
        pool.check()
        results = pool.score(requests(r"\boxed{\frac{10}{2}}", r"\boxed{9^{9^{9^{9}}}}", "5", truth="5"))
    assert [result.score for result in results] == [1.0, 0.0, 1.0]
    assert results[1].parts == {"math": 0.0, "math/timed_out": 1.0}


def test_a_ground_truth_that_a_rule_cannot_use_names_rule_and_sample() -> None:
    with (
        RewardPool(run_config({"kind": "exact"})) as pool,
        pytest.raises(
            UserError, match=r"reward rule 'exact': its ground_truth is NoneType.*sample 0-3/0.*row d\.jsonl:9"
        ),
    ):
        pool.score([request(), request(truth=None, index=3, place="d.jsonl:9")])


RANDOM = """
import os, random
import numpy
CALLS = []
"""


def test_results_do_not_depend_on_the_number_of_processes(tmp_path: Path) -> None:
    body = """
    os.chdir('/')
    word = next(iter({'a', 'b', 'c', 'd', 'e', 'f'}))
    return {'score': random.random(), 'np': numpy.random.rand(), 'hash': float(hash(word) % 97)}
    """
    path = write(tmp_path, body, RANDOM)
    batch = requests(*(f"text {n}" for n in range(40)))

    def scores(num_processes: int, order: int) -> list[tuple[float, object]]:
        with RewardPool(run_config(custom=path, num_processes=num_processes)) as pool:
            results = pool.score(batch[::order])
        return [(result.score, result.parts) for result in results][::order]

    one = scores(1, 1)
    assert scores(3, 1) == one
    assert scores(2, -1) == one
    assert len({score for score, _ in one}) == 40


def test_each_call_starts_in_the_directory_of_the_run(tmp_path: Path) -> None:
    path = write(tmp_path, "here = os.getcwd()\nos.chdir('/')\nreturn {'score': 1.0, 'same': here != '/'}", "import os")
    with RewardPool(run_config(custom=path)) as pool:
        results = pool.score(requests("a", "b", "c"))
    assert [result.parts["custom/same"] for result in results] == [1.0] * 3


def test_512_samples_take_less_than_50_ms() -> None:
    batch = [request("abcd", "abce", n, messages=({"role": "user", "content": "x" * 200},)) for n in range(512)]
    with RewardPool(run_config({"kind": "exact"}, {"kind": "digits"})) as pool:
        pool.check()
        seconds: list[float] = []
        for _ in range(10):
            started = time.perf_counter()
            assert len(pool.score(batch)) == 512
            seconds.append(time.perf_counter() - started)
    assert min(seconds) < 0.05


def test_messages_larger_than_a_pipe(tmp_path: Path) -> None:
    path = write(tmp_path, "return {'score': len(solution_str)} | {f'part{n}': n for n in range(50)}")
    with RewardPool(run_config(custom=path, num_processes=2)) as pool:
        results = pool.score(requests(*["x" * 50_000] * 200))
    assert [result.score for result in results] == [50_000.0] * 200
    assert len(results[-1].parts) == 51


def test_children_import_neither_torch_nor_pydantic(tmp_path: Path) -> None:
    body = "import sys\nreturn float(any(name in sys.modules for name in ('torch', 'pydantic', 'ray')))"
    with RewardPool(run_config({"kind": "math"}, custom=write(tmp_path, body))) as pool:
        assert pool.score(requests("1", truth="1"))[0].parts["custom"] == 0.0


def test_works_from_a_thread_beside_other_threads(tmp_path: Path) -> None:
    # A Ray actor runs methods in threads of its own.
    found: list[float] = []

    def use() -> None:
        with RewardPool(run_config({"kind": "exact"})) as pool:
            found.append(pool.score(requests("a"))[0].score)

    threads = [threading.Thread(target=use) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert found == [1.0] * 3


def test_nothing_stays_open(tmp_path: Path) -> None:
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    with RewardPool(run_config({"kind": "exact"}, num_processes=2)) as pool:
        pool.score(requests("a", "b"))
    before = descriptors()
    for _ in range(3):
        with RewardPool(run_config({"kind": "exact"}, num_processes=2)) as pool:
            pool.score(requests("a", "b"))
    assert descriptors() == before


HOLDER = """
import sys, time
from pathlib import Path
from tests.trainer.rewards.support import requests, run_config
from rltrain.rewards.pool import RewardPool
pool = RewardPool(run_config(custom=Path(sys.argv[1]), timeout_s=100))
pool.check()
print([child.pid for child in pool._children][0], flush=True)
pool.score(requests("a"))
"""


def test_children_die_with_a_pool_that_is_killed_even_in_c_code(tmp_path: Path) -> None:
    marker = tmp_path / "grandchild"
    body = f"""
    child = subprocess.Popen(['sleep', '300'])
    open({str(marker)!r}, 'w').write(str(child.pid))
    10 ** (10 ** 9)  # one C call that takes minutes
    """
    path = write(tmp_path, body, "import subprocess")
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdout=subprocess.PIPE, text=True, env=base_environ()
    ) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        wait_until(lambda: marker.exists() and marker.read_text() != "")
        holder.kill()
    wait_until(lambda: not alive(pid) and not alive(int(marker.read_text())))


def wait_until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "it did not happen within 20 s"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether the process runs; one that only waits to be reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


TERMINATES = """
    import multiprocessing, os, signal, subprocess, sys, time
    for start in ("fork", "spawn"):
        process = multiprocessing.get_context(start).Process(target=time.sleep, args=(600,))
        process.start()
        time.sleep(0.2)
        process.terminate()
        process.join(10)
        assert process.exitcode == -signal.SIGTERM, (start, process.exitcode)
    command = subprocess.Popen(["sleep", "600"])
    command.terminate()
    assert command.wait(10) == -signal.SIGTERM
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(os.getpid(), number)
    return 1.0
"""


def test_signals_to_every_process_leave_rewards_alone_and_not_what_a_function_starts(tmp_path: Path) -> None:
    """Slurm signals every process of a job, and the run may still have a step to score; `terminate` is a signal too."""
    path = write(tmp_path, TERMINATES.strip("\n"))
    with RewardPool(run_config(custom=path, num_processes=1, timeout_s=60.0)) as pool:
        assert [result.score for result in pool.score(requests("a"))] == [1.0]
        assert pool.num_retries == 0


def test_samples_are_scored_while_others_are_still_to_come(tmp_path: Path) -> None:
    """In any order of arrival; the results are in the order of their places."""
    noted = tmp_path / "scored"
    path = write(tmp_path, f"open({str(noted)!r}, 'a').write(solution_str)\nreturn float(len(solution_str))")
    asked = requests("a", "bb", "ccc")
    with RewardPool(run_config(custom=path)) as pool:
        with pool.scoring(3) as scoring:
            scoring.add({2: asked[2]})
            deadline = time.monotonic() + 60
            while not noted.exists() or noted.read_text() != "ccc":
                assert time.monotonic() < deadline
                scoring.add({})
                time.sleep(0.01)
            scoring.add({1: asked[1], 0: asked[0]})
            assert [one.score for one in scoring.finish()] == [1.0, 2.0, 3.0]
        assert [one.score for one in pool.score(asked)] == [1.0, 2.0, 3.0], "the pool is as it was"
