"""What cannot be loaded is found when the pool starts, in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from rltrain.core.errors import UserError
from rltrain.rewards.pool import RewardPool
from tests.trainer.rewards.support import request, run_config, write


def start_error(path: Path, **config: object) -> str:
    with RewardPool(run_config(custom=path, **config)) as pool:  # type: ignore[arg-type]
        with pytest.raises(UserError) as error:
            pool.check()
        assert "\n" not in str(error.value)
        return str(error.value)


def test_missing_file(tmp_path: Path) -> None:
    assert "there is no file" in start_error(tmp_path / "none.py")


def test_not_python(tmp_path: Path) -> None:
    path = tmp_path / "reward.txt"
    path.write_text("1")
    assert "its name must end in .py" in start_error(path)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        ("import no_such_module_here", "reward.py:1 raised ModuleNotFoundError: No module named"),
        ("def f(:", "reward.py:1: invalid syntax"),
        ("import sys; sys.exit(3)", "reward.py:1 raised SystemExit: 3"),
        ("import os; os._exit(3)", "ended its process with exit code 3"),
        ("raise ValueError('two\\nlines')", r"raised ValueError: two\nlines"),
    ],
)
def test_import_that_fails(tmp_path: Path, head: str, words: str) -> None:
    assert words in start_error(write(tmp_path, "return 1", head))


def test_import_that_hangs(tmp_path: Path) -> None:
    path = write(tmp_path, "return 1", "import time; time.sleep(60)")
    assert "took longer than reward_model.start_timeout_s = 1 s" in start_error(path, start_timeout_s=1.0)


def test_missing_function_names_those_that_exist(tmp_path: Path) -> None:
    words = start_error(write(tmp_path, "return 1"), name="score")
    assert "has no function 'score'; it has compute_score" in words


def test_wrong_signature(tmp_path: Path) -> None:
    path = tmp_path / "reward.py"
    path.write_text("def compute_score(solution, truth):\n    return 1\n")
    assert "compute_score(solution, truth)" in start_error(path)
    good = write(tmp_path, "return 1")
    assert "got an unexpected keyword argument 'scale'" in start_error(good, reward_kwargs={"scale": 2})


def test_a_good_file_with_a_neighbour_and_kwargs(tmp_path: Path) -> None:
    (tmp_path / "rltrain_neighbour.py").write_text("ONE = 1.0\n")
    path = tmp_path / "reward.py"
    path.write_text(
        "from dataclasses import dataclass\nimport rltrain_neighbour\n"
        "@dataclass\nclass Answer:\n    value: float\n"
        "def grade(data_source, solution_str, ground_truth, extra_info=None, scale=1.0, **more):\n"
        "    return Answer(scale * rltrain_neighbour.ONE + extra_info['bonus']).value\n"
    )
    with RewardPool(run_config(custom=path, name="grade", reward_kwargs={"scale": 0.5, "x": 1})) as pool:
        pool.check()
        (result,) = pool.score([request(extra_info={"bonus": 0.25})])
    assert (result.score, result.parts) == (0.75, {"custom": 0.75})
