"""Programs of a user's own that take a trainer's options, and what a script tells torch's allocator."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.measure.config.errors import ReadError
from rlcheck.measure.config.fields import actual
from rlcheck.measure.config.read import read_run
from rlcheck.measure.config.shell import grows_segments

OPTIONS = (
    "--model_name_or_path Org/Some --output_dir out --per_device_train_batch_size 2 --gradient_accumulation_steps 4 "
)


@pytest.mark.parametrize("launcher", ["accelerate launch --num_processes 4", "torchrun --nproc_per_node 4", "python3"])
def test_a_program_with_options_of_trl_is_read_as_its(launcher: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(
        f"{launcher} src/mine/grpo.py {OPTIONS} --num_generations 8 --max_completion_length 512 --reward_names format\n"
    )
    run = read_run(str(tmp_path / "run.sh"), [], look=False)
    assert run.framework == "trl"
    assert (actual(run, "actor.micro_batch_size"), actual(run, "rollout.n")) == (2, 8)
    assert actual(run, "data.max_response_length") == 512
    assert (run.spec.gpus_per_node == 4) is (launcher != "python3")
    assert any("by its options, it is read as a program of TRL" in note for note in run.notes)
    assert any("--reward_names is taken for an option of the program itself" in note for note in run.notes)
    assert not run.problems


@pytest.mark.parametrize(
    "options", [OPTIONS, "--num_generations 8 --max_completion_length 512", "--learning_rate 1 --beta 0.1"]
)
def test_a_program_that_may_be_anybodys_is_not(options: str, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(f"accelerate launch src/mine/train_it.py {options}\n")
    with pytest.raises(ReadError, match="no command in it starts"):
        read_run(str(tmp_path / "run.sh"), [], look=False)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", True),
        ('PYTORCH_ALLOC_CONF="max_split_size_mb:64,expandable_segments:true" trl grpo', True),
        ("export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:False", False),
        ("# export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True", None),
        ("export PYTORCH_CUDA_ALLOC_CONF=max_split_size_mb:64", None),
    ],
)
def test_what_a_script_tells_the_allocator(line: str, told: bool | None, tmp_path: Path) -> None:
    assert grows_segments(f"set -x\n{line}\ntrue\n") is told
    (tmp_path / "run.sh").write_text(f"{line}\ntrl grpo {OPTIONS}\n")
    assert read_run(str(tmp_path / "run.sh"), [], look=False).spec.expandable_segments is bool(told)
