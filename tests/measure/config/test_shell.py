"""The command of a run in a script: arrays, defaults of variables, sums, quotes, conditions."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlcheck.measure.config import fields
from rlcheck.measure.config.read import read_run
from rlcheck.measure.config.shell import launch_in

SCRIPT = r"""#!/usr/bin/env bash
set -xeuo pipefail
# ---- settings ----
MODEL=${MODEL:-Org/Some-1B}
NGPUS=${NGPUS:-${OTHER_GPUS:-4}}
prompt=$((1024 * 2))
longest=$((prompt + 512))
file=/data/a.parquet
files="['$file', '/data/b.parquet']"
NAME=${NAME:-run_$(date +%Y%m%d)}
case "$MODE" in
    a) tp=2 ;;
    b) tp=4 ;;
esac
DATA=(
    algorithm.adv_estimator=grpo
    data.train_files="$files"     # two of them
    data.max_prompt_length=${prompt}
)
EXTRA=(
)
LAUNCH=(python3)
if [ "${USE_UV:-1}" != 0 ]; then
    LAUNCH=(uv run python3)
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo --config-name=ppo_trainer \
    "${DATA[@]}" \
    actor_rollout_ref.model.path="$MODEL" \
    actor_rollout_ref.rollout.name=vllm \
    actor_rollout_ref.rollout.tensor_model_parallel_size=$tp \
    actor_rollout_ref.rollout.max_num_batched_tokens=$longest \
    data.truncation='error' \
    trainer.logger='["console","wandb"]' trainer.n_gpus_per_node=${NGPUS} trainer.nnodes=$WORLD \
    trainer.experiment_name=${NAME} "${EXTRA[@]}" "$@"
echo done
"""


def test_a_script_is_followed_and_what_only_the_shell_knows_is_said(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    path.write_text(SCRIPT)
    facts = read_run(str(path), ["data.train_batch_size=8"], look=False)
    spec = facts.spec
    assert (facts.framework, spec.actor.model.path, spec.gpus_per_node) == ("verl", "Org/Some-1B", 4)
    assert spec.data.train_files == ("/data/a.parquet", "/data/b.parquet")
    assert (spec.data.max_prompt_length, spec.rollout.max_batched_tokens) == (2048, 2560)
    assert (spec.loggers, spec.data.truncation, spec.data.train_batch_size) == (("console", "wandb"), "error", 8)
    assert spec.experiment == "run_$(date +%Y%m%d)"
    assert spec.rollout.tensor_parallel == 2
    notes = "\n".join(facts.notes)
    assert "$WORLD is not set in the script" in notes
    assert "$tp depends on a condition" in notes
    assert "$(date +%Y%m%d) is not run" in notes
    assert [(p.kind, p.key) for p in facts.problems] == [("unresolved", "trainer.nnodes")]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("python -m verl.trainer.main_ppo a.b=1 c='x y' d=\"[1, 2]\" # a.b=2", ["a.b=1", "c=x y", "d=[1, 2]"]),
        ("A=1 python3 -m verl.trainer.main_ppo a=${B:-'q'} $@", ["a=q"]),
        ("ray job submit -- python3 -m verl.trainer.main_ppo a=1 2>&1 | tee log", ["a=1"]),
        ("B=3; python verl/trainer/main_ppo.py a=$B +b.c=$((B * 2 - 1)) ~d", ["a=3", "+b.c=5", "~d"]),
        ('X="a=1 b=2"\npython -m verl.trainer.main_ppo $X', ["a=1", "b=2"]),
        ("python -m verl.trainer.main_ppo a='${trainer.nnodes}' b=\\\"q\\\"", ["a=${trainer.nnodes}", 'b="q"']),
    ],
)
def test_words_are_split_as_the_shell_splits_them(line: str, words: list[str]) -> None:
    launch = launch_in("x", line)
    assert launch is not None
    assert launch.words == words


def test_a_line_of_rltrain_and_a_named_config_beside_the_script(tmp_path: Path) -> None:
    facts = read_run("rltrain run toy-grpo trainer.n_gpus_per_node=2", [], look=False)
    assert (facts.framework, facts.spec.gpus_per_node) == ("rltrain", 2)
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "mine.yaml").write_text("defaults: [ppo_trainer, _self_]\ndata: {train_batch_size: 6}\n")
    line = f"python3 -m verl.trainer.main_ppo --config-path={tmp_path}/conf --config-name mine data.max_prompt_length=7"
    spec = read_run(line, [], look=False).spec
    assert (spec.data.train_batch_size, spec.data.max_prompt_length) == (6, 7)


def test_a_yaml_that_only_mentions_the_command_is_no_script() -> None:
    assert launch_in("x.yaml", "# for rltrain\ntrainer:\n  total_epochs: 1\n") is None


def test_overrides_of_a_script_have_their_line_and_column(tmp_path: Path) -> None:
    script = tmp_path / "train.sh"
    script.write_text(
        "ARGS=(\n  trainer.nnodes=2\n)\n# trainer.n_gpus_per_node=1\npython3 -m verl.trainer.main_ppo \\\n"
        '  trainer.n_gpus_per_node=4 actor_rollout_ref.actor.clip_ration=0.3 \\\n  "${ARGS[@]}" $@\n'
    )
    facts = read_run(str(script), ["trainer.total_epochs=2"])
    assert fields.place_of(facts, "gpus_per_node") == f"{script}:6:3"
    assert fields.place_of(facts, "nodes") == f"{script}:2:3"
    assert fields.place_of(facts, "trainer.total_epochs") == "override trainer.total_epochs=2"
    [unknown] = [one for one in facts.problems if one.key.endswith("clip_ration")]
    assert (unknown.place.line, unknown.place.column) == (6, 29)


KEPT = """read -r -d '' words <<EOF
openrlhf.cli.train_ppo --pretrain Org/Some-1B --zero_stage 3
EOF
{}
"""


@pytest.mark.parametrize(
    ("use", "is_found"),
    [
        ("deepspeed --num_gpus 2 --module $words", True),
        ("deepspeed --num_gpus 2 --module ${words}", True),
        ("echo '$words'", False),
        ("deepspeed --module $words_of_mine", False),
    ],
)
def test_a_text_that_is_read_into_a_variable_is_words_where_it_stands(use: str, is_found: bool) -> None:
    launch = launch_in("run.sh", KEPT.format(use))
    assert (launch is not None and launch.words[:2] == ["--pretrain", "Org/Some-1B"]) is is_found


@pytest.mark.parametrize(
    ("before", "gpus"),
    [
        ("deepspeed --num_gpus 4 --module", 4),
        ("deepspeed --num_gpus=4 --num_nodes=2 --module", 4),
        ("deepspeed -i localhost:0,2 --module", 2),
        ("CUDA_VISIBLE_DEVICES=1,2,3 deepspeed --module", 3),
        ("CUDA_VISIBLE_DEVICES=1,2,3 torchrun --nproc_per_node 2 -m", 2),
        ("deepspeed --include one:0,1@two:0,1 --module", None),
        ("deepspeed --module", None),
    ],
)
def test_how_many_gpus_a_launcher_is_told(before: str, gpus: int | None) -> None:
    run = read_run(f"{before} openrlhf.cli.train_ppo --pretrain Org/Some-1B --zero_stage 2", [], look=False)
    assert (run.spec.gpus_per_node == gpus and "gpus_per_node" not in run.without) is (gpus is not None)
