"""Functions that hang, crash, flood, fork: the error names the sample, and the pool works on."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from rltrain.core.errors import UserError
from rltrain.rewards.pool import RewardPool
from tests.conftest import base_environ
from tests.trainer.rewards.support import requests, run_config, write
from tests.trainer.rewards.test_pool import alive, wait_until

TEXTS = [*"aaaaaaaaa", "bad\nline", *"aaaaaaaaaaaaaaa"]
SAMPLE = "sample 0-9/0 (data_source 'toy', response \"bad\\nline\")"


def fails(directory: Path, body: str, head: str = "import os, sys, time, signal", **config: float) -> str:
    """The words of the error when `body` runs for sample 9 alone; the pool must score the others afterwards."""
    indented = "\n    ".join(body.strip("\n").splitlines())
    path = write(directory, f"if solution_str.startswith('bad'):\n    {indented}\nreturn 1.0", head)
    with RewardPool(run_config(custom=path, num_processes=2, **config)) as pool:
        with pytest.raises(UserError) as error:
            pool.score(requests(*TEXTS))
        assert [r.score for r in pool.score(requests(*["a"] * 20))] == [1.0] * 20
    words = str(error.value)
    assert words.endswith(SAMPLE), words
    assert "\n" not in words
    assert "function 'compute_score'" in words
    assert "reward.py" in words
    return words


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ("raise KeyError('answer')", "reward.py:5 raised KeyError: 'answer'"),
        ("raise ValueError('two\\nlines')", r"reward.py:5 raised ValueError: two\nlines"),
        ("sys.exit(4)", "reward.py:5 raised SystemExit: 4"),
        ("raise KeyboardInterrupt", "reward.py:5 raised KeyboardInterrupt"),
        ("return None", "reward.py:3 returned None"),
        ("return float('nan')", "reward.py:3 returned nan"),
        ("return {'acc': 1}", "a dict without 'score'"),
        ("return 'good'", "returned str 'good'"),
        ("input()", "reward.py:5 raised EOFError"),
        ("os._exit(7)", "ended its process with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "ended its process by SIGKILL (out of memory?)"),
        ("import ctypes; ctypes.string_at(0)", "ended its process by SIGSEGV"),
        ("os.closerange(3, 65536); time.sleep(30)", "closed the channel"),
    ],
)
def test_the_error_names_the_sample(tmp_path: Path, body: str, words: str) -> None:
    assert words in fails(tmp_path, body)


@pytest.mark.parametrize("body", ["time.sleep(60)", "while True: pass", "10 ** (10 ** 9)", "os.kill(os.getpid(), 19)"])
def test_a_hang_is_killed_and_named(tmp_path: Path, body: str) -> None:
    started = time.monotonic()
    words = fails(tmp_path, body, timeout_s=0.5)
    assert "took longer than reward_model.timeout_s = 0.5 s" in words
    assert time.monotonic() - started < 10


@pytest.mark.parametrize("kind", ["regex", "format"])
def test_a_pattern_that_tries_for_ever_is_a_hang(kind: str) -> None:
    """2^40 ways to split the text; the pattern is harmless where it matches."""
    with RewardPool(run_config({"kind": kind, "pattern": "(a+)+b"}, timeout_s=0.5)) as pool:
        with pytest.raises(UserError) as error:
            pool.score(requests("ab", "a" * 40, "ab"))
        words = f"reward rule '{kind}' took longer than reward_model.timeout_s = 0.5 s; sample 0-1/0 "
        assert str(error.value).startswith(words)
        assert [result.score for result in pool.score(requests("ab", "b"))] == [1.0, 0.0]


def test_many_calls_may_take_longer_together_than_the_limit(tmp_path: Path) -> None:
    path = write(tmp_path, "time.sleep(0.1)\nreturn 1.0", "import time")
    with RewardPool(run_config(custom=path, timeout_s=0.5)) as pool:
        assert len(pool.score(requests(*"abcdefghij"))) == 10


def test_of_several_failures_the_first_in_order_is_told(tmp_path: Path) -> None:
    # The last list fails at once, the first one only after a while.
    body = """
    time.sleep(0.3 if solution_str == '2' else 0)
    if solution_str in ('2', '7'):
        raise ValueError(solution_str)
    return 1.0
    """
    path = write(tmp_path, body, "import time")
    for num_processes in (1, 2, 4):
        with (
            RewardPool(run_config(custom=path, num_processes=num_processes)) as pool,
            pytest.raises(UserError, match="ValueError: 2; sample 0-2/0"),
        ):
            pool.score(requests(*"01234567"))


def test_after_a_failure_nobody_waits_for_later_samples(tmp_path: Path) -> None:
    body = """
    if solution_str == '0':
        raise ValueError('first')
    time.sleep(60)
    """
    path = write(tmp_path, body, "import time")
    started = time.monotonic()
    with (
        RewardPool(run_config(custom=path, num_processes=2)) as pool,
        pytest.raises(UserError, match="ValueError: first"),
    ):
        pool.score(requests(*"01234567"))
    assert time.monotonic() - started < 20


FLOOD = """
import sys
from pathlib import Path
from tests.trainer.rewards.support import requests, run_config
from rltrain.rewards.pool import RewardPool
with RewardPool(run_config(custom=Path(sys.argv[1]))) as pool:
    print([result.score for result in pool.score(requests("a", "b"))])
"""


def test_what_a_function_prints_goes_to_standard_error(tmp_path: Path) -> None:
    body = """
    print('x' * 1_000_000)
    os.write(1, b'y' * 1_000_000)
    sys.stdout.close()
    subprocess.run(['echo', 'from a command'])
    return 0.5
    """
    path = write(tmp_path, body.replace("sys.stdout.close()", "sys.stdout.flush()"), "import os, subprocess, sys")
    done = subprocess.run(
        [sys.executable, "-c", FLOOD, str(path)],
        env=base_environ(),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stdout == "[0.5, 0.5]\n"
    assert done.stderr.count("x") >= 2_000_000
    assert done.stderr.count("y") >= 2_000_000
    assert done.stderr.count("from a command") == 2


def test_a_function_that_closes_its_own_output_still_counts(tmp_path: Path) -> None:
    path = write(tmp_path, "sys.stdout.close()\nos.close(1)\nreturn 1.0", "import os, sys")
    with RewardPool(run_config(custom=path)) as pool:
        assert pool.score(requests("a"))[0].score == 1.0


def test_a_fork_that_comes_back_from_the_call_does_not_answer(tmp_path: Path) -> None:
    path = write(tmp_path, "return 1.0 if os.fork() else 0.0", "import os")
    with RewardPool(run_config(custom=path)) as pool:
        for _ in range(3):
            assert [r.score for r in pool.score(requests(*"abcdef"))] == [1.0] * 6


LEFT_BEHIND = """
ids = []
for new_session in (False, True):
    ids.append(subprocess.Popen(['sleep', '300'], start_new_session=new_session).pid)
threading.Thread(target=time.sleep, args=(300,)).start()
with open({marker!r}, 'w') as file:
    file.write(' '.join(map(str, ids)))
"""


@pytest.mark.parametrize("hang", [False, True])
def test_what_a_function_leaves_behind_ends_with_its_process(tmp_path: Path, hang: bool) -> None:
    marker = tmp_path / "pids"
    body = LEFT_BEHIND.format(marker=str(marker)) + ("time.sleep(300)" if hang else "return 1.0")
    path = write(tmp_path, body, "import subprocess, threading, time")
    with RewardPool(run_config(custom=path, timeout_s=1.0)) as pool:
        if hang:
            with pytest.raises(UserError, match="took longer"):
                pool.score(requests("a"))
        else:
            assert pool.score(requests("a"))[0].score == 1.0
            assert all(alive(int(pid)) for pid in marker.read_text().split())
    pids = [int(pid) for pid in marker.read_text().split()]
    assert len(pids) == 2
    wait_until(lambda: not any(alive(pid) for pid in pids))


def test_a_process_that_dies_between_batches_is_replaced(tmp_path: Path) -> None:
    body = "threading.Timer(0.3, lambda: os._exit(9)).start()\nreturn 1.0"
    path = write(tmp_path, body, "import os, threading")
    with RewardPool(run_config(custom=path)) as pool:
        assert pool.score(requests("a"))[0].score == 1.0
        time.sleep(0.6)
        assert pool.score(requests("a"))[0].score == 1.0
